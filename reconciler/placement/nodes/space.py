"""What a node can still become: requirements, and the types and offerings that meet them.

Thousands of nodes and pods share a few dozen different requirements, so each pair is intersected
once and cached. A ``Demand`` is a pod's side, a ``Space`` a node's. There is one object for equal
content, so both are compared by identity. The hostname is not part of a space: it distinguishes
nodes and is checked separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from reconciler.catalog.table import OfferingClass, TypeTable
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.requirements import Operator, Requirement, Requirements, requirement
from reconciler.placement.devices.hosts import DeviceLoad, DeviceProfile, device_profiles
from reconciler.placement.devices.inventory import InventoryBook
from reconciler.placement.devices.needs import DeviceNeeds

NEW_HOST: Final = "new node"
"""Placeholder for the name of a planned host; no demand can name it."""

EXCLUDED_MAX: Final = 200
"""The labels and values of labels that the pods of a planned node exclude together, without values
that types or offerings have. Every combination of pods that is tried keeps them all."""


class Demand:
    """Requirements that a pod, a volume or a topology rule places on its node.

    ``hostname`` is the requirement on the hostname, or None.
    """

    __slots__ = ("hostname", "requirements")

    def __init__(self, requirements: Requirements) -> None:
        self.hostname = requirements.get(HOSTNAME)
        self.requirements = (
            requirements if self.hostname is None else requirements.without((HOSTNAME,))
        )

    @property
    def allows_new_host(self) -> bool:
        """Whether a planned node can satisfy the hostname requirement."""
        return self.hostname is None or self.hostname.has(NEW_HOST)


class Demands:
    """All demands of a scheduler, one object for equal content."""

    def __init__(self) -> None:
        self._known: dict[Requirements, Demand] = {}
        self._pins: dict[tuple[str, frozenset[str]], Demand] = {}
        self.none = self.demand_for(Requirements())

    def demand_for(self, requirements: Requirements) -> Demand:
        """Return the demand for these requirements."""
        known = self._known.get(requirements)
        if known is None:
            known = self._known[requirements] = Demand(requirements)
        return known

    def one_of(self, key: str, values: frozenset[str]) -> Demand:
        """Return the demand that a label has one of ``values``."""
        known = self._pins.get((key, values))
        if known is None:
            wanted = requirement(key, Operator.IN, tuple(sorted(values)))
            known = self._pins[key, values] = self.demand_for(Requirements([wanted]))
        return known


class Space:
    """A node's requirements with the types and offerings derived from them.

    ``excluded`` is how many labels and values they exclude that no type has. ``mask`` are the types
    that meet them and have an available offering that does; ``offers`` are
    those offerings' classes.
    """

    __slots__ = (
        "_book",
        "_by_capacity_type",
        "_narrowed",
        "excluded",
        "has_min_values",
        "mask",
        "offers",
        "requirements",
    )

    def __init__(self, book: SpaceBook, requirements: Requirements) -> None:
        self._book = book
        self.requirements = requirements
        self.offers: tuple[OfferingClass, ...] = book.table.offers(requirements)
        available = 0
        for offering in self.offers:
            available |= offering.mask
        self.mask = available & book.table.types_meeting(requirements)
        self.has_min_values = requirements.has_min_values()
        self.excluded = sum(
            len(item.values - book.table.values(key).keys()) or 1
            for key, item in requirements.items()
            if item.is_negative
        )
        self._narrowed: dict[Demand, Space | None] = {}
        self._by_capacity_type: dict[str, int] = {}

    def narrow(self, demand: Demand) -> Space | None:
        """Return the space narrowed by ``demand``, or None if it cannot be met.

        A key that this space does not define is allowed only if it is a well-known label.
        """
        try:
            return self._narrowed[demand]
        except KeyError:
            result = self._narrowed[demand] = self._book.narrow(self, demand)
            return result

    def fitting_types(self, requests: Mapping[str, int]) -> int:
        """Return the types of the catalog that offer ``requests``."""
        return self._book.table.fitting_types(requests)

    def device_types(self, needs: DeviceNeeds) -> int:
        """Return the types of the catalog whose empty nodes have the devices of a pod."""
        return self._book.device_types(needs)

    def capacity_types(self, types: int) -> list[str]:
        """Return the capacity types in which one of ``types`` is available, sorted."""
        known = self._by_capacity_type
        if not known:
            for offering in self.offers:
                known[offering.capacity_type] = known.get(offering.capacity_type, 0) | offering.mask
        return sorted(name for name, mask in known.items() if mask & types)

    def cheapest_price(self, types: int) -> float:
        """Return the price of the cheapest node of these types, in USD an hour."""
        return self._book.table.cheapest_price(self.offers, types & self.mask)

    def types_cheaper_than(self, price: float, *, spot: bool) -> int:
        """Return the types with an available offering of less than ``price``."""
        found = self._book.table.types_cheaper_than(self.offers, price, spot=spot)
        return found & self.mask

    def values(self, key: str, types: int) -> frozenset[str]:
        """Return the values that a label may have when one of ``types`` is launched.

        The result is empty if no requirement, type or offering defines the label.
        """
        known = self.requirements.get(key)
        if known is not None and not known.complement and len(known.values) <= 1:
            return known.values
        if key in self._book.table.offering_keys:
            borne = [o.requirements.get(key) for o in self.offers if o.mask & types]
            found = frozenset(v for r in borne if r is not None for v in r.values)
        else:
            masks = self._book.table.values(key).items()
            found = frozenset(value for value, mask in masks if mask & types)
        if known is None:
            return found
        if found:
            return frozenset(v for v in found if known.has(v))
        return frozenset() if known.complement else known.values


class SpaceBook:
    """The spaces of one catalog, one object for equal content."""

    def __init__(self, table: TypeTable) -> None:
        self.table = table
        self.well_known = table.well_known
        self._spaces: dict[Requirements, Space] = {}

    @cached_property
    def device_profiles(self) -> tuple[DeviceProfile, ...]:
        """The types by their devices; asked for only if a pod claims some."""
        return device_profiles(self.table.types, InventoryBook())

    @cached_property
    def no_devices_in_use(self) -> DeviceLoad:
        """The load of a node without pods."""
        return DeviceLoad(self.device_profiles)

    def device_types(self, needs: DeviceNeeds) -> int:
        """Return the types whose empty nodes have, or may reach, the devices of a pod."""
        if needs.uses_network:  # any type may reach them
            return self.table.all
        return self.no_devices_in_use.fitting_types(self.table.all, needs.claims)

    def space_for(self, requirements: Requirements) -> Space:
        """Return the space for these requirements."""
        known = self._spaces.get(requirements)
        if known is None:
            known = self._spaces[requirements] = Space(self, requirements)
        return known

    def narrow(self, space: Space, demand: Demand) -> Space | None:
        wanted = demand.requirements
        if not wanted:
            return space
        if space.excluded and self._excludes_too_much(space, wanted):
            return None
        if not space.requirements.is_compatible(wanted, self.well_known):
            return None
        return self.space_for(space.requirements.with_requirements(wanted.values()))

    def _excludes_too_much(self, space: Space, wanted: Requirements) -> bool:
        """Return whether a pod adds more excluded values than those of other pods leave room for.

        What one pod excludes alone is accepted.
        """
        added = 0
        for key, item in wanted.items():
            if item.is_negative:
                excluded = space.requirements.get(key)
                if excluded is None or not item.values <= excluded.values:
                    names = self.table.values(key)
                    new = len(item.values - names.keys()) if names else len(item.values)
                    added += new or excluded is None
        return added > 0 and space.excluded + added > EXCLUDED_MAX

    def relax_min_values(self, space: Space, min_values: Iterable[Requirement]) -> Space:
        """Return the space with some requirements replaced by ones with other ``min_values``."""
        changed = {item.key: item for item in min_values}
        return self.space_for(
            Requirements(changed.get(k, item) for k, item in space.requirements.items())
        )
