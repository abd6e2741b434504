"""Nodes join and disappear, pods are bound, and a killed process resumes."""

from __future__ import annotations

from dataclasses import replace

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
    a_town,
    an_instance,
    pods,
)


def test_a_node_joins_unregistered_and_takes_pods_once_it_is_registered() -> None:
    town = a_town(a_pod("web"), nodes=1)
    seen = town.observe()
    (node,) = seen.nodes
    assert node.spec.provider_id == "aws:///us-east-1a/i-n0"
    assert [str(t) for t in node.spec.taints] == ["karpenter.sh/unregistered:NoExecute"]
    assert seen.pods[0].is_provisionable
    assert town.places() == {"web": "n0.internal"}


def test_a_node_has_the_labels_of_kubelet_cloud_and_claim() -> None:
    town = a_town(nodes=1)
    labels = town.observe().nodes[0].metadata.labels
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
    town.cluster.register("n0.internal", claim)
    (node,) = town.observe().nodes
    assert node.metadata.labels["team"] == "a"
    assert node.metadata.labels["karpenter.sh/registered"] == "true"
    assert node.metadata.annotations == {"hash": "1"}
    assert node.spec.taints == ()


def test_startup_taints_are_removed_when_the_node_is_ready() -> None:
    town = a_town(nodes=1, ready_s=10)
    startup, own = Taint("example.com/agent", "NoExecute"), Taint("team", "NoSchedule", "a")
    town.claims["i-n0"] = a_claim(town.instances[0], taints=(own,), startup_taints=(startup,))
    assert {own, startup} <= set(town.look().nodes[0].spec.taints)
    town.clock.advance(10)
    assert town.look().nodes[0].spec.taints == (own,)


def test_joining_and_becoming_ready_take_time() -> None:
    town = a_town(a_pod("web"), nodes=1, joining_s=30, ready_s=20)
    ready = []
    for seconds in (0, 29, 1, 19, 1):
        town.clock.advance(seconds)
        ready.append([node.is_ready for node in town.look().nodes])
    assert ready == [[], [], [False], [False], [True]]
    assert town.places() == {"web": "n0.internal"}


def test_a_pending_instance_has_no_node_yet() -> None:
    town = a_town(nodes=1)
    town.instances = [replace(town.instances[0], state="pending")]
    assert town.observe().nodes == ()


def test_a_node_becomes_not_ready_and_disappears_with_its_instance() -> None:
    town = a_town(*pods(2), nodes=1)
    assert set(town.places().values()) == {"n0.internal"}
    town.instances = [replace(town.instances[0], state="shutting-down")]
    (node,) = town.observe().nodes
    assert not node.is_ready
    town.instances = []
    seen = town.observe()
    assert seen.nodes == ()
    assert all(pod.is_provisionable for pod in seen.pods)


def test_an_instance_without_a_claim_joins_too() -> None:
    town = a_town(nodes=0)
    (node,) = town.cluster.observe([], [an_instance("stray")]).nodes
    assert node.metadata.labels["karpenter.sh/nodepool"] == "general"


def test_two_instances_with_one_dns_name_are_two_nodes() -> None:
    town = a_town(nodes=0)
    town.instances = [an_instance("a"), an_instance("b", private_dns_name="a.internal")]
    assert [n.name for n in town.observe().nodes] == ["a.internal", "i-b"]


def test_a_killed_process_resumes_where_it_stopped() -> None:
    town = a_town(*pods(5), nodes=3, daemon_sets=(a_daemon(),))
    town.look()
    town.cluster.initialize("n0.internal")
    town.cluster.taint("n1.internal")
    town.cluster.drain("n1.internal", None, town.now)
    before = town.look()
    town.restart()
    assert town.observe() == before


def test_observing_again_changes_nothing() -> None:
    town = a_town(*pods(5), nodes=2, daemon_sets=(a_daemon(),))
    assert town.look() == town.observe() == town.observe()


def test_pods_match_the_workloads() -> None:
    town = a_town(*pods(3), nodes=1)
    town.look()
    town.clock.advance(60)
    town.workloads = replace(town.workloads, pods=pods(4)[1:])
    seen = {p.metadata.name: p for p in town.observe().pods}
    assert sorted(seen) == ["web-1", "web-2", "web-3"]
    ages = [(town.now - p.metadata.creation_timestamp).seconds for p in seen.values()]
    assert ages == [60, 60, 0]


def test_a_pod_whose_spec_changed_is_replaced() -> None:
    town = a_town(*pods(1), nodes=1)
    town.look()
    town.clock.advance(60)
    town.workloads = replace(town.workloads, pods=pods(1, cpu="2"))
    (pod,) = town.observe().pods
    assert pod.metadata.creation_timestamp == town.now
    assert pod.spec.node_name == "n0.internal"


def test_gated_pods_stay_pending() -> None:
    town = a_town(a_pod("web", scheduling_gates=(SchedulingGate("example.com/quota"),)), nodes=1)
    assert town.places() == {"web": ""}


def test_a_running_pod_becomes_ready_after_its_startup_time() -> None:
    town = a_town(a_pod("web"), nodes=1, starting_s=5)
    (pod,) = town.look().pods
    assert (pod.status.phase, pod.spec.node_name) == ("Pending", "n0.internal")
    town.clock.advance(5)
    (pod,) = town.look().pods
    assert pod.status.phase == "Running"
    assert [c.status for c in pod.status.conditions if c.type == "Ready"] == ["True"]


def test_daemons_run_on_every_matching_node() -> None:
    only_a = {"topology.kubernetes.io/zone": "us-east-1a"}
    town = a_town(nodes=2, daemon_sets=(a_daemon("all"), a_daemon("some", node_selector=only_a)))
    seen = {p.metadata.name: p for p in town.look().pods}
    assert sorted(seen) == ["all-n0.internal", "all-n1.internal", "some-n0.internal"]
    assert all(pod.is_daemon for pod in seen.values())


def test_daemons_come_before_pods() -> None:
    town = a_town(*pods(4), nodes=1, daemon_sets=(a_daemon(cpu="1"),))
    assert sorted(town.places().values()) == ["", "n0.internal", "n0.internal", "n0.internal"]


def test_a_daemon_that_no_longer_matches_is_removed() -> None:
    town = a_town(nodes=1, daemon_sets=(a_daemon(),))
    assert len(town.look().pods) == 1
    town.workloads = replace(town.workloads, daemon_sets=())
    assert town.look().pods == ()


def test_a_disrupted_node_takes_no_pods_until_it_is_untainted() -> None:
    town = a_town(nodes=1)
    town.look()
    town.cluster.taint("n0.internal")
    town.cluster.taint("n0.internal")
    town.workloads = replace(town.workloads, pods=pods(1))
    assert town.places() == {"web-0": ""}
    town.cluster.untaint("n0.internal")
    town.cluster.untaint("n0.internal")
    assert town.places() == {"web-0": "n0.internal"}


def test_a_pod_that_tolerates_the_taint_stays_through_a_drain() -> None:
    town = a_town(a_pod("web", tolerations=(Toleration(operator="Exists"),)), nodes=1)
    town.look()
    town.cluster.taint("n0.internal")
    assert town.cluster.drain("n0.internal", None, town.now) == 0
    assert town.places() == {"web": "n0.internal"}


def test_a_deleted_node_does_not_reappear_while_its_instance_shuts_down() -> None:
    town = a_town(*pods(1), nodes=1)
    town.look()
    town.cluster.delete_node("n0.internal")
    town.cluster.delete_node("n0.internal")
    seen = town.observe()
    assert seen.nodes == ()
    assert seen.pods[0].is_provisionable


def test_operations_on_a_missing_node() -> None:
    town = a_town(nodes=0)
    town.cluster.untaint("gone")
    assert town.cluster.drain("gone", None, town.now) == 0
    for act in (town.cluster.taint, town.cluster.initialize):
        with pytest.raises(ClusterError, match='nodes "gone" not found'):
            act("gone")
