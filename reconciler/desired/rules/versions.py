"""What releases of Karpenter accept differently: fields that one requires and another defaults.

The schemas describe the newest release. A fleet that follows an older one (``karpenter`` in
``reconciler.yaml``) is checked for what that release requires, and warned of fields that it lacks:
they work here, and its API server would drop them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict, JsonObject, as_list
from reconciler.model.settings import NEW_IN_1_15, FeatureGate, KarpenterVersion
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

_DISRUPTION: Final[Pointer] = ("spec", "disruption")
_REPAIR_REASON: Final = "Unhealthy"
"""The reason by which budgets of Karpenter 1.15 limit node repair."""
_ENCLAVES: Final[Pointer] = ("spec", "enclaveOptions")


def check_version(
    kind: str, data: object, version: KarpenterVersion, config: JsonObject, *, admitted: bool
) -> Iterator[Finding]:
    """Yield where an object differs from what ``version`` accepts.

    ``config`` are the settings of the fleet's files. Where objects are not ``admitted`` by an API
    server, as with a catalog of one's own, a field without a value is only a warning.
    """
    if not isinstance(data, dict):
        return
    if kind == "NodePool":
        yield from _repair_budgets(data, version, config)
        if version == KarpenterVersion.V1_14:
            yield from _required_consolidate_after(data, admitted=admitted)
    elif (
        kind == "EC2NodeClass"
        and version == KarpenterVersion.V1_14
        and value_at(data, _ENCLAVES) is not None
    ):
        yield _newer_field(_ENCLAVES, "enclaveOptions")


def check_settings_version(config: JsonObject, version: KarpenterVersion) -> Iterator[Finding]:
    """Yield a warning for each setting that has no effect in a fleet of ``version``."""
    if version != KarpenterVersion.V1_14:
        yield from _idle_repair_gates(config)
        return
    for gate in NEW_IN_1_15:
        at: Pointer = ("featureGates", gate.value)
        if value_at(config, at) is True:
            yield _newer_field(at, f"the feature gate {gate}")
    if config.get("legacyNodeRepair") is True:
        yield _newer_field(("legacyNodeRepair",), "legacyNodeRepair")


def _idle_repair_gates(config: JsonObject) -> Iterator[Finding]:
    """Yield a warning for each gate that changes a repair which does not take place."""
    is_legacy = config.get("legacyNodeRepair") is True
    if not is_legacy and value_at(config, ("featureGates", FeatureGate.NODE_REPAIR.value)) is True:
        return
    why = "legacyNodeRepair only replaces nodes" if is_legacy else "node repair is off"
    hint = "remove legacyNodeRepair" if is_legacy else "set featureGates.NodeRepair"
    for gate in (FeatureGate.TERMINATE_FIRST_REPAIR, FeatureGate.REBOOT_FOR_REPAIR):
        at: Pointer = ("featureGates", gate.value)
        if value_at(config, at) is True:
            message = f"{gate} has no effect: {why}"
            yield Finding("without-effect", at, message, hint, Severity.WARNING)


def _required_consolidate_after(data: JsonDict, *, admitted: bool) -> Iterator[Finding]:
    disruption = value_at(data, _DISRUPTION)
    if isinstance(disruption, dict) and disruption.get("consolidateAfter") is None:
        message = "required field `consolidateAfter` is missing: Karpenter 1.14 has no default"
        hint = 'add `consolidateAfter: 0s`, or set `karpenter: "1.15"` in reconciler.yaml'
        severity = Severity.ERROR if admitted else Severity.WARNING
        at = (*_DISRUPTION, "consolidateAfter")
        yield Finding("missing-field", at, message, hint, severity)


def _repair_budgets(
    data: JsonDict, version: KarpenterVersion, config: JsonObject
) -> Iterator[Finding]:
    """Yield a warning for each budget reason of node repair that limits nothing."""
    is_on = value_at(config, ("featureGates", FeatureGate.NODE_REPAIR.value)) is True
    is_legacy = config.get("legacyNodeRepair") is True
    budgets = value_at(data, (*_DISRUPTION, "budgets"))
    for number, budget in enumerate(as_list(budgets)):
        reasons = budget.get("reasons") if isinstance(budget, dict) else None
        for index, reason in enumerate(as_list(reasons)):
            if reason != _REPAIR_REASON:
                continue
            at = (*_DISRUPTION, "budgets", number, "reasons", index)
            if version == KarpenterVersion.V1_14:
                yield _newer_field(at, f"the budget reason {reason}")
            elif is_legacy or not is_on:
                why = "legacyNodeRepair ignores budgets" if is_legacy else "node repair is off"
                hint = "remove legacyNodeRepair" if is_legacy else "set featureGates.NodeRepair"
                message = f"{reason} has no effect: {why}"
                yield Finding("without-effect", at, message, hint, Severity.WARNING)


def _newer_field(at: Pointer, what: str) -> Finding:
    message = f"{what} requires Karpenter 1.15, and this fleet follows 1.14"
    hint = 'set `karpenter: "1.15"` in reconciler.yaml'
    return Finding("newer-karpenter", at, message, hint, Severity.WARNING, of_key=True)
