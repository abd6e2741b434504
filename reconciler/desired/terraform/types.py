"""The types of variables, for the defaults that they give: ``optional(TYPE, DEFAULT)``.

An object gets the attributes that it leaves out, at every depth; one without a default is null
(developer.hashicorp.com/terraform/language/expressions/type-constraints).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.functions import Unknown, Value
from reconciler.desired.terraform.hcl import (
    DEPTH_MAX,
    HclError,
    closing_end,
    find_outside,
    split_items,
)
from reconciler.desired.terraform.scope import ModuleScope

_CALL: Final = re.compile(r"\s*([a-z]+)\s*\(")


def with_defaults(type_text: str, value: Value, scope: ModuleScope) -> Value:
    """Return a value with the defaults of its type; a type that cannot be read changes nothing."""
    try:
        return _completed(type_text, value, scope, 0)
    except (HclError, RecursionError):
        return value


def defaults_of(type_text: str, scope: ModuleScope) -> Value:
    """Return the attributes that a type gives to an object that nothing sets, None for no object.

    Attributes without a default, or with null, are left out: they are unknown, there to be set.
    """
    if _parts(type_text)[0] != "object":
        return None
    return _without_nulls(with_defaults(type_text, {}, scope))


def _without_nulls(value: Value) -> Value:
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return value


def _completed(type_text: str, value: Value, scope: ModuleScope, depth: int) -> Value:
    name, inner = _parts(type_text)
    if depth > DEPTH_MAX or isinstance(value, Unknown):
        return value
    match name, value:
        case "object", Mapping():
            return _object(inner, value, scope, depth)
        case "map", Mapping():
            return {key: _completed(inner, one, scope, depth + 1) for key, one in value.items()}
        case "list" | "set", list():
            return [_completed(inner, one, scope, depth + 1) for one in value]
    return value


def _object(inner: str, value: Mapping[str, Value], scope: ModuleScope, depth: int) -> Value:
    completed = dict(value)
    for attribute in split_items(inner.strip()[1:-1]):
        at = find_outside(attribute, ("=", ":"))
        name, stated = attribute[:at].strip().strip('"'), attribute[at + 1 :]
        kind, arguments = _parts(stated)
        if kind == "optional":
            stated, *default = split_items(arguments)
            if completed.get(name) is None:
                completed[name] = evaluate(default[0], scope) if default else None
        if name in completed:
            completed[name] = _completed(stated, completed[name], scope, depth + 1)
    return completed


def _parts(type_text: str) -> tuple[str, str]:
    """Return the constructor of a type and the text in its parentheses, empty without any."""
    call = _CALL.match(type_text)
    if call is None:
        return "", ""
    end = closing_end(type_text, call.end() - 1)
    return call[1], type_text[call.end() : end - 1]
