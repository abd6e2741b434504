"""Objects that have no effect because a feature gate is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconciler.model.diagnostics import Severity
from reconciler.model.settings import FeatureGate, Settings
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.schema import value_at


def without_gate(entries: Sequence[Entry], settings: Settings) -> Iterator[tuple[Entry, Finding]]:
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
