"""Start a plan: mark its commands and launch the NodeClaims that are ready.

``plan/run.py`` knows which actions are ready. An action that depends on others becomes ready in a
later pass, which starts it (``commands.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from reconciler.disruption.consolidation.flapdamping import GAVE_UP, gave_up_annotation
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.steps import batching, commands, provision, rollouts
from reconciler.engine.tracking import Records, report_illegal, track_plan
from reconciler.engine.world import World
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import Settings
from reconciler.plan.value.actions import ActionKind
from reconciler.plan.value.plan import Plan
from reconciler.ports.cloud import Launch
from reconciler.ports.progress import EventKind


def start_plan(
    world: World,
    desired: PlannedFleet,
    plan: Plan,
    seen: Observation,
    tags: Mapping[str, str],
    batch_from: int,
) -> bool:
    """Start every action of the plan that is ready.

    Returns whether launches were ready and all of them failed. ``tags`` are put on every instance.
    Identical launches are batched if there are at least ``batch_from``; 0 disables batching.

    Commands are marked first: their nodes are tainted before their replacements are launched. A
    command with replacements launches nothing unless all its nodes are tainted.
    Their ``replace`` and ``terminate`` actions become ready in later passes (``commands.py``).
    """
    if plan.is_empty:
        return False
    effects = Effects(world, desired.revision, plan.serial, plan.digest)
    rollouts.record_moves(world, plan, seen, desired.settings)
    under_way = {command.id: command for command in seen.commands}
    run = track_plan(plan, Records({claim.name: claim for claim in seen.claims}, under_way.get))
    report_illegal(world, run)
    for command_id, is_started in commands.start_commands(
        effects, plan, run.commands_not_started(), seen
    ).items():
        if is_started:
            run.mark(command_id)
        else:
            run.withdraw(command_id)
    ready = {action.node_claim for action in run.ready() if action.kind == ActionKind.PROVISION}
    ready_count, calls = _launches(world, desired, plan, seen, tags, ready)
    batched = batching.batch_launches(effects, calls, batch_from)
    launched = provision.launch(effects, batched, desired.instance_type)
    return launched.all_failed or (ready_count > 0 and not calls)


def _launches(
    world: World,
    desired: PlannedFleet,
    plan: Plan,
    seen: Observation,
    tags: Mapping[str, str],
    ready: Collection[str | None],
) -> tuple[int, list[tuple[Launch, str]]]:
    """Return the number of claims that are ready to be launched, and the calls with reasons.

    A claim without an offering, or whose NodePool is gone, is reported and makes no call.
    """
    blueprints = desired.blueprints(provision.unavailable_offerings(world.store, seen.at))
    planned_claims = {planned.name: planned for planned in plan.node_claims}
    launches = [
        (provision.make_node_claim(planned, blueprints[planned.node_pool], seen.at), planned.reason)
        for name, planned in planned_claims.items()
        if name in ready
    ]
    launches = _annotate_replaced_nodes(launches, plan, seen, desired.settings)
    launches += [(claim, "Declared") for claim in _declared_claims(desired, ready, seen.at)]
    calls = []
    for claim, reason in launches:
        blueprint = provision.blueprint_of(claim, blueprints, planned_claims)
        call = provision.make_launch(claim, blueprint, tags) if blueprint is not None else None
        if call is None:
            what = "all offerings are unavailable" if blueprint is not None else "no NodePool"
            world.notify(
                EventKind.LAUNCH_FAILED, f"{what} for {claim.name}", node_pool=claim.node_pool
            )
        else:
            calls.append((call, reason))
    return len(launches), calls


def _annotate_replaced_nodes(
    launches: Sequence[tuple[NodeClaim, str]], plan: Plan, seen: Observation, settings: Settings
) -> list[tuple[NodeClaim, str]]:
    """Return the claims annotated with the nodes that they replace, for flap damping."""
    known = {claim.name: claim for claim in seen.claims}
    replaced_nodes: dict[str, str] = {}
    for command in plan.commands:
        if command.reason == DisruptionReason.UNDERUTILIZED:
            gone = [known[name] for name in command.node_claims if name in known]
            several = len(command.replacements) > 1
            text = gave_up_annotation(gone, settings, seen.at, several=several)
            replaced_nodes.update(dict.fromkeys(command.replacements, text))
    annotated = []
    for claim, reason in launches:
        text = replaced_nodes.get(claim.name, "")
        annotations = {**claim.metadata.annotations, **({GAVE_UP: text} if text else {})}
        metadata = replace(claim.metadata, annotations=annotations)
        annotated.append((replace(claim, metadata=metadata), reason))
    return annotated


def _declared_claims(
    desired: PlannedFleet, ready: Collection[str | None], now: datetime
) -> list[NodeClaim]:
    """Return the NodeClaims that git itself declares and that are ready to be launched."""
    return [
        replace(claim, metadata=replace(claim.metadata, creation_timestamp=now))
        for claim in desired.node_claims
        if claim.name in ready
    ]
