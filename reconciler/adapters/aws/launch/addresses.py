"""Count the free addresses of subnets, minus those that pending launches will take.

EC2 counts an address once an instance has it, and the count is read once a minute. Without this,
several launches of one pass would all use the subnet that had the most free addresses at its start
(aws reference 4.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.nodeclass.images import Types
from reconciler.model.resources import MILLI, PODS

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CreateFleetRequestTypeDef, CreateFleetResultTypeDef


NONE_FREE: Final = "InsufficientFreeAddressesInSubnet"
"""EC2's error code for a full subnet."""


@dataclass(frozen=True, slots=True)
class ReservedAddresses:
    """The addresses that a launch will take in each subnet if its instances start there."""

    uses: Mapping[str, int]
    generation: int = 0


class Addresses:
    """The counts of one fleet's subnets. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[str, int] = {}
        self._full: set[str] = set()
        self._generation = 0

    def update(self, free: Mapping[str, int]) -> None:
        """Record EC2's counts, which now include earlier launches."""
        with self._lock:
            self._free |= free
            self._full.clear()
            self._generation += 1

    def free(self) -> dict[str, int]:
        """Return the free addresses of each known subnet."""
        with self._lock:
            return dict(self._free)

    def reserve(self, uses: Mapping[str, int]) -> ReservedAddresses:
        """Reserve addresses for a launch; unknown subnets have no count."""
        with self._lock:
            self._change_counts(uses, -1)
            return ReservedAddresses(uses, self._generation)

    def release_unused(self, reserved: ReservedAddresses, used: Iterable[str]) -> None:
        """Release what a launch reserved in the subnets where it got no instance.

        A more recent count from EC2 already includes that.
        """
        unused = {s: n for s, n in reserved.uses.items() if s not in frozenset(used)}
        with self._lock:
            if reserved.generation == self._generation:
                self._change_counts(unused, +1)

    def record_exhausted(self, answer: CreateFleetResultTypeDef) -> None:
        """Record the subnets that are full according to CreateFleet."""
        rows = [r for r in answer.get("Errors") or [] if r.get("ErrorCode") == NONE_FREE]
        places = (r.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}) for r in rows)
        with self._lock:
            self._full |= {place["SubnetId"] for place in places if "SubnetId" in place}
            self._free |= dict.fromkeys(self._full, 0)

    def _change_counts(self, uses: Mapping[str, int], sign: int) -> None:
        for subnet, count in uses.items():
            if subnet in self._free and subnet not in self._full:
                self._free[subnet] += sign * count


def address_uses(fleet: CreateFleetRequestTypeDef, types: Types, count: int) -> dict[str, int]:
    """Return the minimum number of addresses that a request takes in each subnet.

    A node takes one for each pod that it can hold, computed for the smallest of its types.
    """
    needed: dict[str, int] = {}
    for config in fleet["LaunchTemplateConfigs"]:
        for row in config["Overrides"]:
            kind = types(row["InstanceType"])
            pods = max(1, kind.capacity.get(PODS, 0) // MILLI) if kind is not None else 1
            subnet = row["SubnetId"]
            needed[subnet] = min(pods, needed.get(subnet, pods))
    return {subnet: pods * count for subnet, pods in needed.items()}
