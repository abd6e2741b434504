"""Templates that a module renders into a local value, such as one that a script applies.

Which command a script runs is not known, so a template counts that nothing else of the module uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from reconciler.desired.terraform.expressions import evaluate, render
from reconciler.desired.terraform.hcl import HclError
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.quoting import quote_value

CONDITION: Final = "unknown-condition"
"""The code of a finding on a part of a template that is left out."""
_CALL: Final = "templatefile("
_DIRECTIVE: Final = "%{"


class RenderedTemplate(NamedTuple):
    """The text that a template makes, and its scope with the parts that are left out."""

    path: str
    text: str
    scope: ModuleScope


def templates_in_locals(scope: ModuleScope) -> Iterator[RenderedTemplate]:
    """Yield the templates that local values are, with the files that nothing else has used."""
    used = set(scope.used_files)
    for text in scope.locals.values():
        if not text.startswith(_CALL):
            continue
        here = replace(scope, used_files=[], left_out=[])
        value = evaluate(text, here)
        if isinstance(value, str) and len(here.used_files) == 1 and here.used_files[0] not in used:
            yield RenderedTemplate(here.used_files[0], value, here)


def left_out_parts(what: str, conditions: Sequence[str], place: Place) -> Iterator[Diagnostic]:
    """Yield a warning for each part of a template whose condition is not known."""
    for condition in dict.fromkeys(conditions):
        message = f"{what}: a part is left out, because {quote_value(condition[:80])} is not known"
        hint = "write the part by hand if it applies, or pass the output of `terraform show -json`"
        yield Diagnostic(Severity.WARNING, CONDITION, message, place, hint=hint)


def without_directives(path: str, text: str) -> tuple[str, list[Diagnostic]]:
    """Return a template that nothing renders after its directives, and what is left out of it.

    Nothing is known of the values: a part for each item of a list is there once.
    """
    if _DIRECTIVE not in text:
        return text, []
    scope = ModuleScope("", lambda _: None)
    try:
        value = render(text, scope)
    except (HclError, RecursionError):
        return text, []
    findings = left_out_parts("a template that nothing renders", scope.left_out, Place(path, 1, 1))
    return (value, list(findings)) if isinstance(value, str) else (text, [])
