"""What nothing obeys is reported: limits, requirements, tolerations and devices without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reconciler.catalog.aws.bundle import load
from reconciler.catalog.names import LABEL_VALUES
from reconciler.desired.workloads.shape import check_workload
from reconciler.model.duration import parse_span
from reconciler.model.karpenter.labels import ARCH
from tests.desired.examples import a_class, a_file, a_pool_requiring
from tests.desired.test_fleet import found
from tests.desired.test_workload_shape import a_pod

AWS = "karpenter.k8s.aws/"


def pool_findings(spec: Mapping[str, Any] | None = None, **template: Any) -> set[str]:
    """Return the codes of the findings on a NodePool with these fields."""
    pool = a_pool_requiring(**template)
    pool["spec"].update(spec or {})
    return {code for _, code, _ in found(a_file(pool, a_class()))}


@pytest.mark.parametrize(
    ("name", "is_idle"),
    [
        ("cpu", False),
        ("memory", False),
        ("nodes", False),
        ("hugepages-2Mi", False),
        ("nvidia.com/gpu", False),
        ("example.com/dongle", False),
        ("cpus", True),
        ("CPU", True),
        ("instances", True),
        ("nvidia.com/gpus", True),
        ("aws.amazon.com/neurons", True),
    ],
)
def test_a_limit_on_a_resource_that_no_node_has_limits_nothing(name: str, is_idle: bool) -> None:
    assert pool_findings({"limits": {name: "4"}}) == ({"idle-limit"} if is_idle else set())


@pytest.mark.parametrize(
    ("key", "values", "code"),
    [
        ("eks.amazonaws.com/capacityType", ["SPOT"], "eks-label"),
        ("eks.amazonaws.com/instance-category", ["c"], "eks-label"),
        ("eks.amazonaws.com/nodegroup", ["blue"], "eks-label"),
        (AWS + "instance-memory", ["16"], "memory-unit"),
        (AWS + "instance-memory", ["16384"], None),
        (AWS + "instance-gpu-memory", ["24"], "memory-unit"),
    ],
)
def test_a_requirement_that_selects_no_type_is_reported(
    key: str, values: list[str], code: str | None
) -> None:
    for operator in ("In", "Gt", "Lte") if values[0].isdigit() else ("In", "NotIn"):
        entry = {"key": key, "operator": operator, "values": values}
        assert pool_findings(requirements=[entry]) == ({code} if code else set())


def test_the_listed_values_of_labels_are_those_of_the_bundled_types() -> None:
    """A value that AWS adds has to be added to the list."""
    _, bundle = load()
    read = {
        AWS + "instance-category": {m.category for m in bundle.machines},
        AWS + "instance-generation": {m.generation for m in bundle.machines} - {None},
        AWS + "instance-size": {m.size for m in bundle.machines},
        ARCH: {m.arch for m in bundle.machines},
    }
    for label, values in read.items():
        assert values <= set(LABEL_VALUES[label]), label


def test_a_node_pool_of_eks_auto_mode_is_said_to_be_unsupported() -> None:
    ref = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
    assert pool_findings(nodeClassRef=ref) == {"auto-mode"}


def _container(**resources: Any) -> dict[str, Any]:
    return a_pod(containers=[{"name": "a", "image": "x", "resources": resources}])


@pytest.mark.parametrize(
    ("resources", "code"),
    [
        ({"limits": {"nvidia.com/gpu": 1}}, None),
        ({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}, None),
        ({"limits": {"nvidia.com/gpu": "500m"}}, "fractional-device"),
        (
            {"requests": {"nvidia.com/gpu": "0.5"}, "limits": {"nvidia.com/gpu": "0.5"}},
            "fractional-device",
        ),
        ({"requests": {"nvidia.com/gpu": 1}}, "device-without-limit"),
        (
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
            "device-request-differs",
        ),
        ({"requests": {"cpus": 1}}, "unknown-resource"),
        ({"limits": {"gpu": 1}}, "unknown-resource"),
        ({"requests": {"cpu": "500m", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}}, None),
    ],
)
def test_resources_are_those_that_the_api_server_accepts(
    resources: dict[str, Any], code: str | None
) -> None:
    assert [f.code for f in check_workload("Pod", _container(**resources))] == (
        [code] if code else []
    )


@pytest.mark.parametrize(
    ("value", "codes"),
    [("3", ["toleration-gate"]), ("high", ["toleration-value", "toleration-gate"])],
)
@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_a_toleration_that_compares_is_read_and_its_gate_is_named(
    operator: str, value: str, codes: list[str]
) -> None:
    toleration = {"key": "tier", "operator": operator, "value": value}
    assert [f.code for f in check_workload("Pod", a_pod(tolerations=[toleration]))] == codes


@pytest.mark.parametrize("text", ["2days", "1d12hours", "3d4"])
def test_an_invalid_span_is_named_completely(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}"'):
        parse_span(text)
