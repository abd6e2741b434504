"""One pass: recover, look, move what is under way, plan, act, record.

A pass never waits for anything in the world. What it starts is in the journal and the records
when it ends, and the next pass goes on from there, in this process or in another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from reconciler.engine import adoption, commands, provision, recovery, termination
from reconciler.engine.desired import Desired
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation, observe
from reconciler.engine.world import World
from reconciler.model.errors import StalePlanError
from reconciler.plan.plan import Plan, to_json
from reconciler.ports import CommandPhase, RecordedPlan


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass saw and decided.

    ``is_quiet`` says that nothing is left to do now: no action, nothing under way.
    """

    plan: Plan
    seen: Observation
    under_way: int

    @property
    def is_quiet(self) -> bool:
        return self.plan.is_empty and self.under_way == 0


@dataclass(frozen=True, slots=True)
class Mandate:
    """What a pass may do.

    ``approved`` is a saved plan that was approved: the pass carries out just that, and refuses
    when its inputs have moved. ``decides`` False only carries on what is under way.
    ``tags`` are put on every instance.
    """

    tags: Mapping[str, str]
    approved: Plan | None = None
    decides: bool = True


def reconcile(world: World, desired: Desired, mandate: Mandate) -> Pass:
    """Run one pass over the fleet.

    Raises:
        StalePlanError: the approved plan no longer fits what is seen.
        TransientCloudError: EC2 could not be looked at; nothing was decided.
    """
    settle = Effects(world, desired.revision, world.store.serial())
    recovery.recover(settle, desired.instance_type)
    seen = observe(world, desired.node_pools)
    pools = {pool.name: pool for pool in desired.node_pools}
    adopted = adoption.adopt(settle, seen, pools, desired.instance_type)
    commands.advance(settle, seen, lambda command: desired.objection(command, seen))
    termination.collect(settle, seen)
    seen = observe(world, desired.node_pools) if adopted else _refreshed(world, seen)
    termination.advance(settle, seen)
    seen = _refreshed(world, seen)
    plan = _decide(world, desired, seen, mandate)
    _act(world, desired, plan, seen, mandate.tags)
    return Pass(plan, seen, _under_way(world))


def _refreshed(world: World, seen: Observation) -> Observation:
    """Return the look with our own records as they now are; the world is not asked again."""
    snapshot = with_fields(seen.snapshot, node_claims=tuple(world.store.node_claims()))
    return with_fields(seen, snapshot=snapshot, commands=tuple(world.store.commands()))


def _decide(world: World, desired: Desired, seen: Observation, mandate: Mandate) -> Plan:
    store = world.store
    plan = desired.plan(seen, store.unavailable(seen.at), store.objects(), store.serial())
    if mandate.approved is not None:
        moved = mandate.approved.inputs.moved(plan.inputs)
        if moved:
            raise StalePlanError([f"{name} moved" for name in moved])
        return mandate.approved
    if not mandate.decides:
        return replace(plan, actions=(), node_claims=(), commands=())
    return plan


def _act(
    world: World, desired: Desired, plan: Plan, seen: Observation, tags: Mapping[str, str]
) -> None:
    """Start every action of the plan that waits for nothing but this pass.

    ``provision`` actions are launched; ``replace`` and ``terminate`` follow from their command,
    which later passes move on as its provisions become ready.
    """
    if plan.is_empty:
        return
    _record(world, desired, plan)
    effects = Effects(world, desired.revision, plan.serial, plan.digest)
    for command in plan.commands:
        commands.start(effects, command, seen)
    blueprints = desired.blueprints(world.store.unavailable(seen.at))
    wishes = []
    for planned in plan.node_claims:
        blueprint = blueprints[planned.node_pool]
        claim = provision.claim_of(planned, blueprint, seen.at)
        call = provision.launch_of(claim, blueprint, tags)
        if call is None:
            why = f"no offering is left for {planned.name}"
            world.tell("LaunchFailed", why, node_pool=planned.node_pool)
        else:
            wishes.append(provision.wish(effects, call, planned.reason))
    provision.launch(effects, wishes, desired.instance_type)


def _record(world: World, desired: Desired, plan: Plan) -> None:
    """Record the plan, and the objects it was made from, before anything is done."""
    now = world.clock.now()
    world.store.put_plan(
        RecordedPlan(plan.digest, desired.revision, plan.at, plan.serial, to_json(plan), now)
    )
    world.store.put_objects(desired.objects(), desired.revision, now)


def _under_way(world: World) -> int:
    """Return how many things later passes have to bring to an end."""
    claims = world.store.node_claims()
    starting = sum(not c.is_true("Initialized") or c.is_deleting for c in claims)
    running = sum(
        c.phase not in (CommandPhase.DONE, CommandPhase.ROLLED_BACK) for c in world.store.commands()
    )
    return starting + running + len(world.journal.in_doubt())
