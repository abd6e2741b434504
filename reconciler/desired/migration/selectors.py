"""Selectors of ``v1alpha1`` as lists of terms.

An AWSNodeTemplate selects with one mapping of tags, in which ``aws::ids``, ``aws::name`` and
``aws::owners`` are special and a comma separates alternatives. Today a selector is a list of
terms, of which any may match.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from reconciler.model.json import JsonDict

TERMS_MAX: Final = 30
"""The maximum number of terms of a selector in Karpenter's schema."""

_IDS: Final = ("aws-ids", "aws::ids", "aws:ids")
_NAMES: Final = ("aws::name", "aws:name")
_OWNERS: Final = ("aws::owners", "aws:owners")


class TooManyTermsError(ValueError):
    """The alternatives of a selector give more terms than a selector may have."""


def terms_of(selector: JsonDict) -> list[JsonDict]:
    """Return the terms that select what a selector of ``v1alpha1`` selects.

    Raises:
        TooManyTermsError: there are more than ``TERMS_MAX`` alternatives.
    """
    ids = _alternatives(selector, _IDS)
    if ids:
        return _limited([{"id": one} for one in ids])
    special = {*_IDS, *_NAMES, *_OWNERS}
    tags = {key: _split(value) for key, value in selector.items() if key not in special}
    size = 1
    for values in tags.values():
        size *= len(values)
    names, owners = _alternatives(selector, _NAMES), _alternatives(selector, _OWNERS)
    if size * max(len(names), 1) * max(len(owners), 1) > TERMS_MAX:
        raise TooManyTermsError
    choices = [dict(zip(tags, values, strict=True)) for values in product(*tags.values())]
    return [
        _term(chosen, name, owner)
        for name in names or [""]
        for owner in owners or [""]
        for chosen in choices
    ]


def _term(tags: dict[str, str], name: str, owner: str) -> JsonDict:
    term: JsonDict = {}
    if name:
        term["name"] = name
    if owner:
        term["owner"] = owner
    if tags:
        term["tags"] = tags
    return term


def _limited(terms: list[JsonDict]) -> list[JsonDict]:
    if len(terms) > TERMS_MAX:
        raise TooManyTermsError
    return terms


def _alternatives(selector: JsonDict, keys: tuple[str, ...]) -> list[str]:
    return [one for key in keys if key in selector for one in _split(selector[key])]


def _split(value: object) -> list[str]:
    """Return the alternatives of a value; an empty one means any value, like ``*``."""
    parts = [part.strip() for part in str(value).split(",")]
    return [part for part in parts if part] or ["*"]
