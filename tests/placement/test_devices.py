"""Devices by ResourceClaim (DRA): rejected with a reason, as in Karpenter by default."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.placement.question import Question
from tests.placement.builders import (
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    placed,
)

CLAIMED = {"resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}
ASKING: dict[str, Object] = {
    "the pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared-gpu"}]},
    "a container": {"containers": [{"name": "main", **CLAIMED}]},
    "an init container": {"initContainers": [{"name": "first", **CLAIMED}]},
}


def _asking(how: str, name: str = "app-0", **more: Any) -> Object:
    pod = a_pod(name, **more)
    pod["spec"] |= ASKING[how]
    return pod


@pytest.mark.parametrize("how", ASKING)
def test_a_pod_that_claims_devices_is_rejected_with_a_reason(how: str) -> None:
    placement = placed([a_pool(), *a_node("n-1"), _asking(how), a_pod("other-0")])

    (reason,) = placement.unschedulable["default/app-0"]
    assert (reason.code, reason.node_pool) == ("ResourceClaimsIgnored", None)
    assert "ResourceClaim" in reason.message
    assert dict(placement.on_nodes) == {"default/other-0": "n-1"}
    assert placement.claims == ()


def test_a_running_pod_that_claims_devices_keeps_its_node() -> None:
    """It is not known whether another node has such a device, so the pod is not moved."""
    running = _asking("the pod", node="n-1")
    scheduler, cluster = a_scheduler([a_pool(), *a_node("n-1"), *a_node("n-2"), running])

    placement = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n-1"})))

    assert [r.code for r in placement.unschedulable["default/app-0"]] == ["ResourceClaimsIgnored"]


def test_a_daemon_that_claims_devices_uses_no_room_on_a_new_node() -> None:
    daemon = a_daemon_set("drivers", "15", resourceClaims=[{"name": "gpu"}])

    placement = placed([a_pool(), daemon, a_pod("app-0", "1")])

    (claim,) = placement.claims
    assert claim.types[0].name == "small"
