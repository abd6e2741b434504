"""The ports of an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.plan.value.plan import Plan
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Compute, Interruption, Interruptions, Leftover, Leftovers
from reconciler.ports.cluster import Arrivals, Cluster
from reconciler.ports.journal import Journal
from reconciler.ports.progress import EventKind, Notifier, Progress
from reconciler.ports.state import StateStore
from reconciler.ports.usage import FleetUsage


def _forget(plan: Plan) -> None:
    """Keep no reasons except those in the recorded plans."""


def _keep_all(now: datetime, keep: timedelta, needed: Collection[str]) -> int:
    """Remove nothing: these records end with their process."""
    del now, keep, needed
    return 0


def _hold_always() -> None:
    """Confirm the lease: no other process can act for a fleet that exists in this one only."""


class NoInterruptions:
    """No interruption events: no queue is configured."""

    def arrived(self) -> Sequence[Interruption]:
        """Return nothing."""
        return ()

    def settle(self, heard: Sequence[Interruption]) -> None:
        """Do nothing: there are no events."""
        del heard

    def has_news(self) -> bool:
        """Return False."""
        return False

    def problem(self) -> str:
        """Return an empty text: having no queue is not a problem."""
        return ""


class NoArrivals:
    """No events of pending pods: the next pass finds them."""

    def has_news(self) -> bool:
        """Return False."""
        return False

    def acknowledge(self) -> None:
        """Do nothing: there are no events."""


class NoLeftovers:
    """Nothing is ever left behind in an imitated account."""

    def found(self, classes: Iterable[EC2NodeClass]) -> Sequence[Leftover]:
        """Return nothing."""
        del classes
        return ()

    def discard(self, leftover: Leftover) -> None:
        """Do nothing: there is nothing to delete."""
        del leftover


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the functional core, chosen once by ``cli/wiring``.

    ``keep_reasons`` receives each plan with new content, ``keep_usage`` the usage of the nodes
    after each pass. ``prune`` removes settled records that are older than a span, except the given
    intents, and returns the number of removed rows. ``confirm`` raises LeaseLostError unless this
    process still holds the lease of the fleet.
    """

    clock: Clock
    compute: Compute
    cluster: Cluster
    store: StateStore
    journal: Journal
    notifier: Notifier
    keep_reasons: Callable[[Plan], None] = _forget
    keep_usage: Callable[[FleetUsage], None] | None = None
    prune: Callable[[datetime, timedelta, Collection[str]], int] = _keep_all
    confirm: Callable[[], None] = _hold_always
    interruptions: Interruptions = field(default_factory=NoInterruptions)
    arrivals: Arrivals = field(default_factory=NoArrivals)
    leftovers: Leftovers = field(default_factory=NoLeftovers)

    def notify(
        self,
        kind: EventKind,
        message: str,
        *,
        node_pool: str = "",
        node_claim: str = "",
        command: str = "",
        reason: str = "",
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
            )
        )
