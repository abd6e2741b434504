"""The kinds that ``get`` and ``describe`` show, each as a listing of recorded resources.

Nodes are listed from their NodeClaims, with the usage that the last pass recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from reconciler.inspection.replies import Resource, ResourceName, fields_of
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.pod import Amounts
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import quote_value
from reconciler.plan.render.wording import short_commit
from reconciler.ports.cluster import USAGE_RECORD, FleetUsage, NodeUsage
from reconciler.render.listing import Item, Listing, age, clock_time, stamp

if TYPE_CHECKING:
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.plan.run import PlanRun
    from reconciler.plan.value.actions import Action
    from reconciler.ports.state import RecordedObject, RecordedPlan, RunningCommand

API: Final = "reconciler/v1"


def phase_of(claim: NodeClaim) -> str:
    """Return the stage of a claim in its life cycle, in one word."""
    if claim.is_deleting:
        return "Terminating"
    for condition, phase in (
        ("Initialized", "Ready"),
        ("Registered", "Registered"),
        ("Launched", "Launched"),
    ):
        if claim.is_true(condition):
            return phase
    return "Pending"


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
        return msgspec.json.decode(content, type=FleetUsage)
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


class UsageReply(msgspec.Struct, frozen=True, rename="camel"):
    """The usage of nodes: USD an hour, pods, and shares from 0."""

    price_per_hour: float | None
    requested_share: dict[str, float]
    pods: int


def _usage_reply(usage: NodeUsage | None) -> UsageReply | msgspec.UnsetType:
    if usage is None:
        return msgspec.UNSET
    shares = {name: usage.share(name) for name in ("cpu", "memory")}
    requested = {name: round(share, 4) for name, share in shares.items() if share is not None}
    return UsageReply(usage.price, requested, usage.pods)


def node_claims(recorded: RecordedFleet) -> Listing[Resource]:
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


def nodes(recorded: RecordedFleet) -> Listing[Resource]:
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
                    age(_registered_at(claim), recorded.now),
                ),
                (_instance_id(claim), claim.name),
                _node_resource(claim, usage.get(claim.name)),
            )
            for claim in sorted(
                recorded.state.store.node_claims(), key=lambda c: (c.status.node_name, c.name)
            )
            if claim.status.node_name
        ],
        ("INSTANCE", "NODECLAIM"),
    )


def node_pools(recorded: RecordedFleet) -> Listing[Resource]:
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


def plans(recorded: RecordedFleet) -> Listing[Resource]:
    return Listing(
        ("DIGEST", "REVISION", "SERIAL", "ACTIONS", "CARRIED-OUT", "AGE"),
        [_plan_item(plan, recorded) for plan in recorded.state.store.plans(limit=100)],
        ("UNSCHEDULABLE", "BLOCKED", "DEFERRED"),
    )


def commands(recorded: RecordedFleet) -> Listing[Resource]:
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
                _command_resource(command),
            )
            for command in recorded.state.history.commands()
        ],
        ("REVISION", "MESSAGE"),
    )


def actions(recorded: RecordedFleet) -> Listing[Resource]:
    from reconciler.assembly.inputs.records import newest_run

    header = ("ID", "WAVE", "KIND", "NODEPOOL", "TARGET", "STATE", "REASON")
    wide = ("DEPENDS-ON", "PLAN", "WHY")
    found = newest_run(recorded.state)
    if found is None:
        return Listing(header, [], wide)
    plan, run = found
    items = [_action_item(plan.digest, action, run) for action in run.graph.actions.values()]
    return Listing(header, items, wide)


class ActionStatus(msgspec.Struct, frozen=True):
    """The state of an action of the plan, and what it waits for."""

    state: str
    plan: str
    why: str


def _action_item(plan: str, action: Action, run: PlanRun) -> Item[Resource]:
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
        Resource(
            kind="Action",
            metadata=ResourceName(name=action.id),
            spec=action.omit_empty(),
            status=ActionStatus(state, plan, why),
        ),
    )


VIEWS: Final[Mapping[str, Callable[[RecordedFleet], Listing[Resource]]]] = {
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
    listing: Listing[Resource], kind: str, name: str, recorded: RecordedFleet
) -> Item[Resource]:
    """Return the item of that name.

    Raises:
        StateError: there is none; it says what became of it or which name comes near.
    """
    from reconciler.model.errors import StateError
    from reconciler.model.text.nearest import did_you_mean

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


def resource_of(recorded: RecordedFleet, kind: str, name: str) -> Resource:
    """Return one resource; a plan with its body, which is too large for a list.

    Raises:
        StateError: the name is not recorded.
    """
    resource = find_item(VIEWS[kind](recorded), kind, name, recorded).document
    plan = recorded.state.store.plan(name) if kind == "plans" else None
    if plan is None:
        return resource
    return msgspec.structs.replace(resource, plan=msgspec.json.decode(plan.body))


class ShownClaimStatus(NodeClaimStatus, frozen=True, rename="camel", omit_defaults=True):
    """The status of a NodeClaim, with its usage."""

    usage: UsageReply | msgspec.UnsetType = msgspec.UNSET


class NodeStatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node, as far as its NodeClaim records it."""

    capacity: Amounts
    allocatable: Amounts
    conditions: tuple[Condition, ...]
    usage: UsageReply | msgspec.UnsetType


class NodeSpecReply(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a node, as far as its NodeClaim records it."""

    provider_id: str = msgspec.field(name="providerID")
    taints: tuple[Taint, ...]


class OwnerName(msgspec.Struct, frozen=True, rename="camel"):
    """The NodeClaim that owns a node."""

    name: str
    api_version: str = "karpenter.sh/v1"
    kind: str = "NodeClaim"


class NodeMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a node, as far as its NodeClaim records it."""

    name: str
    labels: dict[str, str]
    creation_timestamp: str
    owner_references: tuple[OwnerName, ...]


class NodePoolStatusReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many nodes a NodePool has, and their usage."""

    nodes: int
    ready_nodes: int
    usage: UsageReply | msgspec.UnsetType


class PlanSpecReply(msgspec.Struct, frozen=True):
    """The commit and the state that a plan was made from."""

    revision: str
    serial: int


class PlanStatusReply(msgspec.Struct, frozen=True, rename="camel"):
    """When a plan was carried out."""

    carried_out_at: str | None


class CommandStatusReply(msgspec.Struct, frozen=True):
    """The progress of a command."""

    phase: str
    message: str


def claim_resource(claim: NodeClaim, usage: NodeUsage | None = None) -> Resource:
    """Return a claim as the Kubernetes API spells it, with the condition that sums up the others.

    Karpenter's NodeClaim is Ready when it is launched, registered and initialized.
    """
    status = claim.status
    if claim.condition("Ready") is None:
        ready = _ready_condition(claim)
        status = msgspec.structs.replace(status, conditions=(*status.conditions, ready))
    return Resource(
        api_version="karpenter.sh/v1",
        kind="NodeClaim",
        metadata=claim.metadata,
        spec=claim.spec if claim.spec != NodeClaimSpec() else msgspec.UNSET,
        status=ShownClaimStatus(**msgspec.structs.asdict(status), usage=_usage_reply(usage)),
    )


def _ready_condition(claim: NodeClaim) -> Condition:
    initialized = claim.condition("Initialized")
    since = initialized.last_transition_time if initialized else claim.metadata.creation_timestamp
    is_ready = initialized is not None and initialized.status == "True"
    return Condition(
        type="Ready",
        status="True" if is_ready else "Unknown",
        reason="Ready" if is_ready else phase_of(claim),
        last_transition_time=since.replace(microsecond=0) if since else None,
    )


def _node_resource(claim: NodeClaim, usage: NodeUsage | None) -> Resource:
    status = claim.status
    ready = "True" if phase_of(claim) == "Ready" else "Unknown"
    return Resource(
        api_version="v1",
        kind="Node",
        metadata=NodeMetadata(
            name=status.node_name,
            labels=claim.metadata.labels,
            creation_timestamp=stamp(_registered_at(claim)),
            owner_references=(OwnerName(claim.name),),
        ),
        spec=NodeSpecReply(provider_id=status.provider_id, taints=claim.spec.taints),
        status=NodeStatusReply(
            capacity=status.capacity,
            allocatable=status.allocatable,
            conditions=(Condition("Ready", ready),),
            usage=_usage_reply(usage),
        ),
    )


def _registered_at(claim: NodeClaim) -> Any:
    registered = claim.condition("Registered")
    return registered.last_transition_time if registered else claim.metadata.creation_timestamp


def _node_pool_item(
    pool: RecordedObject, claims: Sequence[NodeClaim], usage: Mapping[str, NodeUsage]
) -> Item[Resource]:
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
        Resource(
            api_version="karpenter.sh/v1",
            kind="NodePool",
            metadata=pool.data["metadata"],
            spec=pool.data.get("spec", msgspec.UNSET),
            status=NodePoolStatusReply(
                nodes=len(claims), ready_nodes=ready, usage=_usage_reply(total)
            ),
        ),
    )


def _plan_item(plan: RecordedPlan, recorded: RecordedFleet) -> Item[Resource]:
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
        Resource(
            kind="RecordedPlan",
            metadata=ResourceName(name=plan.digest, creation_timestamp=stamp(plan.at)),
            spec=PlanSpecReply(plan.revision, plan.serial),
            status=PlanStatusReply(stamp(plan.carried_out_at) or None),
        ),
    )


def _command_resource(command: RunningCommand) -> Resource:
    return Resource(
        kind="Command",
        metadata=ResourceName(name=command.id, creation_timestamp=stamp(command.started_at)),
        spec=fields_of(command, without=("id", "phase", "message")),
        status=CommandStatusReply(command.phase.value, command.message),
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
        found = msgspec.json.decode(plan.body, type=_PlanEntries)
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
