"""The result of a backtest: its sides, their spread over seeds, and their difference."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

HEAD: Final = "head"
BASE: Final = "base"
KARPENTER: Final = "karpenter-defaults"


class WaitingSeconds(msgspec.Struct, frozen=True, rename="camel"):
    """How long pods waited for their first node: percentiles over the pods that got one."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class Utilization(msgspec.Struct, frozen=True, rename="camel"):
    """The requests of pods as a share of allocatable, both over time: 0 to 1, 0 without nodes.

    A difference of two is between -1 and 1.
    """

    cpu: float = 0.0
    memory: float = 0.0


class SideResult(msgspec.Struct, frozen=True, rename="camel"):
    """The results of one side over the period; money is USD.

    ``lower_bound`` is the integral of the minimum price of nodes for the pods that ran.
    ``pods`` were created, and ``unplaced`` of them never got a node.
    """

    dollars: float
    dollars_per_month: float
    lower_bound: float
    node_hours: float
    utilization: Utilization
    waiting_seconds: WaitingSeconds
    evictions: int
    evictions_per_pod_day: float
    interruptions: int
    commands: int
    pods: int
    unplaced: int
    passes: int


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """The head minus ``against``, exactly 0 if both are equal; ``percent`` is of the dollars."""

    against: str
    dollars: float
    dollars_per_month: float
    percent: float | None
    lower_bound: float
    node_hours: float
    utilization: Utilization
    waiting_seconds: WaitingSeconds
    evictions: int
    commands: int
    unplaced: int


class DollarSpread(msgspec.Struct, frozen=True, rename="camel"):
    """The minimum and the maximum dollars of a side over all seeds."""

    low: float
    high: float


class Backtest(msgspec.Struct, frozen=True, rename="camel"):
    """A trace replayed ``from`` one time ``until`` another; sides are means over the seeds.

    ``rounded_gpus`` counts pods that requested a share of a GPU and got a complete one.
    """

    begin: Annotated[datetime, msgspec.Meta(tz=True)] = msgspec.field(name="from")
    until: Annotated[datetime, msgspec.Meta(tz=True)]
    seeds: int
    rounded_gpus: int
    sides: dict[str, SideResult]
    spread: dict[str, DollarSpread]
    difference: Difference | None = None

    def __post_init__(self) -> None:
        """Reject a difference of missing sides.

        Raises:
            ValueError: a side is missing, or the end is not after the beginning.
        """
        if self.until < self.begin:
            raise ValueError("a backtest ends before it begins")
        change = self.difference
        known = {BASE, KARPENTER} & self.sides.keys()
        if HEAD not in self.sides or (change is not None and change.against not in known):
            raise ValueError("a backtest lacks one of the sides that it compares")
