"""Rules beyond the schema's shape: the CRDs' CEL rules, and Karpenter's run-time validation.

The rules are in the schema at the field that they check (``x-kubernetes-validations``), so a
finding has the field path that the API server would name, or a finer one below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from reconciler.desired.rules.nodepool import PREDICATES, Predicate
from reconciler.desired.rules.runtime import RUNTIME
from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.settings import FeatureGate, Settings
from reconciler.model.text.nearest import nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.resource import Resource
from reconciler.source.schema import load_schema, resolve_reference, value_at

_VALUE_RULES = frozenset(
    {"requirement-in-values", "requirement-not-in-values", "requirement-min-values"}
)
"""Rules about the value of the field that they name; the others are about its presence."""
_TYPES: Final[Mapping[str, type]] = {"array": list, "object": dict, "string": str}


def check_rules(name: str, data: Any, faulty: list[Finding]) -> list[Finding]:
    """Return the violated rules of the schema ``name``, without those in ``faulty``.

    ``faulty`` are the findings of the schema: a rule about a value with the wrong shape adds
    nothing to them.
    """
    reported = [f.pointer for f in faulty] + [p for f in faulty for p in f.replaces]
    data = _correct_keys(data, faulty)
    found: dict[Pointer, Finding] = {}
    for finding in _run_checks(_all_checks(name, data), has_faults=bool(faulty)):
        if not any(finding.pointer[: len(p)] == p for p in reported):
            found.setdefault(finding.pointer, finding)
    return list(found.values())


def _correct_keys(data: object, faulty: list[Finding]) -> object:
    """Return the object with its mistyped keys corrected, so that rules find their values."""
    for finding in faulty:
        if finding.code == "unknown-field" and finding.replaces:
            data = _rename_key(data, finding.pointer, finding.replaces[0][-1])
    return data


def _rename_key(data: Any, pointer: Pointer, name: str | int) -> Any:
    """Return a copy of ``data`` with another name for the key at ``pointer``."""
    step, *below = pointer
    if isinstance(data, list) and isinstance(step, int):
        return [_rename_key(v, tuple(below), name) if i == step else v for i, v in enumerate(data)]
    if not below:
        return {name if key == step else key: value for key, value in data.items()}
    return {k: _rename_key(v, tuple(below), name) if k == step else v for k, v in data.items()}


def _all_checks(name: str, data: Any) -> Iterator[Iterator[Finding]]:
    schema = load_schema(name)
    yield from _schema_checks(schema, schema, data, (), _predicates(name))
    for rule in RUNTIME.get(name, ()):
        yield rule(data)


def _predicates(name: str) -> dict[str, Predicate]:
    if name == "ec2nodeclass.v1":
        from reconciler.desired.rules.nodeclass import PREDICATES as OF_CLASS

        return OF_CLASS
    return PREDICATES


def _run_checks(checks: Iterator[Iterator[Finding]], *, has_faults: bool) -> Iterator[Finding]:
    """Run the checks; one that fails on a value that the schema rejects reports nothing."""
    for findings in checks:
        try:
            yield from findings
        except (AttributeError, KeyError, TypeError, ValueError):
            if not has_faults:
                raise


def _schema_checks(
    schema: dict[str, object],
    node: JsonDict,
    data: Any,
    pointer: Pointer,
    predicates: dict[str, Predicate],
) -> Iterator[Iterator[Finding]]:
    """Yield the checks of every rule at ``node`` and below, for the existing data."""
    node = resolve_reference(schema, node)
    if not isinstance(data, _TYPES.get(str(node.get("type")), object)):
        return  # the schema rejects it; the letters of a text are no items of a list
    for rule in node.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield _violations(rule["name"], predicates[rule["name"]], data, pointer)
    if isinstance(data, dict):
        fields = node.get("properties", {})
        extra = node.get("additionalProperties")
        for key, value in data.items():
            below = fields.get(key, extra)
            if isinstance(below, dict):
                yield from _schema_checks(schema, below, value, (*pointer, key), predicates)
    elif isinstance(data, list) and "items" in node:
        for index, value in enumerate(data):
            yield from _schema_checks(schema, node["items"], value, (*pointer, index), predicates)


def _violations(name: str, judge: Predicate, data: object, pointer: Pointer) -> Iterator[Finding]:
    for below, message, hint in judge(data):
        at = (*pointer, *below)
        of_key = bool(below) and isinstance(below[-1], str) and name not in _VALUE_RULES
        yield Finding(name, at, message, hint, of_key=of_key)


def static_pools_without_gate(
    entries: Sequence[Entry], settings: Settings
) -> Iterator[tuple[Entry, Finding]]:
    """Yield a warning for each static NodePool while the gate for static capacity is off."""
    if settings.gate(FeatureGate.STATIC_CAPACITY):
        return
    for entry in entries:
        if entry.kind != "NodePool" or value_at(entry.data, ("spec", "replicas")) is None:
            continue
        gate = f"featureGates.{FeatureGate.STATIC_CAPACITY}"
        message = f"has no effect: {gate} is false, so no nodes are launched for this NodePool"
        hint = f"set `{gate}: true` in reconciler.yaml, or remove replicas"
        pointer = ("spec", "replicas")
        severity = Severity.WARNING
        yield entry, Finding("gate-is-off", pointer, message, hint, severity, of_key=True)


def class_reference_findings(
    pool: Resource, known: Collection[tuple[str, str]], *, is_needed: bool
) -> Iterator[Finding]:
    """Yield a finding if a NodePool's node class does not exist: it then launches nothing.

    ``known`` are the kinds and names in the folder. It is an error if the class ``is_needed``
    there: a cluster, if there is one, may have it.
    """
    at: Pointer = ("spec", "template", "spec", "nodeClassRef")
    ref = pool.data["spec"]["template"]["spec"]["nodeClassRef"]
    group, kind, name = ref["group"], ref["kind"], ref["name"]
    if group != "karpenter.k8s.aws" or (kind, name) in known:
        return
    message = f"{kind} {quote_value(name)} not found in this folder"
    others = [n for k, n in known if k == kind]
    near = nearest(name, others)
    hint = f"existing: {', '.join(others[:3])}" if others else "add it to the folder"
    hint = f"did you mean {quote_value(near)}?" if near else hint
    severity = Severity.ERROR if is_needed else Severity.WARNING
    yield Finding("missing-nodeclass", (*at, "name"), message, hint, severity)
