"""A set of requirements, one for each label key, and when one set is compatible with another.

The two questions differ in what a *missing* key means. ``intersects`` lets a key that only one
side has pass. ``compatible`` asks more: what the incoming side demands must be known on this
side, unless the demand is negative or the key is one whose value a provider fills in later
(Karpenter ``pkg/scheduling/requirements.go``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from reconciler.model.labels import HOSTNAME
from reconciler.model.requirement import (
    Operator,
    Requirement,
    RequirementSpec,
    equals,
    from_spec,
    requirement,
)


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why two sets do not meet: the key, what was asked, what is there, and a likely typo."""

    key: str
    wanted: Requirement
    existing: Requirement | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        if self.existing is None:
            hint = f' (typo of "{self.suggestion}"?)' if self.suggestion else ""
            return f'label "{self.key}" does not have known values{hint}'
        return f"key {self.key}, {self.wanted} not in {self.existing}"


class Requirements(Mapping[str, Requirement]):
    """An immutable map from label key to requirement; adding intersects."""

    __slots__ = ("_by_key", "_hash")

    def __init__(self, items: Iterable[Requirement] = ()) -> None:
        by_key: dict[str, Requirement] = {}
        for item in items:
            known = by_key.get(item.key)
            by_key[item.key] = item if known is None else item.intersection(known)
        self._by_key = by_key
        self._hash: int | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Requirements:
        """Return the set that demands each label as it stands."""
        return cls(equals(key, value) for key, value in labels.items())

    @classmethod
    def from_specs(cls, specs: Iterable[RequirementSpec]) -> Requirements:
        """Return the set that API entries mean."""
        return cls(map(from_spec, specs))

    def __getitem__(self, key: str) -> Requirement:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._by_key.values()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Requirements) and self._by_key == other._by_key

    def allowed(self, key: str) -> Requirement:
        """Return the requirement on ``key``; what is not mentioned allows everything."""
        return self._by_key.get(key) or requirement(key, Operator.EXISTS)

    def adding(self, items: Iterable[Requirement]) -> Requirements:
        """Return the intersection with more requirements."""
        return Requirements([*self._by_key.values(), *items])

    def without(self, keys: Collection[str]) -> Requirements:
        """Return the set less some keys."""
        return Requirements(r for r in self._by_key.values() if r.key not in keys)

    def has_min_values(self) -> bool:
        """Return whether any requirement asks for a minimum of choice."""
        return any(r.min_values is not None for r in self._by_key.values())

    def first_conflict(
        self, incoming: Requirements, undefined_allowed: Collection[str] = frozenset()
    ) -> Incompatibility | None:
        """Return why ``incoming`` is not compatible with this set, or None if it is.

        A key that this set does not know fails, unless it stands in ``undefined_allowed`` or the
        demand is negative.
        """
        for key, wanted in incoming.items():
            if key in self._by_key or key in undefined_allowed or wanted.is_negative:
                continue
            return Incompatibility(key, wanted, suggestion=self._typo(key, undefined_allowed))
        return next(self.conflicts(incoming), None)

    def compatible(
        self, incoming: Requirements, undefined_allowed: Collection[str] = frozenset()
    ) -> bool:
        """Return whether a node of this set could satisfy ``incoming``."""
        return self.first_conflict(incoming, undefined_allowed) is None

    def intersects(self, incoming: Requirements) -> bool:
        """Return whether no key that both sets have is contradicted."""
        return next(self.conflicts(incoming), None) is None

    def conflicts(self, incoming: Requirements) -> Iterator[Incompatibility]:
        """Yield the keys of both sets that no value satisfies, smaller set first."""
        mine, theirs = self._by_key, incoming._by_key
        for key in mine if len(mine) < len(theirs) else theirs:
            existing, wanted = mine.get(key), theirs.get(key)
            if existing is None or wanted is None or existing.has_intersection(wanted):
                continue
            if not (wanted.is_negative and existing.is_negative):
                yield Incompatibility(key, wanted, existing)

    def specs(self) -> list[RequirementSpec]:
        """Return the set as API entries, sorted by key."""
        return [spec for key in sorted(self._by_key) for spec in self._by_key[key].specs()]

    def fixed_labels(self) -> dict[str, str]:
        """Return the labels that have exactly one value."""
        return {
            key: next(iter(r.values))
            for key, r in self._by_key.items()
            if not r.complement and len(r.values) == 1
        }

    def __str__(self) -> str:
        return ", ".join(str(self._by_key[k]) for k in sorted(self._by_key) if k != HOSTNAME)

    def __repr__(self) -> str:
        return f"Requirements({self})"

    def _typo(self, key: str, known: Collection[str]) -> str | None:
        tail = key.partition("/")[2] or key
        candidates = [*sorted(known), *self._by_key]
        return next((k for k in candidates if key in k or k.endswith(tail)), None)


NO_REQUIREMENTS = Requirements()
