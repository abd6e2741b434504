"""Judges changes: the saving of each once the fleet is at rest, and whether it exceeds a limit.

Every change is judged as files that are read like any fleet, so a proposal is exactly what was
judged. The policies are those of the current files and of the operator: a change cannot relax them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as with_fields
from functools import cached_property
from math import inf
from typing import Final

from msgspec.structs import replace

from reconciler.advise.changes import DesiredChange, Files, digests_of_files, with_changes
from reconciler.advise.constraints import WorkloadConstraint
from reconciler.advise.result import AdviceLimits, AdviceRequest
from reconciler.assembly.comparison import read_types
from reconciler.assembly.inputs import policies, sources
from reconciler.desired.fleet import Fleet, read_fleet
from reconciler.desired.objects import file_objects
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.chance import Chance
from reconciler.model.decision.policy import Policy
from reconciler.model.diagnostics import Severity
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import Settings
from reconciler.model.text.counting import format_count
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.facts import BaseCost
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.planner import make_plan
from reconciler.plan.rest.compare import RestedBase, with_model_error
from reconciler.plan.rest.continuation import RestResult, SharedWork
from reconciler.plan.rest.exposure import Exposure, exposure_of
from reconciler.plan.rest.world import without_nodes
from reconciler.plan.value.costs import AtRest, combine_seeds
from reconciler.plan.value.ranges import FleetRange, fleet_range
from reconciler.source.rewrite import RewriteError

LEAST_SAVING: Final = 1.0
"""USD a month: a change that saves less is not advice."""


@dataclass(frozen=True, slots=True)
class ChangeVerdict:
    """The outcome of a change.

    ``refusal`` is why it is not proposed, empty if it may be; ``at_rest`` is None if the change was
    not carried to rest. ``work`` is what that took, in evaluated nodes. ``is_estimated`` is whether
    it is less exact than what a plan with a base states. ``warnings`` are the names of policies
    that warn of it.
    """

    files: Files = ()
    at_rest: AtRest | None = None
    exposure: Exposure | None = None
    refusal: str = ""
    is_impossible: bool = False
    is_estimated: bool = False
    work: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def per_month(self) -> float:
        """The change of the cost in USD a month, 0 if the change was not carried to rest."""
        return self.at_rest.per_month if self.at_rest is not None else 0.0

    @property
    def saves(self) -> bool:
        """Whether it saves enough to be advice."""
        return self.per_month <= -LEAST_SAVING


class Judge:
    """The current fleet at rest, which changes of its files are compared with."""

    def __init__(
        self,
        request: AdviceRequest,
        files: Files,
        inputs: Inputs,
        rules: Sequence[Policy],
        layers: sources.SettingLayers,
    ) -> None:
        self._arguments = (request, files, inputs, rules, layers)
        self.request = request
        self.files = files
        cluster = without_nodes(inputs.cluster)[0] if request.has_new_nodes else inputs.cluster
        self.inputs = replace(inputs, cluster=cluster, against=None, base=None, compared_with="")
        self.rules = tuple(rules)
        self._shared = SharedWork()
        self._bases: dict[int, RestedBase] = {}
        self.rested = self.base_with(0)
        self.layers = layers
        self.resolved = layers.resolve(inputs.fleet).settings

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle for another process, which brings the current fleet to rest itself."""
        return Judge, self._arguments

    @cached_property
    def facts(self) -> tuple[object, ...]:
        """What verdicts depend on besides the changes, as JSON can express it."""
        request, inputs, layers = self.request, self.inputs, self.layers
        return (
            inputs.now,
            inputs.digests,
            inputs.observed,
            digests_of_files(self.files),
            layers.environment,
            layers.flags,
            layers.fleet,
            layers.operator.data if layers.operator is not None else None,
            self.rules,
            request.has_new_nodes,
            request.fleet.catalog is not None,
            sorted(request.fleet.allow_removal),
            request.spot_percent,
            request.zones,
        )

    def base_with(self, seed: int) -> RestedBase:
        """Return the current fleet at rest with a seed; it is brought to rest once."""
        known = self._bases.get(seed)
        if known is None:
            known = self._bases[seed] = RestedBase(
                self.inputs,
                has_new_nodes=self.request.has_new_nodes,
                chance=Chance(seed),
                shared=self._shared,
            )
        return known

    def seeds_for(self, work: int) -> int:
        """Return with how many seeds a change is repeated whose first run took this work.

        As many as in a plan, but one if the fleet is far from rest: each takes too long then.
        """
        return self.rested.seeds_for(work) if self.rested.is_near_rest else 1

    @cached_property
    def range(self) -> FleetRange:
        """The range of the current fleet at rest over all seeds."""
        bases = [self.base_with(seed) for seed in range(self.seeds_for(0))]
        return fleet_range([base.compare_change(self.inputs)[0].before for base in bases])

    @property
    def base(self) -> RestResult:
        """The fleet at rest under its current files."""
        return self.rested.rest

    @cached_property
    def exposure(self) -> Exposure:
        """The exposure of the current fleet at rest."""
        return exposure_of(self.base)

    @cached_property
    def at_rest(self) -> AtRest:
        """The current fleet compared with itself."""
        return self.rested.compare_change(self.inputs)[0]

    @cached_property
    def limits(self) -> AdviceLimits:
        """The effective limits: those of the request, or the current values if they are higher."""
        request, now = self.request, self.exposure
        zones = now.zones if request.zones is None else min(request.zones, now.zones)
        return AdviceLimits(
            spot_percent=max(request.spot_percent, now.spot_percent),
            zones=zones,
            waiting_seconds=request.waiting_seconds,
            evictions_per_pod_day=request.evictions_per_pod_day,
        )

    def judge_changes(self, changes: Iterable[DesiredChange]) -> ChangeVerdict:
        """Return the verdict on the changes when they are applied together."""
        applied = self._apply_changes(changes)
        if isinstance(applied, ChangeVerdict):
            return applied
        files, inputs = applied
        if self._cannot_save(inputs):
            return ChangeVerdict(files)
        change, rest = self.rested.compare_change(inputs)
        exposure = exposure_of(rest)
        verdict = ChangeVerdict(files, change, exposure, work=rest.work)
        if not verdict.saves:
            return verdict
        refusal = self._exceeded_limit(change, exposure)
        if refusal:
            return with_fields(verdict, refusal=refusal)
        refusal, warnings = self._policy_verdict(inputs, change)
        return with_fields(verdict, refusal=refusal, warnings=warnings)

    def repeat_changes(
        self, changes: Iterable[DesiredChange], verdict: ChangeVerdict
    ) -> ChangeVerdict:
        """Return a verdict with the cost of its changes over all seeds."""
        applied = self._apply_changes(changes)
        assert not isinstance(applied, ChangeVerdict), "the changes have been applied before"
        inputs = applied[1]
        return self._repeat(verdict, lambda base: base.compare_change(inputs)[0])

    def repeat_without_constraint(
        self, constraint: WorkloadConstraint, verdict: ChangeVerdict
    ) -> ChangeVerdict:
        """Return a verdict on removing a constraint with the cost over all seeds."""
        return self._repeat(verdict, lambda b: b.compare_cluster(constraint.remove_from)[0])

    def _repeat(
        self, verdict: ChangeVerdict, compare: Callable[[RestedBase], AtRest]
    ) -> ChangeVerdict:
        first = verdict.at_rest
        assert first is not None, "only what was carried to rest is repeated"
        if first.bounds is not None:
            return verdict
        seeds = self.seeds_for(verdict.work)
        more = (compare(self.base_with(seed)) for seed in range(1, seeds))
        return with_fields(verdict, at_rest=with_model_error(combine_seeds([first, *more])))

    def judge_policies_only(self, changes: Iterable[DesiredChange]) -> ChangeVerdict:
        """Return the verdict on changes without an effect at rest: whether policies allow them."""
        applied = self._apply_changes(changes)
        if isinstance(applied, ChangeVerdict):
            return applied
        files, inputs = applied
        refusal, warnings = self._policy_verdict(inputs, self.at_rest)
        return ChangeVerdict(files, self.at_rest, self.exposure, refusal, warnings=warnings)

    def _apply_changes(
        self, changes: Iterable[DesiredChange]
    ) -> tuple[Files, Inputs] | ChangeVerdict:
        """Return the files with the changes and their inputs, or why they are impossible."""
        try:
            files = with_changes(self.files, changes)
        except RewriteError as error:
            return ChangeVerdict(refusal=f"the files cannot be edited: {error}", is_impossible=True)
        fleet = self.read(files)
        if isinstance(fleet, str):
            return ChangeVerdict(files, refusal=fleet, is_impossible=True)
        return files, self.inputs_of(fleet)

    def judge_without_constraint(self, constraint: WorkloadConstraint) -> ChangeVerdict:
        """Return the verdict on removing a constraint of a workload; the files do not change."""
        change, rest = self.rested.compare_cluster(constraint.remove_from)
        exposure = exposure_of(rest)
        verdict = ChangeVerdict(self.files, change, exposure, work=rest.work)
        refusal = self._exceeded_limit(change, exposure) if verdict.saves else ""
        return with_fields(verdict, refusal=refusal)

    def inputs_of(self, fleet: Fleet) -> Inputs:
        """Return the inputs of the current fleet with another desired state."""
        inputs = self.inputs
        resolved = self.layers.resolve(fleet)
        catalog = inputs.catalog
        lock, known = fleet.lock, inputs.fleet.lock
        if (lock and lock.digest) != (known and known.digest):
            catalog = read_types(self.request.fleet, resolved, lock)
        settings = merge_changed_settings(inputs.settings, self.resolved, resolved.settings)
        return replace(inputs, fleet=fleet, settings=settings, catalog=catalog, diagnostics=())

    def read(self, files: Files) -> Fleet | str:
        """Return the fleet in the files, or why it is not valid."""
        request = self.request.fleet
        fleet, findings = read_fleet(
            files,
            any_class=request.catalog is not None,
            allow_empty=request.may_be_empty,
            karpenter=sources.stated_karpenter(request.settings),
        )
        error = next((f for f in findings if f.severity is Severity.ERROR), None)
        return fleet if error is None else f"the files would not be valid: {error.message}"

    def least_cost(self, changes: Iterable[DesiredChange]) -> float:
        """Return the minimum cost of any nodes for the pods with the changes, USD an hour.

        Infinite if the changes are impossible.
        """
        applied = self._apply_changes(changes)
        if isinstance(applied, ChangeVerdict):
            return inf
        _, pods = without_nodes(self.base.world.cluster)
        return self._lower_bound(applied[1], pods)

    def least_cost_without(self, constraint: WorkloadConstraint) -> float:
        """Return the same with the present files and without a constraint of a workload."""
        _, pods = without_nodes(constraint.remove_from(self.base.world.cluster))
        return self._lower_bound(self.inputs, pods)

    def _lower_bound(self, inputs: Inputs, pods: Sequence[Pod]) -> float:
        empty, _ = without_nodes(self.base.world.cluster)
        types = facts_of(replace(inputs, cluster=self.base.world.cluster)).types
        scheduler = Scheduler(types.ready, empty, inputs.settings, self.base.at)
        return scheduler.lower_bound(pods).cost

    def _cannot_save(self, inputs: Inputs) -> bool:
        """Return whether any nodes for the pods cost as much as the existing ones.

        The bound holds for launched nodes. A running node may cost less than its offering, or have
        a type that cannot be launched; then a saving cannot be ruled out.
        """
        rest = self.base
        if not rest.rested or inputs.settings.commitments is not None:
            return False
        types = facts_of(replace(inputs, cluster=rest.world.cluster)).types
        owned = rest.node_prices()
        for node in rest.world.cluster.nodes:
            if node.claim is None:
                continue
            pool = types.by_name.get(node.node_pool)
            labels = node.labels
            kind = pool.types.get(labels.get(INSTANCE_TYPE, "")) if pool is not None else None
            zone, capacity_type = labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, "")
            price = kind.price_of(zone, capacity_type) if kind is not None else None
            if price is None or owned.get(node.claim.name, 0.0) < price:
                return False
        least = self._lower_bound(inputs, without_nodes(rest.world.cluster)[1])
        return least >= self.at_rest.before.per_hour - LEAST_SAVING / HOURS_A_MONTH

    def _exceeded_limit(self, change: AtRest, exposure: Exposure) -> str:
        """Return which limit the change exceeds, empty if it exceeds none."""
        waiting = set(change.unschedulable) - set(self.at_rest.unschedulable)
        if waiting:
            pods = format_count(len(waiting), "pod")
            return f"{pods} could not be scheduled, such as {min(waiting)}"
        stuck = {s.node_claim for s in change.stuck} - {s.node_claim for s in self.at_rest.stuck}
        if stuck:
            return f"{format_count(len(stuck), 'drifted node')} could not be replaced"
        limits = self.limits
        if exposure.spot_percent > limits.spot_percent:
            return (
                f"{exposure.spot_percent:.0f}% of the pods would run on spot nodes, more than "
                f"--spot-max {limits.spot_percent:g}"
            )
        if exposure.zones < limits.zones:
            return (
                f"pods would run in {format_count(exposure.zones, 'zone')}, fewer than "
                f"--zones-min {limits.zones}"
            )
        if change.bounds is not None and change.bounds[1] >= 0:
            return "the search reached its work limit, and the change may save nothing"
        return ""

    def _policy_verdict(self, inputs: Inputs, change: AtRest) -> tuple[str, tuple[str, ...]]:
        """Return which policy forbids the change, and which warn of it.

        Two plans are judged: the next one of the running fleet, and one that launches nodes for
        all pods, since nodes that only consolidation launches are not in the first.
        """
        if not self.rules:
            return "", ()
        warnings: set[str] = set()
        rest = self.base
        empty, _ = without_nodes(rest.world.cluster)
        for cluster, now in ((inputs.cluster, inputs.now), (empty, rest.at)):
            question = replace(
                inputs,
                cluster=cluster,
                now=now,
                compared_with="base",
                base=(
                    *(r.data for r in self.inputs.fleet.resources),
                    *file_objects(self.inputs.fleet),
                ),
            )
            facts = replace(facts_of(question), base_cost=BaseCost(change, self.rested.first))
            plan = policies.judge(make_plan(facts), self.rules, self.inputs.now)
            forbidding = policies.blocking_policies(plan, ())
            if forbidding:
                one = forbidding[0]
                return f"policy {one.name} forbids it: {one.message}", ()
            warnings |= {one.name for one in plan.policies if one.result == "failed"}
        return "", tuple(sorted(warnings))


def merge_changed_settings(settings: Settings, before: Settings, after: Settings) -> Settings:
    """Return ``settings`` with what differs between two resolutions of the files' settings."""
    names = [field.name for field in fields(Settings) if field.init]
    changed: Mapping[str, object] = {
        name: getattr(after, name)
        for name in names
        if getattr(before, name) != getattr(after, name)
    }
    return with_fields(settings, **changed) if changed else settings  # type: ignore[arg-type]
