"""Searches for the changes that save the most, alone and together.

Each candidate is carried to rest alone. Those that save are then added to one another, the best
first, and an addition stays if it saves more. What saves nothing alone may save with others: such
candidates are tried once more with the best combination.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.cli.advice.candidates import AdviceCandidate
from reconciler.cli.advice.changes import DesiredChange, digests_of_files, with_changes
from reconciler.cli.advice.judging import LEAST_SAVING, ChangeVerdict, Judge
from reconciler.cli.sweeps.evaluation import address_of
from reconciler.cli.sweeps.sweep import Sweep
from reconciler.source.rewrite import RewriteError

Selection = tuple[AdviceCandidate, ...]


@dataclass(frozen=True)
class Judgements:
    """Selections of candidates, each judged by itself (``sweeps.evaluation.Evaluations``)."""

    judge: Judge

    @property
    def result(self) -> type[ChangeVerdict]:
        """The type of the results."""
        return ChangeVerdict

    def evaluate(self, key: Selection) -> ChangeVerdict:
        """Judge the changes of all candidates of a selection together."""
        return self.judge.judged(_changes(key))

    def address(self, key: Selection) -> str | None:
        """Return the address of a verdict, None where the changes cannot be made in the files."""
        try:
            files = with_changes(self.judge.files, _changes(key))
        except RewriteError:
            return None
        return address_of("judgement", digests_of_files(files), self.judge.facts)


def _changes(selection: Selection) -> list[DesiredChange]:
    return [change for candidate in selection for change in candidate.changes]


ADDITIONS_MAX: Final = 8
"""How many candidates that save alone are added to a combination, one after another."""
NEUTRAL_MAX: Final = 4
"""How many that save nothing alone are then added."""

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


def searched(judge: Judge, candidates: Selection, sweep: Sweep) -> Findings:
    """Return what the candidates save, alone and together."""
    work, carried = Judgements(judge), 1  # the present fleet

    def judge_all(selections: Sequence[Selection]) -> Sequence[ChangeVerdict]:
        nonlocal carried
        found = sweep.evaluated(work, selections)
        carried += sum(verdict.at_rest is not None for verdict in found)
        return found

    verdicts = judge_all([(candidate,) for candidate in candidates])
    alone = tuple(
        Judged((candidate,), verdict)
        for candidate, verdict in zip(candidates, verdicts, strict=True)
    )
    return Findings(alone, _together(judge_all, alone), carried)


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
