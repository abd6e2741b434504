"""Progress events for people and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

PREEMPTED: Final = "Preempted"
"""The reason of an eviction that makes room for a pod of a higher priority."""


class EventKind(StrEnum):
    """What can happen, as the log and the report of a simulation name it."""

    # the process and its right to act
    STANDBY = "Standby"
    LEASE_ACQUIRED = "LeaseAcquired"
    LEASE_LOST = "LeaseLost"
    CLOCK_SET_BACK = "ClockSetBack"
    FLEET_ADDED = "FleetAdded"
    FLEET_REMOVED = "FleetRemoved"
    CONNECTED = "Connected"
    FORBIDDEN = "Forbidden"
    RETRYING = "Retrying"
    FAILED = "Failed"
    KILLED = "Killed"
    PRUNED = "Pruned"
    ILLEGAL_TRANSITION = "IllegalTransition"
    # what git and the cluster contain
    REVISION = "Revision"
    INVALID_REVISION = "InvalidRevision"
    AWAITING_APPROVAL = "AwaitingApproval"
    UNREADABLE = "Unreadable"
    WORK_LIMITED = "WorkLimited"
    # launches
    NODE_CLAIM_CREATED = "NodeClaimCreated"
    LAUNCHED = "Launched"
    REGISTERED = "Registered"
    INITIALIZED = "Initialized"
    LAUNCH_FAILED = "LaunchFailed"
    UNAVAILABLE = "Unavailable"
    # disruption
    COMMAND_STARTED = "CommandStarted"
    COMMAND_VALIDATED = "CommandValidated"
    COMMAND_ROLLED_BACK = "CommandRolledBack"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    INTERRUPTED = "Interrupted"
    REBALANCE_RECOMMENDED = "RebalanceRecommended"
    IGNORED = "Ignored"
    EXPIRED = "Expired"
    REBOOTING = "Rebooting"
    REBOOT_OBSERVED = "RebootObserved"
    REBOOTED = "Rebooted"
    REBOOT_FAILED = "RebootFailed"
    # termination
    TAINTED = "Tainted"
    DRAINING = "Draining"
    STALLED = "Stalled"
    DRAINED = "Drained"
    TERMINATED = "Terminated"
    VANISHED = "Vanished"
    NODE_DELETED = "NodeDeleted"
    REQUEST_DONE = "RequestDone"
    # pods
    POD_BOUND = "PodBound"
    POD_EVICTED = "PodEvicted"
    # rollouts
    WAVE_STARTED = "WaveStarted"
    WAVE_SETTLED = "WaveSettled"
    WAVE_FAILED = "WaveFailed"
    ROLLOUT_STOPPED = "RolloutStopped"
    # recovery, ownership and upkeep
    LOOKING = "Looking"
    RECOVERED = "Recovered"
    UNKNOWN = "Unknown"
    RESOLVED = "Resolved"
    DISCARDED = "Discarded"


@dataclass(frozen=True, slots=True)
class Progress:
    """An event for a person who watches, or for the log."""

    at: datetime
    kind: EventKind
    message: str
    node_pool: str = ""
    node_claim: str = ""
    node: str = ""
    command: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


class CommitName(NamedTuple):
    """A commit for people: its id, and its subject with its author; both are empty if unknown."""

    commit: str = ""
    title: str = ""


class CallMeter(Protocol):
    """Receives every finished call of an API, for metrics. It never raises."""

    def __call__(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Record a call; ``outcome`` is ``ok`` or the code of its error."""


class Notifier(Protocol):
    """The receiver of progress events."""

    def notify(self, progress: Progress) -> None:
        """Report it; never raises."""
