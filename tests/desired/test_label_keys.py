"""``matchLabelKeys`` and ``mismatchLabelKeys`` of pod affinity, as the API server reads them."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.desired.workloads.pods import expand
from reconciler.model.kubernetes.pod import PodAffinityTerm
from tests.desired.test_workloads import a, a_template

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ANY_TENANT = {"matchExpressions": [{"key": "tenant", "operator": "Exists"}]}


def terms(side: str, kind: str, **term: Any) -> list[PodAffinityTerm]:
    """Return the term of each pod of a Deployment whose template has it."""
    content: Any = {"topologyKey": "kubernetes.io/hostname", **term}
    listed = [content] if kind == REQUIRED else [{"weight": 1, "podAffinityTerm": content}]
    template = a_template(affinity={side: {kind: listed}})
    template["metadata"]["labels"] = {"app": "web", "tenant": "one"}
    workloads, _ = expand([a("Deployment", spec={"replicas": 2, "template": template})])
    found = []
    for pod in workloads.pods:
        affinity = pod.spec.affinity
        assert affinity is not None
        part = affinity.pod_affinity if side == "podAffinity" else affinity.pod_anti_affinity
        assert part is not None
        found += [*part.required, *(item.pod_affinity_term for item in part.preferred)]
    return found


@pytest.mark.parametrize("side", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize("kind", [REQUIRED, PREFERRED])
@pytest.mark.parametrize(
    ("keys", "tenant", "selected"),
    [
        ({"matchLabelKeys": ["tenant"]}, "one", True),
        ({"matchLabelKeys": ["tenant"]}, "two", False),
        ({"mismatchLabelKeys": ["tenant"]}, "one", False),
        ({"mismatchLabelKeys": ["tenant"]}, "two", True),
        ({"matchLabelKeys": ["absent"]}, "two", True),
        ({"matchLabelKeys": ["pod-template-hash"]}, "one", False),
        ({}, "two", True),
    ],
)
def test_the_keys_become_part_of_the_selector(
    side: str, kind: str, keys: dict[str, Any], tenant: str, selected: bool
) -> None:
    found = terms(side, kind, labelSelector=ANY_TENANT, **keys)
    assert len(found) == 2
    for term in found:
        assert term.label_selector is not None
        assert term.label_selector.matches({"tenant": tenant}) is selected


def test_a_term_without_a_selector_still_selects_no_pod() -> None:
    (term, _) = terms("podAntiAffinity", REQUIRED, matchLabelKeys=["tenant"])
    assert term.label_selector is None
