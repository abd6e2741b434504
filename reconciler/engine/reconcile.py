"""One pass over the fleet: ``reconcile`` reads as the list of its named steps.

A pass never waits for the world. What it starts is in the journal and the records when it ends,
and the next pass continues from there, in this process or in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import UTC, datetime
from functools import lru_cache

from msgspec.structs import replace

from reconciler.engine.effects import Effects
from reconciler.engine.observation import (
    Advanced,
    Collected,
    Complete,
    Observation,
    Observed,
    observe,
)
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reboots.advance import advance_reboots
from reconciler.engine.records import history_of
from reconciler.engine.shown import announcing, deletioncosts
from reconciler.engine.steps import (
    bookkeeping,
    commands,
    interruption,
    provision,
    recovery,
    requests,
    rollouts,
    starting,
    termination,
    upkeep,
)
from reconciler.engine.world import World
from reconciler.model.errors import StalePlanError
from reconciler.model.ownership import Owner
from reconciler.model.settings import Settings
from reconciler.observed.fingerprint import Fingerprints
from reconciler.plan.approval import changed_inputs, plan_differences
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import Plan, from_json, to_json
from reconciler.ports.journal import Verb
from reconciler.ports.state import CommandPhase, RecordedPlan, RunningCommand


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass observed, decided and started.

    ``started`` are the commands that it started, without nodes that could not be tainted.
    ``under_way`` counts the operations that later passes have to finish. ``all_failed`` is True if
    every launch failed. ``unapproved`` counts planned actions that the mandate leaves out.
    ``is_quiet`` is True if nothing is left to do now: no action, and nothing in progress.
    ``only_waits`` is True if everything in progress waits for drains in which nothing moves.
    ``costs`` are the deletion costs of pods that were written, ``policies`` the policies of
    consolidation by NodePool.
    """

    plan: Plan
    seen: Observation
    under_way: int
    all_failed: bool = False
    unapproved: int = 0
    started: tuple[RunningCommand, ...] = ()
    only_waits: bool = False
    costs: deletioncosts.CostRound | None = None
    policies: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_quiet(self) -> bool:
        return self.plan.is_empty and self.under_way == 0


@dataclass(frozen=True, slots=True)
class Mandate:
    """The actions that a pass is allowed to take.

    ``approved`` is an approved saved plan. The pass plans again, applies its own plan if that
    equals the approved one, and refuses otherwise. With ``continues``, later passes decide on their
    own. With ``decides`` False it only finishes what is in progress. ``tags`` are put on every
    instance. Identical launches are batched if there are at least ``batch_from`` launches; 0
    disables batching. With ``replaces_rebalanced`` a rebalance recommendation of EC2 counts as an
    interruption.
    """

    tags: Mapping[str, str]
    approved: Plan | None = None
    continues: bool = False
    decides: bool = True
    batch_from: int = 0
    replaces_rebalanced: bool = False


@dataclass(frozen=True, slots=True)
class FreshPlan:
    """A plan to which the mandate has not been applied yet."""

    plan: Plan


def reconcile(
    world: World, desired: PlannedFleet, mandate: Mandate, cache: PlanCache | None = None
) -> Pass:
    """Run one pass over the fleet. ``cache`` holds what earlier passes of the loop have computed.

    Each step receives the facts of earlier steps. An observation has a type for each state of our
    records (``engine/observation.py``): a step that is given another one fails the type check.

    Raises:
        StalePlanError: the approved plan no longer matches the observation.
        TransientCloudError: EC2 could not be observed; nothing was decided.
        LeaseLostError: another process acts for the fleet; nothing more was written.
    """
    step = world.step
    step("confirm the lease", _confirm, world)
    step("refuse a stale plan", _reject_stale_plan, world, desired, mandate)
    owner = step("name the owner", owner_of, desired.settings)
    effects = step("prepare effects", _effects, world, desired)
    ended = step("recover", recovery.recover, effects, desired.instance_type, owner)
    step("migrate hashes", migrate_hashes, world, desired)
    observed = step("observe", observe, world, desired.node_pools, owner)
    step("advance commands", _advance_commands, effects, observed, desired)
    step("collect", termination.collect_garbage, effects, observed)
    step("acknowledge interruptions", _acknowledge_interruptions, world, observed, mandate)
    step("read the mirror", announcing.mark_deleted_claims, effects, observed)
    held = step("carry out requests", requests.advance, effects, observed)
    collected = step("reread records", _collected, world, observed)
    blocked = step("advance terminations", termination.advance, effects, collected)
    step("advance reboots", advance_reboots, effects, collected)
    untagged = step("tag instances", _tag_instances, effects, collected)
    advanced = step("reread records again", _advanced, world, collected)
    forgotten = step("count what is gone", _count_forgotten, observed, advanced)
    step("advance rollouts", rollouts.advance, world, advanced, desired.settings)
    seen = step("add the recorded past", _complete, world, advanced, desired)
    fresh = step("plan", _plan, world, desired, seen, cache or PlanCache())
    plan = step("apply the mandate", _apply_mandate, world, desired, fresh, mandate, seen)
    step("record the plan", _record_plan, world, desired, plan)
    step("record usage", bookkeeping.record_usage, world, seen, desired)
    step("note stalled nodes", _note_stalled_nodes, world, seen, plan, desired)
    step("record objects", _record_objects, world, desired, seen, plan, mandate)
    all_failed = step("act", _act, world, desired, plan, seen, mandate, ended)
    step("show NodeClaims", announcing.update_mirror, world, desired, plan)
    costs = step("write deletion costs", deletioncosts.update, world, desired, seen, plan)
    step("announce", announcing.announce, world, seen, plan)
    step("clean up", _delete_unused, effects, desired, seen)
    return step(
        "summarise",
        _summarise,
        world,
        desired,
        seen,
        plan,
        unapproved=0 if plan.actions else len(fresh.plan.actions),
        all_failed=all_failed,
        unsettled=forgotten + untagged,
        blocked=blocked,
        held=held,
        costs=costs,
    )


def owner_of(settings: Settings) -> Owner:
    """Return the acting fleet, as named in the tags of its instances."""
    return Owner(settings.fleet, settings.cluster_name)


def migrate_hashes(world: World, desired: PlannedFleet) -> None:
    """Migrate drift hashes of earlier releases to the version of this one."""
    old = desired.migrate_hashes(world.store.node_claims(), world.store.objects())
    if old:
        world.store.put_node_claims(old)


def _confirm(world: World) -> None:
    world.confirm()
    world.calls.begin_pass()


def _effects(world: World, desired: PlannedFleet) -> Effects:
    """Return the effects that continue what earlier passes began."""
    return Effects(world, desired.revision, world.store.serial())


def _advance_commands(effects: Effects, seen: Observed, desired: PlannedFleet) -> None:
    if not seen.unclear_owners:
        commands.untaint_stray_nodes(effects, seen)
        commands.advance(effects, seen, lambda c: desired.objection(c, seen), desired.node_pools)


def _acknowledge_interruptions(world: World, seen: Observed, mandate: Mandate) -> None:
    interruption.acknowledge(world, seen, replaces_rebalanced=mandate.replaces_rebalanced)


def _collected(world: World, seen: Observed) -> Collected:
    return Collected(_reread(world, seen))


def _advanced(world: World, seen: Collected) -> Advanced:
    return Advanced(_reread(world, seen))


def _reread(world: World, seen: Observation) -> Observation:
    """Return the observation with our current records; the world is not observed again."""
    snapshot = with_fields(seen.snapshot, node_claims=tuple(world.store.node_claims()))
    return with_fields(seen, snapshot=snapshot, commands=tuple(world.store.commands()))


def _tag_instances(effects: Effects, seen: Collected) -> int:
    """Tag instances whose nodes have joined; return how many remain for later passes."""
    return 0 if seen.unclear_owners else upkeep.tag_joined_instances(effects, seen)


def _count_forgotten(before: Observed, after: Advanced) -> int:
    """Return the number of NodeClaims that this pass found to be gone."""
    return len({c.name for c in before.claims} - {c.name for c in after.claims})


def _complete(world: World, seen: Advanced, desired: PlannedFleet) -> Complete:
    """Return the observation with the recorded past."""
    history = history_of(world.store, desired.settings, seen.at)
    return Complete(with_fields(seen, history=history))


def _plan(world: World, desired: PlannedFleet, seen: Complete, cache: PlanCache) -> FreshPlan:
    store = world.store
    refused = provision.unavailable_offerings(store, seen.at)
    return FreshPlan(desired.plan(seen, refused, store.objects(), store.serial(), cache))


def _apply_mandate(
    world: World, desired: PlannedFleet, fresh: FreshPlan, mandate: Mandate, seen: Complete
) -> Plan:
    """Return the part of a plan that the pass may apply."""
    plan = fresh.plan
    if seen.unclear_owners:
        return plan  # it has no actions, and states the reason
    if mandate.approved is not None:
        return _apply_approval(world, plan, mandate.approved, lambda: desired.evidence(seen))
    return plan if mandate.decides else _without_actions(plan)


def _without_actions(plan: Plan) -> Plan:
    """Return the plan without its decisions: what is in progress is finished."""
    return replace(plan, actions=(), node_claims=(), commands=())


def _apply_approval(
    world: World, plan: Plan, approved: Plan, evidence: Callable[[], Fingerprints]
) -> Plan:
    """Return the new plan if it equals the approved one.

    Once the approved plan has started, the world differs from it by its own effects. Then what is
    in progress is finished and nothing else starts. Before that, a difference makes it stale.

    Raises:
        StalePlanError: the new plan differs from the approved one.
    """
    if not plan_differences(approved, plan):
        return replace(plan, approved_as=approved.digest)
    if _is_started(world, approved):
        return _without_actions(plan)
    raise StalePlanError(plan_differences(approved, plan, evidence()))


def _is_started(world: World, approved: Plan) -> bool:
    """Return whether a pass has started to apply the approved plan."""
    known = world.store.plan(approved.digest)
    return known is not None and known.carried_out_at is not None


def _reject_stale_plan(world: World, desired: PlannedFleet, mandate: Mandate) -> None:
    """Reject an approved plan of another desired state before the pass has any effect.

    Raises:
        StalePlanError: git, the catalog, the settings or the release have changed.
    """
    approved = mandate.approved
    if approved is None:
        return
    current = replace(desired.digests, snapshot="")
    changed = changed_inputs(approved.inputs, current, approved.revision, desired.head)
    if changed and not _is_started(world, approved):
        raise StalePlanError(changed)


def _act(
    world: World,
    desired: PlannedFleet,
    plan: Plan,
    seen: Complete,
    mandate: Mandate,
    ended: provision.LaunchTally,
) -> bool:
    """Start what is ready; return whether launches were answered and all of them failed."""
    failed = starting.start_plan(world, desired, plan, seen, mandate.tags, mandate.batch_from)
    return failed or ended.all_failed


def _record_plan(world: World, desired: PlannedFleet, plan: Plan) -> None:
    """Record a plan before it is applied; one without actions only if its content is new.

    ``explain`` answers from the last plan, which therefore has to state why a pod is pending even
    if nothing can be done about it.
    """
    last = world.store.plans(limit=1)
    if plan.is_empty and last and _recorded_content(last[0].body) == _plan_content(plan):
        return
    now = None if plan.is_empty else world.clock.now()
    world.store.put_plan(
        RecordedPlan(plan.digest, desired.revision, plan.at, plan.serial, to_json(plan), now)
    )
    world.keep_reasons(plan)


def _note_stalled_nodes(world: World, seen: Complete, plan: Plan, desired: PlannedFleet) -> None:
    bookkeeping.record_drift(world, seen, plan, desired.settings)
    bookkeeping.record_obstacles(world, seen, plan)


@lru_cache(maxsize=4)
def _recorded_content(body: bytes) -> Plan:
    """Return the content of a recorded plan; the same one is read by every quiet pass."""
    return _plan_content(from_json(body))


def _plan_content(plan: Plan) -> Plan:
    """Return the content of a plan, without its time and serial."""
    return replace(plan, at=datetime.fromtimestamp(0, UTC), serial=0)


def _record_objects(
    world: World, desired: PlannedFleet, seen: Complete, plan: Plan, mandate: Mandate
) -> None:
    """Record the objects that are applied.

    A NodePool that was removed from git stays recorded while it owns nodes: its budgets apply
    until the last of them is gone.
    """
    if seen.unclear_owners or (plan.is_empty and not (plan.changes and mandate.decides)):
        return
    objects = [*desired.objects()]
    removed = {claim.node_pool for claim in seen.claims}
    removed -= {resource.name for resource in desired.fleet.node_pools}
    objects += [o for o in world.store.objects() if o.kind == "NodePool" and o.name in removed]
    world.store.put_objects(objects, desired.revision, world.clock.now())


def _delete_unused(effects: Effects, desired: PlannedFleet, seen: Complete) -> None:
    if not seen.unclear_owners:
        upkeep.delete_unused(effects, tuple(desired.classes.values()))


def _summarise(
    world: World,
    desired: PlannedFleet,
    seen: Complete,
    plan: Plan,
    *,
    unapproved: int,
    all_failed: bool,
    unsettled: int,
    blocked: frozenset[str],
    held: frozenset[str],
    costs: deletioncosts.CostRound | None,
) -> Pass:
    running = world.store.commands()
    under_way = _count_operations(world, desired, seen, running)
    under_way += len(seen.nominations) + unsettled
    planned = {command.id for command in plan.commands}
    started = tuple(c for c in running if c.id in planned and c.started_at == seen.at)
    waits = len(held) + _count_blocked(world, seen, running, blocked) == under_way
    policies = {p.name: p.spec.disruption.consolidation_policy for p in desired.node_pools}
    return Pass(plan, seen, under_way, all_failed, unapproved, started, waits, costs, policies)


def _blocked_commands(
    seen: Observation, running: Sequence[RunningCommand], blocked: frozenset[str]
) -> set[str]:
    """Return the commands that only wait for drains in which nothing moves."""
    existing = {claim.name for claim in seen.claims}
    return {
        command.id
        for command in running
        if command.phase is CommandPhase.TERMINATING
        and blocked.issuperset(existing.intersection(command.node_claims))
    }


def _count_blocked(
    world: World, seen: Observation, running: Sequence[RunningCommand], blocked: frozenset[str]
) -> int:
    """Return the number of operations that only wait for drains in which nothing moves."""
    if not blocked:
        return 0
    nodes = {claim.status.node_name for claim in seen.claims if claim.name in blocked}
    waiting = _blocked_commands(seen, running, blocked)
    drains = sum(
        entry.intent.verb is Verb.DRAIN and entry.intent.target in nodes
        for entry in world.journal.in_doubt()
    )
    moves = (move for rollout in world.store.rollouts() for move in rollout.moves)
    return len(blocked) + len(waiting) + drains + sum(m.command in waiting for m in moves)


def _count_operations(
    world: World, desired: PlannedFleet, seen: Observation, running: Sequence[RunningCommand]
) -> int:
    """Return the number of operations that later passes have to finish."""
    waves = rollouts.count_unsettled(world.store.rollouts(), desired.settings, seen.at)
    claims = world.store.node_claims()
    starting = sum(not c.is_true("Initialized") or c.is_deleting for c in claims)
    return starting + len(running) + waves + len(world.journal.in_doubt())
