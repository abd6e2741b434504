"""Controllers replace evicted pods as they do in a cluster, and evicted pods take their time."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta

import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.cluster import SHELF_NAME
from reconciler.model.chance import Chance
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import Pod
from tests.adapters.simulated.builders import Sandbox, a_budget, a_pod, a_sandbox

REPLICA_SET = ("apps/v1", "ReplicaSet")
STATEFUL_SET = ("apps/v1", "StatefulSet")
JOB = ("batch/v1", "Job")


def owned(pod: Pod, api_version: str, kind: str) -> Pod:
    owner = OwnerReference(kind, "web-5f", api_version, "uid", controller=True)
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,)))


def drained(*pods: Pod, seed: int = 0, **fields: object) -> Sandbox:
    """A sandbox whose pods run on the node n0, which begins to drain."""
    sandbox = a_sandbox(*pods, nodes=1, leaving_s=None, chance=Chance(seed), **fields)
    sandbox.observe_registered()
    sandbox.cluster.taint("n0.internal")
    sandbox.cluster.drain("n0.internal", None, sandbox.now)
    return sandbox


def test_a_replica_set_creates_another_pod_at_once() -> None:
    sandbox = drained(owned(a_pod("web-5f-aaaaa"), *REPLICA_SET))
    places = sandbox.places()
    old = places.pop("web-5f-aaaaa")
    ((name, node),) = places.items()
    assert (old, node) == ("n0.internal", ""), "the old one still uses its node"
    assert name.startswith("web-5f-")
    sandbox.clock.advance(29)
    assert len(sandbox.places()) == 2
    sandbox.clock.advance(1)
    assert sandbox.places() == {name: ""}


def test_the_state_of_an_older_release_has_terminating_pods_without_their_specification() -> None:
    """The successor tells what such a pod was; a pod without one counts as terminated."""
    sandbox = drained(*(owned(a_pod(f"web-5f-{name}"), *REPLICA_SET) for name in "abc"))
    state = json.loads(sandbox.shelf.read(SHELF_NAME) or b"")
    for ending in state["ending"]:
        del ending["shown"]
    state["ending"][0]["pod"] = "default/gone"
    sandbox.shelf.write(SHELF_NAME, json.dumps(state).encode())
    sandbox.restart()
    pods = sandbox.observe().pods
    leaving = {p.metadata.name: p.spec for p in pods if p.spec.node_name == "n0.internal"}
    assert leaving.keys() == {"web-5f-b", "web-5f-c"}
    assert all(spec.containers for spec in leaving.values())


@pytest.mark.parametrize("seconds", [0, 5, 120])
def test_a_pod_takes_its_grace_period_to_terminate(seconds: int) -> None:
    pod = owned(a_pod("web-0", termination_grace_period_seconds=seconds), *REPLICA_SET)
    sandbox = drained(pod)
    assert len(sandbox.places()) == (2 if seconds else 1)
    sandbox.clock.advance(seconds)
    assert len(sandbox.places()) == 1


def test_a_stateful_set_waits_for_the_name_of_its_pod() -> None:
    sandbox = drained(owned(a_pod("web-0"), *STATEFUL_SET))
    assert sandbox.places() == {"web-0": "n0.internal"}
    sandbox.clock.advance(30)
    assert sandbox.places() == {"web-0": ""}


def test_a_job_creates_another_pod_once_its_pod_has_terminated() -> None:
    sandbox = drained(owned(a_pod("web-5f-aaaaa"), *JOB))
    assert sandbox.places() == {"web-5f-aaaaa": "n0.internal"}
    sandbox.clock.advance(30)
    ((name, node),) = sandbox.places().items()
    assert name.startswith("web-5f-")
    assert (name != "web-5f-aaaaa", node) == (True, "")


def scaled(*pods: Pod, to: int = 0, seed: int | None = 0, **fields: object) -> Sandbox:
    """A sandbox whose pods run on one node, and whose workloads then keep only some of them."""
    chance = None if seed is None else Chance(seed)
    sandbox = a_sandbox(*pods, nodes=1, leaving_s=None, chance=chance, **fields)
    sandbox.observe_registered()
    sandbox.workloads = dataclasses.replace(sandbox.workloads, pods=sandbox.workloads.pods[:to])
    return sandbox


@pytest.mark.parametrize("kind", [REPLICA_SET, STATEFUL_SET], ids=str)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_pod_of_a_scale_down_terminates_on_its_node(
    kind: tuple[str, str], seed: int | None
) -> None:
    pods = [owned(a_pod(f"web-5f-{n}", termination_grace_period_seconds=45), *kind) for n in "ab"]
    sandbox = scaled(*pods, to=1, seed=seed)
    left, gone = sandbox.observe().pods
    assert (left.is_terminating, gone.is_terminating) == (False, True)
    assert gone.metadata.deletion_timestamp == sandbox.now + timedelta(seconds=45)
    sandbox.clock.advance(44)
    assert sandbox.places() == {"web-5f-a": "n0.internal", "web-5f-b": "n0.internal"}
    sandbox.clock.advance(1)
    assert sandbox.places() == {"web-5f-a": "n0.internal"}


def test_a_terminating_pod_of_a_scale_down_uses_its_node() -> None:
    old = owned(a_pod("web-5f-a", "3"), *REPLICA_SET)
    sandbox = scaled(old)
    fresh = a_pod("api-0", "3")
    sandbox.workloads = dataclasses.replace(sandbox.workloads, pods=(fresh,))
    assert sandbox.places() == {"web-5f-a": "n0.internal", "api-0": ""}
    sandbox.clock.advance(30)
    assert sandbox.places() == {"api-0": "n0.internal"}


def test_a_pod_of_a_job_that_is_gone_has_completed() -> None:
    assert scaled(owned(a_pod("web-5f-a"), *JOB)).places() == {}


def test_a_pod_of_a_scale_down_goes_with_its_node() -> None:
    sandbox = scaled(owned(a_pod("web-5f-a"), *REPLICA_SET))
    assert len(sandbox.places()) == 1
    sandbox.cluster.delete_node("n0.internal")
    assert sandbox.places() == {}


def test_an_evicted_pod_of_a_scale_down_ends_when_it_would_have() -> None:
    sandbox = drained(owned(a_pod("web-0"), *STATEFUL_SET))
    sandbox.clock.advance(20)
    sandbox.workloads = dataclasses.replace(sandbox.workloads, pods=())
    assert sandbox.places() == {"web-0": "n0.internal"}
    sandbox.clock.advance(10)
    assert sandbox.places() == {}


def test_a_pod_that_is_wanted_again_has_another_name_or_waits_for_it() -> None:
    pods = [owned(a_pod("web-0"), *STATEFUL_SET), owned(a_pod("api-0"), *REPLICA_SET)]
    sandbox = scaled(*pods)
    wanted, sandbox.workloads = sandbox.workloads, dataclasses.replace(sandbox.workloads, pods=())
    assert len(sandbox.places()) == 2
    sandbox.clock.advance(10)
    sandbox.workloads = dataclasses.replace(wanted, pods=tuple(sorted(pods, key=lambda p: p.key)))
    assert len(sandbox.places()) == 3, "the ReplicaSet creates a pod, the StatefulSet waits"
    terminating = [p.metadata.name for p in sandbox.observe().pods if p.is_terminating]
    assert sorted(terminating) == ["api-0", "web-0"]
    sandbox.clock.advance(20)
    names = sandbox.places()
    assert len(names) == 2
    assert "web-0" in names
    assert "api-0" not in names


def test_a_pod_of_a_scale_down_survives_a_restart() -> None:
    sandbox = scaled(owned(a_pod("web-5f-a"), *REPLICA_SET))
    before = sandbox.places()
    sandbox.restart()
    assert sandbox.places() == before != {}


def test_generated_names_depend_on_the_seed() -> None:
    pod = owned(a_pod("web-5f-aaaaa"), *REPLICA_SET)
    names = [min(drained(pod, seed=s).places().keys() - {pod.metadata.name}) for s in (0, 0, 1)]
    assert names[0] == names[1] != names[2]


def test_a_successor_does_not_count_twice_for_a_budget() -> None:
    pods = [owned(a_pod(f"web-5f-{n}"), *REPLICA_SET) for n in range(4)]
    budget = a_budget(min_available="50%")
    sandbox = drained(*pods, pod_disruption_budgets=(budget,))
    assert sum(p.is_terminating for p in sandbox.observe().pods) == 2


def test_a_successor_survives_a_restart() -> None:
    sandbox = drained(owned(a_pod("web-5f-aaaaa"), *REPLICA_SET))
    before = sandbox.places()
    sandbox.restart()
    assert sandbox.places() == before
