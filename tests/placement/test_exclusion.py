"""The reason why nothing can be launched names the layer that is the cause."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.settings import DecisionRules
from tests.placement.builders import (
    ARCH,
    CAPACITY_TYPE,
    TYPES,
    ZONE,
    Object,
    a_pod,
    a_pool,
    a_type,
    placed,
    pods,
    spread,
    wanted,
)

MEMORY = "karpenter.k8s.aws/instance-memory"


def reason(pool: Object, types: Any = TYPES) -> str:
    """Return why the NodePool launches nothing for a pod."""
    (rejection,) = placed([pool, *pods(1)], types=types).unschedulable["default/app-00"]
    return rejection.message


def with_memory(name: str, mebibytes: int) -> Object:
    kind = a_type(name, 4, 0.2)
    value = {"key": MEMORY, "operator": "In", "values": [str(mebibytes)]}
    kind["requirements"].append(value)
    return kind


def refused(name: str) -> Object:
    """Return a type whose only offering is unavailable at the moment."""
    offering = {"zone": "zone-a", "capacityType": "on-demand", "price": 0.1, "available": False}
    return a_type(name, 4, 0.2, zones=(), offerings=[offering])


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        (wanted(CAPACITY_TYPE, "In", "reserved"), "looked up only with access to AWS"),
        (wanted(ZONE, "In", "us-east-1-bos-1a"), "local zones are not in the bundled data"),
        (wanted(ZONE, "In", "us-west-2-lax-1b"), "local zones are not in the bundled data"),
        (wanted(ZONE, "In", "us-east-1-wl1-bos-wlz-1"), "Wavelength zones are not in"),
        (wanted("example.com/size", "Gt", "90"), "its requirement example.com/size Gt [90]"),
        (wanted(ZONE, "In", "zone-aa"), "did you mean zone-a?"),
    ],
)
def test_what_was_not_looked_up_is_not_denied(requirement: Object, words: str) -> None:
    assert words in reason(a_pool("default", requirement))


def test_a_zone_without_offerings_is_to_be_left_out_where_a_spread_counts_it() -> None:
    """As Karpenter counts: the zone of a type that the pods cannot use is a domain."""
    types = [a_type("general", 2, 0.1, zones=("zone-a", "zone-b")), a_type("other", 2, 0.1)]
    pool = a_pool("default", wanted("node.kubernetes.io/instance-type", "In", "general"))
    everything = a_pool("idle", wanted("node.kubernetes.io/instance-type", "In", "other"))
    waiting = pods(4, cpu="1500m", topologySpreadConstraints=[spread(ZONE)],
                   nodeSelector={"node.kubernetes.io/instance-type": "general"})  # fmt: skip
    found = placed([pool, everything, *waiting], types=types, decide=DecisionRules.KARPENTER)
    texts = [r.message for reasons in found.unschedulable.values() for r in reasons]
    hint = "none of its instance types is offered in zone-c: leave it out in spec.requirements"
    assert any(text.endswith(hint) for text in texts)
    assert not placed([pool, everything, *waiting], types=types).unschedulable


def test_refused_offerings_are_named_as_such_and_not_as_requirements() -> None:
    text = reason(a_pool(), [refused("only")])
    assert "lack of capacity or of free addresses, or for a quota" in text
    assert "none of its instance types is offered" not in text


def test_a_zone_that_never_has_the_type_is_not_called_refused() -> None:
    narrow = a_type("narrow", 4, 0.2, zones=("zone-a",))
    pool = a_pool("default", wanted(ARCH, "In", "amd64"), wanted(ZONE, "In", "zone-b"))
    text = reason(pool, [narrow, a_type("arm", 4, 0.1, arch="arm64", zones=("zone-b",))])
    assert "refused" not in text


@pytest.mark.parametrize(("value", "hint"), [("16", "16384 (in MiB)"), ("9000", "8192")])
def test_numbers_are_compared_as_numbers(value: str, hint: str) -> None:
    types = [with_memory("a", 8192), with_memory("b", 16384), with_memory("c", 7)]
    text = reason(a_pool("default", wanted(MEMORY, "In", value)), types)
    assert f"did you mean {hint}?" in text


def test_volumes_in_different_zones_are_named_with_their_zones() -> None:
    world: list[Object] = [a_pool()]
    for name, zone in (("data", "zone-a"), ("logs", "zone-b")):
        term = {"matchExpressions": [wanted(ZONE, "In", zone)]}
        bound = {"pv.kubernetes.io/bind-completed": "yes"}
        world += [
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "default", "annotations": bound},
                "spec": {"volumeName": f"pv-{name}"},
            },
            {
                "kind": "PersistentVolume",
                "metadata": {"name": f"pv-{name}"},
                "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
            },
        ]
    volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("data", "logs")]
    (rejection,) = placed([*world, a_pod("app-0", volumes=volumes)]).unschedulable["default/app-0"]
    assert rejection.code == "VolumesInDifferentZones"
    for word in ("data", "zone-a", "logs", "zone-b"):
        assert word in rejection.message


TEAM_TAINT = {"key": "team", "value": "red", "effect": "NoSchedule"}


def spread_reason(*pools: Object, **constraint: Any) -> str:
    """Return why the last of four pods with a spread over zones finds none in NodePool default."""
    selector = constraint.pop("nodeSelector", {})
    rules = {"topologySpreadConstraints": [spread(ZONE, **constraint)], "nodeSelector": selector}
    found = placed([*pools, *pods(4, cpu="1500m", **rules)])
    texts = [r.message for reasons in found.unschedulable.values() for r in reasons]
    return next((text for text in texts if "topology spread" in text), "")


AB = wanted(ZONE, "In", "zone-a", "zone-b")


def test_a_zone_that_only_tainted_node_pools_have_is_left_out_by_a_policy() -> None:
    """Kubernetes counts it by default, and both policies of the advice place all pods."""
    world = a_pool("default", AB), a_pool("red", wanted(ZONE, "In", "zone-c"), taints=[TEAM_TAINT])
    text = spread_reason(*world)
    assert text.endswith(
        "it counts zone-c, which only tainted NodePools have: set nodeTaintsPolicy: Honor in the "
        "constraint"
    )
    assert spread_reason(*world, nodeTaintsPolicy="Honor") == ""


def test_a_zone_of_node_pools_that_the_pod_does_not_select_is_left_out_by_a_policy() -> None:
    world = (
        a_pool("default", AB, labels={"own": "yes"}),
        a_pool("other", wanted(ZONE, "In", "zone-c")),
    )
    chosen = {"nodeSelector": {"own": "yes"}}
    text = spread_reason(*world, nodeAffinityPolicy="Ignore", **chosen)
    assert "zone-c, which only NodePools have that the pod does not select" in text
    assert text.endswith("set nodeAffinityPolicy: Honor in the constraint")
    assert spread_reason(*world, **chosen) == ""


def test_domains_that_are_required_and_do_not_exist_are_named() -> None:
    text = spread_reason(a_pool("default", AB), minDomains=3)
    assert text.endswith("minDomains is 3, so a domain without pods is assumed: lower it")


def test_a_zone_with_other_reasons_gets_no_advice_about_policies() -> None:
    """Both NodePools tolerate the pod; the limit of one of them is what is missing."""
    world = a_pool("default", AB), a_pool("c", wanted(ZONE, "In", "zone-c"), limits={"nodes": "0"})
    assert "Policy" not in spread_reason(*world)


def test_a_label_of_eks_itself_is_not_to_be_added_to_a_node_pool() -> None:
    waiting = pods(1, nodeSelector={"eks.amazonaws.com/compute-type": "auto"})
    found = placed([a_pool(), *waiting])
    ((only,),) = found.unschedulable.values()
    assert only.code == "LabelUnknown"
    assert "EKS sets on nodes of EKS Auto Mode, Fargate and its node groups" in only.message
    assert "spec.template.metadata.labels" not in only.message


@pytest.mark.parametrize(
    ("label", "hint"),
    [
        ("no", ""),
        ("team", ""),
        ("example.com/zone", ZONE),
        ("example.com/instance-type", "node.kubernetes.io/instance-type"),
    ],
)
def test_only_a_similar_label_is_suggested(label: str, hint: str) -> None:
    """Karpenter suggests any label that contains the text: ec2nodeclass for no."""
    found = placed([a_pool(), *pods(1, nodeSelector={label: "a"})])
    ((only,),) = found.unschedulable.values()
    assert only.code == "LabelUnknown"
    assert only.message.partition("did you mean ")[2].rstrip("?") == hint
