"""Karpenter's objects inside the values of a chart that is not in the repository.

Charts such as ``raw`` pass objects on as they are, and many charts have a list for further ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.json import JsonDict
from reconciler.source.resource import group_of

_GROUPS: Final = ("karpenter.sh", "karpenter.k8s.aws")
_DEPTH_MAX: Final = 40


def embedded_objects(value: object, depth: int = 0) -> Iterator[JsonDict]:
    """Yield the objects of Karpenter in values, the outer ones if they are nested."""
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, dict):
        version, kind = value.get("apiVersion"), value.get("kind")
        if isinstance(version, str) and isinstance(kind, str) and group_of(version) in _GROUPS:
            yield value
            return
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from embedded_objects(part, depth + 1)
