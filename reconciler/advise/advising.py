"""Makes a report of advice: reads the fleet, searches for changes, and lists omitted ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from reconciler.advise.candidates import FAMILIES_MAX, AdviceCandidate, Topic, candidates
from reconciler.advise.changes import Files
from reconciler.advise.confirming import Confirmation
from reconciler.advise.evaluating import Judge
from reconciler.advise.proposals import make_proposal
from reconciler.advise.purchases import commitments_worth_buying
from reconciler.advise.restructuring import divisions
from reconciler.advise.result import (
    AdviceBacktest,
    AdviceReport,
    AdviceRequest,
    CommitmentAdvice,
    FleetNow,
    NotTried,
    RefusedAdvice,
    WorkloadAdvice,
    saving_range,
)
from reconciler.advise.search import (
    ADDITIONS_MAX,
    LEAST_SHARE,
    NEUTRAL_MAX,
    Findings,
    JudgedChanges,
    is_advice,
    search_changes,
    select_candidates,
)
from reconciler.assembly.inputs import policies, sources
from reconciler.assembly.inputs.timings import Timings
from reconciler.desired.objects import node_pools
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.policy import PolicySource
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import ChangeSimulation
from reconciler.plan.policies import binding_policies
from reconciler.plan.value.costs import AtRest
from reconciler.simulate.planinputs import read_inputs
from reconciler.sweep.sweep import Progress, Sweep, no_progress


@dataclass(frozen=True, slots=True)
class AdviceResult:
    """The report, the files as they were read, and the judged proposals by their ids."""

    report: AdviceReport
    files: Files
    proposals: dict[str, JudgedChanges]


def make_advice(
    request: AdviceRequest, phase: Timings, progress: Progress = no_progress
) -> AdviceResult:
    """Return the changes to a fleet's files that save the most.

    ``progress`` receives the progress of the search.

    Raises:
        UsageError: an argument or setting is wrong.
        UnreadableError: an input cannot be read.
        InvalidFleetError: the desired state has errors.
    """
    judge, simulation = _make_judge(request, phase)
    with phase("disruption"):
        known = _find_candidates(judge)
        testable_at_rest = [c for c in known if not c.needs_trace]
        tried, left_out = select_candidates(testable_at_rest, request.most, request.seed)
        sweep = Sweep(request.sweep, progress)
        confirmation = Confirmation(judge, simulation, progress)
        found = confirmation.confirm_findings(search_changes(judge, tried, sweep))
        tested = _test_with_trace(judge, found, [c for c in known if c.needs_trace], sweep)
    return _assemble_result(judge, known, confirmation, found, left_out, tested)


@dataclass(frozen=True, slots=True)
class _TraceResults:
    """The results of a trace.

    ``backtests`` are keyed by the ids of the candidates in a proposal. ``replayed`` are the changes
    without an effect at rest that were replayed, ``untried`` those that were not.
    """

    backtests: Mapping[tuple[str, ...], AdviceBacktest] = field(default_factory=dict)
    replayed: tuple[JudgedChanges, ...] = ()
    untried: tuple[AdviceCandidate, ...] = ()
    commitments: tuple[CommitmentAdvice, ...] = ()


def _test_with_trace(
    judge: Judge, found: Findings, needing_trace: Sequence[AdviceCandidate], sweep: Sweep
) -> _TraceResults:
    """Return the results of the trace for the best proposals, and for changes that need a trace."""
    request = judge.request
    if request.trace is None:
        commitments = commitments_worth_buying(judge, None, ())
        return _TraceResults(untried=tuple(needing_trace), commitments=commitments)
    from reconciler.advise.backtesting import Backtests

    best = _ranked_advice(found)[: request.backtested]
    if found.together is not None:
        best = [found.together, *best]
    selected, untried = select_candidates(needing_trace, request.backtested, request.seed)
    verdicts = [JudgedChanges((one,), judge.judge_policies_only(one.changes)) for one in selected]
    tried = [one for one in verdicts if not one.verdict.refusal]
    backtests = Backtests.from_trace_file(judge, request.trace)
    results, nodes = backtests.compare_all([*best, *tried], sweep)
    by_ids = {
        _candidate_ids(one): result for one, result in zip([*best, *tried], results, strict=True)
    }
    return _TraceResults(
        by_ids,
        tuple(
            with_fields(one, over_time=by_ids[_candidate_ids(one)].per_month)
            if _candidate_ids(one) in by_ids
            else one
            for one in verdicts
        ),
        untried,
        commitments_worth_buying(judge, backtests.trace, nodes),
    )


def _ranked_advice(found: Findings) -> list[JudgedChanges]:
    ours = (one for one in found.alone if is_advice(one) and not one.concerns_workload)
    return sorted(ours, key=lambda one: one.order)


def _candidate_ids(judged: JudgedChanges) -> tuple[str, ...]:
    return tuple(member.id for member in judged.members)


def _make_judge(request: AdviceRequest, phase: Timings) -> tuple[Judge, ChangeSimulation | None]:
    """Return the judge, and what simulates changes of the fleet if anything does."""
    with phase("read"):
        operator = policies.operator_policies(request.fleet, request.policies)
        source = sources.read_source(request.fleet)
        fleet, _ = sources.read_desired(
            source,
            any_class=request.fleet.catalog is not None,
            allow_empty=request.fleet.may_be_empty,
        )
    inputs = read_inputs(request.fleet, phase, for_changes=True)
    simulation, inputs = inputs.simulation, replace(inputs, fleet=fleet, simulation=None)
    # the current files are the base of every change, so a change cannot relax their policies
    own = [with_fields(policy, source=PolicySource.BASE) for policy in fleet.policies]
    with phase("disruption"):
        rules, layers = binding_policies((*operator, *own)), sources.layers_of(request.fleet)
        return Judge(request, tuple(source.files), inputs, rules, layers), simulation


def _find_candidates(judge: Judge) -> tuple[AdviceCandidate, ...]:
    inputs = judge.inputs
    types, pools = facts_of(inputs).types.by_name, node_pools(inputs.fleet)
    return (
        *candidates(pools, types, inputs.catalog.types, inputs.settings),
        *divisions(pools, types, judge.base.world.cluster, judge.limits.spot_percent),
    )


def _assemble_result(
    judge: Judge,
    known: Sequence[AdviceCandidate],
    confirmation: Confirmation,
    found: Findings,
    left_out: Sequence[AdviceCandidate],
    trace_results: _TraceResults,
) -> AdviceResult:
    found = with_fields(found, alone=(*found.alone, *trace_results.replayed))
    backtests = trace_results.backtests
    found = _apply_backtest_limits(judge, found, backtests)
    saving = _ranked_advice(found)
    advice = tuple(
        make_proposal(judge, one, rank, backtests.get(_candidate_ids(one)))
        for rank, one in enumerate(saving, start=1)
    )
    together = None
    if found.together is not None:
        together = make_proposal(
            judge, found.together, 0, backtests.get(_candidate_ids(found.together))
        )
    request, base, exposure = judge.request, judge.base, judge.exposure
    before = confirmation.range
    report = AdviceReport(
        at=judge.inputs.now,
        fleet=judge.resolved.fleet,
        seed=request.seed,
        new_nodes=request.has_new_nodes,
        base=FleetNow(
            nodes=round(before.nodes.mean),
            per_hour=before.per_hour.mean,
            per_month=round(before.per_hour.mean * HOURS_A_MONTH, 6),
            is_at_rest=base.rested,
            simulated=confirmation.is_simulated,
            range=before,
            exposure=exposure,
        ),
        limits=judge.limits,
        advice=advice,
        together=together,
        workloads=tuple(_workload_advice(found)),
        commitments=trace_results.commitments,
        refused=tuple(_rejected_advice(found.alone)),
        no_effect=tuple(
            one.members[0].id for one in found.alone if not one.saves and not one.verdict.refusal
        ),
        not_tried=tuple(_untried_changes(judge, known, left_out, trace_results.untried, found)),
        evaluations=found.evaluations,
    )
    proposals = {entry.id: one for entry, one in zip(advice, saving, strict=True)}
    if together is not None and found.together is not None:
        proposals[together.id] = found.together
    return AdviceResult(report, judge.files, proposals)


def _workload_advice(found: Findings) -> Iterator[WorkloadAdvice]:
    """Yield the constraints that cost something, the largest saving first."""
    for judged in sorted(found.alone, key=lambda one: one.order):
        workload, verdict = judged.members[0].workload, judged.verdict
        if workload is None or not is_advice(judged):
            continue
        assert verdict.at_rest is not None, "a change that saves has been carried to rest"
        assert verdict.exposure is not None, "a change that saves has been carried to rest"
        yield WorkloadAdvice(
            id=judged.members[0].id,
            owner=workload.constraint.owner,
            constraint=workload.constraint.constraint.value,
            title=workload.title,
            per_month=judged.per_month,
            percent=_percent_of(verdict.at_rest),
            range=saving_range(verdict.at_rest),
            pods=workload.pods,
            risk=workload.risk,
            nodes=verdict.at_rest.after.nodes,
            exposure=verdict.exposure,
        )


def _percent_of(change: AtRest) -> float:
    """Return a change in percent of the cost before it."""
    before = change.before.per_hour
    return round(100 * change.per_hour / before, 2) if before else 0.0


def _apply_backtest_limits(
    judge: Judge, found: Findings, backtests: Mapping[tuple[str, ...], AdviceBacktest]
) -> Findings:
    """Return the findings; a proposal whose backtest exceeds a limit is rejected."""
    if not backtests:
        return found
    from reconciler.advise.backtesting import exceeded_limit

    def apply_limits(judged: JudgedChanges) -> JudgedChanges:
        backtest = backtests.get(_candidate_ids(judged))
        refusal = exceeded_limit(backtest, judge.limits) if backtest is not None else ""
        if not refusal or (judged.over_time is not None and not judged.saves):
            return judged  # a change that saves nothing over time is not advice in any case
        return with_fields(judged, verdict=with_fields(judged.verdict, refusal=refusal))

    together = apply_limits(found.together) if found.together is not None else None
    if together is not None and together.verdict.refusal:
        together = None
    return with_fields(found, alone=tuple(map(apply_limits, found.alone)), together=together)


def _rejected_advice(alone: Iterable[JudgedChanges]) -> Iterator[RefusedAdvice]:
    """Yield the changes that save but must not be proposed, the largest saving first."""
    for judged in sorted(alone, key=lambda one: one.order):
        if judged.verdict.refusal and judged.saves and not judged.verdict.is_impossible:
            candidate = judged.members[0]
            yield RefusedAdvice(
                id=candidate.id,
                topic=candidate.topic.value,
                title=candidate.title,
                per_month=judged.per_month,
                reason=judged.verdict.refusal,
            )


def _untried_changes(
    judge: Judge,
    known: Sequence[AdviceCandidate],
    left_out: Sequence[AdviceCandidate],
    untried: Sequence[AdviceCandidate],
    found: Findings,
) -> Iterator[NotTried]:
    """Yield the changes that were not evaluated, and why."""
    for judged in found.alone:
        is_forbidden = judged.members[0].needs_trace and judged.over_time is None
        if judged.verdict.is_impossible or (is_forbidden and judged.verdict.refusal):
            yield NotTried(what=judged.members[0].id, reason=judged.verdict.refusal)
    for candidate in found.skipped:
        reason = "the work limit was reached, and those evaluated could cost less by a lower bound"
        yield NotTried(what=candidate.id, reason=reason)
    for candidate in left_out:
        yield NotTried(what=candidate.id, reason="more candidates than --candidates")
    for candidate in untried:
        reason = "no effect on the steady state; --trace FILE shows their effect over time"
        if judge.request.trace is not None:
            reason = "more changes that show only over time than --backtests"
        yield NotTried(what=candidate.id, reason=reason)
    yield from _changes_beyond_limits(judge, known)


def _changes_beyond_limits(judge: Judge, known: Sequence[AdviceCandidate]) -> Iterator[NotTried]:
    """Yield what no request tries, or only the best of it."""
    if any(candidate.topic is Topic.FAMILIES for candidate in known):
        yield NotTried(
            what="other families",
            reason=f"for each NodePool, only the {FAMILIES_MAX} with the cheapest vCPUs were "
            "tried, none older than it allows",
        )
    yield NotTried(
        what="other combinations",
        reason=f"only the best {ADDITIONS_MAX} that save at least {LEAST_SHARE:.1%} of the cost "
        f"alone, and {NEUTRAL_MAX} others, are added to the best one, one after another",
    )
    if judge.request.trace is not None:
        count = judge.request.backtested
        reason = f"only the combination and the {count} best proposals are (--backtests)"
        yield NotTried(what="backtests of other proposals", reason=reason)
        reason = "the pods of a trace are replayed with the constraints that they had"
        yield NotTried(what="backtests of constraints of workloads", reason=reason)
    for what, reason in _NEVER:
        yield NotTried(what=what, reason=reason)


_NEVER = (
    ("other ways to split NodePools", "only a part on spot nodes is split off"),
    ("several constraints at once", "each constraint of a workload is removed alone"),
    (
        "commitments for three years, or paid upfront",
        "pass their discounts with --compute-plan-discount and --instance-plan-discount",
    ),
)
