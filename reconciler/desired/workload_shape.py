"""As much of a workload's shape as its expansion to pods relies on, and no more.

The cluster judges workloads; here only what would make the expansion impossible is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from reconciler.desired.document import Pointer
from reconciler.desired.finding import Finding, shown

_TEMPLATED: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job"})
_COUNTS: Final = ("replicas", "parallelism", "completions")


def check(kind: str, data: dict[str, Any]) -> list[Finding]:
    """Return what keeps the object from being read."""
    return list(_faults(kind, data))


def _faults(kind: str, data: dict[str, Any]) -> Iterator[Finding]:
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or "name" not in metadata:
        yield Finding(
            "missing-field", ("metadata", "name"), "is missing", "objects in git are named"
        )
    elif not isinstance(metadata["name"], str):
        yield _wrong(("metadata", "name"), metadata["name"], "text")
    spec = data.get("spec")
    if spec is not None and not isinstance(spec, dict):
        yield _wrong(("spec",), spec, "a mapping")
    elif kind == "Pod":
        yield from _pod_spec(data, ("spec",))
    elif kind in _TEMPLATED:
        for count in _COUNTS:
            value = (spec or {}).get(count, 0)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield _wrong(("spec", count), value, "a whole number from 0 up")
        yield from _pod_spec(data, ("spec", "template", "spec"))


def _pod_spec(data: dict[str, Any], at: Pointer) -> Iterator[Finding]:
    node: Any = data
    for depth, step in enumerate(at):
        if step not in node:
            yield Finding("missing-field", at[: depth + 1], "is missing", "pods are made from it")
            return
        node = node[step]
        if not isinstance(node, dict):
            yield _wrong(at[: depth + 1], node, "a mapping")
            return
    containers = node.get("containers")
    if containers is None:
        yield Finding("missing-field", (*at, "containers"), "is missing", "a pod has containers")
    elif not isinstance(containers, list):
        yield _wrong((*at, "containers"), containers, "a list")


def _wrong(pointer: Pointer, value: object, wanted: str) -> Finding:
    return Finding("wrong-type", pointer, f"is {shown(value)}; must be {wanted}")
