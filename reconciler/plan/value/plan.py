"""A plan: what will be done, in which order, for which reasons, on the strength of which facts.

One value with many readers: the engine carries it out, a reviewer approves it by its digest, and
every rendering prints it. It mirrors ``schemas/plan.v1.json``, field by field; that schema is a
promise to users, so fields may be added here and none may change its meaning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.taint import Taint

API_VERSION: Final = "reconciler/v1"
HOURS_A_MONTH: Final = 730
DIGEST_LENGTH: Final = 12

ChangeKind = Literal["create", "update", "delete"]
ComparedWith = Literal["", "base", "records", "cluster"]
ActionKind = Literal["provision", "replace", "terminate"]
Decision = Literal["delete", "replace"]
Wait = Literal["budget", "schedule", "consolidateAfter", "validation", "policy", "approval"]


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a plan, in the spelling of its schema."""


class Revision(_Part, frozen=True, kw_only=True):
    """Which commit of which repository was planned; ``head`` is None outside a repository."""

    head: str | None = None
    base: str | None = None
    repo: str | None = None
    path: str | None = None
    dirty: bool = False


class InputDigests(_Part, frozen=True, kw_only=True):
    """One digest for each input, so that a stale plan can say which of them moved."""

    git: str = ""
    snapshot: str = ""
    catalog: str = ""
    settings: str = ""
    engine: str = ""

    def moved(self, now: InputDigests) -> list[str]:
        """Return the names of the inputs that are no longer the same, in a fixed order."""
        return [
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(now, name)
        ]


class FieldChange(_Part, frozen=True, kw_only=True):
    """One field that differs; ``drifts`` says that running nodes no longer match it."""

    path: str
    old: Any = msgspec.field(default=None, name="from")
    new: Any = msgspec.field(default=None, name="to")
    drifts: bool = False


class Change(_Part, frozen=True, kw_only=True):
    """An object that git creates, updates or deletes; ``drifted`` are the NodeClaims it drifts."""

    op: ChangeKind
    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fields: tuple[FieldChange, ...] = ()
    drifted: tuple[str, ...] = ()


class PriceSource(_Part, frozen=True, kw_only=True):
    """Whence a price comes (``PriceOrigin``): which list, when it was read, what was changed."""

    source: str
    at: datetime | msgspec.UnsetType = msgspec.UNSET
    basis: str | msgspec.UnsetType = msgspec.UNSET
    note: str | msgspec.UnsetType = msgspec.UNSET


class PlannedImage(_Part, frozen=True, kw_only=True):
    """The image that a launch boots.

    ``id`` is empty where the plan knows no account; then ``alias`` says what AWS is asked for.
    """

    id: str = ""
    name: str = ""
    alias: str = ""


class PlannedNodeClass(_Part, frozen=True, kw_only=True):
    """What an EC2NodeClass brings to the launches of this plan, as it was resolved.

    ``spec`` is as git has it, with a hash in the place of its user data; the other fields are what
    the selectors in it found, by id.
    """

    name: str
    spec: dict[str, Any] = {}
    images: tuple[PlannedImage, ...] = ()
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    capacity_reservations: tuple[str, ...] = ()
    placement_group: str = ""
    instance_profile: str = ""


class LaunchOffering(_Part, frozen=True, kw_only=True):
    """What a launch is expected to yield; prices are USD an hour."""

    instance_type: str
    zone: str
    capacity_type: str
    price: float
    base_price: float | None = None
    estimated: bool = False
    price_source: PriceSource | msgspec.UnsetType = msgspec.UNSET


class PlannedNodeClaim(_Part, frozen=True, kw_only=True):
    """A NodeClaim to be made, with all that it may become and what it will most likely be."""

    name: str
    node_pool: str
    node_class: str | None = None
    reason: str
    pods: tuple[str, ...] = ()
    requests: dict[str, str] = {}
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    instance_types: tuple[str, ...] = ()
    instance_types_total: int = 0
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    launch: LaunchOffering
    image: PlannedImage | msgspec.UnsetType = msgspec.UNSET


class PlacedPod(_Part, frozen=True, kw_only=True):
    """Where a pod would go: a node that is there, or a NodeClaim of this plan.

    ``relaxed`` are preferences that it has to do without; ``given_up`` those of them that could
    be had and are too dear, not written where there are none.
    """

    pod: str
    node: str | None = None
    node_claim: str | None = None
    relaxed: tuple[str, ...] = ()
    given_up: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Reason(_Part, frozen=True, kw_only=True):
    """Why a pod finds no place; ``node_pool`` is None where no pool is to blame."""

    node_pool: str | None = None
    code: str = ""
    message: str


class UnschedulablePod(_Part, frozen=True, kw_only=True):
    pod: str
    reasons: tuple[Reason, ...]


class PlannedHeadroom(_Part, frozen=True, kw_only=True):
    """Where the room is that a CapacityBuffer (``namespace/name``) keeps for ``replicas`` pods.

    ``nodes`` and ``node_claims`` count the pods that there is room for, on nodes that are there
    and on NodeClaims of this plan; ``unschedulable`` are those that find none, for ``reasons``.
    ``code`` is Karpenter's word for how the buffer stands.
    """

    buffer: str
    replicas: int = 0
    nodes: dict[str, int] = {}
    node_claims: dict[str, int] = {}
    unschedulable: int = 0
    code: str = ""
    message: str = ""
    reasons: tuple[Reason, ...] = ()


class DriftedClaim(_Part, frozen=True, kw_only=True):
    """A NodeClaim that no longer is what git wants; ``side`` says who moved."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[FieldChange, ...] = ()
    side: str = ""


class PlannedCommand(_Part, frozen=True, kw_only=True):
    """Nodes that go together, and what must be ready before they do.

    ``savings`` is USD an hour. ``forceful`` commands do not wait for budgets. ``message`` is what
    there is to say of the reason, such as which word of EC2 interrupts; most have none.
    ``savings_per_eviction`` is the share of the savings for each pod that a consolidation moves.
    """

    id: str
    reason: str
    decision: Decision
    nodes: tuple[str, ...]
    node_claims: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    savings: float | None = None
    score: float | None = None
    pods_evicted: int = 0
    savings_per_eviction: float | msgspec.UnsetType = msgspec.UNSET
    forceful: bool = False
    message: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def saved_for_each_pod(self) -> float | None:
        """USD an hour for each pod that has to move, None where none does or it is no matter."""
        saved = self.savings_per_eviction
        return None if isinstance(saved, msgspec.UnsetType) else saved

    @property
    def event(self) -> str:
        """The message, empty without one."""
        return "" if isinstance(self.message, msgspec.UnsetType) else self.message


class BlockedNode(_Part, frozen=True, kw_only=True):
    """A node that a method wants to disrupt and may not, and who says so."""

    node: str
    node_pool: str = ""
    reason: str = ""
    code: str = ""
    message: str


class Blocker(_Part, frozen=True, kw_only=True):
    """Something that keeps nodes from going, with all nodes that it holds.

    ``kind`` and ``name`` say what it is (``PodDisruptionBudget`` ``shop/web``, ``NodePool``
    ``db``), or by NodePool and reason what its nodes wait for (``Budget`` ``web/Drifted``).
    ``since`` is when it was seen first, None where nobody keeps a record. ``forgone`` is what
    consolidation of the nodes would save, in USD an hour, None where none is priced; ``unpriced``
    counts those that are not.
    """

    kind: str
    name: str
    code: str = ""
    message: str = ""
    owner: str = ""
    nodes: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    forgone: float | None = None
    unpriced: int = 0


class PoolBudget(_Part, frozen=True, kw_only=True):
    """What the budgets of a NodePool allow for one reason now."""

    node_pool: str
    reason: str
    total: int = 0
    disrupting: int = 0
    allowed: int
    next_change: datetime | None = None
    binding: int | None = None


class Action(_Part, frozen=True, kw_only=True):
    """One step. It starts when every action of ``depends_on`` has succeeded.

    ``cost_delta`` is USD an hour, negative for a node that goes; None where it has no price.
    ``image`` is that of a launch.
    """

    id: str
    kind: ActionKind
    node_pool: str | None = None
    node_claim: str | None = None
    node: str | None = None
    command: str | None = None
    depends_on: tuple[str, ...] = ()
    wave: int = 0
    cost_delta: float | None = None
    reason: str = ""
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    image: PlannedImage | msgspec.UnsetType = msgspec.UNSET


class DeferredClaim(_Part, frozen=True, kw_only=True):
    """What must wait, for what, and until when at the earliest."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    waits_for: Wait
    not_before: datetime | None = None
    message: str = ""


class PoolCost(_Part, frozen=True, kw_only=True):
    """Nodes of a NodePool and what they cost, USD an hour, before and after the plan.

    With ``--base``, ``nodes_base`` and ``base`` are what the plan of that commit comes to.
    """

    nodes_before: int = 0
    nodes_after: int = 0
    nodes_base: int | None = None
    before: float = 0.0
    after: float = 0.0
    base: float | None = None


class Cost(_Part, frozen=True, kw_only=True):
    """USD an hour of all nodes that a NodePool owns; ``unpriced`` counts those without a price.

    With ``--base``, ``base`` is what the plan of that commit comes to: ``after`` less ``base`` is
    what the change itself costs. ``lower_bound`` is the least that new nodes for the pods that
    wait can cost; ``bound_gap`` says how far the planned ones are above it, as a share of it, and
    ``bound_held_by`` what holds them there. Neither is written where there is nothing to say.
    """

    before: float
    after: float
    base: float | None = None
    currency: str = "USD"
    per: str = "hour"
    lower_bound: float | None = None
    bound_gap: float | msgspec.UnsetType = msgspec.UNSET
    bound_held_by: str | msgspec.UnsetType = msgspec.UNSET
    by_node_pool: dict[str, PoolCost] = {}
    unpriced: int = 0


class FleetAtRest(_Part, frozen=True, kw_only=True):
    """A fleet of which nothing is left to do: its nodes, and what they cost in USD an hour."""

    nodes: int
    per_hour: float


class StuckNode(_Part, frozen=True, kw_only=True):
    """A node that cannot come to rest: what it should go for, and what keeps it."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    message: str = ""


class AtRest(_Part, frozen=True, kw_only=True):
    """What a change costs: the difference between two fleets at rest.

    ``before`` is the fleet under the base, ``after`` that fleet carried on under the head.
    ``per_hour`` and ``per_month`` are their difference in USD. ``bounds`` are the least and the
    most that ``per_hour`` may be where the limit of work ended the search, else None. ``replaced``
    are nodes that give way to others. ``rollout`` is the time until the last action has ended
    (ISO 8601), None where it never does or the limit came first.
    """

    before: FleetAtRest
    after: FleetAtRest
    per_hour: float
    per_month: float
    bounds: tuple[float, float] | None = None
    unschedulable: tuple[str, ...] = ()
    replaced: int = 0
    rollout: str | None = None
    stuck: tuple[StuckNode, ...] = ()

    @property
    def launched(self) -> int:
        """How many more nodes there are than before."""
        return max(0, self.after.nodes - self.before.nodes)

    @property
    def removed(self) -> int:
        """How many fewer nodes there are than before."""
        return max(0, self.before.nodes - self.after.nodes)


class PlannedLock(_Part, frozen=True, kw_only=True):
    """The lock file that images, places and prices come from: when it was written, its digest.

    ``catalog`` is the version of the bundled instance types that it was written beside.
    """

    at: datetime
    digest: str
    catalog: str = ""


class Finding(_Part, frozen=True, kw_only=True):
    """A diagnostic, flat as the schema has it."""

    severity: str
    code: str
    message: str
    path: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None


class Plan(_Part, frozen=True, kw_only=True):
    """The same facts give the same plan, and the same plan the same bytes and ``digest``.

    ``serial`` is that of the recorded state it was made from. ``compared_with`` says since what
    the ``changes`` are: another commit, our records, or the cluster's own objects.
    ``headroom`` is written where there are CapacityBuffers. ``node_classes`` are those that the
    plan launches with. ``at_rest`` is what the change since a base costs.
    ``approved_as`` is the digest of the saved plan that approved this one.
    """

    api_version: str = API_VERSION
    kind: str = "Plan"
    fleet: str = ""
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    serial: int = 0
    revision: Revision = Revision()
    inputs_digest: str = ""
    inputs: InputDigests = InputDigests()
    changes: tuple[Change, ...] = ()
    compared_with: ComparedWith = ""
    node_claims: tuple[PlannedNodeClaim, ...] = ()
    placements: tuple[PlacedPod, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    headroom: tuple[PlannedHeadroom, ...] | msgspec.UnsetType = msgspec.UNSET
    drift: tuple[DriftedClaim, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()
    blocked: tuple[BlockedNode, ...] = ()
    budgets: tuple[PoolBudget, ...] = ()
    actions: tuple[Action, ...] = ()
    deferred: tuple[DeferredClaim, ...] = ()
    cost: Cost
    diagnostics: tuple[Finding, ...] = ()
    blockers: tuple[Blocker, ...] | msgspec.UnsetType = msgspec.UNSET
    lock: PlannedLock | msgspec.UnsetType = msgspec.UNSET
    node_classes: tuple[PlannedNodeClass, ...] | msgspec.UnsetType = msgspec.UNSET
    approved_as: str | msgspec.UnsetType = msgspec.UNSET
    at_rest: AtRest | msgspec.UnsetType = msgspec.UNSET

    @property
    def change(self) -> AtRest | None:
        """What the change since the base costs, None where nobody asked."""
        return None if isinstance(self.at_rest, msgspec.UnsetType) else self.at_rest

    @property
    def held_by(self) -> tuple[Blocker, ...]:
        """What keeps nodes from going; none where nothing does, or where nobody asked."""
        return () if isinstance(self.blockers, msgspec.UnsetType) else self.blockers

    @property
    def digest(self) -> str:
        """What a reviewer approves: the first characters of a hash over the whole plan.

        A plan that is carried out under an approval goes by the digest that was approved.
        """
        if not isinstance(self.approved_as, msgspec.UnsetType):
            return self.approved_as
        return content_digest(to_json(self))

    @property
    def launch_classes(self) -> tuple[PlannedNodeClass, ...]:
        """The node classes that the plan launches with, none where it launches nothing."""
        return () if isinstance(self.node_classes, msgspec.UnsetType) else self.node_classes

    @property
    def buffers(self) -> tuple[PlannedHeadroom, ...]:
        """The CapacityBuffers, none where there are none."""
        return () if isinstance(self.headroom, msgspec.UnsetType) else self.headroom

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do now."""
        return not self.actions


def content_digest(*parts: bytes) -> str:
    """Return a short digest, to name things by; see ``input_digest``."""
    return input_digest(*parts)[:DIGEST_LENGTH]


def input_digest(*parts: bytes) -> str:
    """Return a digest that nobody can find other parts for.

    Each part counts with its length, so that none runs into another.
    """
    from hashlib import sha256

    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def to_json(plan: Plan) -> bytes:
    """Return the plan as one line of JSON: keys sorted, floats in their shortest decimal form."""
    return msgspec.json.encode(plan, order="sorted")


def from_json(content: bytes, source: str = "the plan") -> Plan:
    """Return the plan that ``to_json`` wrote.

    Raises:
        UnreadableError: it is not a plan, or one of another version.
    """
    try:
        plan = msgspec.json.decode(content, type=Plan)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableError(
            f"not a plan: {error}",
            where=source,
            remedy="save one with `reconciler plan --out FILE`",
        ) from error
    if (plan.api_version, plan.kind) != (API_VERSION, "Plan"):
        raise UnreadableError(
            f"not a plan of {API_VERSION}: found {plan.kind} of {plan.api_version}",
            where=source,
            remedy="run `reconciler plan --out FILE` again with this release",
        )
    return plan
