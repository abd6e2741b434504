"""Devices by ResourceClaim (DRA): ignored with a reason, or allocated on nodes old and new."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.settings import DecisionRules, KarpenterVersion
from reconciler.placement.question import Placement, Question
from tests.placement.builders import (
    TYPES,
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    placed,
)
from tests.placement.devices import (
    a_claim,
    a_claim_template,
    a_claiming_pod,
    a_class,
    a_device,
    a_gpu_type,
    a_request,
    a_slice,
    a_template,
    allocated,
    an_alternative,
    gpus,
)

CLAIMED = {"resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}
ASKING: dict[str, Object] = {
    "the pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared-gpu"}]},
    "a container": {"containers": [{"name": "main", **CLAIMED}]},
    "an init container": {"initContainers": [{"name": "first", **CLAIMED}]},
}
V1_15 = KarpenterVersion.V1_15
ONE = a_gpu_type("g-one", 8, 1.0, a_template(gpus(1)))
FOUR = a_gpu_type("g-four", 16, 3.0, a_template(gpus(4)))
BIG = a_gpu_type("g-big", 16, 9.0, a_template(gpus(2, "h100", "80Gi")))
GPU_TYPES = (*TYPES, ONE, FOUR, BIG)
MODEL = 'device.attributes["gpu.example.com"].model == "{}"'


def _asking(how: str, name: str = "app-0", **more: Any) -> Object:
    pod = a_pod(name, **more)
    pod["spec"] |= ASKING[how]
    return pod


def _placed(*objects: Object, **more: Any) -> Placement:
    more.setdefault("types", GPU_TYPES)
    more.setdefault("karpenter", V1_15)
    return placed([a_pool(), a_class(), *objects], **more)


def _nodes(placement: Placement) -> list[tuple[str, tuple[str, ...]]]:
    return [(claim.types[0].name, claim.pods) for claim in placement.claims]


def _reason(placement: Placement, pod: str) -> str:
    return "; ".join(r.message for r in placement.unschedulable[f"default/{pod}"])


@pytest.mark.parametrize("how", ASKING)
def test_a_fleet_that_ignores_claims_rejects_their_pods_with_a_reason(how: str) -> None:
    placement = placed([a_pool(), *a_node("n-1"), _asking(how), a_pod("other-0")])

    (reason,) = placement.unschedulable["default/app-0"]
    assert (reason.code, reason.node_pool) == ("ResourceClaimsIgnored", None)
    assert "ResourceClaim" in reason.message
    assert dict(placement.on_nodes) == {"default/other-0": "n-1"}
    assert placement.claims == ()


def test_such_a_fleet_does_not_move_a_running_pod_that_claims_devices() -> None:
    """It is not known whether another node has such a device, so the pod is not moved."""
    running = _asking("the pod", node="n-1")
    scheduler, cluster = a_scheduler([a_pool(), *a_node("n-1"), *a_node("n-2"), running])

    placement = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n-1"})))

    assert [r.code for r in placement.unschedulable["default/app-0"]] == ["ResourceClaimsIgnored"]


def test_a_daemon_that_claims_devices_uses_no_room_where_claims_are_ignored() -> None:
    daemon = a_daemon_set("drivers", "15", resourceClaims=[{"name": "gpu"}])

    placement = placed([a_pool(), daemon, a_pod("app-0", "1")])

    (claim,) = placement.claims
    assert claim.types[0].name == "small"


def test_a_daemon_that_claims_devices_counts_where_claims_do() -> None:
    daemon = a_daemon_set("drivers", "15", resourceClaims=[{"name": "gpu"}])

    (claim,) = _placed(daemon, a_pod("app-0", "500m")).claims

    assert claim.types[0].name == "huge"


def test_predictions_of_a_running_karpenter_ignore_claims_as_it_does_by_default() -> None:
    objects = [a_claim_template(), a_claiming_pod("app-0", "one-gpu")]
    karpenter = DecisionRules.KARPENTER

    ignored = _placed(*objects, decide=karpenter)
    read = _placed(*objects, decide=karpenter, ignore_dra_requests=False)

    assert [r.code for r in ignored.unschedulable["default/app-0"]] == ["ResourceClaimsIgnored"]
    assert [name for name, _ in _nodes(read)] == ["g-one"]


def test_a_pod_gets_the_cheapest_node_with_a_device_that_its_class_selects() -> None:
    placement = _placed(a_claim_template(), a_claiming_pod("app-0", "one-gpu"))

    assert _nodes(placement) == [("g-one", ("default/app-0",))]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (MODEL.format("h100"), "g-big"),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) > 0', "g-big"),
        ('device.attributes["gpu.example.com"].index >= 2', "g-four"),
    ],
)
def test_selectors_of_a_request_choose_among_instance_types(expression: str, expected: str) -> None:
    template = a_claim_template("one-gpu", a_request("gpu", 1, expression))

    placement = _placed(template, a_claiming_pod("app-0", "one-gpu"))

    assert [name for name, _ in _nodes(placement)] == [expected]


def test_a_node_takes_as_many_pods_as_it_has_devices() -> None:
    pods = [a_claiming_pod(f"app-{i}", "one-gpu", cpu="100m") for i in range(6)]

    placement = _placed(a_claim_template(), *pods)

    assert sorted(len(pods) for _, pods in _nodes(placement)) == [2, 4]
    assert not placement.unschedulable


def test_a_request_for_more_devices_than_any_node_has_names_the_request() -> None:
    template = a_claim_template("many", a_request("gpu", 5))

    placement = _placed(template, a_claiming_pod("app-0", "many"))

    (reason,) = placement.unschedulable["default/app-0"]
    assert reason.code == "NoDevices"
    assert "request gpu of ResourceClaim many" in reason.message
    assert "needs 5 devices that match, and a node has 4" in reason.message


@pytest.mark.parametrize(
    ("objects", "code"),
    [
        ([], "ResourceClaimTemplateNotFound"),
        ([a_claim_template("t", a_request(deviceClassName="tpu"))], "DeviceClassNotFound"),
        ([a_claim_template("t", a_request("gpu", 1, "device.driver =="))], "InvalidDeviceSelector"),
        ([a_claim_template("t", a_request("gpu", 1, "pod.x"))], "InvalidDeviceSelector"),
        ([a_claim_template("t", a_request("gpu", 33))], "TooManyDevices"),
    ],
)
def test_claims_that_cannot_be_allocated_anywhere_say_why(objects: list[Object], code: str) -> None:
    placement = _placed(*objects, a_claiming_pod("app-0", "t"))

    assert [r.code for r in placement.unschedulable["default/app-0"]] == [code]


def test_a_selector_that_matches_nothing_names_the_class() -> None:
    template = a_claim_template("t", a_request("gpu", 1, MODEL.format("b200")))

    placement = _placed(template, a_claiming_pod("app-0", "t"))

    assert "no device meets DeviceClass gpu and its selectors" in _reason(placement, "app-0")


def test_without_known_devices_the_reason_names_the_feature_gates() -> None:
    placement = _placed(a_claim_template(), a_claiming_pod("app-0", "one-gpu"), types=TYPES)

    assert "featureGates.DRANVIDIAGPU" in _reason(placement, "app-0")


def test_the_first_alternative_that_any_node_satisfies_is_used() -> None:
    big = an_alternative("big", 1, MODEL.format("h100"))
    small = an_alternative("small", 2, MODEL.format("a10"))
    template = a_claim_template("t", {"name": "gpu", "firstAvailable": [big, small]})

    placement = _placed(template, a_claiming_pod("app-0", "t"))
    without = _placed(template, a_claiming_pod("app-0", "t"), types=(*TYPES, ONE, FOUR))

    assert {kind.name for kind in placement.claims[0].types} == {"g-four", "g-big"}
    assert [name for name, _ in _nodes(without)] == ["g-four"]


def test_a_free_device_of_a_running_node_is_used_before_a_node_is_launched() -> None:
    claim = a_claim("used", status=allocated("n-1", "gpu-0", pods=["old-0"]))
    pods = [a_claiming_pod(f"app-{i}", "one-gpu") for i in range(2)]

    placement = _placed(
        *a_node("n-1", cpu="16"), a_slice("n-1", gpus(2)), claim, a_claim_template(), *pods,
        a_claiming_pod("old-0", claims=["used"], node="n-1"),
    )  # fmt: skip

    assert list(placement.on_nodes.values()) == ["n-1"]
    assert [name for name, _ in _nodes(placement)] == ["g-one"]


def test_a_running_node_without_devices_takes_no_pod_that_claims_one() -> None:
    placement = _placed(
        *a_node("n-1", cpu="16"), a_claim_template(), a_claiming_pod("app-0", "one-gpu")
    )

    assert not placement.on_nodes
    assert [name for name, _ in _nodes(placement)] == ["g-one"]


def test_pods_on_a_node_use_devices_before_their_claims_are_allocated() -> None:
    """A pod that a plan nominated there counts as it will once its claim is allocated."""
    on_node = a_claiming_pod("old-0", "one-gpu", node="n-1")

    placement = _placed(
        *a_node("n-1", cpu="16"), a_slice("n-1", gpus(1)), a_claim_template(), on_node,
        a_claiming_pod("app-0", "one-gpu"),
    )  # fmt: skip

    assert not placement.on_nodes


def test_a_pod_joins_another_that_uses_all_devices_of_a_node_by_the_same_claim() -> None:
    """It needs no free device there; one that also has a claim of its own does."""
    on_node = a_claiming_pod("old-0", claims=["shared"], node="n-1")
    world = [*a_node("n-1", cpu="16"), a_slice("n-1", gpus(1)), a_claim("shared"), on_node]

    joined = _placed(*world, a_claiming_pod("app-0", claims=["shared"]))
    apart = _placed(
        *world, a_claim_template(), a_claiming_pod("app-0", "one-gpu", claims=["shared"])
    )

    assert dict(joined.on_nodes) == {"default/app-0": "n-1"}
    assert not apart.on_nodes


def test_a_node_that_has_not_joined_counts_with_the_devices_of_its_type() -> None:
    labels = {"node.kubernetes.io/instance-type": "g-one"}

    placement = _placed(
        *a_node("n-1", cpu="8", initialized=False, labels=labels), a_claim_template(),
        *(a_claiming_pod(f"app-{i}", "one-gpu") for i in range(2)),
    )  # fmt: skip

    assert len(placement.on_nodes) == 1
    assert [name for name, _ in _nodes(placement)] == ["g-one"]


def test_pods_that_name_one_claim_run_on_one_node() -> None:
    pods = [a_claiming_pod(f"app-{i}", claims=["shared"], cpu="5") for i in range(3)]

    placement = _placed(a_claim("shared"), *pods)

    ((name, together),) = _nodes(placement)
    assert (name, len(together)) == ("g-four", 3)


def test_a_pod_that_does_not_fit_beside_its_shared_claim_waits() -> None:
    pods = [a_claiming_pod(f"app-{i}", claims=["shared"], cpu="9") for i in range(2)]

    placement = _placed(a_claim("shared"), *pods)

    assert [len(pods) for _, pods in _nodes(placement)] == [1]
    assert len(placement.unschedulable) == 1


def test_an_allocated_claim_ties_its_pods_to_its_node() -> None:
    claim = a_claim("mine", status=allocated("n-1", "gpu-0", pods=["app-9"]))
    nodes = [*a_node("n-1"), *a_node("n-2", cpu="16"), a_slice("n-1", gpus(1))]

    fits = _placed(*nodes, claim, a_claiming_pod("app-0", claims=["mine"], cpu="1"))
    too_large = _placed(*nodes, claim, a_claiming_pod("app-0", claims=["mine"], cpu="5"))

    assert dict(fits.on_nodes) == {"default/app-0": "n-1"}
    assert list(too_large.unschedulable) == ["default/app-0"]


def test_a_pod_that_leaves_its_node_gets_other_devices() -> None:
    claim = a_claim("mine", status=allocated("n-1", "gpu-0", pods=["app-0"]))
    scheduler, cluster = a_scheduler(
        [
            a_pool(), a_class(), claim, a_claiming_pod("app-0", claims=["mine"], node="n-1"),
            *a_node("n-1"), *a_node("n-2"), a_slice("n-1", gpus(1)), a_slice("n-2", gpus(1)),
        ],
        types=GPU_TYPES, karpenter=V1_15,
    )  # fmt: skip

    placement = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n-1"})))

    assert dict(placement.on_nodes) == {"default/app-0": "n-2"}


def test_pods_with_and_without_claims_share_a_node() -> None:
    placement = _placed(a_claim_template(), a_claiming_pod("app-0", "one-gpu"), a_pod("web-0"))

    ((name, pods),) = _nodes(placement)
    assert (name, pods) == ("g-one", ("default/app-0", "default/web-0"))


def test_partitions_of_a_gpu_share_its_counters() -> None:
    """A half and two quarters fit on one GPU; three halves need two."""
    whole = {"name": "memory", "counters": {"slices": {"value": "4"}}}

    def part(name: str, slices: int, profile: str) -> Object:
        uses = [{"counterSet": "memory", "counters": {"slices": {"value": str(slices)}}}]
        return a_device(name, {"profile": profile}, consumesCounters=uses)

    parts = [
        *(part(f"half-{i}", 2, "half") for i in range(2)),
        *(part(f"quarter-{i}", 1, "quarter") for i in range(4)),
    ]
    mig = a_gpu_type("g-mig", 16, 4.0, a_template(parts, sharedCounters=[whole]))
    profile = 'device.attributes["gpu.example.com"].profile == "{}"'
    half = a_claim_template("half", a_request("gpu", 1, profile.format("half")))
    quarter = a_claim_template("quarter", a_request("gpu", 1, profile.format("quarter")))

    mixed = [a_claiming_pod("a-0", "half"), *(a_claiming_pod(f"b-{i}", "quarter") for i in (0, 1))]
    halves = [a_claiming_pod(f"a-{i}", "half") for i in range(3)]

    assert len(_placed(half, quarter, *mixed, types=(*TYPES, mig)).claims) == 1
    assert len(_placed(half, *halves, types=(*TYPES, mig)).claims) == 2


def test_claims_share_the_capacity_of_a_device_that_allows_it() -> None:
    policy = {"default": "8Gi", "validRange": {"min": "4Gi", "step": "4Gi", "max": "24Gi"}}
    memory = {"value": "24Gi", "requestPolicy": policy}
    shared = a_device("gpu-0", {}, {"memory": memory}, allowMultipleAllocations=True)
    kind = a_gpu_type("g-shared", 16, 1.0, a_template([shared]))
    asked = a_request(capacity={"requests": {"memory": "9Gi"}})

    defaults = [a_claiming_pod(f"app-{i}", "one-gpu") for i in range(4)]
    rounded = [a_claiming_pod(f"app-{i}", "t") for i in range(3)]

    by_default = _placed(a_claim_template(), *defaults, types=(*TYPES, kind))
    by_request = _placed(a_claim_template("t", asked), *rounded, types=(*TYPES, kind))
    assert sorted(len(pods) for _, pods in _nodes(by_default)) == [1, 3]
    assert sorted(len(pods) for _, pods in _nodes(by_request)) == [1, 2]


def test_an_explanation_counts_the_types_that_have_the_devices() -> None:
    scheduler, cluster = a_scheduler(
        [a_pool(), a_class(), a_claim_template(), a_claiming_pod("app-0", "one-gpu")],
        types=GPU_TYPES, karpenter=V1_15,
    )  # fmt: skip

    found = scheduler.survey(cluster.pods[0])

    assert ("devices", 3) in found.pools[0].filters  # type: ignore[union-attr]


def test_all_devices_are_not_counted_where_a_selector_cannot_be_evaluated() -> None:
    every = a_request("gpu", 1, MODEL.format("h100"), allocationMode="All")
    plain = a_gpu_type("g-odd", 8, 0.5, a_template([*gpus(1, "h100"), a_device("odd")]))
    template = a_claim_template("every", every)

    alone = _placed(template, a_claiming_pod("app-0", "every"), types=(plain,))
    other = _placed(template, a_claiming_pod("app-0", "every"), types=(plain, BIG))

    assert "a selector cannot be evaluated for device odd" in _reason(alone, "app-0")
    assert _nodes(other) == [("g-big", ("default/app-0",))]


def test_an_alternative_that_cannot_be_counted_fails_the_claim() -> None:
    parts = [
        an_alternative("one"),
        an_alternative("every", 1, MODEL.format("h100"), allocationMode="All"),
    ]
    odd = a_gpu_type("g-odd", 8, 0.5, a_template([*gpus(1), a_device("odd")]))
    template = a_claim_template("either", {"name": "gpu", "firstAvailable": parts})

    found = _placed(template, a_claiming_pod("app-0", "either"), types=(odd, ONE))

    assert _nodes(found) == [("g-one", ("default/app-0",))]


def test_devices_reserved_for_a_pod_that_is_not_known_are_in_use() -> None:
    held = a_claim("held", status=allocated("n-1", "gpu-0", pods=["somebody"]))
    objects = [*a_node("n-1"), a_slice("n-1", gpus(1)), held, a_claim_template()]

    found = _placed(*objects, a_claiming_pod("app-0", "one-gpu"))

    assert _nodes(found) == [("g-one", ("default/app-0",))]


def test_pods_of_an_allocated_claim_go_to_its_node_or_say_why() -> None:
    held = a_claim("held", status=allocated("n-1", "gpu-0", pods=["old-0"]))
    node = a_node("n-1", taints=[{"key": "red", "effect": "NoSchedule"}])
    old = a_pod("old-0", node="n-1", resourceClaims=[{"name": "x", "resourceClaimName": "held"}])

    found = _placed(
        *node, a_slice("n-1", gpus(1)), held, old, a_claiming_pod("app-0", claims=["held"])
    )

    assert "(kubernetes.io/hostname In [n-1]) reach the devices of its ResourceClaims" in _reason(
        found, "app-0"
    )


def test_a_constraint_that_cannot_be_met_states_how_many_devices_a_node_has_for_it() -> None:
    roots = [a_device(f"gpu-{i}", {"root": f"pci-{i // 2}"}) for i in range(6)]
    rule = {"requests": ["gpu"], "matchAttribute": "gpu.example.com/root"}
    wanted = a_claim_template("three", a_request("gpu", 3), constraints=[rule])
    kind = a_gpu_type("g-six", 8, 1.0, a_template(roots))

    found = _placed(wanted, a_claiming_pod("app-0", "three"), types=(kind,))

    text = "no 3 devices with the same value of gpu.example.com/root (a node has 2)"
    assert text in _reason(found, "app-0")
