"""Searches for the changes that save the most, alone and together.

Each candidate is carried to rest alone, up to the work limit: those under which the pods' nodes
could cost the least come first. Those that save are then combined, the best first, and
an addition is kept if it saves more. A candidate that saves nothing alone may save with others:
such candidates are tried with the best combination, first all together and then, if that saves, one
by one. Combinations are far from rest and cause most of the work, so only the best of several
alternatives is added, and no candidate that saves almost nothing alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Final

from reconciler.advise.candidates import AdviceCandidate
from reconciler.advise.changes import DesiredChange, digests_of_files, with_changes
from reconciler.advise.evaluating import LEAST_SAVING, ChangeVerdict, Judge
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.grouping import group_by
from reconciler.source.rewrite import RewriteError
from reconciler.sweep.evaluation import address_of
from reconciler.sweep.sweep import Sweep

Selection = tuple[AdviceCandidate, ...]

_FILES_WORK: Final = 6_000_000
"""The work of all changes of files alone, in evaluated nodes: about 25 CPU seconds."""
_WORKLOADS_WORK: Final = 1_500_000
"""The work of all constraints of workloads."""
_COMBINING_WORK: Final = 2_000_000
"""The work of combinations, beyond which no more are tried."""
_SAMPLE: Final = 4
"""How many candidates are evaluated at least before their work decides how many more are."""
ADDITIONS_MAX: Final = 8
"""How many candidates that save alone are added to a combination, one after another."""
NEUTRAL_MAX: Final = 4
"""How many candidates that save nothing alone are then added."""
LEAST_SHARE: Final = 0.001
"""A candidate that saves less than this share of the current cost alone is not added."""


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
        workload = key[0].workload
        if workload is not None:
            return self.judge.judge_without_constraint(workload.constraint)
        return self.judge.judge_changes(_changes(key))

    def address(self, key: Selection) -> str | None:
        """Return the address of a verdict, None if the files cannot be changed."""
        workload = key[0].workload
        if workload is not None:
            constraint = workload.constraint
            return address_of(
                "constraint", constraint.owner, constraint.constraint, self.judge.facts
            )
        try:
            files = with_changes(self.judge.files, _changes(key))
        except RewriteError:
            return None
        return address_of("judgement", digests_of_files(files), self.judge.facts)


def _changes(selection: Selection) -> list[DesiredChange]:
    return [change for candidate in selection for change in candidate.changes]


JudgeAll = Callable[[Sequence[Selection]], Sequence[ChangeVerdict] | None]
"""Returns the verdicts, None if the work limit has been reached."""


@dataclass(frozen=True, slots=True)
class JudgedChanges:
    """Candidates that are applied together, and their verdict.

    ``over_time`` is the saving in the backtest of a change without an effect at rest, USD a month.
    """

    members: Selection
    verdict: ChangeVerdict
    over_time: float | None = None

    @property
    def per_month(self) -> float:
        """The change of the cost in USD a month."""
        return self.verdict.per_month if self.over_time is None else self.over_time

    @property
    def saves(self) -> bool:
        """Whether it saves enough to be advice."""
        return self.per_month <= -LEAST_SAVING

    @property
    def concerns_workload(self) -> bool:
        """Whether it removes a constraint of a workload, and changes no file."""
        return self.members[0].workload is not None

    @property
    def order(self) -> tuple[float, str]:
        """The sort key: the largest saving first, ties by name."""
        return round(self.per_month, 2), " ".join(c.id for c in self.members)


@dataclass(frozen=True, slots=True)
class Findings:
    """Every evaluated candidate alone, the best combination, and how many fleets came to rest.

    ``skipped`` are the candidates that were not evaluated because of the work limit.
    """

    alone: tuple[JudgedChanges, ...]
    together: JudgedChanges | None
    evaluations: int
    skipped: Selection = ()


def select_candidates(
    candidates: Sequence[AdviceCandidate], most: int, seed: int
) -> tuple[Selection, tuple[AdviceCandidate, ...]]:
    """Return at most ``most`` candidates, and those left out.

    If there are more, the seed selects them, from each topic in turn.
    """
    if len(candidates) <= most:
        return tuple(candidates), ()
    selected = {candidate.id for candidate in islice(_in_turns(candidates, seed), most)}
    inside = tuple(c for c in candidates if c.id in selected)
    return inside, tuple(c for c in candidates if c.id not in selected)


def _in_turns(candidates: Sequence[AdviceCandidate], seed: int) -> Iterator[AdviceCandidate]:
    """Yield candidates of each topic in turn, those of one topic in the order of chance."""
    chance = random.Random(seed)  # noqa: S311 - chance, not a secret
    topics = group_by(candidates, lambda candidate: candidate.topic)
    for members in topics.values():
        chance.shuffle(members)
    for turn in zip_longest(*topics.values()):
        yield from (candidate for candidate in turn if candidate is not None)


def search_changes(judge: Judge, candidates: Selection, sweep: Sweep) -> Findings:
    """Return the savings of the candidates, alone and together."""
    work, evaluated, used = Judgements(judge), 1, 0  # the current fleet

    def judge_all(selections: Sequence[Selection]) -> Sequence[ChangeVerdict]:
        nonlocal evaluated, used
        found = sweep.evaluate_all(work, selections)
        evaluated += sum(verdict.at_rest is not None for verdict in found)
        used += sum(verdict.work for verdict in found)
        return found

    def judge_combinations(selections: Sequence[Selection]) -> Sequence[ChangeVerdict] | None:
        return judge_all(selections) if used - alone_work < _COMBINING_WORK else None

    order = _most_promising_first(judge, candidates)
    known: dict[str, JudgedChanges] = {}

    def judge_each(group: Sequence[AdviceCandidate]) -> None:
        verdicts = judge_all([(candidate,) for candidate in group])
        for candidate, verdict in zip(group, verdicts, strict=True):
            known[candidate.id] = JudgedChanges((candidate,), verdict)

    def judge_within(work_max: int, group: Sequence[AdviceCandidate]) -> None:
        before, done, spent = used, 0, 0
        while done < len(group) and spent < work_max:
            affordable = (work_max - spent) * done // max(spent, 1)
            batch = group[done : done + max(affordable, _SAMPLE)]
            judge_each(batch)
            done, spent = done + len(batch), used - before

    judge_within(_FILES_WORK, [one for one in order if one.workload is None])
    judge_within(_WORKLOADS_WORK, [one for one in order if one.workload is not None])
    alone_work = used
    alone = tuple(known[candidate.id] for candidate in candidates if candidate.id in known)
    least = LEAST_SHARE * HOURS_A_MONTH * judge.at_rest.before.per_hour
    together = _best_combination(judge_combinations, alone, max(least, LEAST_SAVING))
    skipped = tuple(candidate for candidate in candidates if candidate.id not in known)
    return Findings(alone, together, evaluated, skipped)


def _most_promising_first(judge: Judge, candidates: Selection) -> list[AdviceCandidate]:
    """Return the candidates, those first under which any nodes for the pods could cost the least.

    That is known without a plan. Candidates of the same bound keep their order.
    """
    if len(candidates) <= _SAMPLE:
        return list(candidates)

    def least_cost(candidate: AdviceCandidate) -> float:
        if candidate.workload is not None:
            return judge.least_cost_without(candidate.workload.constraint)
        return judge.least_cost(candidate.changes)

    return sorted(candidates, key=lambda candidate: round(least_cost(candidate), 6))


def _best_combination(
    judge_all: JudgeAll, alone: Sequence[JudgedChanges], least: float
) -> JudgedChanges | None:
    """Return the best combination of at least two candidates, None without one.

    A candidate that saves less than ``least`` alone, in USD a month, is not added.
    """
    eligible = [one for one in alone if not one.concerns_workload]
    saving = sorted(filter(is_advice, eligible), key=attrgetter("order"))
    if not saving:
        return None
    more = [one for one in saving[1 : ADDITIONS_MAX + 1] if -one.per_month >= least]
    best = _extend_combination(judge_all, saving[0], _compatible_candidates(saving[0], more))
    neutral = [one for one in eligible if not one.verdict.refusal and not one.saves]
    compatible = _compatible_candidates(best, neutral)[:NEUTRAL_MAX]
    if compatible:
        best = _extend_with_neutral(judge_all, best, compatible)
    return best if len(best.members) > 1 else None


def _extend_with_neutral(
    judge_all: JudgeAll, best: JudgedChanges, neutral: Sequence[JudgedChanges]
) -> JudgedChanges:
    """Return the combination with candidates that save nothing alone, if they do together.

    All are judged at once before each is: mostly they save nothing.
    """
    members = (*best.members, *(member for one in neutral for member in one.members))
    verdicts = judge_all([members])
    if verdicts is None:
        return best
    found = JudgedChanges(members, verdicts[0])
    if not _saves_more(best, found) and not found.verdict.refusal:
        return best
    enough = found if is_advice(found) else None
    return _extend_combination(judge_all, best, neutral, enough)


def _extend_combination(
    judge_all: JudgeAll,
    best: JudgedChanges,
    group: Sequence[JudgedChanges],
    enough: JudgedChanges | None = None,
) -> JudgedChanges:
    """Return the combination with each candidate of a group that increases its savings.

    Nothing more is added once it saves as much as ``enough``.
    """
    for judged in group:
        members = (*best.members, *judged.members)
        if _are_alternatives(members):
            continue
        if enough is not None and not _saves_more(best, enough):
            break
        verdicts = judge_all([members])
        if verdicts is None:
            break
        found = JudgedChanges(members, verdicts[0])
        if is_advice(found) and _saves_more(best, found):
            best = found
    return best


def _compatible_candidates(
    best: JudgedChanges, group: Sequence[JudgedChanges]
) -> list[JudgedChanges]:
    """Return those of a group that can be applied together with the combination and each other."""
    members, found = list(best.members), []
    for judged in group:
        if not _are_alternatives((*members, *judged.members)):
            members += judged.members
            found.append(judged)
    return found


def _saves_more(before: JudgedChanges, after: JudgedChanges) -> bool:
    return before.per_month - after.per_month >= LEAST_SAVING


def is_advice(judged: JudgedChanges) -> bool:
    """Return whether it saves and keeps all limits."""
    return judged.saves and not judged.verdict.refusal


def _are_alternatives(members: Selection) -> bool:
    """Return whether two candidates change the same target."""
    targets = [change.target for candidate in members for change in candidate.changes]
    return len(set(targets)) < len(targets)
