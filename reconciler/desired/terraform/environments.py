"""Infers a variable that chooses an entry of maps, as in ``var.settings[var.env]``.

Repositories with one module for several environments name the environment on the command line or in
a pipeline, which are not read. Where every map that it chooses from has one key in common, the
variable can only be that key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.functions import PartialMap, Value
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.quoting import quote_value

ASSUMED: Final = "assumed-variable"
"""The code of a finding on a variable that is inferred, or has to be stated."""
WORKSPACE: Final = "terraform.workspace"
_KEY: Final = r"\s*+(var\.[A-Za-z_][\w-]*+|terraform\.workspace)\s*+"
_MAP: Final = r"((?:var|local)(?:\.[A-Za-z_][\w-]*+)++)"
_CHOICES: Final = (
    re.compile(rf"(?<![\w.-]){_MAP}\[{_KEY}\]"),
    re.compile(rf"(?<![\w.-])lookup\(\s*+{_MAP}\s*+,{_KEY}[,)]"),
)
_LISTED_MAX: Final = 5


class _Chosen(NamedTuple):
    """The keys that a variable can be, and where it first chooses one."""

    keys: frozenset[str]
    place: Place


class Inference(NamedTuple):
    """A variable without a value, and the finding on it; ``is_open`` if it stays without one."""

    variable: str
    is_open: bool
    finding: Diagnostic


def infer_variables(files: Mapping[str, str], scope: ModuleScope) -> Iterator[Inference]:
    """Set the variables of a module that can have one value only, and yield what is assumed.

    ``files`` are the texts of the module by path. A variable with several possible values is named
    with them, and stays unknown.
    """
    for name, chosen in _choices(files, scope).items():
        listed = ", ".join(sorted(chosen.keys)[:_LISTED_MAX])
        if len(chosen.keys) > 1:
            message = f"{name} chooses among {listed} and has no value"
            hint = "its expressions stay placeholders; " + _statement(name, min(chosen.keys))
        elif chosen.keys:
            (value,) = chosen.keys
            _set(scope, name, value)
            message = f"{name} is assumed to be {quote_value(value)}, which every map has as a key"
            hint = f"if it is not, {_statement(name, '…')}"
        else:
            continue
        finding = Diagnostic(Severity.WARNING, ASSUMED, message, chosen.place, hint=hint)
        yield Inference(name, len(chosen.keys) > 1, finding)


def relevant(inferences: Sequence[Inference], texts: Iterable[str]) -> Iterator[Diagnostic]:
    """Yield the findings on what is assumed, and on what a placeholder in the texts depends on."""
    open_names = {inference.variable for inference in inferences if inference.is_open}
    named = {name for text in texts for name in open_names if name in text}
    for inference in inferences:
        if not inference.is_open or inference.variable in named:
            yield inference.finding


def _choices(files: Mapping[str, str], scope: ModuleScope) -> dict[str, _Chosen]:
    """Return the common keys of all maps from which each variable without a value chooses."""
    choices: dict[str, _Chosen] = {}
    for path, text in files.items():
        for match in chain.from_iterable(pattern.finditer(text) for pattern in _CHOICES):
            named, key = match[1], match[2]
            value = None if _has_value(scope, key) else evaluate(named, scope)
            if isinstance(value, PartialMap) or not isinstance(value, Mapping) or not value:
                continue
            keys = frozenset(str(k) for k in value)
            before = choices.get(key)
            place = Place(path, text.count("\n", 0, match.start()) + 1, 1)
            choices[key] = (
                _Chosen(keys, place)
                if before is None
                else _Chosen(before.keys & keys, before.place)
            )
    return choices


def _has_value(scope: ModuleScope, name: str) -> bool:
    return name != WORKSPACE and name.removeprefix("var.") in scope.variables


def _set(scope: ModuleScope, name: str, value: Value) -> None:
    if name == WORKSPACE:
        scope.names = {**scope.names, "terraform": {"workspace": value}}
    else:
        scope.unset.pop(name.removeprefix("var."), None)
        scope.variables[name.removeprefix("var.")] = value


def _statement(name: str, value: str) -> str:
    if name == WORKSPACE:
        return "pass the output of `terraform show -json`"
    return f'write `{name.removeprefix("var.")} = "{value}"` into terraform.tfvars'
