"""What nothing obeys is reported: limits, requirements, tolerations and devices without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reconciler.catalog.aws.bundle import load
from reconciler.catalog.aws.types import LABELS, TENANCIES
from reconciler.catalog.names import LABEL_VALUES
from reconciler.desired.rules.idle import check_requirements
from reconciler.desired.workloads.shape import check_workload
from reconciler.model.diagnostics import Severity
from reconciler.model.duration import parse_span
from reconciler.model.karpenter.labels import ARCH, OS, TENANCY
from tests.desired.examples import a_class, a_file, a_pool_requiring
from tests.desired.test_fleet import found
from tests.desired.test_workload_shape import a_pod
from tests.desired.test_workloads import a

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


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("node.kubernetes.io/instance-category", AWS + "instance-category"),
        ("node.kubernetes.io/instance-types", "node.kubernetes.io/instance-type"),
        ("kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
        ("node.kubernetes.io/arch", "kubernetes.io/arch"),
        ("topology.kubernetes.io/zones", "topology.kubernetes.io/zone"),
        ("instance-family", AWS + "instance-family"),
        ("karpenter.aws/instance-size", AWS + "instance-size"),
        ("capacity-type", "karpenter.sh/capacity-type"),
        ("node.kubernetes.io/lifecycle", None),
        ("node.kubernetes.io/instance-type", None),
        ("beta.kubernetes.io/arch", None),
        ("failure-domain.beta.kubernetes.io/zone", None),
        ("example.com/zone", None),
        ("os", None),
        ("team", None),
    ],
)
def test_a_requirement_on_almost_a_label_of_instance_types_is_reported(
    key: str, meant: str | None
) -> None:
    """Karpenter takes it as a label of one's own, and launches any type."""
    entry = {"key": key, "operator": "In", "values": ["a"]}
    hints = [f.hint for f in check_requirements([entry], ()) if f.code == "idle-requirement"]
    assert hints == ([f"did you mean {meant}?"] if meant else [])


def test_the_listed_values_of_labels_are_those_of_the_bundled_types() -> None:
    """A value that AWS adds has to be added to the list."""
    _, bundle = load()
    read: dict[str, set[str]] = {
        AWS + "instance-category": {m.category for m in bundle.machines},
        AWS + "instance-generation": {str(m.generation) for m in bundle.machines if m.generation},
        AWS + "instance-size": {m.size for m in bundle.machines},
        ARCH: {m.arch for m in bundle.machines},
        TENANCY: set(TENANCIES),
    }
    for label in LABEL_VALUES.keys() - read.keys() - {OS}:
        read[label] = {value for m in bundle.machines if (value := LABELS[label](m))}
    for label, values in read.items():
        assert values <= set(LABEL_VALUES[label]), label


def test_a_node_pool_of_eks_auto_mode_is_said_to_be_unsupported() -> None:
    ref = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
    assert pool_findings(nodeClassRef=ref) == {"auto-mode"}


def _selecting(key: str, value: str, form: str) -> dict[str, Any]:
    if form == "selector":
        return a_pod(nodeSelector={key: value})
    terms = [{"matchExpressions": [{"key": key, "operator": form, "values": [value]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return a_pod(affinity={"nodeAffinity": required})


@pytest.mark.parametrize(
    ("key", "value", "code", "hint"),
    [
        ("eks.amazonaws.com/compute-type", "auto", "eks-label", "remove it"),
        ("eks.amazonaws.com/instance-cpu", "4", "eks-label", AWS + "instance-cpu"),
        ("karpenter.sh/provisioner-name", "web", "idle-selector", "karpenter.sh/nodepool"),
        ("karpenter.sh/capacity-types", "spot", "idle-selector", "karpenter.sh/capacity-type"),
        (AWS + "instance-familys", "m7i", "idle-selector", AWS + "instance-family"),
        (AWS + "instance-family", "m7i", "", ""),
        ("karpenter.sh/registered", "true", "", ""),
        ("kubernetes.io/hostname", "n1", "", ""),
        ("example.com/team", "a", "", ""),
    ],
)
@pytest.mark.parametrize("form", ["selector", "In"])
def test_a_selector_that_no_node_satisfies_is_reported(
    key: str, value: str, code: str, hint: str, form: str
) -> None:
    found = check_workload("Pod", _selecting(key, value, form))
    assert [f.code for f in found] == ([code] if code else [])
    assert all(hint in f.hint and f.severity is Severity.WARNING for f in found)


def test_a_pod_for_a_node_group_is_a_note() -> None:
    pod = _selecting("eks.amazonaws.com/nodegroup", "system", "selector")
    assert [f.severity for f in check_workload("Pod", pod)] == [Severity.INFO]


def test_a_pod_may_avoid_nodes_of_eks() -> None:
    assert (
        check_workload("Pod", _selecting("eks.amazonaws.com/compute-type", "auto", "NotIn")) == []
    )


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
        ({"limits": {"nvidia.com/gpus": 1}}, "unknown-device"),
        ({"limits": {"aws.amazon.com/neuroncores": 1}}, "unknown-device"),
        ({"limits": {"nvidia.com/gpu.shared": 1}}, None),
        ({"limits": {"nvidia.com/mig-1g.5gb": 1}}, None),
        ({"limits": {"example.com/fpga": 1}}, None),
        ({"requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}}, None),
        ({"limits": {"cpu": "500m", "hugepages-2Mi": "4Mi"}}, None),
        ({"requests": {"memory": "1Gi"}, "limits": {"hugepages-1Gi": "2Gi"}}, None),
        (
            {
                "requests": {"cpu": 1, "hugepages-2Mi": "4Mi"},
                "limits": {"hugepages-2Mi": "4Mi"},
            },
            None,
        ),
        ({"requests": {"cpu": 1, "hugepages-2Mi": "4Mi"}}, "device-without-limit"),
        (
            {
                "requests": {"cpu": 1, "hugepages-2Mi": "2Mi"},
                "limits": {"hugepages-2Mi": "4Mi"},
            },
            "device-request-differs",
        ),
        (
            {
                "requests": {"cpu": 1, "hugepages-2Mi": "6Mi"},
                "limits": {"hugepages-2Mi": "4Mi"},
            },
            "requests-above-limits",
        ),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, "pages-alone"),
        ({"limits": {"hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi"}}, "pages-alone"),
        ({"limits": {"cpu": 1, "hugepages-2Mi": "3Mi"}}, "divided-page"),
        ({"limits": {"cpu": 1, "hugepages-huge": "4Mi"}}, "divided-page"),
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


PROTECTION = "karpenter.sh/do-not-disrupt"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (PROTECTION, "true", ""),
        (PROTECTION, "false", ""),
        (PROTECTION, "2h30m", ""),
        (PROTECTION, "yes", '"yes" protects no pod'),
        (PROTECTION, "True", '"True" protects no pod'),
        (PROTECTION, "2 hours", '"2 hours" protects no pod'),
        (PROTECTION, "1d", '"1d" protects no pod'),
        (PROTECTION, "0s", '"0s" protects no pod'),
        ("karpenter.sh/do-not-evict", "true", "nothing reads it any more"),
        ("karpenter.sh/do-not-evict", "false", ""),
        ("karpenter.sh/do-not-consolidate", "true", "nothing reads it any more"),
        ("karpenter.sh/donot-disrupt", "true", "nothing reads this annotation"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false", "only Cluster Autoscaler"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", ""),
        ("karpenter.sh/do-not-repair", "true", ""),
        ("karpenter.sh/disruption-cost", "5", ""),
        ("prometheus.io/scrape", "true", ""),
    ],
)
@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_an_annotation_that_protects_nothing_is_a_warning(
    kind: str, key: str, value: str, words: str
) -> None:
    metadata = {"name": "app", "labels": {"app": "app"}, "annotations": {key: value}}
    workload: dict[str, Any] = {**a_pod(), "metadata": metadata}
    if kind == "Deployment":
        template = {"metadata": metadata, "spec": a_pod()["spec"]}
        spec = {"selector": {"matchLabels": {"app": "app"}}, "template": template}
        workload = a("Deployment", "app", spec=spec).data
    found = check_workload(kind, workload)
    assert [f.code for f in found] == ["idle-annotation"] * bool(words)
    assert all(f.severity is Severity.WARNING and words in f.message for f in found)


def test_a_label_with_the_name_of_the_annotation_protects_nothing() -> None:
    pod = {**a_pod(), "metadata": {"name": "app", "labels": {PROTECTION: "true"}}}
    (finding,) = check_workload("Pod", pod)
    assert (finding.code, finding.hint) == ("idle-annotation", "write it as an annotation")


@pytest.mark.parametrize(
    ("selector", "codes"),
    [
        ({}, ["idle-spread"]),
        ({"labelSelector": {}}, []),
        ({"labelSelector": {"matchLabels": {"app": "app"}}}, []),
    ],
)
def test_a_spread_without_a_selector_has_no_effect(
    selector: dict[str, Any], codes: list[str]
) -> None:
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        **selector,
    }
    found = check_workload("Pod", a_pod(topologySpreadConstraints=[spread]))
    assert [f.code for f in found] == codes


@pytest.mark.parametrize(
    ("alias", "is_idle"),
    [
        ("al2023@latest", False),
        ("al2023@v20250610", False),
        ("al2@v20250610", False),
        ("bottlerocket@v1.40.0", False),
        ("bottlerocket@1.40.0", False),
        ("bottlerocket@1.40.0-5d9ac849", False),
        ("windows2022@latest", False),
        ("al2@v1.31", True),
        ("al2023@1.31", True),
        ("al2023@20250610", True),
        ("al2023@v2025-06-10", True),
        ("bottlerocket@v1.40", True),
        ("bottlerocket@v20250610", True),
    ],
)
def test_an_alias_of_a_version_that_no_image_has_is_reported(alias: str, is_idle: bool) -> None:
    node_class = a_class()
    node_class["spec"]["amiSelectorTerms"] = [{"alias": alias}]
    (*rest,) = found(a_file(a_pool_requiring(), node_class))
    assert [code for _, code, _ in rest] == (["image-version"] if is_idle else [])
