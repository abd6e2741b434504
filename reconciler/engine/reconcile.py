"""One pass: recover, look, move what is under way, plan, act, record.

A pass never waits for anything in the world. What it starts is in the journal and the records
when it ends, and the next pass goes on from there, in this process or in another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import UTC, datetime

from msgspec.structs import replace

from reconciler.disruption.consolidation.memory import GAVE_UP, remembered
from reconciler.engine.desired import Desired
from reconciler.engine.effects import Effects
from reconciler.engine.history import history_of
from reconciler.engine.observation import Observation, observe
from reconciler.engine.steps import (
    batching,
    commands,
    interruption,
    nomination,
    provision,
    recovery,
    rollouts,
    stalling,
    tagging,
    termination,
    upkeep,
)
from reconciler.engine.world import World
from reconciler.model.errors import StalePlanError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.ownership import Owner
from reconciler.model.settings import Settings
from reconciler.plan.approval import departures, moved_inputs
from reconciler.plan.make.recall import Recall
from reconciler.plan.value.plan import Plan, from_json, to_json
from reconciler.ports.state import CommandPhase, RecordedPlan


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass saw and decided.

    ``under_way`` counts what later passes have to bring to an end, ``in_vain`` says that every
    launch failed. ``unapproved`` counts the actions that are planned now and that the mandate
    leaves out. ``is_quiet`` says that nothing is left to do now: no action, nothing under way.
    """

    plan: Plan
    seen: Observation
    under_way: int
    all_failed: bool = False
    unapproved: int = 0

    @property
    def is_quiet(self) -> bool:
        return self.plan.is_empty and self.under_way == 0


@dataclass(frozen=True, slots=True)
class Mandate:
    """What a pass may do.

    ``approved`` is a saved plan that was approved: the pass plans again, carries out its own plan
    if that equals the approved one, and refuses otherwise. ``decides`` False only carries on what
    is under way.
    ``tags`` are put on every instance. From ``batch_from`` launches on, equal ones are joined
    into one call; 0 joins none. ``replaces_rebalanced`` takes EC2's recommendations to rebalance
    for interruptions.
    """

    tags: Mapping[str, str]
    approved: Plan | None = None
    decides: bool = True
    batch_from: int = 0
    replaces_rebalanced: bool = False


def reconcile(
    world: World, desired: Desired, mandate: Mandate, recall: Recall | None = None
) -> Pass:
    """Run one pass over the fleet.

    ``recall`` is that of the loop of passes, which spares it what has not changed since the last.

    Raises:
        StalePlanError: the approved plan no longer fits what is seen.
        TransientCloudError: EC2 could not be looked at; nothing was decided.
    """
    if mandate.approved is not None:
        _refuse_moved(world, desired, mandate.approved)
    settle = Effects(world, desired.revision, world.store.serial())
    owner = owner_of(desired.settings)
    recovery.recover(settle, desired.instance_type, owner)
    restamp(world, desired)
    seen = observe(world, desired.node_pools, owner)
    known = {claim.name for claim in seen.claims}
    if not seen.doubts:
        commands.untaint_strays(settle, seen)
        commands.advance(settle, seen, lambda c: desired.objection(c, seen), desired.node_pools)
    termination.collect(settle, seen)
    interruption.acknowledge(world, seen, replaces_rebalanced=mandate.replaces_rebalanced)
    seen = _refreshed(world, seen)
    termination.advance(settle, seen)
    untagged = 0 if seen.doubts else tagging.advance(settle, seen)
    seen = _refreshed(world, seen)
    forgotten = known - {claim.name for claim in seen.claims}
    rollouts.advance(world, seen, desired.settings)
    history = history_of(world.store, desired.settings, seen.at)
    seen = with_fields(seen, history=history)
    fresh = _plan(world, desired, seen, recall or Recall())
    plan = _mandated(world, fresh, mandate, in_doubt=bool(seen.doubts))
    _remember(world, desired, plan)
    stalling.note(world, seen, plan, desired.settings)
    stalling.keep_obstacles(world, seen, plan)
    if not seen.doubts and ((plan.changes and mandate.decides) or not plan.is_empty):
        _record_objects(world, desired, seen)
    all_failed = not _act(world, desired, plan, seen, mandate)
    if not seen.doubts:
        upkeep.advance(settle, tuple(desired.classes.values()))
    under_way = (
        _under_way(world, desired, seen)
        + len(forgotten)
        + nomination.waiting(seen.snapshot, seen.at)
    )
    unapproved = 0 if plan.actions else len(fresh.actions)
    return Pass(plan, seen, under_way + untagged, all_failed, unapproved)


def owner_of(settings: Settings) -> Owner:
    """Return the fleet that acts, as the tags of its instances name it."""
    return Owner(settings.fleet, settings.cluster_name)


def restamp(world: World, desired: Desired) -> None:
    """Bring drift hashes that an earlier release made into the form of this one."""
    old = desired.restamped(world.store.node_claims(), world.store.objects())
    if old:
        world.store.put_node_claims(old)


def _refreshed(world: World, seen: Observation) -> Observation:
    """Return the look with our own records as they now are; the world is not asked again."""
    snapshot = with_fields(seen.snapshot, node_claims=tuple(world.store.node_claims()))
    return with_fields(seen, snapshot=snapshot, commands=tuple(world.store.commands()))


def _plan(world: World, desired: Desired, seen: Observation, recall: Recall) -> Plan:
    store = world.store
    return desired.plan(seen, store.unavailable(seen.at), store.objects(), store.serial(), recall)


def _mandated(world: World, plan: Plan, mandate: Mandate, *, in_doubt: bool) -> Plan:
    """Return what of a plan the pass may carry out."""
    if in_doubt:
        return plan  # which has no actions, and says why
    if mandate.approved is not None:
        return _approved(world, plan, mandate.approved)
    return plan if mandate.decides else _nothing_of(plan)


def _nothing_of(plan: Plan) -> Plan:
    """Return what a pass does that carries on and decides nothing."""
    return replace(plan, actions=(), node_claims=(), commands=())


def _approved(world: World, plan: Plan, approved: Plan) -> Plan:
    """Return the plan that was just made, if it is the one that was approved.

    Once the approved plan was begun, the world differs from it by what it has done: then what is
    under way is carried on, and nothing is begun. Until then a difference makes it stale.

    Raises:
        StalePlanError: it is another plan.
    """
    departed = departures(approved, plan)
    if not departed:
        return replace(plan, approved_as=approved.digest)
    if _is_begun(world, approved):
        return _nothing_of(plan)
    raise StalePlanError(departed)


def _is_begun(world: World, approved: Plan) -> bool:
    """Return whether a pass has begun to carry the approved plan out."""
    known = world.store.plan(approved.digest)
    return known is not None and known.carried_out_at is not None


def _refuse_moved(world: World, desired: Desired, approved: Plan) -> None:
    """Refuse a plan of another desired state before the pass touches anything.

    Raises:
        StalePlanError: git, the catalogue, the settings or the release are others.
    """
    now = replace(desired.digests, snapshot="")
    moved = moved_inputs(approved.inputs, now, approved.revision, desired.head)
    if moved and not _is_begun(world, approved):
        raise StalePlanError(moved)


def _act(world: World, desired: Desired, plan: Plan, seen: Observation, mandate: Mandate) -> bool:
    """Start every action of the plan that waits for nothing but this pass.

    ``provision`` actions are launched; ``replace`` and ``terminate`` follow from their command,
    which later passes move on as its provisions become ready. Returns False where something was
    to be launched and nothing was.
    """
    if plan.is_empty:
        return True
    effects = Effects(world, desired.revision, plan.serial, plan.digest)
    rollouts.begin(world, plan, seen, desired.settings)
    for command in plan.commands:
        commands.start(effects, command, seen)
    blueprints = desired.blueprints(world.store.unavailable(seen.at))
    wanted = [
        (provision.claim_of(planned, blueprints[planned.node_pool], seen.at), planned.reason)
        for planned in plan.node_claims
    ]
    wanted = _marked(wanted, plan, seen, desired.settings)
    wanted += [(claim, "Declared") for claim in _declared(desired, plan, seen)]
    calls = []
    planned_claims = {planned.name: planned for planned in plan.node_claims}
    for claim, reason in wanted:
        blueprint = blueprints.get(claim.node_pool)
        if blueprint is not None and claim.name in planned_claims:
            blueprint = blueprint.of(planned_claims[claim.name])
        call = (
            provision.launch_of(claim, blueprint, mandate.tags) if blueprint is not None else None
        )
        if call is None:
            what = ("all offerings are unavailable") if blueprint is not None else "no NodePool"
            world.notify("LaunchFailed", f"{what} for {claim.name}", node_pool=claim.node_pool)
        else:
            calls.append((call, reason))
    wishes = batching.wishes(effects, calls, mandate.batch_from)
    got = provision.launch(effects, wishes, desired.instance_type)
    return got > 0 or not wanted


def _marked(
    wanted: Sequence[tuple[NodeClaim, str]], plan: Plan, seen: Observation, settings: Settings
) -> list[tuple[NodeClaim, str]]:
    """Return the claims with what consolidation gives up for them, where that is remembered."""
    known = {claim.name: claim for claim in seen.claims}
    gone = {
        name: [known[old] for old in command.node_claims if old in known]
        for command in plan.commands
        if command.reason == "Underutilized"
        for name in command.replacements
    }
    marked = []
    for claim, reason in wanted:
        text = remembered(gone.get(claim.name, ()), settings, seen.at)
        annotations = {**claim.metadata.annotations, **({GAVE_UP: text} if text else {})}
        metadata = replace(claim.metadata, annotations=annotations)
        marked.append((replace(claim, metadata=metadata), reason))
    return marked


def _declared(desired: Desired, plan: Plan, seen: Observation) -> list[NodeClaim]:
    """Return the NodeClaims of the plan that git itself declares and nobody has made yet."""
    planned = {action.node_claim for action in plan.actions if action.kind == "provision"}
    known = {claim.name for claim in seen.claims}
    return [
        replace(claim, metadata=replace(claim.metadata, creation_timestamp=seen.at))
        for claim in desired.node_claims
        if claim.name in planned and claim.name not in known
    ]


def _remember(world: World, desired: Desired, plan: Plan) -> None:
    """Record a plan before anything of it is done, and one without actions when it says news.

    ``explain`` answers from the last plan: why a pod waits must stand there too when nothing is
    to be done about it.
    """
    last = world.store.plans(limit=1)
    if plan.is_empty and last and _essence(from_json(last[0].body)) == _essence(plan):
        return
    now = None if plan.is_empty else world.clock.now()
    world.store.put_plan(
        RecordedPlan(plan.digest, desired.revision, plan.at, plan.serial, to_json(plan), now)
    )
    world.keep_reasons(plan)


def _essence(plan: Plan) -> Plan:
    """Return what a plan says, whenever and from whichever serial it was made."""
    return replace(plan, at=datetime.fromtimestamp(0, UTC), serial=0)


def _record_objects(world: World, desired: Desired, seen: Observation) -> None:
    """Record the objects that are carried out.

    A NodePool that git no longer has stays recorded while it owns nodes: its budgets hold for
    them to the last.
    """
    wanted = desired.objects()
    names = {o.name for o in wanted if o.kind == "NodePool"}
    owning = {claim.node_pool for claim in seen.claims}
    outlived = [
        o
        for o in world.store.objects()
        if o.kind == "NodePool" and o.name in owning and o.name not in names
    ]
    world.store.put_objects([*wanted, *outlived], desired.revision, world.clock.now())


def _under_way(world: World, desired: Desired, seen: Observation) -> int:
    """Return how many things later passes have to bring to an end."""
    waves = rollouts.unsettled(world.store.rollouts(), desired.settings, seen.at)
    claims = world.store.node_claims()
    starting = sum(not c.is_true("Initialized") or c.is_deleting for c in claims)
    running = sum(
        c.phase not in (CommandPhase.DONE, CommandPhase.ROLLED_BACK) for c in world.store.commands()
    )
    return starting + running + waves + len(world.journal.in_doubt())
