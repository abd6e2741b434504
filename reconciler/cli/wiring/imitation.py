"""The systems that a command acts on: real ones, or a simulation in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.adapters.aws.clients import Connect
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Imitation:
    """A simulated environment: its clock, and the latencies on it.

    The seconds are those of ``EmbeddedCluster``; ``connect`` leads to an imitated EC2, None to
    whichever the settings name; ``workers`` launch at the same time.
    """

    clock: Clock
    connect: Connect | None = None
    workers: int = 8
    joining_s: float = 0.0
    ready_s: float = 0.0
    starting_s: float = 0.0
    leaving_s: float = 0.0


def clock_of(request: FleetRequest) -> Clock:
    """Return the machine's clock, set to ``--now`` if that is given."""
    from reconciler.adapters.clock import SystemClock

    return SystemClock() if request.now is None else SystemClock(request.now)
