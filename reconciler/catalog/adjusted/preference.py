"""Preferences: NodePool annotations that change the apparent price of instance types.

Veneer's annotations are used unchanged, so that its users can keep them::

    veneer.io/preference.1: "karpenter.k8s.aws/instance-family=c7a,c7g adjust=-20%"

The number is the weight. It is followed by matchers, all of which must hold, and one price
adjustment. Each annotation becomes the NodeOverlay that Veneer would create. An invalid annotation
is reported, and the others still apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference
from reconciler.model.text.quoting import quote_value

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
"""The labels that a matcher may use, as in Veneer."""

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "veneer")
TYPE: Final = ("veneer.io/type", "preference")
SOURCE: Final = "veneer.io/source-nodepool"
NUMBER: Final = "veneer.io/preference-number"
DISABLED: Final = "veneer.io/disabled"

_ADJUST: Final = re.compile(r"adjust=(?P<percent>[+-]?[0-9]+(?:\.[0-9]+)?)%", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_VALID_ADJUSTMENT: Final = re.compile(
    r"[+-](?:\d+(?:\.\d+)?|\.\d+)|\+(?:\d+(?:\.\d+)?|\.\d+)%|-\d{1,2}(?:\.\d+)?%|-100%", re.ASCII
)


class Problem(StrEnum):
    """The problem of an invalid annotation: the first one found when parsing it."""

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
    """An invalid annotation; ``problem`` is for programs, the message for people."""

    def __init__(self, problem: Problem, message: str, annotation: str = "") -> None:
        self.problem = problem
        self.annotation = annotation
        self.message = message
        super().__init__(f"{annotation}: {message}" if annotation else message)


class Preference(msgspec.Struct, frozen=True):
    """A parsed annotation; the adjustment is in percent of the price."""

    number: int
    node_pool: str
    adjustment: float
    matchers: tuple[NodeSelectorRequirement, ...]


def parse_preferences(
    node_pool: str, annotations: Mapping[str, str]
) -> tuple[list[Preference], list[PreferenceError]]:
    """Return a NodePool's preferences by number, and the errors of its invalid annotations.

    Two annotations may have the same number («1» and «01»); they are sorted by key.
    """
    preferences: list[Preference] = []
    errors: list[PreferenceError] = []
    for annotation in sorted(annotations):
        if not annotation.startswith(ANNOTATION):
            continue
        try:
            number = _parse_number(annotation.removeprefix(ANNOTATION))
            adjustment, matchers = parse_value(annotations[annotation])
        except PreferenceError as error:
            errors.append(PreferenceError(error.problem, error.message, annotation))
            continue
        preferences.append(Preference(number, node_pool, adjustment, matchers))
    preferences.sort(key=lambda p: p.number)
    return preferences, errors


def _parse_number(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise PreferenceError(Problem.INVALID_NUMBER, f"{quote_value(text)} is not a number")
    number = int(text)
    if number < 1:
        raise PreferenceError(
            Problem.NUMBER_BELOW_ONE, "the number of a preference must be at least 1"
        )
    return number


def parse_value(text: str) -> tuple[float, tuple[NodeSelectorRequirement, ...]]:
    """Return the adjustment and the matchers of an annotation's value.

    Raises:
        PreferenceError: the value is invalid.
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
        PreferenceError: the word has another form.
    """
    match = _ADJUST.fullmatch(word)
    if match is None:
        message = f"{quote_value(word)} is not an adjustment, as in adjust=-20% or adjust=+7.5%"
        raise PreferenceError(Problem.INVALID_ADJUSTMENT, message)
    return float(match["percent"])


def parse_matcher(word: str) -> NodeSelectorRequirement:
    """Return the requirement of a word like ``key=a,b``, ``key!=a``, ``key>4`` or ``key<4``.

    Raises:
        PreferenceError: the word has another form, or the key is not supported.
    """
    sign, operator = _parse_operator(word)
    key, _, right = word.partition(sign)
    if operator in (Operator.GT, Operator.LT):
        if not _INTEGER.fullmatch(right):
            raise PreferenceError(
                Problem.NOT_NUMERIC, f"{quote_value(right)} after {sign} is not an integer"
            )
        values = [right]
    else:
        values = [value for item in right.split(",") if (value := item.strip())]
    if key not in SUPPORTED_KEYS:
        known = ", ".join(SUPPORTED_KEYS)
        message = f"the label {quote_value(key)} is not supported here; supported are {known}"
        raise PreferenceError(Problem.UNSUPPORTED_LABEL, message)
    if not values:
        raise PreferenceError(Problem.NO_VALUES, f"{quote_value(word)} has no value")
    return NodeSelectorRequirement(key, operator, tuple(values))


def _parse_operator(word: str) -> tuple[str, Operator]:
    if "!=" in word:
        return "!=", Operator.NOT_IN
    if ">=" in word or "<=" in word:
        message = (
            f"{quote_value(word)}: use > or < with the next integer, >= and <= are not supported"
        )
        raise PreferenceError(Problem.GE_LE_UNSUPPORTED, message)
    for sign, operator in ((">", Operator.GT), ("<", Operator.LT), ("=", Operator.IN)):
        if sign in word:
            return sign, operator
    raise PreferenceError(
        Problem.MISSING_OPERATOR, f"{quote_value(word)} has no operator (one of =, !=, >, <)"
    )


def format_percent_adjustment(adjustment: float) -> str:
    """Return an adjustment in NodeOverlay syntax, in whole percent as Veneer writes it.

    Half a percent is rounded to even: 7.5 is ``+8%`` and −12.5 is ``-12%``.
    """
    if adjustment == 0:
        return "0%"
    return f"{adjustment:+.0f}%"


def is_valid_adjustment(text: str) -> bool:
    """Return whether the API accepts it as ``spec.priceAdjustment``: signed, at least −100 %."""
    return _VALID_ADJUSTMENT.fullmatch(text) is not None


def overlay_name(node_pool: str, number: int) -> str:
    """Return the name of the overlay that a preference becomes."""
    return f"pref-{node_pool}-{number}"


def overlay_of(preference: Preference, *, uid: str = "", disabled: bool = False) -> NodeOverlay:
    """Return the NodeOverlay of a preference.

    ``uid`` is that of the NodePool, which owns the overlay. A ``disabled`` one requires a label
    that no node has, so it can be inspected without taking effect.
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
            price_adjustment=format_percent_adjustment(preference.adjustment),
            weight=number,
        ),
    )
