"""Workloads as authors write them, right and wrong; the cluster's own fields pass unread."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.desired.workloads.shape import SCHEMA, check_workload
from reconciler.model.kubernetes.pod import Container, PodSpec, TopologySpreadConstraint
from reconciler.source.resource import KUBERNETES_KINDS
from reconciler.source.schema import load_schema
from tests.examples import examples


def a_pod(**spec: Any) -> dict[str, Any]:
    containers = [{"name": "a", "image": "x"}]
    return {"metadata": {"name": "a"}, "spec": {"containers": containers, **spec}}


@pytest.mark.parametrize("kind", KUBERNETES_KINDS)
def test_every_kind_has_a_definition(kind: str) -> None:
    assert kind in load_schema(SCHEMA)["$defs"]


@pytest.mark.parametrize(
    ("definition", "struct"),
    [("podSpec", PodSpec), ("container", Container), ("spread", TopologySpreadConstraint)],
)
def test_every_field_that_is_read_is_validated(
    definition: str, struct: type[msgspec.Struct]
) -> None:
    fields = {f.encode_name for f in msgspec.structs.fields(struct)}
    assert fields <= load_schema(SCHEMA)["$defs"][definition]["properties"].keys()


def test_a_field_of_a_later_kubernetes_is_accepted() -> None:
    assert check_workload("Pod", a_pod(evictionRequestPolicy="Wait", resourceSlices=[])) == []


def test_a_misspelled_field_is_a_finding() -> None:
    (finding,) = check_workload("Pod", a_pod(nodeselector={"a": "b"}))
    assert (finding.code, finding.hint) == ("unknown-field", "did you mean nodeSelector?")


@pytest.mark.parametrize("amount", ["1", "0.5", ".5", "100m", "1.5Gi", "1e3", 2, 0.25, "+1"])
def test_every_form_of_quantity_is_accepted(amount: object) -> None:
    pod = a_pod(overhead={"cpu": amount}, resources={"requests": {"cpu": amount}})
    assert check_workload("Pod", pod) == []


def test_a_pod_disruption_budget_sets_one_limit() -> None:
    budget = {"metadata": {"name": "a"}, "spec": {"minAvailable": 1, "maxUnavailable": "50%"}}
    assert [f.code for f in check_workload("PodDisruptionBudget", budget)] == ["budget-both"]


@pytest.mark.parametrize("value", ["50", "half", "-1%", 1.5])
def test_a_share_is_a_number_or_a_percentage(value: object) -> None:
    budget = {"metadata": {"name": "a"}, "spec": {"maxUnavailable": value}}
    assert len(check_workload("PodDisruptionBudget", budget)) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=examples(400), deadline=None, derandomize=True, database=None)
@given(
    kind=st.sampled_from(sorted(KUBERNETES_KINDS)),
    field=st.sampled_from(["affinity", "containers", "tolerations", "template", "x", "selector"]),
    value=JSON,
)
def test_any_shape_gives_findings_and_never_an_error(kind: str, field: str, value: object) -> None:
    check_workload(kind, {"metadata": {"name": "a"}, "spec": {field: value}})
    check_workload(
        kind, {"metadata": {"name": "a"}, "spec": {"template": {"spec": {field: value}}}}
    )
    check_workload(kind, a_pod(**{field: value}))
