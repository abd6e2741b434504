"""The clock of a command, and the systems that it acts on: real ones, or simulated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.adapters.clock import SystemClock

if TYPE_CHECKING:
    from reconciler.adapters.aws.clients import Connect
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock of a command, how it reaches EC2, and the latencies of a simulated cluster.

    ``connect`` leads to a simulated EC2; if it is None, the settings name the account. The seconds
    are those of ``EmbeddedCluster``. ``workers`` is the number of simultaneous launches.
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
    return SystemClock() if request.now is None else SystemClock(request.now)
