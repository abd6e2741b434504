"""Pods stay nominated to the node that was launched for them."""

from __future__ import annotations

from dataclasses import replace as with_fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.engine.steps.nomination import (
    NOMINATED,
    WINDOW,
    nominated_seats,
    with_nominated_pods,
)
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import DaemonSet
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.snapshot import Snapshot, snapshot_of
from reconciler.observed.state import cluster_state
from reconciler.ports.state import CommandPhase, RunningCommand

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PROVIDER = "aws:///zone-a/i-1"


def a_claim(initialized: datetime | None = None, **metadata: Any) -> NodeClaim:
    conditions = [{"type": "Launched", "status": "True"}]
    if initialized is not None:
        conditions.append(
            {
                "type": "Initialized",
                "status": "True",
                "lastTransitionTime": initialized.isoformat(),
            }
        )
    return decode(
        {
            "metadata": {"name": "claim", "annotations": {NOMINATED: "shop/a shop/b"}, **metadata},
            "status": {"providerID": PROVIDER, "conditions": conditions},
        },
        NodeClaim,
    )


def a_pod(name: str, **spec: Any) -> Pod:
    waiting = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return decode(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": spec,
            "status": {"phase": "Pending", "conditions": waiting},
        },
        Pod,
    )


def seated(snapshot: Snapshot, *commands: RunningCommand) -> Snapshot:
    return with_nominated_pods(snapshot, nominated_seats(snapshot, NOW, commands).values())


def places(snapshot: Snapshot) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.node_name for pod in seated(snapshot).pods}


def test_pods_are_nominated_to_their_claim_and_later_to_its_node() -> None:
    pods = [a_pod("a"), a_pod("other")]
    assert places(snapshot_of([a_claim(), *pods])) == {"a": "claim", "other": ""}

    node = decode({"metadata": {"name": "ip-1"}, "spec": {"providerID": PROVIDER}}, Node)
    assert places(snapshot_of([a_claim(), node, *pods])) == {"a": "ip-1", "other": ""}


def test_a_nominated_pod_uses_room_and_is_not_placed_again() -> None:
    state = cluster_state(seated(snapshot_of([a_claim(), a_pod("a"), a_pod("other")])))
    assert [pod.metadata.name for pod in state.nodes[0].pods] == ["a"]
    assert [pod.metadata.name for pod in state.pending] == ["other"]


def test_a_bound_pod_stays_on_its_node() -> None:
    bound = a_pod("a", nodeName="elsewhere")
    assert places(snapshot_of([a_claim(), bound])) == {"a": "elsewhere"}


def test_a_nomination_expires_after_the_node_has_been_ready_for_a_while() -> None:
    just = snapshot_of([a_claim(NOW - WINDOW + timedelta(seconds=1)), a_pod("a")])
    long_ago = snapshot_of([a_claim(NOW - WINDOW), a_pod("a")])
    assert places(just) == {"a": "claim"}
    assert places(long_ago) == {"a": ""}


ANYWHERE = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
REPELS = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ANYWHERE]}}


def a_node_with_room(cpu: str) -> Node:
    room = {"cpu": cpu, "pods": "29"}
    return decode(
        {
            "metadata": {"name": "ip-1"},
            "spec": {"providerID": PROVIDER},
            "status": {"capacity": room, "allocatable": room},
        },
        Node,
    )


def requesting(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}


@pytest.mark.parametrize(
    ("cpu", "rules", "seated_there"),
    [
        ("500m", {}, {"a", "b"}),
        ("900m", {}, {"a"}),
        ("1500m", {}, set()),
        ("500m", {"affinity": REPELS}, set()),
        ("500m", {"hostNetwork": True}, {"a", "b"}),
    ],
)
def test_a_nomination_ends_if_another_pod_takes_its_room(
    cpu: str, rules: dict[str, Any], seated_there: set[str]
) -> None:
    node = a_node_with_room("2")
    pods = [a_pod(name, **requesting(cpu), **rules) for name in ("a", "b")]
    other = a_pod("other", nodeName="ip-1", **requesting("900m"))
    found = places(snapshot_of([a_claim(NOW), node, other, *pods]))
    assert {name for name, place in found.items() if place} == {"other", *seated_there}


def a_daemon_set(cpu: str) -> DaemonSet:
    spec = {"template": {"spec": requesting(cpu)}}
    return decode({"metadata": {"name": "agent", "namespace": "shop"}, "spec": spec}, DaemonSet)


@pytest.mark.parametrize(
    ("cpu", "seated_there"), [("100m", {"a", "b"}), ("700m", {"a"}), ("1200m", set())]
)
@pytest.mark.parametrize("joined", [False, True])
def test_a_nomination_ends_if_a_daemon_set_that_has_grown_needs_the_room(
    cpu: str, seated_there: set[str], *, joined: bool
) -> None:
    pods = [a_pod(name, **requesting("900m")) for name in ("a", "b")]
    claim = a_claim()
    status = replace(claim.status, allocatable={"cpu": "2", "pods": "29"})
    nodes = [a_node_with_room("2")] if joined else []
    world = snapshot_of([replace(claim, status=status), *nodes, a_daemon_set(cpu), *pods])
    assert {name for name, place in places(world).items() if place} == seated_there


def a_command(phase: CommandPhase, *, replacements: tuple[str, ...] = ("claim",)) -> RunningCommand:
    return RunningCommand(
        id="command",
        reason="Underutilized",
        decision="replace",
        node_claims=("old",),
        replacements=replacements,
        phase=phase,
        started_at=NOW,
    )


def on_the_replaced_node(*more: Any, initialized: datetime | None = None) -> Snapshot:
    """Return two nominated pods and one other on a node that the command above replaces."""
    old = decode(
        {"metadata": {"name": "old"}, "status": {"providerID": "i-0", "nodeName": "ip-0"}},
        NodeClaim,
    )
    pods = [a_pod(name, nodeName="ip-0", **requesting("500m")) for name in ("a", "b", "other")]
    return snapshot_of([old, a_claim(initialized), *pods, *more])


def seats(snapshot: Snapshot, command: RunningCommand) -> set[str]:
    """Return the pods that are expected on the replacement or its node."""
    pods = seated(snapshot, command).pods
    return {pod.metadata.name for pod in pods if pod.spec.node_name in ("claim", "ip-1")}


@pytest.mark.parametrize(
    ("phase", "replacements", "moved"),
    [
        (CommandPhase.MARKED, ("claim",), {"a", "b"}),
        (CommandPhase.WAITING, ("another", "claim"), {"a", "b"}),
        (CommandPhase.TERMINATING, ("claim",), {"a", "b"}),
        (CommandPhase.DONE, ("claim",), set()),
        (CommandPhase.WAITING, (), set()),
    ],
)
def test_pods_of_a_node_being_replaced_are_expected_where_the_command_moves_them(
    phase: CommandPhase, replacements: tuple[str, ...], moved: set[str]
) -> None:
    command = a_command(phase, replacements=replacements)
    assert seats(on_the_replaced_node(), command) == moved


def test_a_replacement_is_expected_to_receive_pods_for_as_long_as_the_drain_takes() -> None:
    long_ready = on_the_replaced_node(initialized=NOW - 10 * WINDOW)
    assert seats(long_ready, a_command(CommandPhase.TERMINATING)) == {"a", "b"}


def test_an_evicted_pod_is_not_expected_because_its_successor_is() -> None:
    leaving = on_the_replaced_node()
    ends = replace(leaving.pods[0].metadata, deletion_timestamp=NOW)
    going = with_fields(leaving, pods=(replace(leaving.pods[0], metadata=ends), *leaving.pods[1:]))
    assert seats(going, a_command(CommandPhase.TERMINATING)) == {"b"}


def test_a_pod_is_not_expected_on_a_replacement_that_other_pods_filled() -> None:
    other = a_pod("quick", nodeName="ip-1", **requesting("1200m"))
    snapshot = on_the_replaced_node(a_node_with_room("2"), other)
    assert seats(snapshot, a_command(CommandPhase.TERMINATING)) == {"a", "quick"}


def test_a_terminating_claim_has_no_nominations() -> None:
    going = a_claim(deletionTimestamp=NOW.isoformat())
    assert places(snapshot_of([going, a_pod("a")])) == {"a": ""}
