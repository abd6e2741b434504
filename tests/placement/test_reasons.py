"""Why a pod is unschedulable: a code for programs, and a sentence that suggests a fix."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reconciler.placement.nodes.daemons import unreadable_daemon_sets
from reconciler.placement.question import Question, Rejection
from tests.placement.builders import (
    ARCH,
    CAPACITY_TYPE,
    HOST,
    TYPES,
    ZONE,
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    a_type,
    apart,
    near,
    on,
    placed,
    pods,
    rule,
    spread,
    wanted,
)


def _reason(pool: Object, pod: Object, *more: Object, **how: Any) -> Rejection:
    (reason,) = placed([pool, pod, *more], **how).unschedulable["default/app-0"]
    return reason


def prefers(*items: Object) -> Object:
    terms = [{"weight": 1, "preference": {"matchExpressions": list(items)}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _selecting(**labels: str) -> Object:
    return a_pod("app-0", nodeSelector=labels)


TAINT = {"key": "team", "value": "red", "effect": "NoSchedule"}
GONE = a_type("gone", 64, 3.0)
GONE["offerings"] = [{**o, "available": False} for o in GONE["offerings"]]

CASES: dict[str, tuple[Object, Object, str, str]] = {
    "too much cpu": (
        a_pool(),
        a_pod("app-0", "70"),
        "TooLarge",
        "NodePool default: requests 70 cpu, but the largest allowed instance type has 15.9",
    ),
    "too much memory": (
        a_pool(),
        a_pod("app-0", "1", "100Gi"),
        "TooLarge",
        "NodePool default: requests 100Gi memory, but the largest allowed instance type has 63.9Gi",
    ),
    "unknown resource": (
        a_pool(),
        a_pod("app-0", more={"example.com/fpga": "1"}),
        "TooLarge",
        (
            "NodePool default: requests 1 example.com/fpga, but the largest allowed instance "
            "type has 0: no instance type is known to have it; if your nodes have it, state it in "
            "spec.capacity of a NodeOverlay"
        ),
    ),
    "no type has both": (
        a_pool("default", wanted(ARCH, "In", "amd64")),
        a_pod("app-0", "15", "20Gi", more={"example.com/gpu": "1"}),
        "TooLarge",
        (
            "NodePool default: no allowed instance type has 15 cpu and 20Gi memory and 1 "
            "example.com/gpu "
            "together; the closest is gpu, which lacks 7.1 cpu"
        ),
    ),
    "taint": (
        a_pool(taints=[TAINT]),
        a_pod("app-0"),
        "TaintNotTolerated",
        "does not tolerate the taint team=red:NoSchedule of NodePool default: add a toleration",
    ),
    "unknown label": (
        a_pool(),
        _selecting(**{"example.org/team": "red"}),
        "LabelUnknown",
        (
            "requires the label example.org/team, which nodes of NodePool default do not "
            "have: add it to spec.template.metadata.labels"
        ),
    ),
    "conflict": (
        a_pool("default", wanted(ARCH, "In", "amd64")),
        _selecting(**{ARCH: "arm64"}),
        "RequirementsConflict",
        (
            "requires kubernetes.io/arch In [arm64], but NodePool default allows "
            "kubernetes.io/arch In [amd64]"
        ),
    ),
    "another pool": (
        a_pool(),
        _selecting(**{"karpenter.sh/nodepool": "other"}),
        "OtherNodePool",
        "requires another NodePool: karpenter.sh/nodepool In [other]",
    ),
    "no type": (
        a_pool(),
        _selecting(**{"node.kubernetes.io/instance-type": "m9.mega"}),
        "NoTypeMeetsRequirements",
        (
            "NodePool default: no instance type left after node.kubernetes.io/instance-type In "
            "[m9.mega]: relax that requirement"
        ),
    ),
    "another operating system": (
        a_pool(),
        _selecting(**{"kubernetes.io/os": "windows"}),
        "NoTypeMeetsRequirements",
        (
            "NodePool default: its node class runs linux, and the pod selects kubernetes.io/os In "
            "[windows]: add a NodePool whose node class has images of that system"
        ),
    ),
    "pool without types": (
        a_pool("default", wanted(ARCH, "In", "riscv")),
        a_pod("app-0"),
        "NoInstanceTypes",
        (
            "NodePool default cannot launch nodes: "
            "no instance type satisfies its requirement kubernetes.io/arch In [riscv]"
        ),
    ),
    "pool with a mistyped zone": (
        a_pool("default", wanted(ZONE, "In", "zone-aa")),
        a_pod("app-0"),
        "NoInstanceTypes",
        (
            "NodePool default cannot launch nodes: no instance type satisfies its requirement "
            "topology.kubernetes.io/zone In [zone-aa]; did you mean zone-a?"
        ),
    ),
    "pool whose requirements exclude each other's types": (
        a_pool("default", wanted(ARCH, "In", "arm64"), wanted("example.com/size", "In", "2")),
        a_pod("app-0"),
        "NoInstanceTypes",
        (
            "NodePool default cannot launch nodes: no instance type satisfies all its "
            "requirements: none that has kubernetes.io/arch In [arm64] has example.com/size In [2]"
        ),
    ),
    "pool whose requirements on one label exclude each other": (
        a_pool("default", wanted(ARCH, "In", "arm64"), wanted(ARCH, "NotIn", "arm64", "x")),
        a_pod("app-0"),
        "NoInstanceTypes",
        (
            "NodePool default cannot launch nodes: its requirements on kubernetes.io/arch exclude "
            "each other: In [arm64], NotIn [arm64, x]"
        ),
    ),
    "pool whose label its requirement excludes": (
        a_pool("default", wanted(ARCH, "In", "arm64"), labels={ARCH: "amd64"}),
        a_pod("app-0"),
        "NoInstanceTypes",
        (
            "NodePool default cannot launch nodes: its requirements on kubernetes.io/arch exclude "
            "each other: the label amd64, In [arm64]"
        ),
    ),
    "limit": (
        a_pool(limits={"cpu": "1"}),
        a_pod("app-0"),
        "LimitReached",
        (
            "no instance type of NodePool default fits into its remaining limits (1 cpu): "
            "raise spec.limits"
        ),
    ),
    "limit that is used up": (
        a_pool(limits={"cpu": "0", "memory": "1Ti"}),
        a_pod("app-0"),
        "LimitReached",
        (
            "NodePool default has reached spec.limits.cpu, counting nodes that are being launched: "
            "raise the limit"
        ),
    ),
    "limit leaves smaller types": (
        a_pool(limits={"cpu": "4"}),
        a_pod("app-0", "6"),
        "LimitReached",
        "NodePool default: every instance type that it fits on exceeds the remaining spec.limits",
    ),
    "not to be had": (
        a_pool(),
        _selecting(**{"example.com/size": "64"}),
        "NoOffering",
        (
            "NodePool default: EC2 has refused all suitable offerings recently, for lack of "
            "capacity or of free addresses, or for a quota of the account; they are tried again in "
            "some minutes: allow more types and zones, or raise the quota"
        ),
    ),
    "restricted label": (
        a_pool(),
        _selecting(**{"karpenter.sh/initialized": "true"}),
        "RestrictedLabel",
        (
            "it selects nodes by the restricted label karpenter.sh/initialized, which no NodePool "
            "can set: use a label of your own domain"
        ),
    ),
    "host": (
        a_pool(),
        a_pod("app-0", affinity=on([wanted(HOST, "In", "n1")])),
        "RestrictedLabel",
        (
            "it selects nodes by the restricted label kubernetes.io/hostname, which no NodePool "
            "can set: use a label of your own domain"
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_names_the_failing_constraint(name: str) -> None:
    pool, pod, code, message = CASES[name]
    reason = _reason(pool, pod, types=[*TYPES, GONE])
    assert (reason.code, reason.message) == (code, message)


def test_the_facts_count_the_types_left_by_each_filter() -> None:
    pod = a_pod("app-0", "70", nodeSelector={ARCH: "amd64", CAPACITY_TYPE: "spot"})
    facts = _reason(a_pool(), pod).facts
    assert facts == {
        "types": 6,
        f"after {ARCH}": 5,
        f"after {CAPACITY_TYPE}": 5,
        "after offerings": 5,
        "after resources": 0,
        "needs cpu": "70",
        "largest cpu": "15.9",
        "nearest type": "huge",
        "nearest type lacks": "54.1 cpu",
    }


def test_a_daemon_sets_host_port_and_its_share_are_named() -> None:
    agent = a_daemon_set("agent", "1")
    container = agent["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"hostPort": 9100, "containerPort": 9100}]
    assert _reason(a_pool(), a_pod("app-0", ports=[9100]), agent).code == "HostPortTaken"
    message = _reason(a_pool(), a_pod("app-0", "15500m"), agent).message
    assert message.endswith("the largest allowed instance type has 14.9 left after DaemonSets")


def test_without_a_ready_pool_a_label_of_karpenter_is_not_blamed() -> None:
    pod = _selecting(**{"karpenter.sh/capacity-type": "spot"})
    (reason,) = placed([pod]).unschedulable["default/app-0"]
    assert reason.code == "NoNodePools"


@pytest.mark.parametrize(
    "rules",
    [{"topologySpreadConstraints": [spread(ZONE)]}, {"affinity": near(rule(ZONE))}],
    ids=["spread", "affinity"],
)
def test_a_pod_for_which_no_node_is_large_enough_is_not_blamed_on_its_rules(rules: Object) -> None:
    """No zone can launch a node for it, so the rule of its zones had "no domain"."""
    reason = _reason(a_pool(), a_pod("app-0", "70", labels={"app": "app"}, **rules))
    assert reason.code == "TooLarge"
    assert "requests 70 cpu, but the largest allowed instance type has 15.9" in reason.message


def test_the_domains_that_a_reason_does_not_list_are_counted() -> None:
    """Ten of fourteen racks looked like all of them."""
    racks = [f"r{n:02}" for n in range(14)]
    pool = a_pool("default", wanted("example.com/rack", "In", *racks))
    world: list[Object] = []
    for rack in racks:
        node = a_node(f"n-{rack}", "1", labels={"example.com/rack": rack})
        world += [*node, a_pod(f"run-{rack}", node=f"n-{rack}", labels={"app": "app"})]
    pod = a_pod("app-0", labels={"app": "app"}, affinity=apart(rule("example.com/rack")))

    reason = _reason(pool, pod, *world)

    assert "r09: 1 and 4 more)" in reason.message


def test_reasons_have_the_order_in_which_pools_are_tried() -> None:
    light, heavy = a_pool("light", taints=[TAINT]), a_pool("heavy", weight=5)
    placement = placed([light, heavy, a_pod("app-0", "70")])
    reasons = placement.unschedulable["default/app-0"]
    assert [(r.node_pool, r.code) for r in reasons] == [
        ("heavy", "TooLarge"),
        ("light", "TaintNotTolerated"),
    ]


def test_a_pod_that_opts_out_of_nodepools_is_not_reported() -> None:
    elsewhere = on([wanted("karpenter.sh/nodepool", "DoesNotExist")])
    placement = placed([a_pool(), *pods(1, affinity=elsewhere)])
    assert (placement.claims, placement.unschedulable) == ((), {})


def test_a_typo_of_a_well_known_label_is_recognised() -> None:
    reason = _reason(a_pool(), _selecting(**{"topology.kubernetes.io/zon": "zone-a"}))
    assert reason.code == "LabelUnknown"
    assert ZONE in reason.message


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("app-0", affinity=on([wanted("example.com/size", "Gt", "many")])),
        a_pod("app-0", affinity=on([wanted("example.com/size", "Near", "4")])),
        a_pod("app-0", "a lot"),
    ],
)
def test_an_invalid_pod_spec_is_rejected_and_not_fatal(pod: Object) -> None:
    placement = placed([a_pool(), pod, a_pod("app-1")])
    assert [claim.pods for claim in placement.claims] == [("default/app-1",)]


def test_an_invalid_daemon_set_counts_everywhere_and_is_reported() -> None:
    odd = a_daemon_set("odd", "1", affinity=on([wanted(ZONE, "Near", "zone-a")]))
    scheduler, cluster = a_scheduler([a_pool(), a_pod("app-0", "15"), odd])
    assert [name for name, _ in unreadable_daemon_sets(cluster)] == ["default/odd"]
    (reason,) = scheduler.place(Question(pods=cluster.pods)).unschedulable["default/app-0"]
    assert "the largest allowed instance type has 14.9 left after DaemonSets" in reason.message


def test_pods_without_requests_need_room_for_a_pod() -> None:
    few, thin = a_type("few", 4, 0.1), a_type("thin", 1, 0.1, memory="150Mi")
    few["capacity"]["pods"] = "1"
    pod = a_pod("app-0")
    pod["spec"]["containers"][0]["resources"] = {}
    world = [a_pool(), a_daemon_set("agent", "950m"), pod]
    ((rejection,),) = placed(world, types=[few, thin]).unschedulable.values()
    assert rejection.message == (
        "NodePool default: no allowed instance type has enough capacity left after "
        "DaemonSets; the closest is few, which lacks 1 pods"
    )


HOSTILE = "x'; touch /PWNED; '"
INVALID_LABELS = {
    "required value": a_pod("app-0", affinity=on([wanted("team", "In", HOSTILE)])),
    "second term": a_pod(
        "app-0", affinity=on([wanted("team", "In", "a")], [wanted("team", "In", HOSTILE)])
    ),
    "excluded value": a_pod("app-0", affinity=on([wanted("team", "NotIn", "$(id)")])),
    "long value": a_pod("app-0", affinity=on([wanted("team", "In", "a" * 64)])),
    "key": a_pod("app-0", affinity=on([wanted("a/b/c", "Exists")])),
    "preferred value": a_pod("app-0", affinity=prefers(wanted("team", "In", "a\nb"))),
    "preferred key": a_pod("app-0", affinity=prefers(wanted("`id`", "Exists"))),
    "selected value": _selecting(team="$(id)"),
    "selected key": _selecting(**{"te am": "a"}),
}


@pytest.mark.parametrize("name", INVALID_LABELS)
def test_a_pod_that_wants_what_is_not_a_label_is_rejected(name: str) -> None:
    """Karpenter refuses it as well; it would become a label, and so text of the user data."""
    pool = a_pool("default", wanted("team", "Exists"))
    reason = _reason(pool, INVALID_LABELS[name])
    assert reason.code == "Unreadable"
    assert re.match(
        r"invalid pod: (nodeSelector|node affinity): invalid (label|value) ", reason.message
    )
    assert reason.message.isprintable()


def test_a_running_pod_cannot_bring_such_a_label_to_its_next_node() -> None:
    pool = a_pool("default", wanted("team", "Exists"))
    pod = INVALID_LABELS["required value"]
    pod = {**pod, "spec": {**pod["spec"], "nodeName": "n1"}}
    scheduler, cluster = a_scheduler([pool, *a_node("n1"), pod])
    placement = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n1"})))
    assert placement.claims == ()
    (reason,) = placement.unschedulable["default/app-0"]
    assert reason.code == "Unreadable"


def _a_volume(zone: str) -> tuple[Object, Object]:
    term = {"matchExpressions": [wanted(ZONE, "In", zone)]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "namespace": "default",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        },
        "spec": {"volumeName": "v"},
    }
    return volume, claim


MOUNTED = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


@pytest.mark.parametrize(
    ("zone", "pool", "words"),
    [
        ("us-east-1-bos-1a", a_pool(), "local zones are not in the bundled data"),
        ("zone-q", a_pool(), "where NodePool default has no instance type; did you mean zone-"),
        (
            "zone-b",
            a_pool("default", wanted(ZONE, "In", "zone-a")),
            "which NodePool default and the pod do not both allow",
        ),
    ],
)
def test_a_volume_that_no_node_reaches_is_named_with_the_cause(
    zone: str, pool: Object, words: str
) -> None:
    reason = _reason(pool, a_pod("app-0", volumes=MOUNTED), *_a_volume(zone))
    assert reason.code == "VolumeUnreachable"
    assert zone in reason.message
    assert words in reason.message


def test_storage_is_a_matter_of_the_node_class() -> None:
    types = [a_type("only", 4, 0.1, extra={"ephemeral-storage": "17Gi"})]
    pod = a_pod("app-0", more={"ephemeral-storage": "100Gi"})
    reason = _reason(a_pool(), pod, types=types)
    assert reason.code == "TooLarge"
    assert "blockDeviceMappings of the EC2NodeClass" in reason.message
