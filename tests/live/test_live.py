"""Scenarios of a fleet in a real cluster. EC2 is moto, the kubelets are imitated."""

from __future__ import annotations

import pytest

from reconciler.cli.main import main
from tests.live.conftest import CLAIMS, NODES, Live

pytestmark = pytest.mark.live


def conditions(claim: dict[str, object]) -> dict[str, str]:
    status = claim.get("status") or {}
    assert isinstance(status, dict)
    return {c["type"]: c["status"] for c in status.get("conditions", ())}


def test_a_fleet_follows_a_deployment_up_and_down(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        live.await_(
            "two NodeClaims that are ready",
            lambda: (
                [conditions(c).get("Ready") for c in live.plane.list(CLAIMS).values()]
                == ["True", "True"]
            ),
        )
        live.scale(3)
        live.await_("three nodes", lambda: live.settled(3))
        live.scale(1)
        live.await_("one node", lambda: live.settled(1))
        live.await_("one NodeClaim", lambda: len(live.plane.list(CLAIMS)) == 1)
    reported = {e["reason"] for e in live.plane.get("/apis/events.k8s.io/v1/events")["items"]}
    assert {"Nominated", "DisruptionTerminating"} <= reported
    assert live.recorder.messages("Failed") == []
    assert live.recorder.messages("Forbidden") == []


@pytest.mark.parametrize("how", ["node", "nodeclaim"])
def test_deleting_an_object_drains_it_under_the_budget_and_terminates_the_instance(
    live: Live, how: str
) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        node = min(live.plane.list(NODES))
        live.await_("two NodeClaims", lambda: len(live.plane.list(CLAIMS)) == 2)
        instance = live.instance_of(node)
        (claim,) = (
            n for n, c in live.plane.list(CLAIMS).items() if c["status"]["nodeName"] == node
        )
        live.plane.delete(f"{NODES}/{node}" if how == "node" else f"{CLAIMS}/{claim}")
        assert node in live.plane.list(NODES), "our finalizer holds it"
        live.await_("another node", lambda: node not in live.plane.list(NODES) and live.settled(2))
        live.await_("the claim is gone", lambda: claim not in live.plane.list(CLAIMS))
    assert instance not in live.cloud.running_instances()


def test_the_instance_of_a_force_deleted_node_is_terminated(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        node = min(live.plane.list(NODES))
        instance = live.instance_of(node)
        live.plane.delete(f"{NODES}/{node}")
        live.plane.patch(f"{NODES}/{node}", {"metadata": {"finalizers": None}})
        live.await_("its instance is gone", lambda: instance not in live.cloud.running_instances())
        # The pods of a Node that is gone are deleted by the garbage collector, after a minute.
        live.await_("another node", lambda: live.settled(2), 150)


def test_drift_replaces_every_node_under_the_budget(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        before = set(live.plane.list(NODES))
        live.pool(generation="2")
        live.await_(
            "two other nodes",
            lambda: live.settled(2) and not before & set(live.plane.list(NODES)),
            120,
        )
        for node in live.plane.list(NODES).values():
            assert node["metadata"]["labels"]["generation"] == "2"


def test_a_drain_interrupted_by_a_restart_is_continued(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        node = min(live.plane.list(NODES))
        live.plane.delete(f"{NODES}/{node}")
        live.await_("the drain has begun", lambda: live.recorder.messages("NodeDeleted"))
    with live.running():
        live.await_("another node", lambda: node not in live.plane.list(NODES) and live.settled(2))


def test_without_permission_to_taint_no_node_is_replaced_and_it_is_reported(
    live: Live,
) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/reconciler-run"
    kept = live.plane.get(role)["rules"]
    less = [{**r, "verbs": [v for v in r["verbs"] if v != "patch"]} for r in kept]
    live.plane.patch(role, {"rules": [r for r in less if r["verbs"]]})
    try:
        live.pool(generation="2")
        before = set(live.cloud.running_instances())
        with live.running():
            live.await_("it is reported", lambda: live.recorder.messages("Forbidden"))
            assert any(
                'apiGroups: [""], resources: [nodes], verbs: [patch]' in m
                for m in live.recorder.messages("Forbidden")
            )
            live.await_(
                "a command is rolled back", lambda: live.recorder.messages("CommandRolledBack")
            )
        assert set(live.cloud.running_instances()) == before, "nothing was launched"
    finally:
        live.plane.patch(role, {"rules": kept})


def test_a_person_can_drain_a_node_while_the_daemon_runs(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        node = min(live.plane.list(NODES))
        assert main(live.words("drain", node)) == 0
        live.await_(
            "the drain is done",
            lambda: any(
                m.startswith(f"drain-node {node}") for m in live.recorder.messages("RequestDone")
            ),
        )
        live.await_("its pod runs elsewhere", lambda: len(live.running_pods()) == 2)
