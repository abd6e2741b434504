"""Searches for the changes that save the most, alone and together.

Each candidate is carried to rest alone. Those that save are then added to one another, the best
first, and an addition stays if it saves more. What saves nothing alone may save with others: such
candidates are tried once more with the best combination. Evaluations are independent of each
other, so the number of processes changes nothing but the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

from reconciler.cli.advice.candidates import AdviceCandidate
from reconciler.cli.advice.changes import DesiredChange
from reconciler.cli.advice.judging import LEAST_SAVING, ChangeVerdict, Judge

ADDITIONS_MAX: Final = 8
"""How many candidates that save alone are added to a combination, one after another."""
NEUTRAL_MAX: Final = 4
"""How many that save nothing alone are then added."""

Selection = tuple[AdviceCandidate, ...]
JudgeAll = Callable[[Sequence[Selection]], Sequence[ChangeVerdict]]


@dataclass(frozen=True, slots=True)
class Judged:
    """Candidates made together, and what they come to."""

    members: Selection
    verdict: ChangeVerdict

    @property
    def order(self) -> tuple[float, str]:
        """The sort key: the largest saving first, ties by name."""
        return round(self.verdict.per_month, 2), " ".join(c.id for c in self.members)


@dataclass(frozen=True, slots=True)
class Findings:
    """Every candidate alone, the best combination, and how many fleets were carried to rest."""

    alone: tuple[Judged, ...]
    together: Judged | None
    evaluations: int


def chosen(
    candidates: Sequence[AdviceCandidate], most: int, seed: int
) -> tuple[Selection, tuple[AdviceCandidate, ...]]:
    """Return at most ``most`` candidates, and those left out.

    Where there are more, the seed decides, topic by topic in turn.
    """
    if len(candidates) <= most:
        return tuple(candidates), ()
    drawn = random.Random(seed)  # noqa: S311 - chance, not a secret
    topics: dict[str, list[AdviceCandidate]] = {}
    for candidate in candidates:
        topics.setdefault(candidate.topic, []).append(candidate)
    for members in topics.values():
        drawn.shuffle(members)
    turns = [
        candidate
        for turn in range(max(map(len, topics.values())))
        for members in topics.values()
        if turn < len(members)
        for candidate in (members[turn],)
    ]
    taken = {candidate.id for candidate in turns[:most]}
    inside = tuple(c for c in candidates if c.id in taken)
    return inside, tuple(c for c in candidates if c.id not in taken)


def searched(judge: Judge, candidates: Selection, workers: int) -> Findings:
    """Return what the candidates save, alone and together."""
    with _judges(judge, workers) as judge_all:
        verdicts = judge_all([(candidate,) for candidate in candidates])
        alone = tuple(
            Judged((candidate,), verdict)
            for candidate, verdict in zip(candidates, verdicts, strict=True)
        )
        together = _together(judge_all, alone)
    return Findings(alone, together, judge.evaluations)


def _together(judge_all: JudgeAll, alone: Sequence[Judged]) -> Judged | None:
    """Return the best combination of at least two candidates, None without one."""
    saving = sorted((one for one in alone if is_advice(one)), key=lambda one: one.order)
    if not saving:
        return None
    best = saving[0]
    neutral = [one for one in alone if not one.verdict.refusal and not one.verdict.saves]
    for group in (saving[1 : ADDITIONS_MAX + 1], neutral[:NEUTRAL_MAX]):
        for one in group:
            members = (*best.members, *one.members)
            if _overlap(members):
                continue
            found = Judged(members, judge_all([members])[0])
            gained = best.verdict.per_month - found.verdict.per_month
            if is_advice(found) and gained >= LEAST_SAVING:
                best = found
    return best if len(best.members) > 1 else None


def is_advice(one: Judged) -> bool:
    """Return whether it saves and keeps all limits."""
    return one.verdict.saves and not one.verdict.refusal


def _overlap(members: Selection) -> bool:
    """Return whether a change is in two candidates: the later one would not be what it says."""
    changes = [change for candidate in members for change in candidate.changes]
    return len(set(changes)) < len(changes)


# Processes. They are forked, so that all judge one observation of the fleet.


_forked: Judge | None = None


@contextmanager
def _judges(judge: Judge, workers: int) -> Iterator[JudgeAll]:
    """Give a function that judges selections, in ``workers`` processes where that is more than one.

    The base is at rest before the processes begin, so it is carried there once.
    """
    if workers < 2:
        yield lambda selections: [judge.judged(_changes(s)) for s in selections]
        return
    global _forked  # noqa: PLW0603 - a forked process has no other way to values not pickled
    _forked = judge
    assert judge.exposure is not None, "worked out before the processes begin"
    assert judge.at_rest is not None, "worked out before the processes begin"
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:

            def judge_all(selections: Sequence[Selection]) -> Sequence[ChangeVerdict]:
                if len(selections) == 1:  # not worth the way to another process
                    return [judge.judged(_changes(selections[0]))]
                found = list(pool.map(_judged_in_process, selections))
                judge.evaluations += sum(evaluations for _, evaluations in found)
                return [verdict for verdict, _ in found]

            yield judge_all
    finally:
        _forked = None


def _judged_in_process(selection: Selection) -> tuple[ChangeVerdict, int]:
    assert _forked is not None, "the process was forked with it"
    before = _forked.evaluations
    verdict = _forked.judged(_changes(selection))
    return verdict, _forked.evaluations - before


def _changes(selection: Selection) -> list[DesiredChange]:
    return [change for candidate in selection for change in candidate.changes]
