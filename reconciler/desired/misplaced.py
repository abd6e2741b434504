"""What ``reconciler.yaml`` sets although only the operator may, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.desired.finding import Finding
from reconciler.desired.settings import flattened, misplaced, remedy_of_misplaced


def check(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each setting that a repository may not have."""
    for key, value in flattened(config):
        why = misplaced(key, value)
        if why:
            pointer = tuple(key.split("."))
            hint = remedy_of_misplaced(key)
            yield Finding("operator-setting", pointer, why, hint, of_key=True)
