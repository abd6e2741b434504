"""The replies of commands, in the form of their schemas; money is USD an hour."""

from __future__ import annotations

from datetime import datetime

import msgspec

from reconciler.model.diagnostics import Check


class _Reply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class SettingReply(_Reply, frozen=True):
    """A setting in the reply of ``config``; ``origin`` is its layer, and ``where`` its place."""

    value: object
    origin: str
    where: str


class HashReply(_Reply, frozen=True):
    """The drift hash of an object in the reply of ``hash``."""

    kind: str
    name: str
    hash: str
    version: str


class LockReply(_Reply, frozen=True):
    """The reply of ``lock``: what became of the file, and how many entries it has."""

    result: str
    changes: tuple[str, ...]
    node_classes: int
    instance_types: int
    locked_at: datetime


class CodeReply(_Reply, frozen=True):
    """What the code of a finding means, and what to do about it."""

    code: str
    meaning: str
    remedy: str


class HealthReply(_Reply, frozen=True):
    """The reply of ``health``; the age is None without a heartbeat."""

    healthy: bool
    heartbeat_age_seconds: float | None
    message: str


class ResumedPool(_Reply, frozen=True):
    """A NodePool whose disruption was halted."""

    node_pool: str
    halted_at: datetime | None
    failures: int
    reason: str


class ResumeReply(_Reply, frozen=True):
    """The reply of ``resume``."""

    resumed: tuple[ResumedPool, ...]


class MigrationReply(_Reply, frozen=True):
    """The reply of ``state migrate``."""

    state: str
    migration: str


class StateFinding(_Reply, frozen=True):
    """A problem of the recorded state."""

    severity: str
    code: str
    message: str


class SoundnessReply(_Reply, frozen=True):
    """The reply of ``state check``."""

    sound: bool
    findings: tuple[StateFinding, ...]


class ExportReply(_Reply, frozen=True):
    """The reply of ``state export``."""

    fleet: str
    file: str
    rows: int


class ImportReply(_Reply, frozen=True):
    """The reply of ``state import``."""

    fleet: str
    state: str
    rows: int


class PrunedRecords(_Reply, frozen=True):
    """How many records of a kind were removed and kept."""

    gone: int
    kept: int


class PruningReply(_Reply, frozen=True):
    """The reply of ``state prune`` (``schemas/pruning.v1.json``)."""

    before: datetime
    dry_run: bool
    records: dict[str, PrunedRecords]


class AdoptedInstance(_Reply, frozen=True):
    """An instance in the reply of ``state adopt``; ``per_hour`` is None without a known price."""

    id: str
    instance_type: str
    zone: str
    launched_at: datetime | None
    per_hour: float | None
    node_pool: str
    node_claim: str
    becomes: str
    refused: str
    notes: tuple[str, ...]


class AdoptionReply(_Reply, frozen=True):
    """The reply of ``state adopt`` (``schemas/adoption.v1.json``)."""

    fleet: str
    cluster: str
    done: bool
    instances: tuple[AdoptedInstance, ...]
    problems: tuple[str, ...]


class OverlayChange(msgspec.Struct, frozen=True):
    """A NodeOverlay in the reply of ``overlays --preview``, and what is done with it."""

    action: str
    reason: str
    overlay: object = msgspec.field(name="object")


class OverlaysReply(msgspec.Struct, frozen=True):
    """The reply of ``overlays --preview`` and ``--apply``."""

    overlays: tuple[OverlayChange, ...]


class ApplyReply(_Reply, frozen=True):
    """The reply of ``apply``; ``cost`` is USD an hour, ``actions`` counts them by state."""

    fleet: str
    converged: bool
    node_claims: tuple[str, ...]
    cost: float
    unschedulable: tuple[str, ...]
    deferred: int
    unapproved: int
    actions: dict[str, int]


class ChecksReply(msgspec.Struct, frozen=True):
    """The reply of ``check`` (``schemas/check.v1.json``)."""

    passed: bool
    checks: tuple[Check, ...]


class TopNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node in the reply of ``top``; ``created_at`` is empty if it is unknown."""

    name: str
    node_claim: str
    node_pool: str
    instance_type: str
    capacity_type: str
    zone: str
    status: str
    price_per_hour: float | None
    pods: int
    created_at: str
    requested_share: dict[str, float]


class TopTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums of the fleet; ``unpriced`` nodes are not in the price."""

    nodes: int
    pods: int
    price_per_hour: float
    unpriced: int
    requested_share: dict[str, float]


class TopReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply of ``top`` (``schemas/top.v1.json``)."""

    api_version: str = "reconciler/v1"
    kind: str = "Top"
    fleet: str
    nodes: tuple[TopNode, ...]
    total: TopTotal


class CostOfGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one group of workloads costs; ``idle_per_hour`` is the part that no pod requests."""

    name: str
    pods: int
    price_per_hour: float
    idle_per_hour: float


class CostTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums of all groups."""

    pods: int
    price_per_hour: float
    idle_per_hour: float


class CostReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply of ``top --by`` (``schemas/costallocation.v1.json``)."""

    api_version: str = "reconciler/v1"
    kind: str = "CostAllocation"
    fleet: str
    by: str
    groups: tuple[CostOfGroup, ...]
    total: CostTotal
