"""One pass over the fleet, as a table of named steps (``STEPS``).

A pass never waits for the world. What it starts is in the journal and the records when it ends,
and the next pass continues from there, in this process or in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from reconciler.engine.desired import Desired
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation, observe
from reconciler.engine.records import history_of
from reconciler.engine.steps import (
    announcing,
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
from reconciler.engine.steps.nomination import nominations
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
    """

    plan: Plan
    seen: Observation
    under_way: int
    all_failed: bool = False
    unapproved: int = 0
    started: tuple[RunningCommand, ...] = ()
    only_waits: bool = False

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
class Step:
    """One step of a pass: ``run`` is called with the facts that it ``reads``, in that order.

    It returns the fact that it ``writes``; a step that writes none only acts.
    """

    name: str
    run: Callable[..., object]
    reads: tuple[str, ...]
    writes: str = ""


def reconcile(
    world: World, desired: Desired, mandate: Mandate, cache: PlanCache | None = None
) -> Pass:
    """Run one pass over the fleet: every step of ``STEPS``, in order.

    ``cache`` holds what earlier passes of the same loop have computed.

    Raises:
        StalePlanError: the approved plan no longer matches the observation.
        TransientCloudError: EC2 could not be observed; nothing was decided.
        LeaseLostError: another process acts for the fleet; nothing more was written.
    """
    initial = (world, desired, mandate, cache or PlanCache())
    facts: dict[str, object] = dict(zip(INITIAL_FACTS, initial, strict=True))
    for step in STEPS:
        with world.span(step.name):
            written = step.run(*(facts[name] for name in step.reads))
        if step.writes:
            facts[step.writes] = written
    result = facts["result"]
    assert isinstance(result, Pass), "the last step writes the result"
    return result


def owner_of(settings: Settings) -> Owner:
    """Return the acting fleet, as named in the tags of its instances."""
    return Owner(settings.fleet, settings.cluster_name)


def migrate_hashes(world: World, desired: Desired) -> None:
    """Migrate drift hashes of earlier releases to the version of this one."""
    old = desired.migrate_hashes(world.store.node_claims(), world.store.objects())
    if old:
        world.store.put_node_claims(old)


def _confirm(world: World) -> None:
    world.confirm()
    world.calls.begin_pass()


def _effects(world: World, desired: Desired) -> Effects:
    """Return the effects that continue what earlier passes began."""
    return Effects(world, desired.revision, world.store.serial())


def _owner(desired: Desired) -> Owner:
    return owner_of(desired.settings)


def _recover(effects: Effects, desired: Desired, owner: Owner) -> provision.LaunchTally:
    return recovery.recover(effects, desired.instance_type, owner)


def _observe(world: World, desired: Desired, owner: Owner) -> Observation:
    return observe(world, desired.node_pools, owner)


def _advance_commands(effects: Effects, seen: Observation, desired: Desired) -> None:
    if not seen.unclear_owners:
        commands.untaint_stray_nodes(effects, seen)
        commands.advance(effects, seen, lambda c: desired.objection(c, seen), desired.node_pools)


def _acknowledge_interruptions(world: World, seen: Observation, mandate: Mandate) -> None:
    interruption.acknowledge(world, seen, replaces_rebalanced=mandate.replaces_rebalanced)


def _reread(world: World, seen: Observation) -> Observation:
    """Return the observation with our current records; the world is not observed again."""
    snapshot = with_fields(seen.snapshot, node_claims=tuple(world.store.node_claims()))
    return with_fields(seen, snapshot=snapshot, commands=tuple(world.store.commands()))


def _tag_instances(effects: Effects, seen: Observation) -> int:
    """Tag instances whose nodes have joined; return how many remain for later passes."""
    return 0 if seen.unclear_owners else upkeep.tag_joined_instances(effects, seen)


def _count_forgotten(before: Observation, after: Observation) -> int:
    """Return the number of NodeClaims that this pass found to be gone."""
    return len({c.name for c in before.claims} - {c.name for c in after.claims})


def _advance_rollouts(world: World, seen: Observation, desired: Desired) -> None:
    rollouts.advance(world, seen, desired.settings)


def _add_history(world: World, seen: Observation, desired: Desired) -> Observation:
    """Return the observation with the recorded past."""
    return with_fields(seen, history=history_of(world.store, desired.settings, seen.at))


def _plan(world: World, desired: Desired, seen: Observation, cache: PlanCache) -> Plan:
    store = world.store
    refused = provision.unavailable_offerings(store, seen.at)
    return desired.plan(seen, refused, store.objects(), store.serial(), cache)


def _apply_mandate(
    world: World, desired: Desired, plan: Plan, mandate: Mandate, seen: Observation
) -> Plan:
    """Return the part of a plan that the pass may apply."""
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


def _reject_stale_plan(world: World, desired: Desired, mandate: Mandate) -> None:
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
    desired: Desired,
    plan: Plan,
    seen: Observation,
    mandate: Mandate,
    ended: provision.LaunchTally,
) -> bool:
    """Start what is ready; return whether launches were answered and all of them failed."""
    failed = starting.start_plan(world, desired, plan, seen, mandate.tags, mandate.batch_from)
    return failed or ended.all_failed


def _record_plan(world: World, desired: Desired, plan: Plan) -> None:
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


def _note_stalled_nodes(world: World, seen: Observation, plan: Plan, desired: Desired) -> None:
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
    world: World, desired: Desired, seen: Observation, plan: Plan, mandate: Mandate
) -> None:
    """Record the objects that are applied.

    A NodePool that was removed from git stays recorded while it owns nodes: its budgets apply
    until the last of them is gone.
    """
    if seen.unclear_owners or (plan.is_empty and not (plan.changes and mandate.decides)):
        return
    desired_objects = desired.objects()
    names = {o.name for o in desired_objects if o.kind == "NodePool"}
    owning = {claim.node_pool for claim in seen.claims}
    still_needed = [
        o
        for o in world.store.objects()
        if o.kind == "NodePool" and o.name in owning and o.name not in names
    ]
    world.store.put_objects([*desired_objects, *still_needed], desired.revision, world.clock.now())


def _delete_unused(effects: Effects, desired: Desired, seen: Observation) -> None:
    if not seen.unclear_owners:
        upkeep.delete_unused(effects, tuple(desired.classes.values()))


def _result(
    world: World,
    desired: Desired,
    seen: Observation,
    fresh: Plan,
    plan: Plan,
    all_failed: bool,
    forgotten: int,
    untagged: int,
    blocked: frozenset[str],
    held: frozenset[str],
) -> Pass:
    running = world.store.commands()
    under_way = _count_operations(world, desired, seen, running)
    under_way += len(nominations(seen.snapshot, seen.at))
    unapproved = 0 if plan.actions else len(fresh.actions)
    planned = {command.id for command in plan.commands}
    started = tuple(c for c in running if c.id in planned and c.started_at == seen.at)
    under_way += forgotten + untagged
    waits = len(held) + _count_blocked(world, seen, running, blocked) == under_way
    return Pass(plan, seen, under_way, all_failed, unapproved, started, waits)


def _count_blocked(
    world: World, seen: Observation, running: Sequence[RunningCommand], blocked: frozenset[str]
) -> int:
    """Return the number of operations that only wait for drains in which nothing moves."""
    if not blocked:
        return 0
    nodes = {claim.status.node_name for claim in seen.claims if claim.name in blocked}
    waiting = {
        command.id
        for command in running
        if command.phase is CommandPhase.TERMINATING
        and blocked.issuperset(c.name for c in seen.claims if c.name in command.node_claims)
    }
    drains = sum(
        entry.intent.verb is Verb.DRAIN and entry.intent.target in nodes
        for entry in world.journal.in_doubt()
    )
    moves = (move for rollout in world.store.rollouts() for move in rollout.moves)
    return len(blocked) + len(waiting) + drains + sum(m.command in waiting for m in moves)


def _count_operations(
    world: World, desired: Desired, seen: Observation, running: Sequence[RunningCommand]
) -> int:
    """Return the number of operations that later passes have to finish."""
    waves = rollouts.count_unsettled(world.store.rollouts(), desired.settings, seen.at)
    claims = world.store.node_claims()
    starting = sum(not c.is_true("Initialized") or c.is_deleting for c in claims)
    return starting + len(running) + waves + len(world.journal.in_doubt())


INITIAL_FACTS: Final = ("world", "desired", "mandate", "cache")
"""The initial facts of a pass, in the order of the parameters of ``reconcile``."""

STEPS: Final = (
    Step("confirm the lease", _confirm, ("world",)),
    Step("refuse a stale plan", _reject_stale_plan, ("world", "desired", "mandate")),
    Step("name the owner", _owner, ("desired",), "owner"),
    Step("prepare effects", _effects, ("world", "desired"), "effects"),
    Step("recover", _recover, ("effects", "desired", "owner"), "ended"),
    Step("migrate hashes", migrate_hashes, ("world", "desired")),
    Step("observe", _observe, ("world", "desired", "owner"), "observed"),
    Step("advance commands", _advance_commands, ("effects", "observed", "desired")),
    Step("collect", termination.collect_garbage, ("effects", "observed")),
    Step("acknowledge interruptions", _acknowledge_interruptions, ("world", "observed", "mandate")),
    Step("read the mirror", announcing.mark_deleted_claims, ("effects", "observed")),
    Step("carry out requests", requests.advance, ("effects", "observed"), "held"),
    Step("reread records", _reread, ("world", "observed"), "collected"),
    Step("advance terminations", termination.advance, ("effects", "collected"), "blocked"),
    Step("tag instances", _tag_instances, ("effects", "collected"), "untagged"),
    Step("reread records again", _reread, ("world", "collected"), "advanced"),
    Step("count what is gone", _count_forgotten, ("observed", "advanced"), "forgotten"),
    Step("advance rollouts", _advance_rollouts, ("world", "advanced", "desired")),
    Step("add the recorded past", _add_history, ("world", "advanced", "desired"), "seen"),
    Step("plan", _plan, ("world", "desired", "seen", "cache"), "fresh"),
    Step(
        "apply the mandate",
        _apply_mandate,
        ("world", "desired", "fresh", "mandate", "seen"),
        "plan",
    ),
    Step("record the plan", _record_plan, ("world", "desired", "plan")),
    Step("record usage", bookkeeping.record_usage, ("world", "seen", "desired")),
    Step("note stalled nodes", _note_stalled_nodes, ("world", "seen", "plan", "desired")),
    Step("record objects", _record_objects, ("world", "desired", "seen", "plan", "mandate")),
    Step("act", _act, ("world", "desired", "plan", "seen", "mandate", "ended"), "all_failed"),
    Step("show NodeClaims", announcing.update_mirror, ("world", "desired", "plan")),
    Step("announce", announcing.announce, ("world", "seen", "plan")),
    Step("clean up", _delete_unused, ("effects", "desired", "seen")),
    Step(
        "summarise",
        _result,
        (
            *("world", "desired", "seen", "fresh", "plan"),
            *("all_failed", "forgotten", "untagged", "blocked", "held"),
        ),
        "result",
    ),
)
"""A pass. Each fact is written once. ``observed`` is the observation of the world; ``collected``,
``advanced`` and ``seen`` are the same observation with our records as updated by later steps."""
