"""The ports of an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from reconciler.engine.listing import InstanceLists
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.observed.identity import CorrectNodes
from reconciler.observed.state import KnownNodes
from reconciler.plan.value.plan import Plan
from reconciler.ports.calls import Calls, InlineCalls
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import (
    Compute,
    Interruption,
    Interruptions,
    Launch,
    UnusedResource,
    UnusedResources,
)
from reconciler.ports.cluster import (
    Announcement,
    Announcer,
    Arrivals,
    Cluster,
    CostWrites,
    FleetUsage,
    Mirror,
    PodCost,
    PodCosts,
)
from reconciler.ports.journal import Intent, Journal
from reconciler.ports.progress import EventKind, Notifier, Progress
from reconciler.ports.state import RevisionProblem, StateStore, TraceLog


def _keep_no_reasons(plan: Plan) -> None:
    """Keep no reasons except those in the recorded plans."""


def _keep_no_problem(problem: RevisionProblem | None) -> None:
    """Keep no problem of a revision: nobody asks for the status."""


def _prune_nothing(now: datetime, keep: timedelta, needed: Collection[str]) -> int:
    """Remove nothing: these records end with their process."""
    del now, keep, needed
    return 0


def _confirm_always() -> None:
    """Confirm the lease: no other process can act for a fleet that exists in this one only."""


class NoInterruptions:
    """No interruption events: no queue is configured."""

    def pending_events(self) -> Sequence[Interruption]:
        """Return nothing."""
        return ()

    def acknowledge(self, received: Sequence[Interruption]) -> None:
        """Do nothing: there are no events."""
        del received

    def has_events(self) -> bool:
        """Return False."""
        return False

    def problem(self) -> str:
        """Return an empty text: having no queue is not a problem."""
        return ""


class NoArrivals:
    """No events of pending pods: the next pass finds them."""

    def has_events(self) -> bool:
        """Return False."""
        return False

    def acknowledge(self) -> None:
        """Do nothing: there are no events."""


class NoUnusedResources:
    """Nothing is ever left behind in a simulated account."""

    def find_unused(self, classes: Iterable[EC2NodeClass]) -> Sequence[UnusedResource]:
        """Return nothing."""
        del classes
        return ()

    def delete(self, resource: UnusedResource) -> None:
        """Do nothing: there is nothing to delete."""
        del resource


class NoAnnouncer:
    """Publishes nothing: there is no reader."""

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Do nothing."""
        del announcements


class NoMirror:
    """No copies: the cluster is simulated, or only observed."""

    def deleted_claims(self) -> Collection[str]:
        """Return nothing."""
        return ()

    def node_pools(self) -> Collection[str]:
        """Return nothing."""
        return ()

    def update(self, claims: Sequence[NodeClaim], drifted: Mapping[str, str]) -> None:
        """Do nothing."""
        del claims, drifted


class NoPodCosts:
    """No deletion costs: the cluster is simulated, or only observed."""

    def write(self, costs: Sequence[PodCost]) -> CostWrites:
        """Write nothing."""
        del costs
        return CostWrites({})


@dataclass(slots=True)
class CostRounds:
    """When deletion costs were last written, and the nodes by NodePool that had others."""

    last: datetime | None = None
    pending: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ReportedProblem:
    """A problem that is reported once while it stays the same."""

    _last: str = ""

    def report(self, world: World, text: str, kind: EventKind = EventKind.RETRYING) -> None:
        """Report a problem, unless it was the last one; an empty text means that it is over."""
        if text and text != self._last:
            world.notify(kind, text)
        self._last = text


@dataclass(frozen=True, slots=True)
class RequestedLaunches:
    """Launches that were requested from EC2 together, with the intents of their batches."""

    calls: tuple[tuple[Intent, Launch], ...]
    batches: tuple[Intent, ...]


_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the functional core, chosen once by ``assembly``.

    ``keep_reasons`` receives each plan with new content, ``keep_usage`` the usage of the nodes
    after each pass, ``keep_problem`` why the newest revision is not in effect. ``prune``
    removes settled records that are older than a span, except the given intents, and returns
    the number of removed rows. ``confirm`` raises LeaseLostError unless this process still
    holds the lease of the fleet. ``calls`` decides how calls are made, ``requested`` are the
    launches of this process whose answers no pass has read yet, ``lists`` has what EC2 listed
    last, ``correct_nodes`` the Nodes that the last pass has checked, and ``known_nodes`` the nodes
    of its state. ``span`` is entered around each step of a pass, for traces of the calls. ``trace``
    keeps how the workload changes, None where nothing does. Without ``allows_karpenter``, a
    Karpenter that runs in the cluster suspends the fleet; a simulated one decides nothing.
    """

    clock: Clock
    compute: Compute
    cluster: Cluster
    store: StateStore
    journal: Journal
    notifier: Notifier
    keep_reasons: Callable[[Plan], None] = _keep_no_reasons
    keep_usage: Callable[[FleetUsage], None] | None = None
    keep_problem: Callable[[RevisionProblem | None], None] = _keep_no_problem
    prune: Callable[[datetime, timedelta, Collection[str]], int] = _prune_nothing
    confirm: Callable[[], None] = _confirm_always
    interruptions: Interruptions = field(default_factory=NoInterruptions)
    arrivals: Arrivals = field(default_factory=NoArrivals)
    unused_resources: UnusedResources = field(default_factory=NoUnusedResources)
    span: Callable[[str], AbstractContextManager[object]] = nullcontext
    calls: Calls = field(default_factory=InlineCalls)
    requested: dict[str, RequestedLaunches] = field(default_factory=dict)
    lists: InstanceLists = field(default_factory=InstanceLists)
    correct_nodes: CorrectNodes = field(default_factory=CorrectNodes)
    known_nodes: KnownNodes = field(default_factory=KnownNodes)
    trace: TraceLog | None = None
    allows_karpenter: bool = True
    announcer: Announcer = field(default_factory=NoAnnouncer)
    mirror: Mirror = field(default_factory=NoMirror)
    mirror_problems: ReportedProblem = field(default_factory=ReportedProblem)
    deletion_problems: ReportedProblem = field(default_factory=ReportedProblem)
    pod_costs: PodCosts = field(default_factory=NoPodCosts)
    cost_rounds: CostRounds = field(default_factory=CostRounds)
    cost_problems: ReportedProblem = field(default_factory=ReportedProblem)
    pool_notices: ReportedProblem = field(default_factory=ReportedProblem)

    def step(self, name: str, run: Callable[_P, _T], *facts: _P.args, **options: _P.kwargs) -> _T:
        """Run a step of a pass within its span, and return the fact that it adds."""
        with self.span(name):
            return run(*facts, **options)

    def notify(
        self,
        kind: EventKind,
        message: str,
        *,
        node_pool: str = "",
        node_claim: str = "",
        command: str = "",
        reason: str = "",
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Report that something happened now."""
        self.notifier.notify(
            Progress(
                self.clock.now(),
                kind,
                message,
                node_pool=node_pool,
                node_claim=node_claim,
                command=command,
                reason=reason,
                facts=facts,
            )
        )
