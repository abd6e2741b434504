"""What somebody who may only create pods can do to the nodes, costs and names of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.hostile.threats import Threat, attack
from tests.placement.builders import (
    HOST,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    apart,
    near,
    on,
    rule,
    spread,
    wanted,
)
from tests.placement.builders import pods as some_pods

NOW = "2026-03-01T12:00:00Z"
KEEP = {"karpenter.sh/do-not-disrupt": "true"}
ALWAYS = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}

Plan = Callable[..., Object]


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return a function that plans a cluster."""

    def run(objects: list[Object], **spec: object) -> Object:
        folder = tmp_path / "fleet"
        folder.mkdir(exist_ok=True)
        pool = a_pool("default", **{"disruption": ALWAYS, **spec})
        pool = {"apiVersion": "karpenter.sh/v1", **pool}
        (folder / "pool.yaml").write_text(json.dumps(pool))
        (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": objects}))
        (tmp_path / "catalog.json").write_text(json.dumps(TYPES))
        places = ["--snapshot", str(tmp_path / "snapshot.json"), "--catalog"]
        line = ["plan", str(folder), *places, str(tmp_path / "catalog.json"), "-o", "json"]
        assert main([*line, "--now", NOW]) == 0
        found: Object = json.loads(capsys.readouterr().out)
        return found

    return run


def of(namespace: str, *objects: Object, **annotations: str) -> list[Object]:
    """Return pods as those of a namespace."""
    for item in objects:
        item["metadata"] |= {"namespace": namespace, "annotations": annotations}
    return list(objects)


def a_ready_node(name: str, zone: str = "zone-a") -> list[Object]:
    """Return a node that may be consolidated."""
    node, claim = a_node(name, zone=zone)
    types = ("Launched", "Registered", "Initialized", "Consolidatable")
    since = "2026-03-01T10:00:00Z"
    claim["status"]["conditions"] = [
        {"type": kind, "status": "True", "lastTransitionTime": since} for kind in types
    ]
    claim["metadata"]["creationTimestamp"] = node["metadata"]["creationTimestamp"] = since
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return [node, claim]


def removed(plan: Object) -> set[str]:
    """Return the nodes that a plan removes at once or later."""
    return {str(node) for command in plan["commands"] for node in command["nodes"]}


def everywhere(term: Object) -> Object:
    return {**term, "labelSelector": {}, "namespaceSelector": {}}


CROWDS: dict[str, Callable[[], list[Object]]] = {
    "large": lambda: some_pods(5, "c", cpu="15"),
    "repelling all": lambda: some_pods(5, "c", affinity=apart(everywhere(rule(HOST)))),
    "repelling by an unknown key": lambda: some_pods(5, "c", affinity=apart(everywhere(rule("k")))),
    "following": lambda: some_pods(5, "c", affinity=near(everywhere(rule(ZONE)))),
    "spreading": lambda: some_pods(5, "c", topologySpreadConstraints=[spread(HOST, "c")]),
    "impossible": lambda: some_pods(5, "c", cpu="900"),
    "urgent": lambda: some_pods(5, "c", cpu="3", priority=2_000_000_000),
    "bound by its author": lambda: [
        a_pod(f"c-{i}", "3", node="kept", affinity=apart(everywhere(rule(HOST)))) for i in range(5)
    ],
    "bound to a node that does not exist": lambda: [a_pod("c-0", node="nowhere")],
}


@attack(Threat.PODS, "pods that would make nodes of others terminate, which these protect")
@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("guard", ["do-not-disrupt", "a disruption budget", "a node budget"])
def test_no_pod_makes_protected_nodes_of_others_terminate(
    guard: str, crowd: str, plan: Plan
) -> None:
    shop = of("shop", a_pod("web-0", "100m", node="kept", labels={"app": "web"}))
    spec: Object = {}
    if guard == "do-not-disrupt":
        shop[0]["metadata"]["annotations"] = KEEP
    elif guard == "a disruption budget":
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
        metadata = {"name": "web", "namespace": "shop"}
        shop.append({"kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget})
    else:
        spec["disruption"] = {**ALWAYS, "budgets": [{"nodes": "0"}]}
    found = plan([*a_ready_node("kept"), *shop, *of("crowd", *CROWDS[crowd]())], **spec)
    assert "kept" not in removed(found)


def test_without_a_guard_the_node_of_the_attack_is_replaced(plan: Plan) -> None:
    """What the attack above would reach: consolidation replaces the node by a cheaper one."""
    shop = of("shop", a_pod("web-0", "100m", node="kept"))
    assert removed(plan([*a_ready_node("kept"), *shop])) == {"kept"}


@attack(Threat.PODS, "pods that would stop the consolidation of nodes on which they are not")
@pytest.mark.parametrize("crowd", ["impossible", "bound to a node that does not exist", "kept"])
def test_no_pod_stops_the_consolidation_of_nodes_of_others(crowd: str, plan: Plan) -> None:
    """An annotation keeps the node on which its pod runs, as in Karpenter, and no other one."""
    mine = of("crowd", a_pod("c-0", "3", node="crowd"), **KEEP) if crowd == "kept" else []
    pods = mine or of("crowd", *CROWDS[crowd]())
    found = plan([*a_ready_node("crowd"), *a_ready_node("empty"), *pods])
    assert "empty" in removed(found)
    assert ("crowd" in removed(found)) is (crowd != "kept")


@attack(Threat.PODS, "pods that would launch nodes beyond the limits of a NodePool")
@pytest.mark.parametrize("crowd", ["many", "each alone", "in every zone"])
def test_pods_launch_nothing_beyond_the_limits_of_a_node_pool(crowd: str, plan: Plan) -> None:
    made = {
        "many": lambda: some_pods(60, "c"),
        "each alone": lambda: some_pods(60, "c", affinity=apart(everywhere(rule(HOST)))),
        "in every zone": lambda: [
            a_pod(f"c-{i}", affinity=on([wanted(ZONE, "In", f"zone-{'abc'[i % 3]}")]))
            for i in range(60)
        ],
    }[crowd]()
    found = plan(of("crowd", *made), limits={"cpu": "12"})
    launched = {claim["launch"]["instanceType"] for claim in found["nodeClaims"]}
    size = {"small": 2, "medium": 4, "large": 8, "huge": 16, "arm": 8, "gpu": 8}
    total = sum(size[claim["launch"]["instanceType"]] for claim in found["nodeClaims"])
    assert launched
    assert total <= 12
    assert found["unschedulable"]


@attack(Threat.PODS, "a pod whose explanation would name pods, namespaces and labels of others")
@pytest.mark.parametrize("crowd", [name for name in CROWDS if not name.startswith("bound")])
def test_no_reason_of_a_pod_names_what_others_run(crowd: str, plan: Plan) -> None:
    secret = "canary"
    marked = {"labels": {"app": secret}}
    by_host, by_zone = (apart(everywhere(rule(key))) for key in (HOST, ZONE))
    running = a_pod(f"{secret}-pod-0", node="kept", **marked)
    waiting = [
        a_pod(f"{secret}-pod-1", affinity=by_host, **marked),
        a_pod(f"{secret}-pod-2", affinity=by_zone, **marked),
    ]
    others = [*of(f"{secret}-space", running), *of(f"{secret}-other", *waiting)]
    found = plan(
        [*a_ready_node("kept"), *others, *of("crowd", *CROWDS[crowd]())], limits={"cpu": "4"}
    )
    mine = [row for row in found["unschedulable"] if row["pod"].startswith("crowd/")]
    assert secret not in json.dumps(mine)
