"""The ports that one engine works with, and the facts that stay the same while it runs."""

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
from reconciler.ports.progress import Notifier, Progress
from reconciler.ports.state import StateStore
from reconciler.ports.usage import FleetUsage


def _forget(plan: Plan) -> None:
    """Keep no reasons beyond those of the recorded plans."""


def _keep_all(now: datetime, keep: timedelta, needed: Collection[str]) -> int:
    """Remove nothing: these records are gone with their process."""
    del now, keep, needed
    return 0


def _hold_always() -> None:
    """Hold the right to act: nobody else can act for a fleet of this process alone."""


class NoInterruptions:
    """No word of interruptions ever comes: no queue is named."""

    def arrived(self) -> Sequence[Interruption]:
        """Return nothing."""
        return ()

    def settle(self, heard: Sequence[Interruption]) -> None:
        """Do nothing: nothing was heard."""
        del heard

    def has_news(self) -> bool:
        """Return False."""
        return False

    def problem(self) -> str:
        """Return an empty text: not to listen is no problem."""
        return ""


class NoArrivals:
    """Nobody tells of pods: the next look finds them."""

    def has_news(self) -> bool:
        """Return False."""
        return False

    def acknowledge(self) -> None:
        """Do nothing: nothing was heard."""


class NoLeftovers:
    """Nothing is ever left behind: the world is imitated."""

    def found(self, classes: Iterable[EC2NodeClass]) -> Sequence[Leftover]:
        """Return nothing."""
        del classes
        return ()

    def discard(self, leftover: Leftover) -> None:
        """Do nothing: nothing was found."""
        del leftover


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the functional core, chosen once by ``cli/wiring``.

    ``keep_reasons`` is given each plan that says something new, and ``keep_usage`` the usage of the
    nodes after each pass. ``prune`` removes from the records
    what is settled and older than a span, but none of the intents that it is given, and returns
    how many rows went. ``confirm`` raises LeaseLostError unless this process still holds the lease
    of the fleet.
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
        kind: str,
        message: str,
        *,
        node_pool: str = "",
        node_claim: str = "",
        command: str = "",
        reason: str = "",
    ) -> None:
        """Tell whoever watches that something happened now."""
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
