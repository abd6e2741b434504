"""The binder beside the real kube-scheduler: it allows what that one decides, state after state."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from benchmarks.scheduler import decisions
from reconciler.adapters.kubernetes.api import ApiError
from tests.live.conftest import NODES
from tests.live.plane import ControlPlane, Object, control_plane, eventually
from tests.live.programs import missing
from tests.live.states import NAMESPACES, RandomState

pytestmark = pytest.mark.live

PODS = 8
"""The number of decisions on a state."""
DRAWS = range(1, 16)
"""Seeds of the binder: together they draw nearly every one of several best nodes."""
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a cluster without nodes."""
    why = missing()
    if why:
        pytest.skip(why)
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        for name, labels in NAMESPACES.items():
            plane.provide("/api/v1/namespaces", {"metadata": {"name": name}})
            plane.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
        yield plane


@pytest.fixture
def state(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[RandomState]:
    """Return a state whose nodes and running pods are in the cluster, alone."""
    found = RandomState(request.param)
    for node in found.nodes:
        cluster.create(NODES, node)
        set_status(cluster, f"{NODES}/{node['metadata']['name']}", node["status"])
    for number in range(found.number(0, 25)):
        pod = found.running(f"running-{number}")
        if is_accepted(cluster, pod):
            set_status(cluster, path_of(pod), {"phase": "Running"})
    eventually("nodes without the taint of new ones", lambda: are_ready(cluster))
    yield found
    for pod in all_pods(cluster):
        cluster.delete(path_of(pod), gracePeriodSeconds=0)
    for name in cluster.list(NODES):
        cluster.delete(f"{NODES}/{name}")
    eventually("no node", lambda: not cluster.list(NODES))


@pytest.mark.parametrize("state", range(20), indirect=True)
def test_the_binder_allows_what_kube_scheduler_decides(
    state: RandomState, cluster: ControlPlane
) -> None:
    names = (*NAMESPACES, "kube-system")
    labels = {name: {"kubernetes.io/metadata.name": name} for name in names}
    for name, more in NAMESPACES.items():
        labels[name] |= more
    nodes, pods = list(cluster.list(NODES).values()), all_pods(cluster)
    decided: dict[str, str | None] = {}
    cases = []
    for number in range(PODS):
        pod = state.pod(f"new-{number}")
        if not is_accepted(cluster, pod):
            continue
        eventually("a decision", lambda: is_decided(cluster, pod))  # noqa: B023
        found = cluster.get(path_of(pod))
        decided[found["metadata"]["name"]] = found["spec"].pop("nodeName", None)
        cases.append({"name": found["metadata"]["name"], "pod": found})
        cluster.delete(path_of(pod), gracePeriodSeconds=0)
    group = {"nodes": nodes, "pods": pods, "objects": [], "namespaces": labels, "cases": cases}
    allowed: dict[str, set[str | None]] = {}
    for seed in DRAWS:
        for answer in decisions(group, seed):
            allowed.setdefault(answer["name"], set()).add(answer["node"])
    wrong = {name: node for name, node in decided.items() if node not in allowed[name]}
    assert cases
    assert not wrong, {name: allowed[name] for name in wrong}


def is_accepted(plane: ControlPlane, pod: Object) -> bool:
    """Create a pod, and return whether the API server accepts it."""
    try:
        plane.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)
    except ApiError as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        return False
    return True


def is_decided(plane: ControlPlane, pod: Object) -> bool:
    found = plane.get(path_of(pod))
    conditions: list[Any] = found["status"].get("conditions", [])
    return bool(found["spec"].get("nodeName")) or any(
        c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions
    )


def are_ready(plane: ControlPlane) -> bool:
    """Return whether the node controller has seen all nodes."""
    taints = (t for n in plane.list(NODES).values() for t in n["spec"].get("taints", ()))
    return all(taint["key"] != NOT_READY for taint in taints)


def set_status(plane: ControlPlane, path: str, status: Object) -> None:
    plane.patch(f"{path}/status", {"status": status})


def path_of(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def all_pods(plane: ControlPlane) -> list[Object]:
    return [
        pod for name in NAMESPACES for pod in plane.list(f"/api/v1/namespaces/{name}/pods").values()
    ]
