"""Devices that several nodes reach, for planned nodes: what each possible type takes.

A planned node has several possible types, of which each may take other devices. Until one is
chosen, all of them are taken, as in Karpenter. Each choice of a device narrows the node to those
that reach it, and the other types follow: the type that is cheapest now decides.
"""

from __future__ import annotations

from typing import NamedTuple

from reconciler.placement.devices.hosts import DeviceLoad, DeviceProfile
from reconciler.placement.devices.inventory import DeviceState
from reconciler.placement.devices.needs import ClaimNeeds, DeviceNeeds
from reconciler.placement.devices.network import (
    JoinedInventory,
    largest_taken,
    reaches_picked,
    sum_taken,
    taken_between,
    with_taken,
    without_taken,
)
from reconciler.placement.devices.networkuse import NetworkShare, NetworkUse
from reconciler.placement.devices.reach import Reach
from reconciler.placement.devices.search import Pick, allocate_along
from reconciler.placement.nodes.space import Demands, Space


class NetworkFit(NamedTuple):
    """A planned node with the devices of one more pod.

    ``load`` has its own devices in use. ``places`` are the nodes from which claims that other pods
    name as well can be used.
    """

    space: Space
    mask: int
    load: DeviceLoad
    taken: dict[DeviceProfile, DeviceState]
    places: dict[str, tuple[Reach, ...]]


class _Narrowing:
    """What a planned node can still become while devices are chosen for one of its types."""

    def __init__(self, space: Space, types: int, demands: Demands) -> None:
        self._spaces = [space]
        self._types = types
        self._demands = demands

    @property
    def space(self) -> Space:
        return self._spaces[-1]

    def enter(self, reach: Reach) -> bool:
        """Narrow the node to those that reach a device; False if it cannot be one of them."""
        found = narrowed(self.space, reach, self._demands)
        if found is None or not found.mask & self._types:
            return False
        self._spaces.append(found)
        return True

    def leave(self) -> None:
        """Undo the last narrowing."""
        self._spaces.pop()


def narrowed(space: Space, reach: Reach, demands: Demands) -> Space | None:
    """Return what a planned node becomes if it reaches a device, None if it cannot."""
    if reach.names is not None:
        return None
    if reach.requirements is None:
        return space
    demand = demands.demand_for(reach.requirements)
    return space.narrow(demand) if demand.allows_new_host else None


def fit_on_network(
    use: NetworkUse,
    needs: DeviceNeeds,
    load: DeviceLoad,
    share: NetworkShare | None,
    space: Space,
    types: int,
    demands: Demands,
) -> NetworkFit | None:
    """Return a planned node with one more pod, None if no type has or reaches its devices."""
    reaching = _reaching_shared(use, needs, space, demands)
    if reaching is None:
        return None
    space = reaching
    claims = use.unplaced(needs.claims, load.keys)
    others = use.taken if share is None else without_taken(use.taken, share.taken)
    states: dict[DeviceProfile, DeviceState] = {}
    taken: dict[DeviceProfile, DeviceState] = {}
    places: dict[str, tuple[Reach, ...] | None] = {}
    for profile in sorted(
        load.profiles(types & space.mask), key=lambda p: space.cheapest_price(p.mask & types)
    ):
        state, mine = load.state(profile), share.by_profile.get(profile) if share else None
        if state is None or not profile.mask & types & space.mask:
            continue
        before = others if mine is None else with_taken(others, mine)
        reached = [r for r in use.network.reaches if narrowed(space, r, demands) is not None]
        joined = use.network.joined_for_types(profile.inventory, reached)
        route = _Narrowing(space, profile.mask & types, demands)
        found = allocate_along(joined.inventory, joined.state(before, state), claims, route)
        if found is None:
            continue
        network, states[profile] = joined.split(found.state)
        part = taken_between(before, network)
        taken[profile] = part if mine is None else sum_taken(mine, part)
        space = route.space
        _add_places(places, joined, claims, found.picks)
    mask = 0
    for profile in states:
        mask |= profile.mask & types & space.mask
    if not mask:
        return None
    own, shared = _own_and_shared(places)
    return NetworkFit(space, mask, load.with_states(states, own), taken, shared)


def _own_and_shared(
    places: dict[str, tuple[Reach, ...] | None],
) -> tuple[frozenset[str], dict[str, tuple[Reach, ...]]]:
    """Return the claims that only this node can use, and from where the others can be used."""
    own = frozenset(key for key, reaches in places.items() if reaches is None)
    return own, {key: reaches for key, reaches in places.items() if reaches is not None}


def _reaching_shared(
    use: NetworkUse, needs: DeviceNeeds, space: Space, demands: Demands
) -> Space | None:
    """Return a planned node from which the claims that other pods use can be, None if none can."""
    for reach in dict.fromkeys(r for key in needs.shared for r in use.places.get(key, ())):
        after = narrowed(space, reach, demands)
        if after is None:
            return None
        space = after
    return space


def _add_places(
    places: dict[str, tuple[Reach, ...] | None],
    joined: JoinedInventory,
    claims: tuple[ClaimNeeds, ...],
    picks: tuple[Pick, ...],
) -> None:
    """Add the nodes that reach the devices of claims with a name, whichever type is launched."""
    for number, claim in enumerate(claims):
        if not claim.key:
            continue
        here = reaches_picked(joined, (pick.device for pick in picks if pick.claim == number))
        known = places.get(claim.key, ())
        places[claim.key] = (
            None if here is None or known is None else tuple(dict.fromkeys((*known, *here)))
        )


def share_of(by_profile: dict[DeviceProfile, DeviceState], mask: int) -> NetworkShare | None:
    """Return what a planned node takes while its types are those of ``mask``."""
    left = {profile: taken for profile, taken in by_profile.items() if profile.mask & mask}
    taken = largest_taken(left.values())
    return None if taken is None else NetworkShare(left, taken)
