"""The results of Karpenter 1.15 on node repair and terminate-first, recorded from its test suites.

The tables in ``tests/fixtures/karpenter-1.15`` have the format of the other conformance tables.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.disruption.command import Command, Decisions
from reconciler.disruption.methods.repairpolicy import (
    AWS_POLICIES,
    REBOOTING_POLICIES,
    Repair,
    RepairPolicies,
    RepairPolicy,
    legacy_matches,
    resolve,
)
from reconciler.disruption.methods.staticdrift import RESERVATION_FULL, TERMINATES_FIRST
from reconciler.model.duration import format_duration, parse_duration
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.node import Node, NodeStatus
from reconciler.model.settings import DecisionRules, FeatureGate, KarpenterVersion, Settings
from tests.disruption.builders import (
    NOW,
    SIZES,
    a_catalog,
    a_node,
    a_pod,
    a_pool,
    decided,
    drifted,
    refusal_of,
    repairing,
    stamp,
    unhealthy,
)
from tests.tables import fixture_cases

RELEASE = "karpenter-1.15"
NOTHING_TO_LAUNCH = frozenset(
    f"{method}: static, {situation}"
    for method in ("drift", "repair")
    for situation in (
        "full reservation without the gate",
        "on-demand is only unavailable now",
    )
)
"""Karpenter requests a replacement that cannot be launched, and tries again. Here the node waits,
and its pods stay where they are.
"""


def _span(text: str) -> timedelta:
    return -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)


def _policy(row: dict[str, Any]) -> RepairPolicy:
    return RepairPolicy(
        row["type"],
        row["status"],
        _span(row["after"]),
        row.get("reasons", ""),
        _span(row["drain"]) if "drain" in row else None,
        row.get("priority", 0),
        reboots=row.get("action") == "reboot",
    )


def _policies(rows: list[dict[str, Any]]) -> RepairPolicies:
    return RepairPolicies([_policy(row) for row in rows])


def _bare_node(conditions: list[dict[str, Any]], created: int | None = None) -> Node:
    since = {
        n: None if c["minutes"] is None else NOW - timedelta(minutes=c["minutes"])
        for n, c in enumerate(conditions)
    }
    found = tuple(
        Condition(c["type"], c["status"], c["reason"], last_transition_time=since[n])
        for n, c in enumerate(conditions)
    )
    born = None if created is None else NOW - timedelta(minutes=created)
    return Node(Metadata(name="n", creation_timestamp=born), status=NodeStatus(conditions=found))


def _resolved(policies: RepairPolicies, given: dict[str, Any]) -> Repair | None:
    node = _bare_node(given["conditions"], given.get("created"))
    return resolve(policies.matches(node), NOW)


def _facts(repair: Repair | None) -> dict[str, Any]:
    if repair is None:
        return {"due": False}
    minute = timedelta(minutes=1)
    return {
        "due": True,
        "condition": repair.match.condition.type,
        "fallback": not repair.match.policy.reasons,
        "eligible": (NOW - repair.match.tolerated_until) / minute,
        "urgency": (NOW - repair.urgent_since) / minute,
        "action": "reboot" if repair.match.policy.reboots else "replace",
        "drain": None if repair.drain_limit is None else format_duration(repair.drain_limit),
    }


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "policies"))
def test_a_set_of_repair_policies_is_checked(case: dict[str, Any]) -> None:
    rows, error = case["input"]["policies"], case["expect"]["error"]
    if error is None:
        assert len(_policies(rows).policies) == len(rows)
    else:
        with pytest.raises(ValueError, match=re.escape(error)):
            _policies(rows)


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "resolve"))
def test_the_matching_policies_of_a_node_are_merged(case: dict[str, Any]) -> None:
    repair = _resolved(_policies(case["input"]["policies"]), case["input"])

    assert _facts(repair).items() >= case["expect"].items()


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "aws"))
def test_the_policies_of_the_aws_provider(case: dict[str, Any]) -> None:
    policies = REBOOTING_POLICIES if case["input"].get("reboots") else AWS_POLICIES

    assert _facts(_resolved(policies, case["input"])).items() >= case["expect"].items()


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "history"))
def test_a_node_that_was_rebooted_too_often_is_replaced(case: dict[str, Any]) -> None:
    given = case["input"]
    reason = {"reboot": "XID48", "replace": "XID79"}[given["action"]]
    node, claim = a_node("n1")
    gpu = unhealthy(NOW - timedelta(hours=1), "AcceleratedHardwareReady", reason=reason)
    node["status"]["conditions"] += gpu
    times = " ".join((NOW - timedelta(hours=h)).isoformat() for h in given["hours"])
    history = {"type": "RebootTimes", "status": "True", "reason": "RebootTimes", "message": times}
    claim["status"]["conditions"].append(history)

    decisions = decided(
        [node, claim], a_pod("p", "n1"), settings=repairing(FeatureGate.REBOOT_FOR_REPAIR)
    )

    (command,) = decisions.commands
    assert command.decision == case["expect"]["action"]


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "legacy"))
def test_the_policies_of_1_14(case: dict[str, Any]) -> None:
    matches = [*legacy_matches(_bare_node(case["input"]["conditions"]))]

    assert any(match.tolerated_until <= NOW for match in matches) is case["expect"]["due"]


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "order"))
def test_the_most_urgent_node_is_repaired_first(case: dict[str, Any]) -> None:
    policies = _policies(case["input"]["policies"])
    found = {
        name: _resolved(policies, {"conditions": conditions})
        for name, conditions in case["input"]["nodes"].items()
    }

    order = sorted(found, key=lambda n: (r.urgent_since if (r := found[n]) else NOW, n))
    assert order[0] == case["expect"]["first"]


def _objects(row: dict[str, Any]) -> list[Any]:
    """Return the Node, the NodeClaim and the pods of a row of a table."""
    labels = {"karpenter.k8s.aws/capacity-reservation-id": row.get("reservation")}
    deleting = {"deletionTimestamp": stamp(NOW), "finalizers": ["karpenter.sh/termination"]}
    node, claim = a_node(
        row["name"],
        row.get("size", "medium"),
        ready=row.get("ready", True),
        initialized=row.get("initialized", True),
        annotations=row.get("annotations"),
        capacity_type=row.get("capacityType", "on-demand"),
        labels=labels,
        claim={"terminationGracePeriod": row["grace"]} if "grace" in row else None,
        claim_metadata=deleting if row.get("deleting") else None,
    )
    if not row.get("registered", True):
        del node["metadata"]["labels"]["karpenter.sh/registered"]
    for c in row.get("conditions", ()):
        since = NOW - timedelta(minutes=c["minutes"])
        node["status"]["conditions"] += unhealthy(since, c["type"], c["status"], c["reason"])
    pods = [
        a_pod(f"{row['name']}-{n}", row["name"], pod.get("cpu", "1"), **_pod_fields(pod))
        for n, pod in enumerate(row.get("pods", ()))
    ]
    return [node, claim, *pods]


def _pod_fields(pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "web"}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    metadata: dict[str, Any] = {"labels": labels} if pod.get("apart") else {}
    if pod.get("protected"):
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return {"metadata": metadata, "spec": {"affinity": apart} if pod.get("apart") else {}}


def _settings(given: dict[str, Any]) -> Settings:
    gates = given.get("gates", ["NodeRepair"])
    if given.get("method") == "repair":
        gates = [*gates, "NodeRepair"]
    made = repairing(
        *map(FeatureGate, gates),
        karpenter=KarpenterVersion(given.get("karpenter", "1.15")),
        decide=DecisionRules(given.get("decide", "karpenter")),
        legacy_node_repair=given.get("legacy", False),
    )
    if "NodeRepair" not in gates:
        made.feature_gates[FeatureGate.NODE_REPAIR] = False
    return made


def _pools(given: dict[str, Any]) -> list[Any]:
    types = given.get("capacityTypes", ["on-demand"])
    key = "karpenter.sh/capacity-type"
    allowed = [{"key": key, "operator": "In", "values": types}]
    spec: dict[str, Any] = {
        "template": {"spec": {"requirements": allowed, "expireAfter": "Never"}},
        "weight": 10,
    }
    if "replicas" in given:
        spec["replicas"] = given["replicas"]
        del spec["weight"]
    if "limit" in given:
        spec["limits"] = {"nodes": str(given["limit"])}
    budgets = given.get("budgets", [{"nodes": "100%"}])
    pool = a_pool(spec=spec, consolidateAfter="Never", budgets=budgets)
    if given.get("deleting"):
        metadata = replace(pool.metadata, deletion_timestamp=NOW)
        pool = replace(pool, metadata=metadata)
    other = [a_pool("other", consolidateAfter="Never")] if given.get("fallbackPool") else []
    return [pool, *other]


def _catalog(given: dict[str, Any]) -> Any:
    """Return types with an offering for each reservation, beside those of every test."""
    rows = []
    for name, (cpu, price) in SIZES.items():
        offerings = [
            {"zone": "zone-a", "capacityType": "on-demand", "price": price}
            | {"available": given.get("onDemand", True)}
        ] + [
            {
                "zone": "zone-a",
                "capacityType": "reserved",
                "price": price / 1e6,
                "available": reservation.get("available", True),
                "reservationId": reservation["id"],
                "reservationCapacity": reservation["capacity"],
            }
            for reservation in given.get("reservations", ())
        ]
        known = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}]
        for key, value in (("kubernetes.io/arch", "amd64"), ("kubernetes.io/os", "linux")):
            known.append({"key": key, "operator": "In", "values": [value]})
        amounts = {"cpu": str(cpu), "memory": f"{cpu * 4}Gi", "pods": "110"}
        rows.append(
            {"name": name, "capacity": amounts, "requirements": known, "offerings": offerings}
        )
    return a_catalog(rows)


def _check(decisions: Decisions, expect: dict[str, Any]) -> None:
    commands = [c for c in decisions.commands if str(c.reason) in ("Unhealthy", "Drifted")]
    assert [c.nodes for c in commands] == [(row["node"],) for row in expect["commands"]]
    for command, row in zip(commands, expect["commands"], strict=True):
        assert _command_facts(command).items() >= row.items()
    for node, text in expect.get("blocked", {}).items():
        assert text in refusal_of(decisions, node)
    if expect.get("blocked") == {}:
        assert not [b for b in decisions.blocked if b.reason == "Unhealthy"]
    waiting = {d.node for d in decisions.deferred if str(d.reason) in ("Unhealthy", "Drifted")}
    assert waiting >= set(expect.get("deferred", ()))


def _command_facts(command: Command) -> dict[str, Any]:
    goes_first = command.message.endswith((TERMINATES_FIRST, RESERVATION_FULL))
    limit = command.drain_limit
    return {
        "node": command.nodes[0],
        "decision": command.decision,
        "replacements": len(command.replacements),
        "first": goes_first,
        "forceful": command.is_forceful,
        "drain": None if limit is None else format_duration(limit),
    }


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "repair", "repair"))
def test_unhealthy_nodes_are_repaired_as_in_karpenter(case: dict[str, Any]) -> None:
    given = case["input"]
    objects = [item for row in given["nodes"] for item in _objects(row)]

    decisions = decided(*objects, pools=_pools(given), settings=_settings(given))

    _check(decisions, case["expect"])


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "terminate_first", "terminate_first"))
def test_nodes_without_room_for_a_replacement_go_first(case: dict[str, Any]) -> None:
    given = case["input"]
    hit = [row["name"] for row in given["nodes"] if row["hit"]]
    is_repair = given["method"] == "repair"
    sick = {"type": "StorageReady", "status": "False", "reason": "Broken", "minutes": 60}
    objects = [
        item
        for row in given["nodes"]
        for item in _objects({**row, "conditions": [sick] if is_repair and row["hit"] else []})
    ]

    decisions = decided(
        *objects,
        pools=_pools(given),
        settings=_settings(given),
        drifted=() if is_repair else drifted(*hit),
        catalog=_catalog(given),
    )

    if case["name"] in NOTHING_TO_LAUNCH:
        assert [row["decision"] for row in case["expect"]["commands"]] == ["replace"]
        assert not decisions.commands
        assert "no instance type available now" in refusal_of(decisions, "n0")
    else:
        _check(decisions, case["expect"])
