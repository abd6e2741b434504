"""Nodes join and disappear, pods are bound, and a killed process resumes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import SchedulingGate
from reconciler.model.kubernetes.taint import Taint, Toleration
from tests.adapters.simulated.builders import (
    a_claim,
    a_daemon,
    a_pod,
    a_sandbox,
    an_instance,
    pods,
)


def test_a_node_joins_unregistered_and_takes_pods_once_it_is_registered() -> None:
    sandbox = a_sandbox(a_pod("web"), nodes=1)
    seen = sandbox.observe()
    (node,) = seen.nodes
    assert node.spec.provider_id == "aws:///us-east-1a/i-n0"
    assert [str(t) for t in node.spec.taints] == ["karpenter.sh/unregistered:NoExecute"]
    assert seen.pods[0].is_provisionable
    assert sandbox.places() == {"web": "n0.internal"}


def test_a_node_has_the_labels_of_kubelet_cloud_and_claim() -> None:
    sandbox = a_sandbox(nodes=1)
    labels = sandbox.observe().nodes[0].metadata.labels
    assert labels == {
        "karpenter.sh/capacity-type": "on-demand",
        "karpenter.sh/nodepool": "general",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "n0.internal",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m7i.xlarge",
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": "us-east-1a",
    }
    claim = NodeClaim(Metadata(name="c", labels={"team": "a"}, annotations={"hash": "1"}))
    sandbox.cluster.register("n0.internal", claim)
    (node,) = sandbox.observe().nodes
    assert node.metadata.labels["team"] == "a"
    assert node.metadata.labels["karpenter.sh/registered"] == "true"
    assert node.metadata.annotations == {"hash": "1"}
    assert node.spec.taints == ()


def test_a_registered_node_has_our_finalizer_once_as_in_a_real_cluster() -> None:
    sandbox = a_sandbox(nodes=1)
    sandbox.observe()
    sandbox.cluster.register("n0.internal", NodeClaim(Metadata(name="c")))
    registered = sandbox.observe().nodes[0]
    assert registered.metadata.finalizers == ("reconciler/termination",)

    sandbox.cluster.add_finalizer("n0.internal")
    assert sandbox.observe().nodes == (registered,)


def test_startup_taints_are_removed_when_the_node_is_ready() -> None:
    sandbox = a_sandbox(nodes=1, ready_s=10)
    startup, own = Taint("example.com/agent", "NoExecute"), Taint("team", "NoSchedule", "a")
    sandbox.claims["i-n0"] = a_claim(sandbox.instances[0], taints=(own,), startup_taints=(startup,))
    assert {own, startup} <= set(sandbox.observe_registered().nodes[0].spec.taints)
    sandbox.clock.advance(10)
    assert sandbox.observe_registered().nodes[0].spec.taints == (own,)


def test_joining_and_becoming_ready_take_time() -> None:
    sandbox = a_sandbox(a_pod("web"), nodes=1, joining_s=30, ready_s=20)
    ready = []
    for seconds in (0, 29, 1, 19, 1):
        sandbox.clock.advance(seconds)
        ready.append([node.is_ready for node in sandbox.observe_registered().nodes])
    assert ready == [[], [], [False], [False], [True]]
    assert sandbox.places() == {"web": "n0.internal"}


def test_a_pending_instance_has_no_node_yet() -> None:
    sandbox = a_sandbox(nodes=1)
    sandbox.instances = [msgspec.structs.replace(sandbox.instances[0], state="pending")]
    assert sandbox.observe().nodes == ()


def test_a_node_becomes_not_ready_and_disappears_with_its_instance() -> None:
    sandbox = a_sandbox(*pods(2), nodes=1)
    assert set(sandbox.places().values()) == {"n0.internal"}
    sandbox.instances = [msgspec.structs.replace(sandbox.instances[0], state="shutting-down")]
    (node,) = sandbox.observe().nodes
    assert not node.is_ready
    sandbox.instances = []
    seen = sandbox.observe()
    assert seen.nodes == ()
    assert all(pod.is_provisionable for pod in seen.pods)


def test_an_instance_without_a_claim_joins_too() -> None:
    sandbox = a_sandbox(nodes=0)
    (node,) = sandbox.cluster.observe([], [an_instance("stray")]).nodes
    assert node.metadata.labels["karpenter.sh/nodepool"] == "general"


def test_two_instances_with_one_dns_name_are_two_nodes() -> None:
    sandbox = a_sandbox(nodes=0)
    sandbox.instances = [an_instance("a"), an_instance("b", private_dns_name="a.internal")]
    assert [n.name for n in sandbox.observe().nodes] == ["a.internal", "i-b"]


def test_a_killed_process_resumes_where_it_stopped() -> None:
    sandbox = a_sandbox(*pods(5), nodes=3, daemon_sets=(a_daemon(),))
    sandbox.observe_registered()
    sandbox.cluster.initialize("n0.internal")
    sandbox.cluster.taint("n1.internal")
    sandbox.cluster.drain("n1.internal", None, sandbox.now)
    before = sandbox.observe_registered()
    sandbox.restart()
    assert sandbox.observe() == before


def test_observing_again_changes_nothing() -> None:
    sandbox = a_sandbox(*pods(5), nodes=2, daemon_sets=(a_daemon(),))
    assert sandbox.observe_registered() == sandbox.observe() == sandbox.observe()


def test_pods_match_the_workloads() -> None:
    sandbox = a_sandbox(*pods(3), nodes=1)
    sandbox.observe_registered()
    sandbox.clock.advance(60)
    sandbox.workloads = replace(sandbox.workloads, pods=pods(4)[1:])
    seen = {p.metadata.name: p for p in sandbox.observe().pods}
    assert sorted(seen) == ["web-1", "web-2", "web-3"]
    ages = [(sandbox.now - p.metadata.creation_timestamp).seconds for p in seen.values()]
    assert ages == [60, 60, 0]


def test_a_pod_whose_spec_changed_is_replaced() -> None:
    sandbox = a_sandbox(*pods(1), nodes=1)
    sandbox.observe_registered()
    sandbox.clock.advance(60)
    sandbox.workloads = replace(sandbox.workloads, pods=pods(1, cpu="2"))
    (pod,) = sandbox.observe().pods
    assert pod.metadata.creation_timestamp == sandbox.now
    assert pod.spec.node_name == "n0.internal"


def test_gated_pods_stay_pending() -> None:
    sandbox = a_sandbox(
        a_pod("web", scheduling_gates=(SchedulingGate("example.com/quota"),)), nodes=1
    )
    assert sandbox.places() == {"web": ""}


def test_a_running_pod_becomes_ready_after_its_startup_time() -> None:
    sandbox = a_sandbox(a_pod("web"), nodes=1, starting_s=5)
    (pod,) = sandbox.observe_registered().pods
    assert (pod.status.phase, pod.spec.node_name) == ("Pending", "n0.internal")
    sandbox.clock.advance(5)
    (pod,) = sandbox.observe_registered().pods
    assert pod.status.phase == "Running"
    assert [c.status for c in pod.status.conditions if c.type == "Ready"] == ["True"]


def test_daemons_run_on_every_matching_node() -> None:
    only_a = {"topology.kubernetes.io/zone": "us-east-1a"}
    sandbox = a_sandbox(
        nodes=2, daemon_sets=(a_daemon("all"), a_daemon("some", node_selector=only_a))
    )
    seen = {p.metadata.name: p for p in sandbox.observe_registered().pods}
    assert sorted(seen) == ["all-n0.internal", "all-n1.internal", "some-n0.internal"]
    assert all(pod.is_daemon for pod in seen.values())


def test_daemons_come_before_pods() -> None:
    sandbox = a_sandbox(*pods(4), nodes=1, daemon_sets=(a_daemon(cpu="1"),))
    assert sorted(sandbox.places().values()) == ["", "n0.internal", "n0.internal", "n0.internal"]


def test_a_daemon_that_no_longer_matches_is_removed() -> None:
    sandbox = a_sandbox(nodes=1, daemon_sets=(a_daemon(),))
    assert len(sandbox.observe_registered().pods) == 1
    sandbox.workloads = replace(sandbox.workloads, daemon_sets=())
    assert sandbox.observe_registered().pods == ()


def test_a_disrupted_node_takes_no_pods_until_it_is_untainted() -> None:
    sandbox = a_sandbox(nodes=1)
    sandbox.observe_registered()
    sandbox.cluster.taint("n0.internal")
    sandbox.cluster.taint("n0.internal")
    sandbox.workloads = replace(sandbox.workloads, pods=pods(1))
    assert sandbox.places() == {"web-0": ""}
    sandbox.cluster.untaint("n0.internal")
    sandbox.cluster.untaint("n0.internal")
    assert sandbox.places() == {"web-0": "n0.internal"}


def test_a_pod_that_tolerates_the_taint_stays_through_a_drain() -> None:
    sandbox = a_sandbox(a_pod("web", tolerations=(Toleration(operator="Exists"),)), nodes=1)
    sandbox.observe_registered()
    sandbox.cluster.taint("n0.internal")
    assert sandbox.cluster.drain("n0.internal", None, sandbox.now).is_done
    assert sandbox.places() == {"web": "n0.internal"}


def test_a_deleted_node_does_not_reappear_while_its_instance_shuts_down() -> None:
    sandbox = a_sandbox(*pods(1), nodes=1)
    sandbox.observe_registered()
    sandbox.cluster.delete_node("n0.internal")
    sandbox.cluster.delete_node("n0.internal")
    seen = sandbox.observe()
    assert seen.nodes == ()
    assert seen.pods[0].is_provisionable


def test_operations_on_a_missing_node() -> None:
    sandbox = a_sandbox(nodes=0)
    sandbox.cluster.untaint("gone")
    assert sandbox.cluster.drain("gone", None, sandbox.now).is_done
    for act in (sandbox.cluster.taint, sandbox.cluster.initialize):
        with pytest.raises(ClusterError, match='nodes "gone" not found'):
            act("gone")
