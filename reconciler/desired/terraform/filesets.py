"""The files that a pattern of Terraform names, in ``fileset`` and the kubectl provider."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from reconciler.desired.terraform.scope import ModuleScope
from reconciler.model.text.globs import alternatives

_PATTERNS_MAX: Final = 64
_STEPS_MAX: Final = 32


def files_below(folder: str, pattern: str, scope: ModuleScope) -> list[str]:
    """Return the files below a folder that match a pattern, relative to the folder and in order.

    ``*`` and ``?`` match within a name, ``**`` matches folders at any depth, and ``{a,b}`` either.
    """
    every = alternatives(posixpath.normpath(pattern), _PATTERNS_MAX)
    patterns = [one.split("/") for one in every]
    found = []
    for path in scope.list_files(posixpath.normpath(folder)):
        steps = path.split("/")
        if any(_matches(steps, one) for one in patterns):
            found.append(path)
    return sorted(found)


def _matches(steps: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the steps of a path match those of a pattern."""
    if len(pattern) > _STEPS_MAX:
        return False
    reached = {0}  # how much of the pattern matches the steps so far
    for step in steps:
        reached = _skipped(reached, pattern)
        after = {at for at in reached if at < len(pattern) and pattern[at] == "**"}
        after |= {at + 1 for at in reached if at < len(pattern) and fnmatchcase(step, pattern[at])}
        reached = after
    return len(pattern) in _skipped(reached, pattern)


def _skipped(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """Return the places in the pattern that are reached if ``**`` matches no further folder."""
    found = set(reached)
    for at, step in enumerate(pattern):
        if at in found and step == "**":
            found.add(at + 1)
    return found
