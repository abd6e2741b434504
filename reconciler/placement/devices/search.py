"""Chooses devices for claims: a depth-first search in the order of requests and devices.

The first solution is taken, as by kube-scheduler's structured allocator and by Karpenter. Devices
of one kind are interchangeable, so only the first of them is tried. A search has a limit of steps:
constraints can make it exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from reconciler.catalog.table import indices
from reconciler.model.kubernetes.devices import RESULTS_MAX
from reconciler.placement.devices.inventory import DeviceState, Inventory, ListedDevice
from reconciler.placement.devices.needs import Alternative, ClaimNeeds, requests_key
from reconciler.placement.devices.reach import Reach

STEPS_MAX: Final = 5_000


class Pick(NamedTuple):
    """A device that a request of a claim gets; ``consumed`` is by capacity, in thousandths."""

    claim: int
    request: str
    device: int
    consumed: tuple[tuple[str, int], ...] = ()


class Allocated(NamedTuple):
    """The devices that claims get, and the state of the inventory then."""

    state: DeviceState
    picks: tuple[Pick, ...]


class Route(Protocol):
    """What a node that does not exist can still become, as devices of the network are chosen."""

    def enter(self, reach: Reach) -> bool:
        """Narrow it to nodes that reach a device; False if it cannot be one of them."""
        ...

    def leave(self) -> None:
        """Undo the last narrowing."""
        ...


class DeviceShortage(NamedTuple):
    """Why claims get no devices: the first request that cannot be satisfied."""

    claim: ClaimNeeds
    request: tuple[Alternative, ...]
    is_limit: bool = False


class _Shortage(NamedTuple):
    """A shortage for all claims with the same requests: ``claim`` is the position of the claim."""

    claim: int
    request: tuple[Alternative, ...]
    is_limit: bool


def allocate(
    inventory: Inventory, state: DeviceState, claims: tuple[ClaimNeeds, ...]
) -> Allocated | DeviceShortage:
    """Return the devices that claims get together, or why they do not."""
    if not claims:
        return Allocated(state, ())
    key = (state, requests_key(claims))
    known = inventory.known.get(key)
    if known is None:
        known = inventory.known[key] = (claims, _Search(inventory, state, claims).run())
    found: Allocated | _Shortage = known[1]
    if isinstance(found, Allocated):
        return found
    return DeviceShortage(claims[found.claim], found.request, found.is_limit)


def allocate_along(
    inventory: Inventory, state: DeviceState, claims: tuple[ClaimNeeds, ...], route: Route
) -> Allocated | None:
    """Return the devices that claims get on a new node, which each choice narrows."""
    found = _Search(inventory, state, claims, route).run() if claims else Allocated(state, ())
    return found if isinstance(found, Allocated) else None


def successive_states(
    inventory: Inventory, state: DeviceState, claims: tuple[ClaimNeeds, ...], most: int
) -> Sequence[DeviceState]:
    """Return the states after allocating the claims none, one, two … times, up to ``most``.

    It ends earlier if the devices do not suffice.
    """
    key = ("run", state, requests_key(claims))
    known = inventory.known.get(key)
    if known is None:
        known = inventory.known[key] = (claims, ([state], [True]))
    states, goes_on = known[1]
    while len(states) <= most and goes_on[0]:
        found = allocate(inventory, states[-1], claims)
        if isinstance(found, Allocated):
            states.append(found.state)
        else:
            goes_on[0] = False
    result: Sequence[DeviceState] = states
    return result


class _LimitError(Exception):
    """The search took too many steps."""


class _Search:
    """The search for the devices of some claims in one inventory."""

    def __init__(
        self,
        inventory: Inventory,
        state: DeviceState,
        claims: Sequence[ClaimNeeds],
        route: Route | None = None,
    ) -> None:
        self.inventory = inventory
        self.route = route
        self.claims = claims
        self.requests = [(i, r) for i, claim in enumerate(claims) for r in claim.requests]
        self.used = state.used
        self.consumed = list(state.consumed)
        self.left = list(state.left)
        self.picks: list[Pick] = []
        self.values: list[list[list[object]]] = [[[] for _ in c.constraints] for c in claims]
        self.counts = [0] * len(claims)
        self.deepest = 0
        self.steps = 0

    def run(self) -> Allocated | _Shortage:
        for number, (_, alternatives) in enumerate(self.requests):
            if not all(self._is_countable(wanted) for wanted in alternatives):
                self.deepest = number
                return self._shortage()
        try:
            found = self._request(0)
        except _LimitError:
            return self._shortage(is_limit=True)
        if not found:
            return self._shortage()
        state = DeviceState(self.used, tuple(self.consumed), tuple(self.left))
        return Allocated(state, tuple(self.picks))

    def _is_countable(self, wanted: Alternative) -> bool:
        """Return whether a request for all devices has a known number of them.

        Otherwise its claim gets no devices, even if another alternative has enough: neither
        Karpenter nor kube-scheduler starts the search.
        """
        inventory = self.inventory
        return not wanted.takes_all or (
            inventory.is_complete and not inventory.unreadable(wanted.conditions)
        )

    def _shortage(self, *, is_limit: bool = False) -> _Shortage:
        index, request = self.requests[min(self.deepest, len(self.requests) - 1)]
        return _Shortage(index, request, is_limit)

    def _request(self, number: int) -> bool:
        if number == len(self.requests):
            return True
        self.deepest = max(self.deepest, number)
        _, alternatives = self.requests[number]
        return any(self._alternative(number, wanted) for wanted in alternatives)

    def _alternative(self, number: int, wanted: Alternative) -> bool:
        self._take_step()
        claim = self.requests[number][0]
        matching = self.inventory.matching(wanted.conditions)
        if wanted.takes_all:
            if not matching or matching & ~self.inventory.tolerated(wanted):
                return False
            devices = indices(matching)
            if self.counts[claim] + len(devices) > RESULTS_MAX:
                return False
            return self._take_all(number, wanted, devices)
        if self.counts[claim] + wanted.count > RESULTS_MAX:
            return False
        candidates = matching & self.inventory.tolerated(wanted)
        if not wanted.is_admin:
            candidates &= ~self.used
        return self._slot(number, wanted, indices(candidates), 0, wanted.count)

    def _take_step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise _LimitError

    def _take_all(self, number: int, wanted: Alternative, devices: Sequence[int]) -> bool:
        taken: list[Pick] = []
        for device in devices:
            pick = self._take(number, wanted, device)
            if pick is None:
                break
            taken.append(pick)
        if len(taken) == len(devices) and self._request(number + 1):
            return True
        for pick in reversed(taken):
            self._give_back(wanted, pick)
        return False

    def _slot(
        self, number: int, wanted: Alternative, candidates: Sequence[int], start: int, count: int
    ) -> bool:
        """Choose ``count`` more devices of the candidates from a position on."""
        if not count:
            return self._request(number + 1)
        failed: set[object] = set()
        for position in range(start, len(candidates)):
            self._take_step()
            device = self.inventory.devices[candidates[position]]
            kind = self._kind(device)
            if kind in failed:
                continue
            pick = self._take(number, wanted, candidates[position])
            if pick is None:
                if not self._is_busy(device, candidates[position], wanted):
                    failed.add(kind)
                continue
            again = position if device.is_shared and not wanted.is_admin else position + 1
            if self._slot(number, wanted, candidates, again, count - 1):
                return True
            self._give_back(wanted, pick)
            failed.add(kind)
        return False

    def _kind(self, device: ListedDevice) -> object:
        """Return a key that is equal for devices that are interchangeable in this state."""
        if device.is_shared:
            return (device.kind, *(self.consumed[c.index] for c in device.capacities))
        return device.kind

    def _is_busy(self, device: ListedDevice, index: int, wanted: Alternative) -> bool:
        return not device.is_shared and not wanted.is_admin and bool(self.used >> index & 1)

    def _take(self, number: int, wanted: Alternative, index: int) -> Pick | None:
        """Take a device for a request, None if that is not possible."""
        device = self.inventory.devices[index]
        consumed: tuple[tuple[str, int], ...] = ()
        if not wanted.is_admin:
            if not device.is_shared and self.used >> index & 1:
                return None
            if any(self.left[at] < amount for at, amount in device.consumes):
                return None
        if device.is_shared:
            amounts = self._consumption(device, wanted)
            if amounts is None:
                return None
            consumed = () if wanted.is_admin else amounts
        elif not _offers(device, wanted):
            return None
        claim = self.requests[number][0]
        if not self._enter(claim, wanted, device):
            return None
        if not wanted.is_admin:
            self._change(device, index, dict(consumed), 1)
        pick = Pick(claim, wanted.name, index, consumed)
        self.picks.append(pick)
        self.counts[claim] += 1
        return pick

    def _give_back(self, wanted: Alternative, pick: Pick) -> None:
        device = self.inventory.devices[pick.device]
        self._leave(device)
        self.picks.pop()
        self.counts[pick.claim] -= 1
        if not wanted.is_admin:
            self._change(device, pick.device, dict(pick.consumed), -1)
        for constraint, values in zip(
            self.claims[pick.claim].constraints, self.values[pick.claim], strict=True
        ):
            if constraint.applies_to(wanted.name):
                values.pop()

    def _enter(self, claim: int, wanted: Alternative, device: ListedDevice) -> bool:
        """Narrow a new node to those that reach the device, unless something excludes that."""
        route = self.route
        if route is None or device.reach is None:
            return self._constrain(claim, wanted, device)
        if not route.enter(device.reach):
            return False
        if self._constrain(claim, wanted, device):
            return True
        route.leave()
        return False

    def _leave(self, device: ListedDevice) -> None:
        if device.reach is not None and self.route is not None:
            self.route.leave()

    def _change(
        self, device: ListedDevice, index: int, consumed: dict[str, int], sign: int
    ) -> None:
        if not device.is_shared:
            self.used ^= 1 << index
        for at, amount in device.consumes:
            self.left[at] -= sign * amount
        for capacity in device.capacities if device.is_shared else ():
            self.consumed[capacity.index] += sign * consumed.get(capacity.name, 0)

    def _consumption(
        self, device: ListedDevice, wanted: Alternative
    ) -> tuple[tuple[str, int], ...] | None:
        """Return what a request consumes of a shared device, None if that is not left."""
        requested = dict(wanted.capacity)
        if not requested.keys() <= {c.name for c in device.capacities}:
            return None
        found = []
        for capacity in device.capacities:
            amount = capacity.consumed_by(requested.get(capacity.name))
            if amount is None:
                return None
            if not wanted.is_admin and self.consumed[capacity.index] + amount > capacity.total:
                return None
            found.append((capacity.name, amount))
        return tuple(found)

    def _constrain(self, claim: int, wanted: Alternative, device: ListedDevice) -> bool:
        """Record the values of constrained attributes, unless a constraint excludes the device."""
        new: list[tuple[list[object], object]] = []
        for constraint, values in zip(
            self.claims[claim].constraints, self.values[claim], strict=True
        ):
            if not constraint.applies_to(wanted.name):
                continue
            value = device.attribute(constraint.attribute)
            if value is None:
                return False
            if constraint.is_distinct:
                if value in values:
                    return False
            elif values and values[0] != value:
                return False
            new.append((values, value))
        for values, value in new:
            values.append(value)
        return True


def _offers(device: ListedDevice, wanted: Alternative) -> bool:
    """Return whether a device that one claim uses alone has the capacity that is requested."""
    totals = {capacity.name: capacity.total for capacity in device.capacities}
    return all(amount <= totals.get(name, -1) for name, amount in wanted.capacity)
