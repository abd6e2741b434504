"""What releases of Karpenter accept differently: fields that one requires and another defaults.

The schemas describe the newest release. A fleet that follows an older one (``karpenter`` in
``reconciler.yaml``) is checked for what that release requires, and warned of fields that it lacks:
they work here, and its API server would drop them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.settings import KarpenterVersion
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

_DISRUPTION: Final[Pointer] = ("spec", "disruption")
_REPAIR_REASON: Final = "Unhealthy"
"""The reason by which budgets of Karpenter 1.15 limit node repair; no disruption here has it."""
_ENCLAVES: Final[Pointer] = ("spec", "enclaveOptions")


def check_version(
    kind: str, data: object, version: KarpenterVersion, *, admitted: bool
) -> Iterator[Finding]:
    """Yield where an object differs from what ``version`` accepts.

    Where objects are not ``admitted`` by an API server, as with a catalog of one's own, a field
    without a value is only a warning.
    """
    if not isinstance(data, dict):
        return
    if kind == "NodePool":
        yield from _repair_budgets(data, version)
        if version == KarpenterVersion.V1_14:
            yield from _required_consolidate_after(data, admitted=admitted)
    elif (
        kind == "EC2NodeClass"
        and version == KarpenterVersion.V1_14
        and value_at(data, _ENCLAVES) is not None
    ):
        yield _newer_field(_ENCLAVES, "enclaveOptions")


def _required_consolidate_after(data: JsonDict, *, admitted: bool) -> Iterator[Finding]:
    disruption = value_at(data, _DISRUPTION)
    if isinstance(disruption, dict) and disruption.get("consolidateAfter") is None:
        message = "required field `consolidateAfter` is missing: Karpenter 1.14 has no default"
        hint = 'add `consolidateAfter: 0s`, or set `karpenter: "1.15"` in reconciler.yaml'
        severity = Severity.ERROR if admitted else Severity.WARNING
        at = (*_DISRUPTION, "consolidateAfter")
        yield Finding("missing-field", at, message, hint, severity)


def _repair_budgets(data: JsonDict, version: KarpenterVersion) -> Iterator[Finding]:
    """Yield a warning for each budget reason of node repair, which no budget limits here."""
    budgets = value_at(data, (*_DISRUPTION, "budgets"))
    for number, budget in enumerate(budgets if isinstance(budgets, list) else ()):
        reasons = budget.get("reasons") if isinstance(budget, dict) else None
        for index, reason in enumerate(reasons if isinstance(reasons, list) else ()):
            if reason != _REPAIR_REASON:
                continue
            at = (*_DISRUPTION, "budgets", number, "reasons", index)
            if version == KarpenterVersion.V1_14:
                yield _newer_field(at, f"the budget reason {reason}")
            else:
                message = f"{reason} has no effect: unhealthy nodes are repaired outside budgets"
                hint = "see featureGates.NodeRepair"
                yield Finding("without-effect", at, message, hint, Severity.WARNING)


def _newer_field(at: Pointer, what: str) -> Finding:
    message = f"{what} requires Karpenter 1.15, and this fleet follows 1.14"
    hint = 'set `karpenter: "1.15"` in reconciler.yaml'
    return Finding("newer-karpenter", at, message, hint, Severity.WARNING, of_key=True)
