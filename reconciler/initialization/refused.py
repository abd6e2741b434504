"""Objects of a source that an API server refuses, or that cannot be read: no cluster has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from reconciler.desired.placeholders import CODE as PLACEHOLDER
from reconciler.desired.placeholders import Placeholder, fill, without_placeholders
from reconciler.desired.rules.crd import check_rules
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.desired.workloads.shape import check_workload
from reconciler.initialization.collection import Collection, class_of
from reconciler.initialization.objects import SourceObject
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict
from reconciler.source.finding import Finding, field_path
from reconciler.source.resource import VALIDATED_KINDS, schema_name
from reconciler.source.schema import check_schema, value_at

ALPHA_VERSIONS: Final = ("/v1alpha1", "/v1alpha5")
"""The versions whose classes could leave the role and the selectors to settings of Karpenter."""


def leave_out_refused(found: Collection, known: dict[str, str]) -> None:
    """Leave out the objects that Karpenter's API refuses, with the first reason of each.

    No cluster has them, and one of them would be the end of every plan. A class that a NodePool
    uses stays, for the user to complete. So do objects of templates and of alpha versions, since
    what they lack may be elsewhere, those that a cluster has listed, and all if no NodePool would
    be left. An unused class with a placeholder in a field that needs a value is left out too.
    """
    faults = _faults(found.items, known)
    refused = {key for key, fault in faults.items() if fault.code != PLACEHOLDER}
    pools = [pool for pool in found.of_kind("NodePool") if id(pool) not in refused]
    if not pools:
        return
    used = set(map(class_of, pools))
    for item in list(found.items):
        is_used = item.kind == "EC2NodeClass" and item.name in used
        if id(item) in faults and not is_used:
            _leave_out(found, item, faults[id(item)])


def _faults(items: Iterable[SourceObject], known: dict[str, str]) -> dict[int, Finding]:
    """Return the first fault of each object that has one, by the identity of the object."""
    return {
        id(item): first
        for item in items
        if item.kind in VALIDATED_KINDS and (first := _first_fault(item, known))
    }


def _leave_out(found: Collection, item: SourceObject, fault: Finding) -> None:
    """Leave out an object that is refused, or a class that nothing uses with an open field."""
    if fault.code != PLACEHOLDER:
        note_refused(found, item, fault, "Karpenter's API")
    elif item.kind == "EC2NodeClass":
        found.items.remove(item)
        what = f"{field_path(fault.pointer)} of EC2NodeClass {item.name}: {fault.message}"
        found.leave_out(item.place, what, "no NodePool uses it; write its value to keep it")


def note_refused(found: Collection, item: SourceObject, fault: Finding, by: str) -> None:
    """Leave out an object that the API ``by`` refuses, as an error with the reason."""
    found.items.remove(item)
    text = f"{item.kind} {item.name}".rstrip() + f": {fault.message}"
    hint = f"{by} refuses it, so no cluster has it; correct it and run init again"
    at, path = item.place_of(fault.pointer), field_path(fault.pointer)
    found.notes.append(Diagnostic(Severity.ERROR, "refused-object", text, at, path, hint))


def _first_fault(item: SourceObject, known: dict[str, str]) -> Finding | None:
    """Return why the API refuses an object; None if it does not, or if the user has to decide."""
    if _is_live(item) or item.is_made or item.entry.api_version.endswith(ALPHA_VERSIONS):
        return None
    findings = faults_of(item.kind, item.data)
    left = fill(item.data, known, is_workload=False).left
    faults = [f for f in without_placeholders(findings, left) if f.severity is Severity.ERROR]
    first_by_code = {fault.code: fault for fault in reversed(faults)}
    if PLACEHOLDER in first_by_code:
        return first_by_code[PLACEHOLDER]
    if not faults or "unknown-field" in first_by_code:
        return None
    return faults[0]


def fault_of_workload(item: SourceObject, left: Sequence[Placeholder]) -> Finding | None:
    """Return why a workload cannot be read, with the placeholders ``left``; None if it can."""
    if _is_live(item):
        return None
    row = BUILT_IN.workload(item.entry.api_version, item.kind)
    findings = without_placeholders(check_workload(item.kind, item.data, row), left)
    return next((f for f in findings if f.severity is Severity.ERROR), None)


def _is_live(item: SourceObject) -> bool:
    """Return whether a cluster has listed the object."""
    return value_at(item.entry.data, ("metadata", "uid")) is not None


def findings_on(kind: str, data: JsonDict) -> list[Finding]:
    """Return what the schema of a kind of Karpenter refuses in an object."""
    return check_schema(schema_name(kind), data)


def faults_of(kind: str, data: JsonDict) -> list[Finding]:
    """Return what the API would refuse in an object: its shape and the rules of its kind."""
    shape = findings_on(kind, data)
    return [*shape, *check_rules(schema_name(kind), data, shape)]
