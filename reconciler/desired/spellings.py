"""Old spellings that people still copy from older documentation, and the new ones.

Found before the schema would only say «no such field»: the author learns what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

CODE: Final = "old-spelling"

_DISRUPTION: Final[Pointer] = ("spec", "disruption")
_TEMPLATE: Final[Pointer] = ("spec", "template", "spec")
_REASONS: Final = {r.lower(): r for r in ("Underutilized", "Empty", "Drifted")}
_SELECTORS: Final = {
    "subnetSelector": "subnetSelectorTerms",
    "securityGroupSelector": "securityGroupSelectorTerms",
    "amiSelector": "amiSelectorTerms",
}
_ANNOTATIONS: Final = {
    "karpenter.sh/do-not-evict": "karpenter.sh/do-not-disrupt",
    "karpenter.sh/do-not-consolidate": "karpenter.sh/do-not-disrupt",
}


def check(kind: str, data: JsonDict) -> list[Finding]:
    """Return the old spellings in an object; ``data`` may still hold nulls."""
    match kind:
        case "NodePool":
            return [*_disruption(data), *_claim(data, _TEMPLATE), *_annotations(data)]
        case "NodeClaim":
            return list(_claim(data, ("spec",)))
        case "EC2NodeClass":
            return list(_node_class(data))
    return []


def _old(pointer: Pointer, message: str, hint: str, *replaces: Pointer) -> Finding:
    of_key = message.startswith(("is now", "has moved"))
    return Finding(CODE, pointer, message, hint, of_key=of_key, replaces=replaces)


def _disruption(data: dict[str, object]) -> Iterator[Finding]:
    disruption = value_at(data, _DISRUPTION)
    if not isinstance(disruption, dict):
        return
    if disruption.get("consolidationPolicy") == "WhenUnderutilized":
        at = (*_DISRUPTION, "consolidationPolicy")
        yield _old(at, "WhenUnderutilized is a v1beta1 value", "write WhenEmptyOrUnderutilized")
    if "expireAfter" in disruption:
        hint = "move it to spec.template.spec.expireAfter"
        yield _old((*_DISRUPTION, "expireAfter"), "has moved in v1", hint)
    if "consolidateAfter" in disruption and disruption["consolidateAfter"] is None:
        message = "null means 0s in v1; in v1beta1 it disabled consolidateAfter"
        at = (*_DISRUPTION, "consolidateAfter")
        yield Finding(CODE, at, message, "write 0s, or Never", Severity.WARNING)
    budgets = disruption.get("budgets")
    for index, budget in enumerate(budgets if isinstance(budgets, list) else ()):
        reasons = budget.get("reasons") if isinstance(budget, dict) else None
        for number, reason in enumerate(reasons if isinstance(reasons, list) else ()):
            if isinstance(reason, str) and reason in _REASONS:
                at = (*_DISRUPTION, "budgets", index, "reasons", number)
                yield _old(at, f'"{reason}" is a v1beta1 value', f"write {_REASONS[reason]}")


def _claim(data: dict[str, object], at: Pointer) -> Iterator[Finding]:
    spec = value_at(data, at)
    if not isinstance(spec, dict):
        return
    if "kubelet" in spec:
        yield _old(
            (*at, "kubelet"), "has moved in v1", "move it to spec.kubelet of the EC2NodeClass"
        )
    ref = spec.get("nodeClassRef")
    if isinstance(ref, dict) and "apiVersion" in ref:
        here = (*at, "nodeClassRef")
        version = ref["apiVersion"]
        group = version.partition("/")[0] if isinstance(version, str) else "karpenter.k8s.aws"
        yield _old(
            (*here, "apiVersion"),
            "is now group, without the version",
            (f"write group: {group}" if "group" not in ref else "remove it"),
            (*here, "group"),
        )


def _annotations(data: dict[str, object]) -> Iterator[Finding]:
    at: Pointer = ("spec", "template", "metadata", "annotations")
    annotations = value_at(data, at)
    for old, new in _ANNOTATIONS.items():
        if isinstance(annotations, dict) and old in annotations:
            message = f"is now {new} and no longer has an effect"
            yield Finding(CODE, (*at, old), message, "", Severity.WARNING, of_key=True)


def _node_class(data: dict[str, object]) -> Iterator[Finding]:
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return
    for old, new in _SELECTORS.items():
        if old in spec:
            hint = f"write {new}: [{{tags: {{…}}}}]"
            yield _old(("spec", old), f"is now {new}, a list of terms", hint, ("spec", new))
    if spec.get("amiFamily") == "Ubuntu":
        hint = "write Custom, and select the image by id, name or tags"
        yield _old(("spec", "amiFamily"), "Ubuntu was removed in v1", hint)
