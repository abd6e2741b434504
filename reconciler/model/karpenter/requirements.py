"""Sets of requirements by label key, and the compatibility of two sets.

Two checks differ in the meaning of a *missing* key. ``intersects`` ignores a key that only one side
has. ``compatible`` is stricter: keys in the incoming set must be defined in this one, unless the
operator is negative or a provider sets the label later (Karpenter
``pkg/scheduling/requirements.go``).

One requirement is the set of values that a label may have. ``In``, ``NotIn``, ``Exists`` and
``DoesNotExist`` are represented in one form: a set of values or its complement. ``Gt``, ``Gte``,
``Lt`` and ``Lte`` put inclusive integer bounds on a complement. With this form, intersection takes
a few lines instead of a table of operator pairs (Karpenter ``pkg/scheduling/requirement.go``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Final

from reconciler.model.karpenter.labels import HOSTNAME, normalize_label
from reconciler.model.text.quoting import quote_value

_SHORT_VALUES: Final = 16
_SHORT_CHARACTERS: Final = 1_000
_LONG_VALUES: Final = 4_000
_LONG_CHARACTERS: Final = 2**18

_INT64_MAX = 2**63 - 1


class Operator(StrEnum):
    """The operator of a requirement in YAML."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"
    GTE = "Gte"
    LTE = "Lte"


@dataclass(frozen=True, slots=True)
class RequirementSpec:
    """A requirement in the API's spelling."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()
    min_values: int | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """The values that label ``key`` may have: ``values``, or all others with ``complement``.

    ``gte`` and ``lte`` restrict a complement to integers, both ends included. A finite set has no
    bounds, because they have already been applied. ``min_values`` is the minimum number of values
    required.
    """

    key: str
    complement: bool
    values: frozenset[str] = frozenset()
    gte: int | None = None
    lte: int | None = None
    min_values: int | None = None

    @property
    def operator(self) -> Operator:
        """The operator that is closest to this form; a bounded one reports ``Exists``."""
        if self.complement:
            return Operator.NOT_IN if self.values else Operator.EXISTS
        return Operator.IN if self.values else Operator.DOES_NOT_EXIST

    @property
    def is_negative(self) -> bool:
        """Whether a missing label satisfies it (``NotIn`` and ``DoesNotExist``)."""
        return bool(self.values) is self.complement

    def __len__(self) -> int:
        """The number of values it allows; a complement counts as all integers but its own."""
        return (
            min(_INT64_MAX - len(self.values), sys.maxsize) if self.complement else len(self.values)
        )

    def __bool__(self) -> bool:
        return True

    def has(self, value: str) -> bool:
        """Return whether the label may be ``value``."""
        return (value in self.values) is not self.complement and self.is_within_bounds(value)

    def is_within_bounds(self, value: str) -> bool:
        """Return whether a value is an integer within the bounds, if there are any."""
        if self.gte is None and self.lte is None:
            return True
        number = _parse_integer(value)
        if number is None:
            return False
        return (self.gte is None or number >= self.gte) and (self.lte is None or number <= self.lte)

    def intersection(self, other: Requirement) -> Requirement:
        """Return the requirement that allows what both allow; ``min_values`` is the larger."""
        gte = _choose_bound(max, self.gte, other.gte)
        lte = _choose_bound(min, self.lte, other.lte)
        min_values = _choose_bound(max, self.min_values, other.min_values)
        if gte is not None and lte is not None and gte > lte:
            return Requirement(self.key, complement=False, min_values=min_values)
        if self.complement and other.complement:
            values = _within(self.values | other.values, gte, lte)
            return Requirement(self.key, True, values, gte, lte, min_values)
        if self.complement:
            values = other.values - self.values
        elif other.complement:
            values = self.values - other.values
        else:
            values = self.values & other.values
        bounded = _within(values, gte, lte)
        return Requirement(self.key, complement=False, values=bounded, min_values=min_values)

    def has_intersection(self, other: Requirement) -> bool:
        """Return whether some value satisfies both.

        Two complements intersect unless their bounds contradict, even if exclusions exhaust a
        bounded range. This follows Karpenter; the offerings decide in the end.
        """
        gte = _choose_bound(max, self.gte, other.gte)
        lte = _choose_bound(min, self.lte, other.lte)
        if gte is not None and lte is not None and gte > lte:
            return False
        if self.complement and other.complement:
            return True
        finite, against = (other, self) if self.complement else (self, other)
        return any(against.has(v) for v in finite.values)

    def any_value(self) -> str:
        """Return an allowed value, always the same one; ``""`` if there is none.

        Karpenter chooses at random; the first value is equally valid and can be tested. An excluded
        value is skipped, which Karpenter does not do.
        """
        if not self.complement:
            return min(self.values, default="")
        number = max(self.gte or 0, 0)
        while str(number) in self.values:
            number += 1
        return "" if self.lte is not None and number > self.lte else str(number)

    def specs(self) -> list[RequirementSpec]:
        """Return it as API entries: two if both bounds exist (``Gte`` and ``Lte``)."""
        bounds = [
            RequirementSpec(self.key, operator, (str(bound),), self.min_values)
            for operator, bound in ((Operator.GTE, self.gte), (Operator.LTE, self.lte))
            if bound is not None
        ]
        if bounds:
            return bounds
        return [
            RequirementSpec(self.key, self.operator, tuple(sorted(self.values)), self.min_values)
        ]

    def with_min_values(self, min_values: int | None) -> Requirement:
        """Return it with another ``min_values``."""
        return replace(self, min_values=min_values)

    def __str__(self) -> str:
        operator = self.operator
        text = f"{self.key} {operator}"
        if operator in (Operator.IN, Operator.NOT_IN):
            shown = sorted(self.values)
            if len(shown) > 5:
                shown = [*shown[:5], f"and {len(shown) - 5} others"]
            text += f" [{' '.join(shown)}]"
        text += f" >={self.gte}" if self.gte is not None else ""
        text += f" <={self.lte}" if self.lte is not None else ""
        return text + (f" minValues {self.min_values}" if self.min_values is not None else "")


def requirement(
    key: str, operator: Operator | str, values: Iterable[str] = (), min_values: int | None = None
) -> Requirement:
    """Return the requirement of an API entry; beta keys become stable ones.

    Raises:
        ValueError: a bound is not a single integer, or the operator is unknown.
    """
    label, known, listed = normalize_label(key), Operator(operator), tuple(values)
    characters, make = len(label) + sum(map(len, listed)), _requirement
    if len(listed) <= _SHORT_VALUES and characters <= _SHORT_CHARACTERS:
        make = _short_requirement
    elif len(listed) <= _LONG_VALUES and characters <= _LONG_CHARACTERS:
        make = _long_requirement
    return make(label, known, listed, min_values)


def _requirement(
    key: str, operator: Operator, values: tuple[str, ...], min_values: int | None
) -> Requirement:
    match operator:
        case Operator.IN:
            return Requirement(key, False, frozenset(values), min_values=min_values)
        case Operator.NOT_IN:
            return Requirement(key, True, frozenset(values), min_values=min_values)
        case Operator.EXISTS:
            return Requirement(key, True, min_values=min_values)
        case Operator.DOES_NOT_EXIST:
            return Requirement(key, False, min_values=min_values)
    if len(values) != 1:
        raise ValueError(f"{operator} needs exactly one value, not {len(values)}")
    bound = _parse_integer(values[0])
    if bound is None:
        raise ValueError(f"{operator} needs an integer, not {quote_value(values[0])}")
    if operator in (Operator.GT, Operator.GTE):
        gte = bound + (operator is Operator.GT)
        if gte > _INT64_MAX:
            return Requirement(key, False)
        return Requirement(key, True, gte=gte, min_values=min_values)
    lte = bound - (operator is Operator.LT)
    return Requirement(key, True, lte=lte, min_values=min_values)


# The author of a pod chooses how long a requirement is: what is kept has to be small.
_short_requirement = lru_cache(maxsize=65536)(_requirement)
_long_requirement = lru_cache(maxsize=64)(_requirement)


def from_spec(spec: RequirementSpec) -> Requirement:
    """Return the requirement of an API entry."""
    return requirement(spec.key, spec.operator, spec.values, spec.min_values)


def equals(key: str, value: str) -> Requirement:
    """Return the requirement that the label is ``value``."""
    return requirement(key, Operator.IN, (value,))


def _parse_integer(text: str) -> int | None:
    """Return the integer as Go's ``strconv`` parses it, or None."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if not (body.isascii() and body.isdigit()) or len(body) > 19:
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


def _choose_bound(
    choose: Callable[[int, int], int], left: int | None, right: int | None
) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return choose(left, right)


def _within(values: frozenset[str], gte: int | None, lte: int | None) -> frozenset[str]:
    """Return the values that are within bounds, which few requirements have."""
    if gte is None and lte is None:
        return values
    bounds = Requirement("", True, frozenset(), gte, lte)
    return frozenset(value for value in values if bounds.is_within_bounds(value))


def _intersect(items: Sequence[Requirement]) -> Requirement:
    """Return the intersection of at least two requirements on one key.

    The excluded values of all complements are joined first. Otherwise each condition of a pod would
    copy those of all before it.
    """
    if len(items) == 2:
        return items[1].intersection(items[0])
    complements = [item for item in items if item.complement]
    excluded = Requirement(
        items[0].key,
        True,
        frozenset().union(*(item.values for item in complements)),
        max((item.gte for item in complements if item.gte is not None), default=None),
        min((item.lte for item in complements if item.lte is not None), default=None),
        max((item.min_values for item in complements if item.min_values is not None), default=None),
    )
    everything = Requirement(items[0].key, True)
    finite = (item for item in items if not item.complement)
    return reduce(Requirement.intersection, finite, everything.intersection(excluded))


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why two sets are incompatible: key, requested and existing values, and a probable typo."""

    key: str
    requested: Requirement
    existing: Requirement | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        if self.existing is None:
            hint = f' (typo of "{self.suggestion}"?)' if self.suggestion else ""
            return f'label "{self.key}" does not have known values{hint}'
        return f"key {self.key}, {self.requested} not in {self.existing}"


class Requirements(Mapping[str, Requirement]):
    """An immutable map from label key to requirement; adding a requirement intersects."""

    __slots__ = ("_by_key", "_hash")

    def __init__(self, items: Iterable[Requirement] = ()) -> None:
        by_key: dict[str, Requirement] = {}
        shared: dict[str, list[Requirement]] = {}
        for item in items:
            known = by_key.setdefault(item.key, item)
            if known is not item:
                shared.setdefault(item.key, [known]).append(item)
        for key, found in shared.items():
            by_key[key] = _intersect(found)
        self._by_key = by_key
        self._hash: int | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Requirements:
        """Return the set that requires the exact value of each label."""
        return cls(equals(key, value) for key, value in labels.items())

    def __getitem__(self, key: str) -> Requirement:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __reduce__(self) -> tuple[object, ...]:
        """Leave out the hash: it differs from process to process."""
        return Requirements, (tuple(self._by_key.values()),)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._by_key.values()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Requirements) and self._by_key == other._by_key

    def requirement_on(self, key: str) -> Requirement:
        """Return the requirement on ``key``; a missing key allows everything."""
        return self._by_key.get(key) or requirement(key, Operator.EXISTS)

    def with_requirements(self, items: Iterable[Requirement]) -> Requirements:
        """Return the intersection with more requirements."""
        return Requirements([*self._by_key.values(), *items])

    def without(self, keys: Collection[str]) -> Requirements:
        """Return the set without some keys."""
        return Requirements(r for r in self._by_key.values() if r.key not in keys)

    def has_min_values(self) -> bool:
        """Return whether any requirement has ``minValues``."""
        return any(r.min_values is not None for r in self._by_key.values())

    def first_conflict(
        self, incoming: Requirements, undefined_allowed: Collection[str] = frozenset()
    ) -> Incompatibility | None:
        """Return why ``incoming`` is not compatible with this set, or None if it is.

        A key that is missing from this set fails, unless it is in ``undefined_allowed`` or the
        operator is negative.
        """
        for key, requested in incoming.items():
            if key in self._by_key or key in undefined_allowed or requested.is_negative:
                continue
            return Incompatibility(
                key, requested, suggestion=self._suggest_key(key, undefined_allowed)
            )
        return next(self.conflicts(incoming), None)

    def is_compatible(
        self, incoming: Requirements, undefined_allowed: Collection[str] = frozenset()
    ) -> bool:
        """Return whether a node of this set could satisfy ``incoming``."""
        return self.first_conflict(incoming, undefined_allowed) is None

    def intersects(self, incoming: Requirements) -> bool:
        """Return whether the values of all common keys intersect."""
        return next(self.conflicts(incoming), None) is None

    def conflicts(self, incoming: Requirements) -> Iterator[Incompatibility]:
        """Yield the common keys without a common value, smaller set first."""
        own, other = self._by_key, incoming._by_key
        for key in own if len(own) < len(other) else other:
            existing, requested = own.get(key), other.get(key)
            if existing is None or requested is None or existing.has_intersection(requested):
                continue
            if not (requested.is_negative and existing.is_negative):
                yield Incompatibility(key, requested, existing)

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

    def _suggest_key(self, key: str, known: Collection[str]) -> str | None:
        tail = key.partition("/")[2] or key
        candidates = [*sorted(known), *self._by_key]
        return next((k for k in candidates if key in k or k.endswith(tail)), None)


NO_REQUIREMENTS = Requirements()
