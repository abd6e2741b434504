"""A cluster behind the small API, accessed by a kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cluster import DrainStep
from tests.adapters.kubernetes.apiserver import Kube, Object, serving, write_kubeconfig

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
OURS = "aws:///us-east-1a/i-0"


def a_node(name: str = "n0", provider_id: str = OURS, **spec: Any) -> Object:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"providerID": provider_id, **spec},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod(name: str, node: str = "n0", *, owner: str = "", **spec: Any) -> Object:
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u"}] if owner else []
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}, "ownerReferences": owners},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30, **spec},
        "status": {"phase": "Running"},
    }


def a_budget(name: str, allowed: int) -> Object:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }


def a_claim(provider_id: str = OURS) -> NodeClaim:
    return NodeClaim(
        metadata=Metadata(
            name="web-1", labels={"karpenter.sh/nodepool": "web"}, annotations={"note": "kept"}
        ),
        spec=NodeClaimSpec(
            taints=(Taint("team", "NoSchedule", "web"),),
            startup_taints=(Taint("starting", "NoExecute"),),
        ),
        status=NodeClaimStatus(provider_id=provider_id),
    )


@dataclass
class Sandbox:
    """The cluster as our adapter sees it; waiting only counts seconds."""

    kube: Kube
    api: Api
    cluster: KubernetesCluster
    waited: list[float] = field(default_factory=list)
    cache: ClusterCache | None = None
    steps: int = 0

    def observe(self) -> Snapshot:
        """Observe the cluster, after watches have sent all events until now."""
        if self.cache is not None:
            self.cache.advance()
            self.cache.advance()
        return self.cluster.observe([a_claim()], [])

    def drain(self, deadline_s: float | None = None, node: str = "n0") -> int | None:
        """Observe, take a step of a drain whose deadline is so far away, and count what is left.

        Each step is a second after the last one.
        """
        step = self.drain_step(deadline_s, node)
        return step if step is None else step.pods + step.volumes

    def drain_step(self, deadline_s: float | None = None, node: str = "n0") -> DrainStep | None:
        """Return such a step."""
        self.observe()
        now = NOW + timedelta(seconds=self.steps)
        self.steps += 1
        deadline = None if deadline_s is None else now + timedelta(seconds=deadline_s)
        return self.cluster.drain(node, deadline, now)

    def node(self, name: str = "n0") -> Object:
        return self.kube.of("nodes")[name]

    def taints(self, name: str = "n0") -> list[str]:
        found = self.node(name)["spec"].get("taints") or []
        return [f"{t['key']}:{t['effect']}" for t in found]

    def pods(self) -> list[str]:
        return [
            n for n, p in self.kube.of("pods").items() if "deletionTimestamp" not in p["metadata"]
        ]


def a_cache(api: Api) -> ClusterCache:
    """Return a cache with separate connections, without waiting for its first lists."""
    own = Api(api.connect, lambda _: None, timeout_s=5.0)
    return ClusterCache(own, Freshness(first_list_s=0.0))


@contextmanager
def a_sandbox(tmp_path: Path, *objects: Object, has_cache: bool = False) -> Iterator[Sandbox]:
    kube = Kube(now=lambda: NOW)
    for item in objects:
        kube.add(item)
    with serving(kube) as url:
        settings = Settings(kubeconfig=str(write_kubeconfig(tmp_path / "kubeconfig", url)))
        waited: list[float] = []
        api = Api(lambda: access_of(settings), waited.append, timeout_s=5.0)
        cache = a_cache(api) if has_cache else None
        yield Sandbox(kube, api, KubernetesCluster(api, cache=cache), waited, cache)
