"""Preferences: annotations of a NodePool that make some instance types look cheaper or dearer.

Veneer's annotations are taken unchanged, so that its users keep what they wrote::

    veneer.io/preference.1: "karpenter.k8s.aws/instance-family=c7a,c7g adjust=-20%"

A number, which is its weight; matchers, all of which must hold; one adjustment of the price.
Each becomes the NodeOverlay that Veneer would write. What is wrong with one annotation is
returned, and the others still count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference

ANNOTATION: Final = "veneer.io/preference."
_PREFIX: Final = "karpenter.k8s.aws/instance-"
SUPPORTED_KEYS: Final = (
    *(
        _PREFIX + name
        for name in (
            "family",
            "category",
            "generation",
            "size",
            "cpu",
            "cpu-manufacturer",
            "memory",
        )
    ),
    ARCH,
    CAPACITY_TYPE,
    INSTANCE_TYPE,
)
"""The labels that a matcher may name, those that Veneer knows."""

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "veneer")
TYPE: Final = ("veneer.io/type", "preference")
SOURCE: Final = "veneer.io/source-nodepool"
NUMBER: Final = "veneer.io/preference-number"
DISABLED: Final = "veneer.io/disabled"

_ADJUST: Final = re.compile(r"adjust=(?P<percent>[+-]?[0-9]+(?:\.[0-9]+)?)%", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_ADMITTED: Final = re.compile(r"[+-]\d*\.?\d+|\+\d*\.?\d+%|-\d{1,2}(?:\.\d+)?%|-100%", re.ASCII)


class Problem(StrEnum):
    """What is wrong with an annotation: the first that is found, in the order of reading."""

    INVALID_NUMBER = "invalid_number"
    NUMBER_BELOW_ONE = "number_below_one"
    EMPTY = "empty"
    INVALID_ADJUSTMENT = "invalid_adjustment"
    GE_LE_UNSUPPORTED = "ge_le_unsupported"
    MISSING_OPERATOR = "missing_operator"
    NOT_NUMERIC = "not_numeric"
    UNSUPPORTED_LABEL = "unsupported_label"
    NO_VALUES = "no_values"
    MISSING_ADJUSTMENT = "missing_adjustment"
    NO_MATCHERS = "no_matchers"


class PreferenceError(ValueError):
    """One annotation cannot be read; ``problem`` tells programs, the message tells people."""

    def __init__(self, problem: Problem, message: str, annotation: str = "") -> None:
        self.problem = problem
        self.annotation = annotation
        self.message = message
        super().__init__(f"{annotation}: {message}" if annotation else message)


class Preference(msgspec.Struct, frozen=True):
    """What an annotation says; the adjustment is in percent of the price."""

    number: int
    node_pool: str
    adjustment: float
    matchers: tuple[NodeSelectorRequirement, ...]


def parse_preferences(
    node_pool: str, annotations: Mapping[str, str]
) -> tuple[list[Preference], list[PreferenceError]]:
    """Return a NodePool's preferences by number, and what was wrong with other annotations.

    Two annotations may have one number («1» and «01»); they come in the order of their keys.
    """
    preferences: list[Preference] = []
    errors: list[PreferenceError] = []
    for annotation in sorted(annotations):
        if not annotation.startswith(ANNOTATION):
            continue
        try:
            number = _number(annotation.removeprefix(ANNOTATION))
            adjustment, matchers = parse_value(annotations[annotation])
        except PreferenceError as error:
            errors.append(PreferenceError(error.problem, error.message, annotation))
            continue
        preferences.append(Preference(number, node_pool, adjustment, matchers))
    preferences.sort(key=lambda p: p.number)
    return preferences, errors


def _number(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise PreferenceError(Problem.INVALID_NUMBER, f"{text!r} is not a number")
    number = int(text)
    if number < 1:
        raise PreferenceError(
            Problem.NUMBER_BELOW_ONE, "the number of a preference must be at least 1"
        )
    return number


def parse_value(text: str) -> tuple[float, tuple[NodeSelectorRequirement, ...]]:
    """Return the adjustment and the matchers of an annotation's value.

    Raises:
        PreferenceError: the value is not what it should be.
    """
    words = text.split()
    if not words:
        raise PreferenceError(Problem.EMPTY, "the value is empty")
    adjustment: float | None = None
    matchers = []
    for word in words:
        if word.startswith("adjust="):
            adjustment = parse_adjustment(word)
        else:
            matchers.append(parse_matcher(word))
    if adjustment is None:
        raise PreferenceError(Problem.MISSING_ADJUSTMENT, "no adjustment, as in adjust=-20%")
    if not matchers:
        raise PreferenceError(Problem.NO_MATCHERS, f"no matcher, as in {_PREFIX}family=c7a")
    return adjustment, tuple(matchers)


def parse_adjustment(word: str) -> float:
    """Return the percentage of a word like ``adjust=-12.5%``.

    Raises:
        PreferenceError: it is not one.
    """
    match = _ADJUST.fullmatch(word)
    if match is None:
        message = f"{word!r} is not an adjustment, as in adjust=-20% or adjust=+7.5%"
        raise PreferenceError(Problem.INVALID_ADJUSTMENT, message)
    return float(match["percent"])


def parse_matcher(word: str) -> NodeSelectorRequirement:
    """Return the requirement of a word like ``key=a,b``, ``key!=a``, ``key>4`` or ``key<4``.

    Raises:
        PreferenceError: it is none of these, or the key is not supported.
    """
    sign, operator = _operator(word)
    key, _, right = word.partition(sign)
    if operator in (Operator.GT, Operator.LT):
        if not _INTEGER.fullmatch(right):
            raise PreferenceError(Problem.NOT_NUMERIC, f"{right!r} after {sign} is not an integer")
        values = [right]
    else:
        values = [value for item in right.split(",") if (value := item.strip())]
    if key not in SUPPORTED_KEYS:
        known = ", ".join(SUPPORTED_KEYS)
        message = f"the label {key!r} is not supported here; supported are {known}"
        raise PreferenceError(Problem.UNSUPPORTED_LABEL, message)
    if not values:
        raise PreferenceError(Problem.NO_VALUES, f"{word!r} has no value")
    return NodeSelectorRequirement(key, operator, tuple(values))


def _operator(word: str) -> tuple[str, Operator]:
    if "!=" in word:
        return "!=", Operator.NOT_IN
    if ">=" in word or "<=" in word:
        message = f"{word!r}: use > or < with the next integer, >= and <= are not supported"
        raise PreferenceError(Problem.GE_LE_UNSUPPORTED, message)
    for sign, operator in ((">", Operator.GT), ("<", Operator.LT), ("=", Operator.IN)):
        if sign in word:
            return sign, operator
    raise PreferenceError(
        Problem.MISSING_OPERATOR, f"{word!r} has no operator (one of =, !=, >, <)"
    )


def adjustment_text(adjustment: float) -> str:
    """Return an adjustment as a NodeOverlay spells it, in whole percent, as Veneer writes it.

    Half a percent goes to the even neighbour: 7.5 is ``+8%`` and −12.5 is ``-12%``.
    """
    if adjustment == 0:
        return "0%"
    return f"{adjustment:+.0f}%"


def is_admitted(text: str) -> bool:
    """Return whether the API takes it as ``spec.priceAdjustment``: a sign, and not below −100 %."""
    return _ADMITTED.fullmatch(text) is not None


def overlay_name(node_pool: str, number: int) -> str:
    """Return the name of the overlay that a preference becomes."""
    return f"pref-{node_pool}-{number}"


def overlay_of(preference: Preference, *, uid: str = "", disabled: bool = False) -> NodeOverlay:
    """Return the NodeOverlay that a preference means.

    ``uid`` is that of the NodePool, which owns the overlay. A ``disabled`` one asks for a label
    that no node has, and so can be looked at without effect.
    """
    pool, number = preference.node_pool, preference.number
    labels = dict([MANAGED_BY, TYPE, (SOURCE, pool), (NUMBER, str(number))])
    requirements = [NodeSelectorRequirement(NODEPOOL, Operator.IN, (pool,))]
    if disabled:
        labels[DISABLED] = "true"
        requirements.insert(0, NodeSelectorRequirement(DISABLED, Operator.IN, ("true",)))
    owner = OwnerReference("NodePool", pool, "karpenter.sh/v1", uid)
    return NodeOverlay(
        Metadata(name=overlay_name(pool, number), labels=labels, owner_references=(owner,)),
        NodeOverlaySpec(
            requirements=(*requirements, *preference.matchers),
            price_adjustment=adjustment_text(preference.adjustment),
            weight=number,
        ),
    )


def is_preference_overlay(labels: Mapping[str, str]) -> bool:
    """Return whether these are the labels of an overlay that Veneer wrote for a preference."""
    return all(labels.get(key) == value for key, value in (MANAGED_BY, TYPE))


def preference_number(labels: Mapping[str, str]) -> int:
    """Return the number that an overlay's labels name, 0 where they name none."""
    text = labels.get(NUMBER, "")
    return int(text) if _INTEGER.fullmatch(text) else 0


class OverlayChange(StrEnum):
    """What bringing an overlay of the cluster up to date takes."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    TAKEN = "create-fails-already-exists"


def changes(
    node_pool: str, desired: Iterable[NodeOverlay], existing: Iterable[NodeOverlay]
) -> dict[str, OverlayChange]:
    """Return what Veneer would do to a NodePool's overlays, by name; nothing for those in order.

    An overlay of a wanted name that lacks the labels is somebody else's: it is not touched.
    """
    wanted = {overlay.name: overlay for overlay in desired}
    present = {overlay.name: overlay for overlay in existing}
    ours = {name: o for name, o in present.items() if _is_of(node_pool, o.metadata.labels)}
    found: dict[str, OverlayChange] = {}
    for name in sorted({*wanted, *ours}):
        if name not in wanted:
            found[name] = OverlayChange.DELETE
        elif name in ours:
            if needs_update(ours[name], wanted[name]):
                found[name] = OverlayChange.UPDATE
        else:
            found[name] = OverlayChange.TAKEN if name in present else OverlayChange.CREATE
    return found


def _is_of(node_pool: str, labels: Mapping[str, str]) -> bool:
    return is_preference_overlay(labels) and labels.get(SOURCE) == node_pool


def needs_update(existing: NodeOverlay, desired: NodeOverlay) -> bool:
    """Return whether an overlay differs from what is wanted; labels of others do not count."""
    labels = existing.metadata.labels
    same = all(labels.get(key) == value for key, value in desired.metadata.labels.items())
    return not same or existing.spec != desired.spec
