"""What holds for any cluster: nothing is overbooked, and what is kept agrees with what is new."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Affinity, Pod
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, Plugin
from reconciler.model.kubernetes.taint import Taint
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo
from tests.examples import examples
from tests.placement.binding.builders import (
    HOST,
    SOFT,
    ZONE,
    a_binder,
    a_node,
    a_pod,
    apart,
    near,
    preferring,
    selecting,
    spread,
)

RULES: list[dict[str, object]] = [
    {},
    {"affinity": near()},
    {"affinity": apart("db", HOST)},
    {"affinity": apart()},
    {"affinity": Affinity(pod_affinity=preferring("db"))},
    {"affinity": Affinity(pod_anti_affinity=preferring(key=HOST))},
    spread(),
    spread(HOST, 2, when_unsatisfiable=SOFT),
    spread(node_taints_policy="Honor", label_selector=selecting("db")),
    {"priority": 10},
]
OWNER = OwnerReference("ReplicaSet", "web-1", "apps/v1", controller=True)


@st.composite
def some_pods(draw: st.DrawFn, prefix: str = "p") -> list[Pod]:
    rows = st.tuples(
        st.sampled_from(["web", "db"]),
        st.sampled_from(["", "500m", "1", "2"]),
        st.sampled_from(RULES),
        st.booleans(),
    )
    drawn = draw(st.lists(rows, max_size=8))
    return [
        a_pod(f"{prefix}{n}", cpu, "", app=app, owner=OWNER if owned else None, **rules)
        for n, (app, cpu, rules, owned) in enumerate(drawn)
    ]


@st.composite
def some_nodes(draw: st.DrawFn) -> list[Node]:
    rows = st.tuples(
        st.sampled_from(["a", "b", None]), st.sampled_from(["2", "4"]), st.booleans(), st.booleans()
    )
    drawn = draw(st.lists(rows, min_size=1, max_size=5))
    return [
        a_node(
            f"n{n}",
            zone,
            cpu=cpu,
            taints=[Taint("x", "NoSchedule")] if is_tainted else (),
            unschedulable=is_cordoned,
        )
        for n, (zone, cpu, is_tainted, is_cordoned) in enumerate(drawn)
    ]


@dataclass
class Cluster:
    """Nodes and the pods on them, and a binder that follows both."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, tuple[Pod, str]] = field(default_factory=dict)
    binder: NodeBinder = field(default_factory=NodeBinder)

    def infos(self) -> list[NodeInfo]:
        return [
            NodeInfo(node, [pod for pod, at in self.pods.values() if at == name])
            for name, node in self.nodes.items()
        ]

    def bind(self, pods: list[Pod]) -> None:
        pending = [pod for pod in pods if pod.key not in self.pods]
        bound = self.binder.bind(pending)
        self.pods |= {pod.key: (pod, bound[pod.key].name) for pod in pending if pod.key in bound}


@given(nodes=some_nodes(), first=some_pods(), second=some_pods("q"), data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_binder_that_follows_a_cluster_agrees_with_a_new_one(
    nodes: list[Node], first: list[Pod], second: list[Pod], data: st.DataObject
) -> None:
    cluster = Cluster({node.name: node for node in nodes})
    cluster.binder.follow(cluster.infos())
    for pods in (first, second):
        cluster.bind(pods)
        assume(not cluster.binder.preemptions)  # a new binder knows no nominations
        for key in (
            data.draw(st.sets(st.sampled_from(sorted(cluster.pods)))) if cluster.pods else ()
        ):
            del cluster.pods[key]
        for node in data.draw(some_nodes()):
            cluster.nodes[node.name] = node
        gone = data.draw(st.sets(st.sampled_from(sorted(cluster.nodes)), max_size=1))
        for name in gone if len(cluster.nodes) > 1 else ():
            del cluster.nodes[name]
            cluster.pods = {k: row for k, row in cluster.pods.items() if row[1] != name}
        some = data.draw(st.sets(st.sampled_from(sorted(cluster.nodes))))
        infos = [info for info in cluster.infos() if info.node.name in some]
        cluster.binder.follow(infos, sets_aside=True)
        for pod in (*first, *second) if some else ():
            cluster.binder.scores(pod)
        cluster.binder.follow(cluster.infos())
        new = NodeBinder(cluster.infos())
        for pod in (*first, *second):
            assert cluster.binder.scores(pod) == new.scores(pod)


def test_no_pod_is_tried_on_a_node_that_is_set_aside_although_its_pods_count() -> None:
    pods = [a_pod("p", **spread()), a_pod("q", **spread())]
    a, b = NodeInfo(a_node("a", "a")), NodeInfo(a_node("b", "b"))
    binder = NodeBinder([a, b])
    binder.follow([b], sets_aside=True)
    bound = binder.bind(pods)
    assert {key: node.name for key, node in bound.items()} == {"shop/p": "b"}
    assert not binder.place(pods[1], "a")
    binder.follow([a, NodeInfo(b.node, [pods[0]])])
    assert binder.bind(pods[1:])["shop/q"].name == "a"
    binder.follow([a], sets_aside=True)
    binder.follow([a])
    assert binder.bind([a_pod("r", **spread())])["shop/r"].name == "a", "the other node is gone"


def test_nodes_that_were_set_aside_keep_their_places_in_the_search() -> None:
    """Of more than 100 nodes some are scored, so their order and the start decide."""
    nodes = {f"n{n}": a_node(f"n{n}", "abc"[n % 3]) for n in range(150)}
    first, second = ([a_pod(f"{name}{n}", "100m") for n in range(20)] for name in "pq")
    daemon = a_pod("d", "100m", node_selector={HOST: "n7"})
    one, other = Cluster(dict(nodes)), Cluster(dict(nodes))
    for cluster in (one, other):
        cluster.binder.follow(cluster.infos())
        cluster.bind(first)
    infos = [info for info in one.infos() if info.node.name == "n7"]
    one.binder.follow(infos, sets_aside=True)
    for cluster in (one, other):
        cluster.bind([daemon])
        cluster.binder.follow(cluster.infos())
        cluster.bind(second)
    assert one.pods["shop/d"][1] == other.pods["shop/d"][1] == "n7"
    assert {k: at for k, (_, at) in one.pods.items()} == {
        k: at for k, (_, at) in other.pods.items()
    }


@given(
    nodes=some_nodes(),
    first=some_pods(),
    placed=some_pods("x"),
    second=some_pods("q"),
    data=st.data(),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_binder_that_begins_again_agrees_with_a_new_one(
    nodes: list[Node],
    first: list[Pod],
    placed: list[Pod],
    second: list[Pod],
    data: st.DataObject,
    seed: int,
) -> None:
    cluster = Cluster({node.name: node for node in nodes})
    cluster.binder.follow(cluster.infos())
    cluster.bind(first)
    later = data.draw(st.permutations([*cluster.nodes.values(), *data.draw(some_nodes())]))
    infos = [
        NodeInfo(
            node, [*placed[n :: len(later)], *(p for p, at in cluster.pods.values() if at == name)]
        )
        for n, (name, node) in enumerate({node.name: node for node in later}.items())
    ]
    cluster.binder.restart(infos, seed=seed)
    new = NodeBinder(infos, seed=seed)
    assert cluster.binder.bind(second) == new.bind(second)
    assert cluster.binder.preemptions == new.preemptions


def test_a_binder_that_begins_again_searches_many_nodes_in_the_new_order() -> None:
    """From a hundred nodes on, only some are scored, and each cycle continues where one ended."""
    nodes = [a_node(f"n{n:03}") for n in range(150)]
    binder = NodeBinder(map(NodeInfo, nodes))
    binder.bind([a_pod(f"before-{n}") for n in range(7)])
    infos = [NodeInfo(node) for node in reversed(nodes)]
    binder.restart(infos, seed=1)
    pods = [a_pod(f"after-{n}") for n in range(20)]
    assert binder.bind(pods) == NodeBinder(infos, seed=1).bind(pods)


@given(nodes=some_nodes(), first=some_pods(), second=some_pods("q"), data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_pod_may_be_placed_exactly_where_it_could_be_bound(
    nodes: list[Node], first: list[Pod], second: list[Pod], data: st.DataObject
) -> None:
    cluster = Cluster({node.name: node for node in nodes})
    cluster.binder.follow(cluster.infos())
    for pods in (first, second):
        for pod in pods:
            allowed = NodeBinder(cluster.infos()).scores(pod)
            node = data.draw(st.sampled_from(sorted(cluster.nodes)))
            assert cluster.binder.place(pod, node) == (node in allowed)
            if node in allowed:
                cluster.pods[pod.key] = (pod, node)
        for key in data.draw(st.sets(st.sampled_from(sorted(cluster.pods or {""})))):
            cluster.pods.pop(key, None)
        cluster.binder.follow(cluster.infos())


@given(nodes=some_nodes(), pods=some_pods(), seed=st.integers(0, 3))
@settings(max_examples=examples(300), deadline=None)
def test_no_node_is_overbooked_and_no_rule_is_broken(
    nodes: list[Node], pods: list[Pod], seed: int
) -> None:
    bound = a_binder(*nodes, seed=seed).bind(pods)
    on: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.key in bound:
            on.setdefault(bound[pod.key].name, []).append(pod)
    zones = Counter[tuple[str | None, str]]()
    for node in nodes:
        here = on.get(node.name, [])
        assert not here or not (node.spec.taints or node.spec.unschedulable)
        assert (
            sum(pod.requests().get("cpu", 0) for pod in here)
            <= int(node.status.allocatable["cpu"]) * 1000
        )
        zones.update((node.metadata.labels.get(ZONE), p.metadata.labels["app"]) for p in here)
    for pod in pods:
        if pod.spec.affinity == apart() and pod.key in bound:
            zone = bound[pod.key].metadata.labels.get(ZONE)
            own = pod.metadata.labels["app"] == "web"
            assert zone is None or zones[zone, "web"] == own


@given(nodes=some_nodes(), placed=some_pods("x"), pods=some_pods())
@settings(max_examples=examples(200), deadline=None)
def test_names_and_order_of_nodes_do_not_change_scores(
    nodes: list[Node], placed: list[Pod], pods: list[Pod]
) -> None:
    def named(node: Node, prefix: str) -> Node:
        metadata = replace(node.metadata, name=prefix + node.name)
        labels = {**metadata.labels, HOST: prefix + node.name}
        return replace(node, metadata=replace(metadata, labels=labels))

    rows = [(node, placed[n :: len(nodes)]) for n, node in enumerate(nodes)]
    renamed = [(named(node, "other-"), on) for node, on in reversed(rows)]
    for pod in pods:
        scores = a_binder(*rows).scores(pod)
        expected = {f"other-{name}": score for name, score in scores.items()}
        assert a_binder(*renamed).scores(pod) == expected


def test_the_seed_draws_each_of_equal_nodes_about_equally_often() -> None:
    nodes = [a_node(f"n{n}") for n in range(4)]
    drawn = Counter(
        a_binder(*nodes, seed=seed).bind([a_pod("p")])["shop/p"].name for seed in range(400)
    )
    assert set(drawn) == {"n0", "n1", "n2", "n3"}
    assert min(drawn.values()) > 60, drawn


def test_the_same_seed_draws_the_same_node_wherever_others_join() -> None:
    pod = a_pod("p")
    for seed in range(20):
        few = a_binder(*(a_node(f"n{n}") for n in range(4)), seed=seed).bind([pod])
        more = a_binder(*(a_node(f"n{n}") for n in range(5)), seed=seed).bind([pod])
        assert more["shop/p"].name in (few["shop/p"].name, "n4")


def test_a_large_cluster_is_searched_in_part_and_in_turn() -> None:
    """Of 200 nodes, 50 - 200 / 125 percent would be 98, but at least 100 are scored."""
    profile = with_fields(DEFAULT_PROFILE, weights={Plugin.NODE_RESOURCES_FIT: 1})
    nodes = [a_node(f"n{n}", cpu="4" if n < 100 else "8") for n in range(200)]
    binder = a_binder(*nodes, profile=profile)
    assert len(binder.scores(a_pod("p"))) == 100
    first, second = (binder.bind([a_pod(name)]) for name in ("p", "q"))
    assert first["shop/p"].status.allocatable["cpu"] == "4", "the first hundred"
    assert second["shop/q"].status.allocatable["cpu"] == "8", "those after them"
    complete = with_fields(profile, percentage_of_nodes_to_score=100)
    assert len(a_binder(*nodes, profile=complete).scores(a_pod("p"))) == 200


def test_pods_are_taken_by_priority_and_then_by_their_last_attempt() -> None:
    node, full = a_node("n"), [a_pod("full", "4")]
    binder = a_binder((node, full))
    assert not binder.bind([a_pod("a", "3"), a_pod("b", "3", priority=-1)])
    binder.follow([NodeInfo(node)])
    young, low = a_pod("young", "2"), a_pod("b", "1", priority=-1)
    assert list(binder.bind([low, young, a_pod("a", "2")])) == ["shop/a", "shop/young"]
