"""The cache of a cluster over a real API server: bookmarks, expired versions, deletions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.assembly.decoding import prepare_decoders
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import Snapshot
from tests.live.conftest import NODES
from tests.live.plane import DAEMON, ControlPlane, eventually

pytestmark = pytest.mark.live

PROVIDER_ID = "aws:///us-east-1a/i-watched"


class Watched:
    """A cluster that is observed through a cache, with the calls that observations make."""

    def __init__(self, plane: ControlPlane, stack: ExitStack) -> None:
        prepare_decoders()
        settings = Settings(kubeconfig=str(plane.kubeconfig(DAEMON)))
        self.calls: Counter[str] = Counter()
        api = Api(lambda: access_of(settings), time.sleep, meter=self.count)
        cache = ClusterCache(
            Api(lambda: access_of(settings), time.sleep), Freshness(stale_after_s=9.0)
        )
        stack.enter_context(cache.run_in_background())
        self.cluster = KubernetesCluster(api, cache=cache)

    def count(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        del service, outcome, seconds
        self.calls[operation] += 1

    def observe(self) -> Snapshot:
        ours = NodeClaim(
            metadata=Metadata(name="ours"), status=NodeClaimStatus(provider_id=PROVIDER_ID)
        )
        return self.cluster.observe([ours], [])

    def taints(self) -> list[str]:
        (node,) = (n for n in self.observe().nodes if n.name == "watched")
        return [taint.key for taint in node.spec.taints]


@pytest.fixture
def watched(plane: ControlPlane) -> Iterator[Watched]:
    plane.create(
        NODES,
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "watched"},
            "spec": {"providerID": PROVIDER_ID},
        },
    )
    with ExitStack() as stack:
        yield Watched(plane, stack)
    if "watched" in plane.list(NODES):
        plane.delete(f"{NODES}/watched")


def test_a_quiet_cluster_is_confirmed_by_its_watches_alone(watched: Watched) -> None:
    watched.observe()
    until = time.monotonic() + 25.0  # four watches
    while time.monotonic() < until:
        watched.observe()
        time.sleep(0.5)
    assert watched.calls == {}


def test_our_writes_are_visible_at_once(watched: Watched) -> None:
    watched.observe()
    for _ in range(20):
        watched.cluster.taint("watched")
        assert "karpenter.sh/disrupted" in watched.taints()
        watched.cluster.untaint("watched")
        assert "karpenter.sh/disrupted" not in watched.taints()
    watched.cluster.add_finalizer("watched")
    watched.cluster.delete_node("watched")
    assert "watched" not in {n.name for n in watched.observe().nodes}
    assert {name for name in watched.calls if name.startswith("GET")} == {"GET nodes"}
    assert watched.calls["PATCH nodes"] >= 42, "a change that conflicts with another is repeated"
    assert watched.calls["GET nodes"] == watched.calls["PATCH nodes"], "only changes read a Node"


def test_writes_of_others_are_visible_soon(watched: Watched, plane: ControlPlane) -> None:
    watched.observe()
    plane.patch(f"{NODES}/watched", {"metadata": {"labels": {"by": "them"}}})
    eventually(
        "the label",
        lambda: any(n.metadata.labels.get("by") == "them" for n in watched.observe().nodes),
        within_s=5.0,
    )
    plane.delete(f"{NODES}/watched")
    eventually(
        "the deletion",
        lambda: "watched" not in {n.name for n in watched.observe().nodes},
        within_s=5.0,
    )
    assert watched.calls == {}
