"""Karpenter's objects inside the values of a chart that is not in the repository.

Charts such as ``raw`` pass objects on as they are, and many charts have a list for further ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.json import JsonDict, as_list
from reconciler.source.document import Pointer, parse_documents
from reconciler.source.resource import group_of

_GROUPS: Final = ("karpenter.sh", "karpenter.k8s.aws")
_DEPTH_MAX: Final = 40


def embedded_objects(
    value: object, pointer: Pointer = (), depth: int = 0
) -> Iterator[tuple[Pointer, JsonDict]]:
    """Yield the objects of Karpenter in values and where they are, the outer ones if nested.

    Objects in a text have the pointer of the text.
    """
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, dict):
        version, kind = value.get("apiVersion"), value.get("kind")
        if isinstance(version, str) and isinstance(kind, str) and group_of(version) in _GROUPS:
            yield pointer, value
            return
    if isinstance(value, str):
        for found in _objects_in_text(value, depth):
            yield pointer, found
        return
    parts = value.items() if isinstance(value, dict) else enumerate(as_list(value))
    for step, part in parts:
        yield from embedded_objects(part, (*pointer, step), depth + 1)


def _objects_in_text(text: str, depth: int) -> Iterator[JsonDict]:
    """Yield the objects in a text, which some charts pass through as a template of their own."""
    if "kind:" not in text or not any(f"apiVersion: {group}/" in text for group in _GROUPS):
        return
    documents, findings = parse_documents("", text.encode())
    for document in documents if not findings else ():
        if not isinstance(document.data, str):
            for _, found in embedded_objects(document.data, (), depth + 1):
                yield found
