"""The order in which pods are served: alternatives to Karpenter's order, if they are better."""

from __future__ import annotations

from tests.placement.builders import ARCH, ZONE, a_pod, a_pool, apart, groups, placed, rule


def test_the_queue_decides_which_pods_wait() -> None:
    """Leaving out the large pod would leave the same number, and use a cheaper node."""
    large = a_pod("large", "3", labels={"app": "db"}, nodeSelector={ZONE: "zone-a"})
    away = apart(rule(ZONE, "db"))
    choosy = {ZONE: "zone-a", ARCH: "amd64"}
    small = a_pod("small", "100m", affinity=away, nodeSelector=choosy)
    placement = placed([a_pool(), large, small])
    assert groups(placement) == [["large"]]
    assert list(placement.unschedulable) == ["default/small"]
