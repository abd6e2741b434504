"""Why a pod gets no devices: the request that fails first, and what is missing for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.catalog.table import indices
from reconciler.model.text.counting import format_count
from reconciler.placement.devices.hosts import DeviceProfile
from reconciler.placement.devices.inventory import DeviceState, Inventory
from reconciler.placement.devices.needs import (
    Alternative,
    AttributeRule,
    ClaimNeeds,
    DeviceNeeds,
    DeviceRequests,
)
from reconciler.placement.devices.networkuse import NetworkUse
from reconciler.placement.devices.search import DeviceShortage, allocate

_NO_DEVICES: Final = (
    "none of its instance types has devices that can be claimed (featureGates.DRANVIDIAGPU and "
    "DRAEFA in reconciler.yaml add those of EC2)"
)


def device_shortage(profiles: Iterable[DeviceProfile], types: int, needs: DeviceNeeds) -> str:
    """Return why none of ``types`` has the devices of a pod on a new node.

    It is the reason of the profile in which the search for devices gets furthest.
    """
    best: tuple[tuple[int, int], str] | None = None
    for profile in profiles:
        if profile.mask & types and profile.inventory.devices:
            found = _shortage_of(profile.inventory, profile.inventory.empty, needs.claims)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    return _NO_DEVICES if best is None else best[1]


def network_shortage(
    use: NetworkUse, profiles: Iterable[DeviceProfile], types: int, needs: DeviceNeeds
) -> str:
    """Return why a new node of none of ``types`` has or reaches the devices of a pod."""
    network, best = use.network, ((-1, -1), _NO_DEVICES)
    claims = use.unplaced(needs.claims, frozenset())
    for profile in profiles:
        if profile.mask & types:
            joined = network.joined_for_types(profile.inventory, network.reaches)
            state = joined.state(use.taken, profile.inventory.empty)
            found = _shortage_of(joined.inventory, state, claims)
            if found is None:
                return _unreachable(use, needs)
            best = max(best, found)
    return best[1]


def _unreachable(use: NetworkUse, needs: DeviceNeeds) -> str:
    """Return from which nodes the devices of the network that suit a pod can be used."""
    placed = [reach for key in needs.shared for reach in use.places.get(key, ())]
    inventory = use.network.inventory
    for claim in () if placed else needs.claims:
        for request in claim.requests:
            matching = [i for r in request for i in indices(inventory.matching(r.conditions))]
            placed += (reach for i in matching if (reach := inventory.devices[i].reach) is not None)
    where = " or ".join(dict.fromkeys(map(str, placed)))
    return f"its devices can be used only from {where}, which no new node of the NodePool can be"


def _shortage_of(
    inventory: Inventory, state: DeviceState, claims: tuple[ClaimNeeds, ...]
) -> tuple[tuple[int, int], str] | None:
    """Return how far an allocation gets, and why it fails there; None if it does not fail."""
    found = allocate(inventory, state, claims)
    if not isinstance(found, DeviceShortage):
        return None
    requests = [request for claim in claims for request in claim.requests]
    first = found.request[0]
    name = first.name.partition("/")[0]
    reasons = dict.fromkeys(_missing(inventory, state, found, r) for r in found.request)
    what = "; or ".join(reasons)
    matching = max(inventory.matching(r.conditions).bit_count() for r in found.request)
    progress = requests.index(found.request), matching
    text = f"request {name} of ResourceClaim {found.claim.title} cannot be satisfied: {what}"
    return progress, text


def _missing(
    inventory: Inventory, state: DeviceState, found: DeviceShortage, wanted: Alternative
) -> str:
    """Return what is missing for an alternative of a request."""
    if found.is_limit:
        return "the search took too many steps: use fewer constraints and alternatives"
    matching = inventory.matching(wanted.conditions)
    if wanted.takes_all and (device := inventory.unreadable(wanted.conditions)):
        return (
            f"it requests all devices, and a selector cannot be evaluated for device {device}: "
            "test in the selector whether the attribute exists"
        )
    if not matching:
        return f"no device meets DeviceClass {wanted.device_class}{_selected(wanted)}"
    tolerated = matching & inventory.tolerated(wanted)
    if not inventory.is_complete and wanted.takes_all:
        return "the devices of a pool are not completely known"
    if wanted.takes_all and matching != tolerated:
        return "it requests all devices, and some have a taint that it does not tolerate"
    if not tolerated:
        return f"it does not tolerate the taint {_taint(inventory, matching)} of the devices"
    for reason in _shortages(inventory, state, wanted, tolerated):
        return reason
    constraint = next((c for c in found.claim.constraints if c.applies_to(wanted.name)), None)
    if constraint is not None:
        return _unmet(inventory, constraint, wanted, tolerated)
    return "the devices that match are needed for other requests"


def _unmet(
    inventory: Inventory, constraint: AttributeRule, wanted: Alternative, matching: int
) -> str:
    """Return how many devices a constraint on their attributes allows, and how many are needed."""
    values = (inventory.devices[i].attribute(constraint.attribute) for i in indices(matching))
    counts = Counter(value for value in values if value is not None)
    kind = "distinct values" if constraint.is_distinct else "the same value"
    text = (
        f"no {format_count(max(wanted.count, 1), 'device')} with {kind} of {constraint.attribute}"
    )
    if not counts:
        return f"{text}, which no device that matches has"
    most = len(counts) if constraint.is_distinct else max(counts.values())
    return f"{text} (a node has {most})" if most < wanted.count else text


def _selected(wanted: Alternative) -> str:
    return " and its selectors" if len(wanted.conditions) > 1 else ""


def _taint(inventory: Inventory, matching: int) -> str:
    taints = (t for i in indices(matching) for t in inventory.devices[i].taints)
    return str(next(taints, ""))


def _shortages(
    inventory: Inventory, state: DeviceState, wanted: Alternative, tolerated: int
) -> Iterator[str]:
    """Yield why too few of the tolerated devices are left."""
    single = (ClaimNeeds("", DeviceRequests(((wanted,),))),)
    if not isinstance(allocate(inventory, state, single), DeviceShortage):
        return
    if isinstance(allocate(inventory, inventory.empty, single), DeviceShortage):
        most = tolerated.bit_count()
        if wanted.count > most:
            yield f"it needs {wanted.count} devices that match, and a node has {most}"
        elif wanted.capacity:
            amounts = ", ".join(name for name, _ in wanted.capacity)
            yield f"no device that matches has the requested capacity ({amounts})"
        else:
            yield "the devices that match share counters, which do not suffice"
        return
    free = sum(1 for i in indices(tolerated) if not state.used >> i & 1)
    yield f"the devices that match are in use ({free} of {tolerated.bit_count()} are free)"
