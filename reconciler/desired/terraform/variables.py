"""The files with values of variables: those that Terraform loads, and one that is chosen.

``terraform plan -var-file envs/prod.tfvars`` names such a file on the command line, which is not in
the repository. A module that has only one gets it; of several, the user names one.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.functions import Value
from reconciler.desired.terraform.hcl import HclError, parse_hcl
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.desired.terraform.types import with_defaults
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.paths import is_below

VALUES: Final = ".tfvars"
SEVERAL: Final = "several-values"
"""The code of a finding on several files of which none was named."""
_LOADED: Final = ("terraform.tfvars", ".auto.tfvars")
_LISTED_MAX: Final = 5


class ValuesFiles(NamedTuple):
    """The files with values by the folder of their module, in the order in which they count."""

    by_module: Mapping[str, Sequence[str]]
    findings: Sequence[Diagnostic]


def _files_by_module(
    paths: Collection[str], modules: Collection[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the files that Terraform loads by itself, and those that have to be named."""
    loaded: dict[str, list[str]] = {}
    named: dict[str, list[str]] = {}
    for path in sorted(paths):
        own = posixpath.dirname(path) or "."
        folder = _module_of(own, modules)
        if folder is not None:
            group = loaded if folder == own and path.endswith(_LOADED) else named
            group.setdefault(folder, []).append(path)
    return loaded, named


def values_files(
    paths: Collection[str], modules: Collection[str], prefer: Sequence[str] = ()
) -> ValuesFiles:
    """Return which of the files count; ``modules`` are the folders of all modules."""
    loaded, named = _files_by_module(paths, modules)
    findings: list[Diagnostic] = []
    prefer = list(map(posixpath.normpath, prefer))
    for folder, files in named.items():
        chosen = [f for f in files if any(is_below(f, path) for path in prefer)] or files
        if len(chosen) == 1:
            loaded.setdefault(folder, []).append(chosen[0])
        else:
            findings.append(_several(folder, chosen))
    return ValuesFiles(loaded, findings)


def _module_of(folder: str, modules: Collection[str]) -> str | None:
    """Return the nearest folder at or above one that is a module."""
    return next((above for above in _above(folder) if above in modules), None)


def _above(folder: str) -> Iterator[str]:
    while folder not in ("", "."):
        yield folder
        folder = posixpath.dirname(folder)
    yield "."


def _several(folder: str, files: Sequence[str]) -> Diagnostic:
    shown = ", ".join(files[:_LISTED_MAX])
    rest = f" and {len(files) - _LISTED_MAX} more" if len(files) > _LISTED_MAX else ""
    message = f"{len(files)} files have values for the variables of module {folder}: {shown}{rest}"
    example = next((path for path in files if "prod" in path), files[0])
    hint = f"none is used; name one with --prefer {example}"
    return Diagnostic(Severity.WARNING, SEVERAL, message, Place(files[0], 1, 1), hint=hint)


def read_values(path: str, scope: ModuleScope) -> None:
    """Give the variables of a module the values in a file; one that cannot be read has none."""
    text = scope.read(path)
    try:
        stated = parse_hcl(text or "").attributes
    except (HclError, RecursionError):
        return
    for name, attribute in stated.items():
        set_variable(scope, name, evaluate(attribute.text, scope.without_values()))


def set_variable(scope: ModuleScope, name: str, value: Value) -> None:
    """Give a variable a value, with the defaults of its type."""
    scope.unset.pop(name, None)
    scope.variables[name] = with_defaults(scope.types.get(name, ""), value, scope)
