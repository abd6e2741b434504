"""Makes a report of advice: reads the fleet, searches for changes, and states what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from reconciler.cli.advice.candidates import FAMILIES_MAX, AdviceCandidate, Topic, candidates
from reconciler.cli.advice.changes import Files
from reconciler.cli.advice.judging import Judge
from reconciler.cli.advice.proposals import proposal
from reconciler.cli.advice.result import (
    AdviceBacktest,
    AdviceReport,
    AdviceRequest,
    FleetNow,
    NotTried,
    RefusedAdvice,
)
from reconciler.cli.advice.search import (
    ADDITIONS_MAX,
    NEUTRAL_MAX,
    Findings,
    Judged,
    chosen,
    is_advice,
    searched,
)
from reconciler.cli.shared import policies, sources
from reconciler.cli.shared.question import read_inputs
from reconciler.cli.shared.timings import Timings
from reconciler.cli.sweeps.sweep import Progress, Sweep, unseen
from reconciler.desired.objects import node_pools
from reconciler.model.errors import UsageError
from reconciler.model.policy import PolicySource
from reconciler.plan.make.gather import facts_of
from reconciler.plan.policies import binding
from reconciler.plan.value.costs import HOURS_A_MONTH


@dataclass(frozen=True, slots=True)
class Advised:
    """The report, the files as they were read, and the judged proposals by their ids."""

    report: AdviceReport
    files: Files
    proposals: dict[str, Judged]


def advised(request: AdviceRequest, phase: Timings, progress: Progress = unseen) -> Advised:
    """Return the changes to a fleet's files that save the most.

    ``progress`` learns how far the search is.

    Raises:
        UsageError: an argument or setting is wrong.
        UnreadableError: an input cannot be read.
        InvalidFleetError: the desired state has errors.
    """
    _expect_files(request)
    judge = _judge(request, phase)
    with phase("catalog"):
        known = _candidates(judge)
    tried, left_out = chosen([c for c in known if not c.needs_trace], request.most, request.seed)
    with phase("disruption"):
        sweep = Sweep(request.sweep, progress)
        found = searched(judge, tried, sweep)
        tested = _backtested(judge, found, sweep)
    return _advised(judge, known, found, left_out, tested)


def _expect_files(request: AdviceRequest) -> None:
    """Refuse to read stdin again for each backtest.

    Raises:
        UsageError: the snapshot is to come from stdin, and there is a trace.
    """
    if request.trace is not None and request.fleet.snapshot == "-":
        remedy = "save the snapshot in a file"
        raise UsageError(
            "cannot be read from stdin with --trace", where="--snapshot", remedy=remedy
        )


Tested = Mapping[tuple[str, ...], AdviceBacktest]
"""Backtests by the ids of the candidates that make up a proposal."""


def _backtested(judge: Judge, found: Findings, sweep: Sweep) -> Tested:
    """Return the backtests of the best proposals, none without a trace."""
    request = judge.request
    if request.trace is None:
        return {}
    from reconciler.cli.advice.backtesting import Backtests

    best = _saving(found)[: request.backtested]
    if found.together is not None:
        best = [found.together, *best]
    backtests = Backtests.of(judge, request.trace)
    if not best:
        return {}
    results = backtests.of_all(best, sweep)
    return {_ids(one): result for one, result in zip(best, results, strict=True)}


def _saving(found: Findings) -> list[Judged]:
    return sorted((one for one in found.alone if is_advice(one)), key=lambda one: one.order)


def _ids(one: Judged) -> tuple[str, ...]:
    return tuple(member.id for member in one.members)


def _judge(request: AdviceRequest, phase: Timings) -> Judge:
    with phase("read"):
        operator = policies.policies_of_operator(request.fleet, request.policies)
        source = sources.read_source(request.fleet)
        fleet, _ = sources.read_desired(
            source,
            any_class=request.fleet.catalog is not None,
            allow_empty=request.fleet.may_be_empty,
        )
    inputs = replace(read_inputs(request.fleet, phase), fleet=fleet)
    # the present files are the base of every change, so a change cannot relax their policies
    own = [with_fields(policy, source=PolicySource.BASE) for policy in fleet.policies]
    with phase("disruption"):
        rules, layers = binding((*operator, *own)), sources.layers_of(request.fleet)
        return Judge(request, tuple(source.files), inputs, rules, layers)


def _candidates(judge: Judge) -> tuple[AdviceCandidate, ...]:
    inputs = judge.inputs
    types = facts_of(inputs).types.by_name
    return candidates(node_pools(inputs.fleet), types, inputs.catalog.types, inputs.settings)


def _advised(
    judge: Judge,
    known: Sequence[AdviceCandidate],
    found: Findings,
    left_out: Sequence[AdviceCandidate],
    tested: Tested,
) -> Advised:
    found = _within_limits(judge, found, tested)
    saving = _saving(found)
    advice = tuple(
        proposal(judge, one, rank, tested.get(_ids(one)))
        for rank, one in enumerate(saving, start=1)
    )
    together = None
    if found.together is not None:
        together = proposal(judge, found.together, 0, tested.get(_ids(found.together)))
    request, base, exposure = judge.request, judge.base, judge.exposure
    before = judge.at_rest.before
    report = AdviceReport(
        at=judge.inputs.now,
        fleet=judge.resolved.fleet,
        seed=request.seed,
        new_nodes=request.has_new_nodes,
        base=FleetNow(
            nodes=before.nodes,
            per_hour=before.per_hour,
            per_month=round(before.per_hour * HOURS_A_MONTH, 6),
            is_at_rest=base.rested,
            exposure=exposure,
        ),
        limits=judge.limits,
        advice=advice,
        together=together,
        refused=tuple(_refused(found.alone)),
        no_effect=tuple(
            one.members[0].id
            for one in found.alone
            if not one.verdict.saves and not one.verdict.refusal
        ),
        not_tried=tuple(_not_tried(judge, known, left_out, found)),
        evaluations=found.evaluations,
    )
    proposals = {entry.id: one for entry, one in zip(advice, saving, strict=True)}
    if together is not None and found.together is not None:
        proposals[together.id] = found.together
    return Advised(report, judge.files, proposals)


def _within_limits(judge: Judge, found: Findings, tested: Tested) -> Findings:
    """Return the findings with every proposal refused whose backtest exceeds a limit."""
    if not tested:
        return found
    from reconciler.cli.advice.backtesting import beyond_limits

    def judged(one: Judged) -> Judged:
        backtest = tested.get(_ids(one))
        refusal = beyond_limits(backtest, judge.limits) if backtest is not None else ""
        if not refusal:
            return one
        return with_fields(one, verdict=with_fields(one.verdict, refusal=refusal))

    together = judged(found.together) if found.together is not None else None
    if together is not None and together.verdict.refusal:
        together = None
    return with_fields(found, alone=tuple(map(judged, found.alone)), together=together)


def _refused(alone: Iterable[Judged]) -> Iterator[RefusedAdvice]:
    """Yield what saves but must not be proposed, the largest saving first."""
    for one in sorted(alone, key=lambda one: one.order):
        if one.verdict.refusal and not one.verdict.is_impossible:
            candidate = one.members[0]
            yield RefusedAdvice(
                id=candidate.id,
                topic=candidate.topic.value,
                title=candidate.title,
                per_month=one.verdict.per_month,
                reason=one.verdict.refusal,
            )


def _not_tried(
    judge: Judge,
    known: Sequence[AdviceCandidate],
    left_out: Sequence[AdviceCandidate],
    found: Findings,
) -> Iterator[NotTried]:
    """Yield what was not judged, and why."""
    for one in found.alone:
        if one.verdict.is_impossible:
            yield NotTried(what=one.members[0].id, reason=one.verdict.refusal)
    for candidate in left_out:
        yield NotTried(what=candidate.id, reason="more candidates than --candidates")
    for candidate in known:
        if candidate.needs_trace:
            reason = "it changes nothing about a fleet at rest; compare it with `simulate --trace`"
            yield NotTried(what=candidate.id, reason=reason)
    if any(candidate.topic is Topic.FAMILIES for candidate in known):
        yield NotTried(
            what="other families",
            reason=f"those with the {FAMILIES_MAX} cheapest vCPUs are judged one by one for each "
            "NodePool, and none of an older generation than it allows now",
        )
    yield NotTried(
        what="other combinations",
        reason=f"only the best {ADDITIONS_MAX} that save alone, and {NEUTRAL_MAX} others, are "
        "added to the best one, one after another",
    )
    if judge.request.trace is not None:
        count = judge.request.backtested
        reason = f"only the combination and the {count} best proposals are (--backtests)"
        yield NotTried(what="backtests of other proposals", reason=reason)
    for what, reason in _NEVER:
        yield NotTried(what=what, reason=reason)


_NEVER = (
    ("splitting and merging NodePools", "only requirements, weights and fields are changed"),
    ("expiry and budgets with schedules", "a fleet at rest does not depend on them"),
    ("constraints of workloads", "they are for their owners to decide"),
    ("commitments", "`check` and the guide to savings plans are about them"),
)
