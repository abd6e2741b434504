"""The kinds that ``get`` and ``describe`` show, each as a listing of recorded resources.

Nodes are listed from their NodeClaims, with the usage that the last pass recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from reconciler.assembly.inputs.records import newest_run
from reconciler.inspection.resources import (
    ActionStatus,
    NodePoolStatusReply,
    PlanSpecReply,
    PlanStatusReply,
    RecordedResource,
    ResourceName,
    claim_resource,
    node_resource,
    phase_of,
    registered_at,
    running_command_resource,
    usage_reply,
)
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import StateError
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.text.counting import format_list
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value
from reconciler.ports.cluster import USAGE_RECORD, FleetUsage, NodeUsage
from reconciler.render.listing import Item, Listing, age, clock_time, stamp

if TYPE_CHECKING:
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.plan.run import PlanRun
    from reconciler.plan.value.actions import Action
    from reconciler.ports.state import RecordedObject, RecordedPlan

_USAGE: Final = ("$/HOUR", "CPU", "MEMORY", "PODS")


def usage_of(recorded: RecordedFleet) -> Mapping[str, NodeUsage]:
    """Return the usage of each node, by the name of its NodeClaim, as the last pass observed it."""
    usage = fleet_usage(recorded)
    return usage.nodes if usage is not None else {}


def fleet_usage(recorded: RecordedFleet) -> FleetUsage | None:
    """Return the usage of the fleet as the last pass observed it, None if no pass did."""
    content = recorded.state.shelf.read(USAGE_RECORD)
    if content is None:
        return None
    try:
        return decode_json(content, FleetUsage)
    except msgspec.MsgspecError:
        return None  # of another release; the next pass writes it again


def _usage_cells(usage: NodeUsage | None) -> tuple[str, ...]:
    if usage is None:
        return ("",) * len(_USAGE)
    price = "unknown" if usage.price is None else f"{usage.price:.4f}"
    return (
        price,
        *(_format_percent(usage.share(name)) for name in ("cpu", "memory")),
        str(usage.pods),
    )


def _format_percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def node_claims(recorded: RecordedFleet) -> Listing[RecordedResource]:
    usage = usage_of(recorded)
    return Listing(
        ("NAME", "NODEPOOL", "TYPE", "CAPACITY", "ZONE", "NODE", "STATUS", *_USAGE, "AGE"),
        [
            Item(
                claim.name,
                (
                    claim.name,
                    claim.node_pool,
                    *_offering(claim),
                    claim.status.node_name,
                    phase_of(claim),
                    *_usage_cells(usage.get(claim.name)),
                    age(claim.metadata.creation_timestamp, recorded.now),
                ),
                (_instance_id(claim), claim.status.image_id, claim.spec.node_class_ref.name),
                claim_resource(claim, usage.get(claim.name)),
            )
            for claim in recorded.state.store.node_claims()
        ],
        ("INSTANCE", "IMAGE", "NODECLASS"),
    )


def nodes(recorded: RecordedFleet) -> Listing[RecordedResource]:
    usage = usage_of(recorded)
    return Listing(
        ("NAME", "NODEPOOL", "TYPE", "CAPACITY", "ZONE", "STATUS", *_USAGE, "AGE"),
        [
            Item(
                claim.status.node_name,
                (
                    claim.status.node_name,
                    claim.node_pool,
                    *_offering(claim),
                    phase_of(claim),
                    *_usage_cells(usage.get(claim.name)),
                    age(registered_at(claim), recorded.now),
                ),
                (_instance_id(claim), claim.name),
                node_resource(claim, usage.get(claim.name)),
            )
            for claim in sorted(
                recorded.state.store.node_claims(), key=lambda c: (c.status.node_name, c.name)
            )
            if claim.status.node_name
        ],
        ("INSTANCE", "NODECLAIM"),
    )


def node_pools(recorded: RecordedFleet) -> Listing[RecordedResource]:
    claims, usage = recorded.state.store.node_claims(), usage_of(recorded)
    return Listing(
        ("NAME", "NODECLASS", "NODES", "READY", *_USAGE, "WEIGHT", "REVISION"),
        [
            _node_pool_item(pool, [c for c in claims if c.node_pool == pool.name], usage)
            for pool in recorded.state.store.objects()
            if pool.kind == "NodePool"
        ],
        ("HASH",),
    )


def plans(recorded: RecordedFleet) -> Listing[RecordedResource]:
    return Listing(
        ("DIGEST", "REVISION", "SERIAL", "ACTIONS", "APPLIED", "AGE"),
        [_plan_item(plan, recorded) for plan in recorded.state.store.plans(limit=100)],
        ("UNSCHEDULABLE", "BLOCKED", "DEFERRED"),
    )


def commands(recorded: RecordedFleet) -> Listing[RecordedResource]:
    return Listing(
        ("ID", "REASON", "DECISION", "NODECLAIMS", "REPLACEMENTS", "PHASE", "AGE"),
        [
            Item(
                command.id,
                (
                    command.id,
                    command.reason,
                    command.decision,
                    format_list(command.node_claims),
                    format_list(command.replacements),
                    command.phase.value,
                    age(command.started_at, recorded.now),
                ),
                (short_commit(command.revision), command.message),
                running_command_resource(command),
            )
            for command in recorded.state.history.commands()
        ],
        ("REVISION", "MESSAGE"),
    )


def actions(recorded: RecordedFleet) -> Listing[RecordedResource]:
    header = ("ID", "WAVE", "KIND", "NODEPOOL", "TARGET", "STATE", "REASON")
    wide = ("DEPENDS-ON", "PLAN", "WHY")
    found = newest_run(recorded.state)
    if found is None:
        return Listing(header, [], wide)
    plan, run = found
    items = [_action_item(plan.digest, action, run) for action in run.graph.actions.values()]
    return Listing(header, items, wide)


def _action_item(plan: str, action: Action, run: PlanRun) -> Item[RecordedResource]:
    state, why = run.states[action.id].value, run.status_message(action.id)
    return Item(
        action.id,
        (
            action.id,
            str(action.wave),
            action.kind,
            action.node_pool or "",
            action.node or action.node_claim or action.command or "",
            state,
            action.reason,
        ),
        (",".join(action.depends_on), plan, why),
        RecordedResource(
            kind="Action",
            metadata=ResourceName(name=action.id),
            spec=action.omit_empty(),
            status=ActionStatus(state, plan, why),
        ),
    )


VIEWS: Final[Mapping[str, Callable[[RecordedFleet], Listing[RecordedResource]]]] = {
    "nodeclaims": node_claims,
    "nodes": nodes,
    "nodepools": node_pools,
    "plans": plans,
    "actions": actions,
    "commands": commands,
}
"""Plural of a kind → how it is listed."""


def kind_of(word: str) -> str:
    """Return the plural that ``word`` means: ``NodeClaim``, ``nodeclaims`` and so on.

    Raises:
        ValueError: the kind is unknown.
    """
    plural = word.lower().removesuffix("s") + "s"
    if plural not in VIEWS:
        raise ValueError(f"unknown kind {quote_value(word)} (use one of {', '.join(VIEWS)})")
    return plural


def find_item(
    listing: Listing[RecordedResource], kind: str, name: str, recorded: RecordedFleet
) -> Item[RecordedResource]:
    """Return the item of that name.

    Raises:
        StateError: there is none; it says what became of it or which name comes near.
    """
    item = next((i for i in listing.items if i.name == name), None)
    if item is not None:
        return item
    singular = kind.removesuffix("s")
    gone = recorded.state.history.gone_claim(name) if kind == "nodeclaims" else None
    if gone is not None:
        ago = age(gone.at, recorded.now)
        raise StateError(
            (f"nodeclaim {name} was terminated {ago} ago: {gone.reason}"), where=recorded.where
        )
    names = [item.name for item in listing.items]
    remedy = did_you_mean(name, names, f"`reconciler get {kind}` lists all")
    raise StateError(f"no {singular} {name} is recorded", where=recorded.where, remedy=remedy)


def resource_of(recorded: RecordedFleet, kind: str, name: str) -> RecordedResource:
    """Return one resource; a plan with its body, which is too large for a list.

    Raises:
        StateError: the name is not recorded, or another program changed the plan.
    """
    resource = find_item(VIEWS[kind](recorded), kind, name, recorded).document
    plan = recorded.state.store.plan(name) if kind == "plans" else None
    if plan is None:
        return resource
    try:
        return msgspec.structs.replace(resource, plan=decode_json(plan.body))
    except msgspec.MsgspecError as error:
        what = f"the recorded plan {name} cannot be read: {describe_mismatch(error)}"
        raise StateError(what, remedy="run `reconciler state check`") from error


def _node_pool_item(
    pool: RecordedObject, claims: Sequence[NodeClaim], usage: Mapping[str, NodeUsage]
) -> Item[RecordedResource]:
    known = [usage[c.name] for c in claims if c.name in usage]
    total = NodeUsage.total(known) if known else None
    spec: Any = pool.data.get("spec") or {}
    reference = ((spec.get("template") or {}).get("spec") or {}).get("nodeClassRef") or {}
    ready = sum(phase_of(c) == "Ready" for c in claims)
    return Item(
        pool.name,
        (
            pool.name,
            str(reference.get("name", "")),
            str(len(claims)),
            str(ready),
            *_usage_cells(total),
            str(spec.get("weight", "")),
            short_commit(pool.revision),
        ),
        (pool.hash,),
        RecordedResource(
            api_version="karpenter.sh/v1",
            kind="NodePool",
            metadata=pool.data["metadata"],
            spec=pool.data.get("spec", msgspec.UNSET),
            status=NodePoolStatusReply(
                nodes=len(claims), ready_nodes=ready, usage=usage_reply(total)
            ),
        ),
    )


def _plan_item(plan: RecordedPlan, recorded: RecordedFleet) -> Item[RecordedResource]:
    actions, *rest = _count_entries(plan)
    return Item(
        plan.digest,
        (
            plan.digest,
            short_commit(plan.revision),
            str(plan.serial),
            actions,
            clock_time(plan.carried_out_at),
            age(plan.at, recorded.now),
        ),
        tuple(rest),
        RecordedResource(
            kind="RecordedPlan",
            metadata=ResourceName(name=plan.digest, creation_timestamp=stamp(plan.at)),
            spec=PlanSpecReply(plan.revision, plan.serial),
            status=PlanStatusReply(stamp(plan.carried_out_at) or None),
        ),
    )


class _PlanEntries(msgspec.Struct):
    """How many entries the parts of a plan have; the entries themselves are left undecoded."""

    actions: list[msgspec.Raw] = []
    unschedulable: list[msgspec.Raw] = []
    blocked: list[msgspec.Raw] = []
    deferred: list[msgspec.Raw] = []


def _count_entries(plan: RecordedPlan) -> tuple[str, str, str, str]:
    """Return how many actions, unschedulable pods, blocked and deferred nodes a plan has."""
    try:
        found = decode_json(plan.body, _PlanEntries)
    except msgspec.MsgspecError:
        return ("?", "?", "?", "?")
    return (
        str(len(found.actions)),
        str(len(found.unschedulable)),
        str(len(found.blocked)),
        str(len(found.deferred)),
    )


def _offering(claim: NodeClaim) -> tuple[str, str, str]:
    labels = claim.metadata.labels
    return (labels.get(INSTANCE_TYPE, ""), labels.get(CAPACITY_TYPE, ""), labels.get(ZONE, ""))


def _instance_id(claim: NodeClaim) -> str:
    return claim.status.provider_id.rpartition("/")[2]
