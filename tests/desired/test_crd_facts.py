"""The schemas state what the CRDs of Karpenter 1.14 state: required, defaults, values and bounds.

``tests/fixtures/crds-1.14.json`` has these facts by field path, taken from the CRDs of Karpenter
and its AWS provider. A difference needs a reason here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.source.schema import load_schema, resolve_reference

FACTS: Final = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "crds-1.14.json").read_text(encoding="utf-8")
)
KEYWORDS: Final = (
    "default", "enum", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties", "minimum", "maximum", "required",
)  # fmt: skip

_BY_VERSION: Final = "depends on the release of Karpenter (rules/versions)"
_BY_RULE: Final = "a rule checks it, because the value may be an expression (rules/runtime)"
_BY_MODEL: Final = "the parts have the same defaults"
_LATER: Final = "a field of Karpenter 1.15"
_NO_EFFECT: Final = "a length has no effect on a list"

DIFFERENCES: Final = {
    ("nodepool.v1", "spec.disruption", "default"): _BY_VERSION,
    ("nodepool.v1", "spec.disruption", "required"): _BY_VERSION,
    ("nodepool.v1", "spec.disruption.consolidateAfter", "default"): _BY_VERSION,
    ("nodepool.v1", "spec.disruption.budgets", "default"): _BY_MODEL,
    ("nodepool.v1", "spec.disruption.budgets[]", "required"): "its default comes first",
    ("nodepool.v1", "spec.disruption.budgets[].reasons[]", "enum"): _LATER,
    ("nodepool.v1", "spec.disruption.budgets[].timeZone", "minLength"): "an extension",
    ("nodepool.v1", "spec.template.spec.requirements[].values", "maxLength"): _NO_EFFECT,
    ("nodeclaim.v1", "spec.requirements[].values", "maxLength"): _NO_EFFECT,
    ("nodeoverlay.v1alpha1", "spec.requirements[].values", "maxLength"): _NO_EFFECT,
    ("ec2nodeclass.v1", "spec.enclaveOptions", "required"): _LATER,
    ("ec2nodeclass.v1", "spec.kubelet.imageGCHighThresholdPercent", "maximum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.kubelet.imageGCHighThresholdPercent", "minimum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.kubelet.imageGCLowThresholdPercent", "maximum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.kubelet.imageGCLowThresholdPercent", "minimum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.kubelet.maxPods", "minimum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.kubelet.podsPerCore", "minimum"): _BY_RULE,
    ("ec2nodeclass.v1", "spec.metadataOptions", "default"): _BY_MODEL,
}


def facts_of(node: dict[str, Any], path: str, root: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a schema and of everything below it, by field path."""
    merged = {**resolve_reference(root, node), **{k: v for k, v in node.items() if k != "$ref"}}
    row = {key: merged[key] for key in KEYWORDS if key in merged}
    for key in ("enum", "required"):
        if key in row:
            row[key] = sorted(map(str, row[key]))
    found = {path: row} if row else {}
    for name, field in merged.get("properties", {}).items():
        found |= facts_of(field, f"{path}.{name}", root)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(merged.get(key), dict):
            found |= facts_of(merged[key], f"{path}{mark}", root)
    return found


@pytest.mark.parametrize("name", FACTS)
def test_a_schema_states_what_the_crd_states(name: str) -> None:
    root = load_schema(name)
    ours, theirs = facts_of(root["properties"]["spec"], "spec", root), FACTS[name]
    different = {
        (name, path, keyword)
        for path in ours.keys() | theirs.keys()
        for keyword in KEYWORDS
        if _as_compared(ours, path, keyword) != _as_compared(theirs, path, keyword)
    }
    assert different == {key for key in DIFFERENCES if key[0] == name}


def _as_compared(facts: dict[str, Any], path: str, keyword: str) -> object:
    """Return a fact; a 64-bit bound is that of the type, which a CRD does not write."""
    value = facts.get(path, {}).get(keyword)
    return None if value == 2**63 - 1 else value


def test_every_schema_of_karpenters_kinds_is_compared() -> None:
    assert sorted(FACTS) == [
        "capacitybuffer.v1beta1", "ec2nodeclass.v1", "nodeclaim.v1", "nodeoverlay.v1alpha1",
        "nodepool.v1",
    ]  # fmt: skip
