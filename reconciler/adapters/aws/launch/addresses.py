"""How many addresses subnets have left, those counted in that launches on their way will take.

EC2 counts an address once an instance has it, and is asked for the count once a minute; several
launches of one pass would all take the subnet that was the freest when it began (aws reference
4.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from reconciler.adapters.aws.nodeclass.images import Types
from reconciler.model.resources import MILLI, PODS

NONE_FREE: Final = "InsufficientFreeAddressesInSubnet"
"""What EC2 says of a subnet that is full."""


@dataclass(frozen=True, slots=True)
class ReservedAddresses:
    """What a launch will take of each subnet, should it get its instances there."""

    uses: Mapping[str, int]
    look: int = 0


class Addresses:
    """The counts of one fleet's subnets; several launches may ask and take at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[str, int] = {}
        self._full: set[str] = set()
        self._look = 0

    def seen(self, free: Mapping[str, int]) -> None:
        """Note what EC2 counts: it knows by now what launches took before."""
        with self._lock:
            self._free |= free
            self._full.clear()
            self._look += 1

    def free(self) -> dict[str, int]:
        """Return what is left in each subnet that was looked at."""
        with self._lock:
            return dict(self._free)

    def take(self, uses: Mapping[str, int]) -> ReservedAddresses:
        """Count on a launch; subnets that were never looked at have no count."""
        with self._lock:
            self._add(uses, -1)
            return ReservedAddresses(uses, self._look)

    def settle(self, taken: ReservedAddresses, used: Iterable[str]) -> None:
        """Give back what a launch took of the subnets where it got no instance.

        A look at EC2 meanwhile has done that already.
        """
        unused = {s: n for s, n in taken.uses.items() if s not in frozenset(used)}
        with self._lock:
            if taken.look == self._look:
                self._add(unused, +1)

    def exhausted(self, answer: Mapping[str, Any]) -> None:
        """Note the subnets of which CreateFleet says that they have no address left."""
        rows = [r for r in answer.get("Errors") or [] if r.get("ErrorCode") == NONE_FREE]
        places = (r.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}) for r in rows)
        with self._lock:
            self._full |= {place["SubnetId"] for place in places if "SubnetId" in place}
            self._free |= dict.fromkeys(self._full, 0)

    def _add(self, uses: Mapping[str, int], sign: int) -> None:
        for subnet, count in uses.items():
            if subnet in self._free and subnet not in self._full:
                self._free[subnet] += sign * count


def uses_of(fleet: Mapping[str, Any], types: Types, count: int) -> dict[str, int]:
    """Return how many addresses each subnet of a request will lose at least.

    A node takes one for each pod that it can hold: the smallest of its types is reckoned with.
    """
    least: dict[str, int] = {}
    for config in fleet["LaunchTemplateConfigs"]:
        for row in config["Overrides"]:
            kind = types(row["InstanceType"])
            pods = max(1, kind.capacity.get(PODS, 0) // MILLI) if kind is not None else 1
            subnet = row["SubnetId"]
            least[subnet] = min(pods, least.get(subnet, pods))
    return {subnet: pods * count for subnet, pods in least.items()}
