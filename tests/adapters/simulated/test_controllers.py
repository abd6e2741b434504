"""Controllers replace evicted pods as they do in a cluster, and evicted pods take their time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

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
