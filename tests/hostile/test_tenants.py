"""Attacks by which a tenant's pod gets a command into the programs that nodes run."""

from __future__ import annotations

import cProfile
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.awkward import Planner, others, running
from benchmarks.awkwardpods import WAYS
from reconciler.adapters.aws.bootstrap.family import user_data
from reconciler.cli.main import main
from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.errors import CloudError
from reconciler.placement import scheduler as scheduling
from reconciler.placement import work as working
from reconciler.placement.pods.relaxation import (
    CONDITIONS_OF_STEPS_MAX,
    RULES_OF_STEPS_MAX,
    relaxation_steps,
)
from reconciler.placement.question import Question
from tests.adapters.aws.test_user_data_grammar import FAMILIES, HOSTILE, PLACES
from tests.engine.world import TAGS, World, a_deployment, a_world
from tests.engine.world import a_pool as engine_pool
from tests.hostile.test_pod_authors import a_ready_node
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon
from tests.placement.builders import (
    HOST,
    PREFERRED,
    REQUIRED,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    apart,
    on,
    rule,
    spread,
    wanted,
)
from tests.placement.builders import pods as some_pods
from tests.placement.test_work import in_namespace, repelling

NOW = "2026-03-01T12:00:00Z"


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a command line for a fleet with an open requirement, and pods."""

    def line(words: list[str], pods: list[Object]) -> list[str]:
        folder = tmp_path / "fleet"
        folder.mkdir(exist_ok=True)
        disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
        made = a_pool("default", wanted("team", "Exists"), disruption=disruption)
        pool = {"apiVersion": "karpenter.sh/v1", **made}
        (folder / "pool.yaml").write_text(json.dumps(pool))
        (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": pods}))
        (tmp_path / "catalog.json").write_text(json.dumps(TYPES))
        places = ["--snapshot", "snapshot.json", "--catalog", "catalog.json"]
        more = [str(tmp_path / word) if "." in word else word for word in places]
        return [*words, str(folder), *more, "--now", NOW]

    return line


def preferring(value: str) -> Object:
    expression = {"key": "team", "operator": "In", "values": [value]}
    terms = [{"weight": 1, "preference": {"matchExpressions": [expression]}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


@attack(Threat.NODES, "a pod that wants a label with a command in its value, for a new node")
@pytest.mark.parametrize("text", HOSTILE)
def test_no_command_of_a_pod_becomes_a_label(
    text: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [
        a_pod("required", affinity=on([wanted("team", "In", text)])),
        a_pod("alternative", affinity=on([wanted("a b", "Exists")], [wanted("team", "In", text)])),
        a_pod("preferred", affinity=preferring(text)),
        a_pod("selected", nodeSelector={"team": text}),
        a_pod("honest", affinity=on([wanted("team", "In", "red")])),
    ]
    assert main(command(["plan", "-o", "json"], pods)) == 0
    plan = json.loads(capsys.readouterr().out)
    (claim,) = plan["nodeClaims"]
    assert claim["pods"] == ["default/honest"]
    assert text not in json.dumps(claim, ensure_ascii=False)
    assert main(command(["explain", "pod", "default/required"], pods)) == 0
    shown = capsys.readouterr().out
    assert "invalid pod: node affinity: invalid value" in " ".join(shown.split())


@attack(Threat.NODES, "a label, taint, address or setting with a command, in user data")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", PLACES)
def test_no_command_becomes_part_of_user_data(place: str, family: str) -> None:
    for text in HOSTILE[:-1]:
        with pytest.raises(CloudError):
            user_data(family, PLACES[place](text))


@attack(Threat.EXHAUSTION, "pods of one namespace whose rules repel each other in many ways")
@pytest.mark.parametrize("count", [400, 5000])
def test_pods_of_a_tenant_do_not_stall_the_planner(
    count: int, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = in_namespace("shop", some_pods(20, cpu="1"))
    with soon(4800):
        assert main(command(["plan", "-o", "json"], [*repelling(count), *shop])) == 0
    plan = json.loads(capsys.readouterr().out)
    placed = {pod for claim in plan["nodeClaims"] for pod in claim["pods"]}
    assert {f"shop/{pod['metadata']['name']}" for pod in shop} <= placed
    limits = [f["message"] for f in plan["diagnostics"] if f["code"] == "placement-limit"]
    assert len(limits) == (count > 400)
    assert all("namespace crowd (" in text for text in limits)


@attack(Threat.EXHAUSTION, "running pods of one namespace whose rules repel each other")
@pytest.mark.parametrize(("count", "nodes"), [(300, 20), (2000, 100)])
def test_running_pods_of_a_tenant_do_not_stall_the_planner(
    count: int,
    nodes: int,
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rules of running pods count as work of their namespace, as those of waiting ones do."""
    crowd = repelling(count)
    for number, pod in enumerate(crowd):
        pod["spec"]["nodeName"] = f"n{number % nodes}"
        pod["status"] = {"phase": "Running"}
    running = [item for number in range(nodes) for item in a_node(f"n{number}")]
    shop = in_namespace("shop", some_pods(20, cpu="1"))
    with soon(4800):
        assert main(command(["plan", "-o", "json"], [*running, *crowd, *shop])) == 0
    plan = json.loads(capsys.readouterr().out)
    placed = {pod for claim in plan["nodeClaims"] for pod in claim["pods"]}
    placed |= {row["pod"] for row in plan["placements"]}
    assert {f"shop/{pod['metadata']['name']}" for pod in shop} <= placed


@attack(Threat.EXHAUSTION, "pods with hundreds of host ports each, compared with those of a node")
@pytest.mark.parametrize("where", ["waiting", "running"])
def test_host_ports_of_a_tenant_do_not_stall_the_planner(
    where: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = in_namespace("crowd", [
        a_pod(f"p-{i:03}", "10m", "16Mi", ports=range(1 + 400 * i, 401 + 400 * i))
        for i in range(60)
    ])  # fmt: skip
    nodes: list[Object] = []
    if where == "running":
        nodes = a_node("n0")
        for pod in crowd[:30]:
            pod["spec"]["nodeName"] = "n0"
            pod["status"] = {"phase": "Running"}
    shop = in_namespace("shop", some_pods(20, cpu="1"))
    with soon(2400):
        assert main(command(["plan", "-o", "json"], [*nodes, *crowd, *shop])) == 0
    assert not json.loads(capsys.readouterr().out)["unschedulable"]


@attack(Threat.EXHAUSTION, "pods whose rules differ so that none is compared together with another")
@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize(
    "way",
    [
        "repels by a key of its own",
        "follows any by zone, repels all by host",
        "20 host ports of its own",
        "a claim of its own for eight devices",
    ],
)
def test_work_grows_with_the_number_of_awkward_pods(
    way: str, is_running: bool, tmp_path: Path
) -> None:
    """A short time says little, and one measured on a busy machine is not exact.

    With work that grows with the square of the pods, the larger time is 16 times the other.
    """
    planner = Planner(tmp_path)
    planner.seconds([])
    base = planner.seconds([])

    def seconds(count: int) -> float:
        made = WAYS[way](count)
        return planner.seconds(running(made) if is_running else made) - base

    few = max(seconds(100), 0.1)
    assert any(many < 1 or many / few < 9 for many in (seconds(400) for _ in range(3)))


@attack(Threat.EXHAUSTION, "rules over labels that no node has, one for each pod")
def test_pods_with_rules_over_labels_that_no_node_has_cost_little(tmp_path: Path) -> None:
    """Guards, of which each alone takes the ratio above 1.9: those against comparing each pair of
    pods, ``Census.counts`` and ``Neighbourhood._foreign_labels``; those that do not place pods
    which no node can take, ``Census.strands`` and, for the removal of their nodes,
    ``Scheduler.exceeds_price`` and ``_free_candidates``.

    The nodes of others are evaluated, and kube-scheduler binds these pods to some of them. The
    calls of functions are counted, which depend on no machine: they are at most 1.65 times those
    for as many pods with tolerations of their own.
    """
    planner = Planner(tmp_path)

    def calls(way: str, count: int) -> int:
        made = WAYS[way](count)
        with cProfile.Profile() as profile:
            planner.seconds(made)
        return sum(entry.callcount for entry in profile.getstats())

    ways = "repels by a key of its own", "tolerations of its own"
    base = min(calls(ways[0], 0), calls(ways[0], 0))
    stranded, tolerant = (calls(way, 400) - base for way in ways)
    assert stranded / tolerant < 1.65


@attack(Threat.EXHAUSTION, "running pods that each repel all others, by a rule of its own")
def test_running_pods_that_repel_each_other_add_little_to_each_simulated_removal() -> None:
    """Guards: ``Topology.add_running_repellers``, which adds up the counts of equal rules, and
    ``_CohortPlacement._candidates``, which reads nothing of nodes that are closed.

    A removal places the pods of one node. Each other node adds at most 38 calls of functions to it:
    40 without the first guard, and 55 without the second.
    """

    def calls(count: int) -> int:
        crowd = running(WAYS["repels all others, by host"](count))
        scheduler, cluster = a_scheduler([a_pool("default"), *crowd])
        removals = [
            Question(pods=node.pods, without=frozenset((node.name,)), strict_reservations=False)
            for node in cluster.nodes[:2]
        ]
        scheduler.place(removals[0])  # reads what the others share
        with cProfile.Profile() as profile:
            scheduler.place(removals[1])
        return sum(entry.callcount for entry in profile.getstats())

    assert (calls(400) - calls(100)) / 300 < 38


@attack(Threat.EXHAUSTION, "one pod that repels all others by a label that no node has")
@pytest.mark.parametrize("runs", [False, True], ids=["waiting", "running"])
def test_a_rule_over_a_label_that_no_node_has_repels_nobody(
    runs: bool, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``Topology._index``: kube-scheduler ignores the rule, Karpenter places nobody."""
    crowd = repelling_everywhere(1, 1)
    crowd[-1]["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]["topologyKey"] = "team/none"
    if not runs:
        del crowd[-1]["spec"]["nodeName"]
    other = in_namespace("shop", [a_pod("other", "1")])
    assert main(command(["plan", "--output=json"], [*crowd, *other])) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "shop/other" not in [pod["pod"] for pod in plan["unschedulable"]]


FAR_BEYOND = (
    "follows another, by host",
    "one pod: n rules",
    "one pod: n spreads",
    "prefers distance by a rule of its own",
    "repels all others, by host",
    "repels all others, by zone",
    "spreads by a rule of its own, over hosts",
)


@attack(Threat.EXHAUSTION, "more awkward pods of one tenant, in any way, than the work allows")
@pytest.mark.parametrize("runs", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("way", WAYS)
def test_beyond_the_limit_of_work_only_the_tenant_waits(
    way: str,
    runs: bool,
    command: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every pod of the others is placed by the same plan, and the tenant that waits is named."""
    monkeypatch.setattr(scheduling, "WORK_MAX", 4_000)
    monkeypatch.setattr(working, "NAMESPACE_WORK_MAX", 40_000)
    crowd = WAYS[way](120)
    objects = [*others(), *(running(crowd) if runs else crowd)]
    pods = [item for item in others() if item["kind"] == "Pod"]
    waiting = [pod for pod in pods if "nodeName" not in pod["spec"]]
    assert main(command(["plan", "-o", "json"], objects)) == 0
    plan = json.loads(capsys.readouterr().out)
    placed = {pod for claim in plan["nodeClaims"] for pod in claim["pods"]}
    placed |= {row["pod"] for row in plan["placements"]}
    keys = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in waiting}
    assert len(keys) == 80
    assert keys <= placed
    limited = [f["message"] for f in plan["diagnostics"] if f["code"] == "placement-limit"]
    assert all(re.search(r"\bnamespaces? crowd\b", message) for message in limited), limited
    assert limited or runs or way not in FAR_BEYOND


def a_crowded_world() -> World:
    """Return a cluster in which the pods of a tenant have 300 rules, and another has 3 pods."""
    made = [a_deployment("web", "web", 3)]
    for number in range(60):
        rules = [
            {**rule(HOST, "x"), "labelSelector": {
                "matchExpressions": [wanted("app", "NotIn", f"z{number}-{term}")]}}
            for term in range(5)
        ]  # fmt: skip
        crowd = a_deployment(f"p-{number:02}", "web", 1, cpu="100m")
        crowd["spec"]["template"]["spec"]["affinity"] = apart(*rules)
        crowd["metadata"]["namespace"] = "crowd"
        made.append(crowd)
    return a_world(engine_pool("web"), *made)


@attack(Threat.EXHAUSTION, "awkward pods of one tenant in every pass of the daemon")
def test_a_pass_of_the_daemon_names_who_waits_and_serves_the_others_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: ``WORK_MAX`` with the turns of namespaces, and ``_Reports._report_limits``."""
    monkeypatch.setattr(scheduling, "WORK_MAX", 2_000)
    world = a_crowded_world()
    engine, passes = world.engine(), list[object]()
    first = engine.run_once()
    served = {pod for claim in first.plan.node_claims for pod in claim.pods}
    assert {pod for pod in served if pod.startswith("default/")} == {
        f"default/web-{number:05}" for number in range(3)
    }
    left = {item.pod for item in first.plan.unschedulable}
    assert left
    assert {pod.partition("/")[0] for pod in left} == {"crowd"}
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=1.0, quiet=30.0),
        stop=lambda: len(passes) >= 4,
        next_change=lambda _: None,
        observed=passes.append,
    )
    (logged,) = world.recorder.messages("WorkLimited")
    assert "pods of namespace crowd (" in logged


def repelling_everywhere(pods: int, terms: int) -> list[Object]:
    """Return nodes with a pod of one tenant each, which repels all pods by many different rules."""
    found: list[Object] = []
    for number in range(pods):
        rules = [
            {
                **rule(HOST, "crowd"),
                "namespaceSelector": {},
                "labelSelector": {
                    "matchExpressions": [wanted("app", "NotIn", f"z{number}-{term}")]
                },
            }
            for term in range(terms)
        ]
        pod = a_pod(f"p-{number}", "100m", "64Mi", affinity=apart(*rules), node=f"crowd-{number}")
        found += [*a_ready_node(f"crowd-{number}"), *in_namespace("crowd", [pod])]
    return found


def consolidatable() -> list[Object]:
    """Return nodes of the namespace shop, of which consolidation removes some."""
    shop: list[Object] = []
    for number in range(8):
        pod = a_pod(f"web-{number}", f"{2900 + 10 * number}m", "64Mi", node=f"shop-{number}")
        shop += [*a_ready_node(f"shop-{number}"), *in_namespace("shop", [pod])]
    idle = in_namespace("shop", [a_pod("a", "1", node="shop-idle")])
    return [*shop, *a_ready_node("shop-idle"), *idle]


def removals(
    objects: list[Object],
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> tuple[set[str], list[str]]:
    """Return the nodes that a plan removes, and its findings about limits of work."""
    assert main(command(["plan", "-o", "json"], objects)) == 0
    found = json.loads(capsys.readouterr().out)
    texts = [f["message"] for f in found["diagnostics"] if f["code"] == "placement-limit"]
    return {node for row in found["commands"] for node in row["nodes"]}, texts


@attack(Threat.EXHAUSTION, "rules of one tenant's running pods that use up the work of disruption")
@pytest.mark.parametrize("limit", ["NAMESPACE_WORK_MAX", "WORK_TOTAL_MAX"])
def test_rules_of_running_pods_do_not_stop_the_consolidation_of_others(
    limit: str,
    command: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``SimulatedWork``, which closes the namespace that has used its part."""
    monkeypatch.setattr(working, limit, 4_000)
    shop = consolidatable()
    alone, nothing = removals(shop, command, capsys)
    removed, named = removals([*shop, *repelling_everywhere(4, 200)], command, capsys)
    assert alone
    assert nothing == []
    assert alone <= removed
    assert len(named) == 1
    assert "nodes with pods of namespace crowd are not disrupted" in named[0]


@attack(Threat.EXHAUSTION, "pods and PodDisruptionBudgets of a tenant, each compared with each")
@pytest.mark.parametrize(
    ("operator", "protected"),
    [("NotIn", True), ("In", False), ("Exists", True)],
    ids=["each selects all others", "each selects one pod", "each selects none"],
)
def test_budgets_of_a_tenant_do_not_stall_the_planner(
    operator: str,
    protected: bool,
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards: ``EVALUATED_MAX``, beyond which a pod is protected, and the index by label."""
    shop = consolidatable()
    alone, _ = removals(shop, command, capsys)
    crowd: list[Object] = []
    for number in range(1_500):
        node = f"crowd-{number:04}"
        pod = a_pod(f"p-{number}", "100m", "64Mi", node=node)
        pod["metadata"]["labels"] = {"app": f"a{number}"}
        crowd += [*a_ready_node(node), *in_namespace("crowd", [pod])]
        rule = {"key": "app", "operator": operator, "values": [f"a{number}"]}
        selector = [rule] if operator != "Exists" else [{"key": f"k{number}", "operator": "Exists"}]
        crowd.append({
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"b{number}", "namespace": "crowd"},
            "spec": {"minAvailable": 0, "selector": {"matchExpressions": selector}},
            "status": {"disruptionsAllowed": 1},
        })  # fmt: skip
    with soon(500):
        assert main(command(["plan", "-o", "json"], [*shop, *crowd])) == 0
    plan = json.loads(capsys.readouterr().out)
    removed = {node for row in plan["commands"] for node in row["nodes"]}
    named = {b["message"] for b in plan.get("blockers", []) if b["kind"] == "PodDisruptionBudget"}
    assert alone <= removed
    assert all("more than 200 PDBs may select the pod" in text for text in named)
    assert bool(named) == protected
    assert any(node.startswith("crowd") for node in removed) != protected


def repelling_nobody(nodes: int, terms: int, label: str) -> list[Object]:
    """Return pods of one tenant with many rules about a label, towards the pods of every namespace.

    They repel by zone, and one runs in each zone.
    """
    found: list[Object] = []
    for number in range(nodes):
        rules = [
            {
                **rule(ZONE, "crowd"),
                "namespaceSelector": {},
                "labelSelector": {"matchExpressions": [wanted(label, "In", f"z{number}-{term}")]},
            }
            for term in range(terms)
        ]
        pod = a_pod(f"p-{number}", "100m", "64Mi", affinity=apart(*rules), node=f"crowd-{number}")
        pod["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
        zone = f"zone-{'abc'[number % 3]}"
        found += [*a_ready_node(f"crowd-{number}", zone), *in_namespace("crowd", [pod])]
    return found


@attack(
    Threat.PODS, "rules beyond the limit of work that select no pod of the others, in every zone"
)
@pytest.mark.parametrize("limit", [None, 4_000], ids=["within the limit", "beyond the limit"])
def test_simplified_rules_hold_no_namespace_that_they_do_not_concern(
    limit: int | None,
    command: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``_concerned_namespaces``. Otherwise they would repel all pods from all zones."""
    if limit is not None:
        monkeypatch.setattr(working, "NAMESPACE_WORK_MAX", limit)
    shop = consolidatable()
    alone, _ = removals(shop, command, capsys)
    found, named = removals([*shop, *repelling_nobody(6, 200, "example.com/mine")], command, capsys)
    assert alone
    assert alone <= found
    assert len(named) == (limit is not None)


@attack(Threat.PODS, "rules beyond the limit of work, to repel more than one rule could")
@pytest.mark.parametrize("key", [HOST, ZONE])
def test_beyond_the_limit_a_tenant_repels_no_more_than_with_one_rule(
    key: str,
    command: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the tenant's rules stop beyond the limit, it can stop with one rule, as in Karpenter.

    A ResourceQuota with the scope CrossNamespacePodAffinity denies both.
    """
    shop = consolidatable()
    crowd = repelling_everywhere(4, 200)
    plain = repelling_everywhere(4, 1)
    for pod in (item for item in [*crowd, *plain] if item["kind"] == "Pod"):
        for term in pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]:
            term["topologyKey"] = key
    by_one_rule, nothing = removals([*shop, *plain], command, capsys)
    assert nothing == []
    monkeypatch.setattr(working, "NAMESPACE_WORK_MAX", 4_000)
    by_many, named = removals([*shop, *crowd], command, capsys)
    assert named
    of_shop = {node for node in by_one_rule if node.startswith("shop")}
    assert of_shop <= by_many


@attack(Threat.EXHAUSTION, "one pod with thousands of preferences, each of which is dropped alone")
@pytest.mark.parametrize("kind", ["spreads", "distances", "alternatives of spreads"])
def test_the_preferences_of_a_pod_have_a_limit(kind: str) -> None:
    """Guard: ``RULES_OF_STEPS_MAX``. The last step is without any preference all the same."""
    count = 1_000
    spreads = [{**spread(f"example.com/k{i}", "a")} for i in range(count)]
    hard = {"topologySpreadConstraints": spreads}
    soft = [{**row, "whenUnsatisfiable": "ScheduleAnyway"} for row in spreads]
    terms = [{"weight": 1, "podAffinityTerm": rule(f"example.com/k{i}")} for i in range(count)]
    alternatives = [[wanted("example.com/size", "In", f"v{i}")] for i in range(count)]
    fields: dict[str, Object] = {
        "spreads": {"topologySpreadConstraints": soft},
        "distances": {"affinity": {"podAntiAffinity": {PREFERRED: terms}}},
        "alternatives of spreads": {**hard, "affinity": on(*alternatives)},
    }
    scheduler, cluster = a_scheduler([a_pool(), a_pod("odd", **fields[kind])])
    (pod,) = cluster.pending
    steps = list(
        relaxation_steps(pod.spec, pod.namespace, {}, {}, respect=True, tolerate_soft_taints=False)
    )
    rules = [len(step.rules) for step in steps]
    assert sum(rules) <= RULES_OF_STEPS_MAX + 2 * count
    assert rules[-1] == (count if kind == "alternatives of spreads" else 0)
    if kind == "alternatives of spreads":
        assert "v999" in str(steps[-1].demands)
    else:
        assert scheduler.place(Question(pods=[pod])).claims


@attack(Threat.EXHAUSTION, "one pod with preferences, each of which repeats all its conditions")
@pytest.mark.parametrize("kind", ["conditions", "tolerations", "node labels"])
def test_the_conditions_of_all_steps_have_a_limit(kind: str) -> None:
    """Guard: ``CONDITIONS_OF_STEPS_MAX``. The last step is without any preference all the same."""
    count = 1_000
    terms = [
        {"weight": 1, "preference": {"matchExpressions": [wanted("a", "NotIn", f"v{i}")]}}
        for i in range(count)
    ]
    node: Object = {PREFERRED: terms}
    fields: Object = {"affinity": {"nodeAffinity": node}}
    if kind == "conditions":
        node |= on([wanted("a", "NotIn", f"w{i}") for i in range(count)])["nodeAffinity"]
    elif kind == "tolerations":
        fields["tolerations"] = [{"key": f"t{i}"} for i in range(count)]
    else:
        fields["nodeSelector"] = {f"example.com/s{i}": "x" for i in range(count)}
    _, cluster = a_scheduler([a_pool(), a_pod("odd", **fields)])
    (pod,) = cluster.pending
    steps = list(
        relaxation_steps(pod.spec, pod.namespace, {}, {}, respect=True, tolerate_soft_taints=False)
    )
    assert len(steps) * count <= CONDITIONS_OF_STEPS_MAX + 2 * count
    assert steps[-1].demands == steps[-1].strict


def placed_and_named(
    objects: list[Object],
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> tuple[set[str], str]:
    """Return the pods that a plan places, and the reasons of the others."""
    assert main(command(["plan", "-o", "json"], objects)) == 0
    plan = json.loads(capsys.readouterr().out)
    placed = {pod for claim in plan["nodeClaims"] for pod in claim["pods"]}
    return placed, json.dumps(plan["unschedulable"])


@attack(Threat.EXHAUSTION, "one pod with more conditions and rules than its parts can be combined")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"affinity": on([wanted("a", "NotIn", f"v{i}") for i in range(2_500)])},
            "5,000 conditions and values; at most 4,000",
        ),
        (
            {"affinity": on([wanted("a", "NotIn", *(f"v{i}" for i in range(5_000)))])},
            "5,001 conditions and values; at most 4,000",
        ),
        (
            {
                "affinity": apart(*(rule(f"example.com/k{i}") for i in range(200))),
                "tolerations": [{"key": f"t{i}"} for i in range(200)],
            },
            "200 topology rules with 200 tolerations",
        ),
        (
            {
                "topologySpreadConstraints": [spread(f"k{i}", "a") for i in range(200)],
                "affinity": on(*([wanted("a", "NotIn", f"v{i}")] for i in range(200))),
            },
            "200 terms of node affinity",
        ),
    ],
    ids=["conditions", "values", "rules and tolerations", "spreads and alternatives"],
)
def test_a_pod_of_too_many_parts_waits_and_is_named(
    fields: Object,
    words: str,
    command: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards: ``CONDITIONS_MAX`` and ``RULE_CONDITIONS_MAX``."""
    shop = in_namespace("shop", some_pods(2, cpu="1"))
    odd = in_namespace("crowd", [a_pod("odd", "100m", **fields)])
    with soon():
        placed, reasons = placed_and_named([*shop, *odd], command, capsys)
    assert placed == {f"shop/{pod['metadata']['name']}" for pod in shop}
    assert words in reasons
    assert "crowd/odd" in reasons


@attack(Threat.EXHAUSTION, "pods that each exclude many values, which a node of them would repeat")
@pytest.mark.parametrize("kind", ["NotIn", "DoesNotExist"])
def test_a_planned_node_excludes_few_values(
    kind: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``EXCLUDED_MAX``. Each combination that is tried has its own copy of all values."""

    def conditions(number: int) -> list[Object]:
        if kind == "NotIn":
            return [wanted("example.com/a", kind, *(f"v{number}-{i}" for i in range(90)))]
        return [wanted(f"example.com/a{number}-{i}", kind) for i in range(90)]

    crowd = [a_pod(f"p-{n}", "10m", "16Mi", affinity=on(conditions(n))) for n in range(12)]
    assert main(command(["plan", "-o", "json"], in_namespace("crowd", crowd))) == 0
    claims = json.loads(capsys.readouterr().out)["nodeClaims"]
    assert sum(len(claim["pods"]) for claim in claims) == 12
    assert max(len(claim["pods"]) for claim in claims) == 2
