"""The cost of nodes, divided among the pods on them: nothing is lost, and nothing is invented."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.grouping import BY_NAMESPACE, Grouping
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference
from reconciler.model.kubernetes.pod import Container, Pod, PodSpec, ResourceRequirements
from reconciler.observed.allocation import (
    NodeCost,
    allocate,
    group_costs,
    weight,
    workload_key,
    workload_of,
)
from tests.examples import examples

_NODE = {"cpu": 4_000, "memory": 16 * 2**30 * 1000, "pods": 100_000}


def a_pod(
    name: str = "api-0",
    namespace: str = "shop",
    labels: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    requests: dict[str, str | int | float] | None = None,
) -> Pod:
    owners = (
        (OwnerReference(api_version="apps/v1", kind=owner[0], name=owner[1], controller=True),)
        if owner
        else ()
    )
    return Pod(
        metadata=Metadata(
            name=name, namespace=namespace, labels=labels or {}, owner_references=owners
        ),
        spec=PodSpec(
            containers=(Container(resources=ResourceRequirements(requests=requests or {})),)
        ),
    )


def a_node(nanodollars: int, *weights: tuple[Pod, int], pool: str = "web") -> NodeCost:
    return NodeCost(pool, nanodollars, [(workload_key(pod), share) for pod, share in weights])


_pods = st.builds(
    a_pod,
    name=st.sampled_from(["a", "b", "c"]),
    namespace=st.sampled_from(["shop", "search"]),
    labels=st.dictionaries(st.sampled_from(["team", "app"]), st.sampled_from(["x", "y"])),
)
_nodes = st.builds(
    NodeCost,
    st.sampled_from(["web", "batch"]),
    st.integers(0, 10**12),
    st.lists(st.tuples(_pods.map(workload_key), st.integers(1, 10**12)), max_size=6),
)


@settings(max_examples=examples(200))
@given(st.lists(_nodes, max_size=6), st.sampled_from(["namespace", "workload", "label=team"]))
def test_the_parts_add_up_to_the_fleet_exactly(nodes: list[NodeCost], by: str) -> None:
    whole = sum(node.nanodollars for node in nodes)
    rows = allocate(nodes)
    groups = group_costs(rows, Grouping.from_text(by))

    assert sum(row.nanodollars for row in rows) == whole
    assert sum(group.nanodollars for group in groups) == whole
    assert sum(row.pods for row in rows) == sum(len(node.weights) for node in nodes)
    assert all(0 <= row.idle <= row.nanodollars for row in rows)


@settings(max_examples=examples(100))
@given(st.lists(_nodes, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_pods_does_not_matter(nodes: list[NodeCost], random: object) -> None:
    shuffled = [NodeCost(n.node_pool, n.nanodollars, list(n.weights)) for n in nodes]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for node in shuffled:
        random.shuffle(node.weights)  # type: ignore[attr-defined]

    assert allocate(shuffled) == allocate(nodes)


@pytest.mark.parametrize(
    ("requests", "share"),
    [
        ({"cpu": "1", "memory": "2Gi"}, 0.25),
        ({"cpu": "1", "memory": "12Gi"}, 0.75),
        ({}, 0.01),
        ({"cpu": "9"}, 1.0),
        ({"example.com/device": "1"}, 0.01),
    ],
)
def test_a_pod_weighs_the_largest_share_that_it_requests(
    requests: dict[str, str | int | float], share: float
) -> None:
    assert weight(a_pod(requests=requests), _NODE) == share * 10**12


def test_idle_capacity_is_paid_in_proportion_to_requests() -> None:
    node = a_node(100, (a_pod(), 10**12 // 2), (a_pod(namespace="search"), 10**12 // 4), pool="web")

    shop, search = group_costs(allocate([node]), BY_NAMESPACE)

    assert (shop.name, shop.nanodollars, shop.idle) == ("shop", 67, 17)
    assert (search.name, search.nanodollars, search.idle) == ("search", 33, 8)


def test_a_node_without_pods_is_paid_by_its_node_pool_and_else_by_the_fleet() -> None:
    nodes = [
        a_node(100, (a_pod(), 1), pool="web"),
        a_node(300, (a_pod(namespace="search"), 1), pool="batch"),
        a_node(50, pool="web"),
        a_node(400, pool="gpu"),
    ]

    costs = {g.name: g.nanodollars for g in group_costs(allocate(nodes), BY_NAMESPACE)}

    # 400 for the GPU node, divided 1 : 3 like the cost of the other nodes
    assert costs == {"shop": 100 + 50 + 100, "search": 300 + 300}


def test_nodes_that_nobody_uses_stay_a_part_of_their_own() -> None:
    (row,) = allocate([a_node(70), a_node(30)])

    assert (row.workload, row.nanodollars, row.idle) == ("", 100, 100)


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        (None, {}, "Pod shop/api-0"),
        (("StatefulSet", "db"), {}, "StatefulSet shop/db"),
        (("ReplicaSet", "api-5d9"), {"pod-template-hash": "5d9"}, "Deployment shop/api"),
        (("ReplicaSet", "api-5d9"), {}, "ReplicaSet shop/api-5d9"),
        (("Job", "report-29384720"), {}, "CronJob shop/report"),
        (("Job", "migrate"), {}, "Job shop/migrate"),
    ],
)
def test_pods_belong_to_what_people_have_written(
    owner: tuple[str, str] | None, labels: dict[str, str], expected: str
) -> None:
    assert workload_of(a_pod(owner=owner, labels=labels)) == expected


def test_pods_of_all_revisions_of_a_workload_are_one_row() -> None:
    old, new = (
        a_pod(
            owner=("ReplicaSet", f"api-{digest}"),
            labels={"pod-template-hash": digest, "team": "shop"},
        )
        for digest in ("5d9", "7f8")
    )

    (row,) = allocate([a_node(10, (old, 1), (new, 1))])

    assert (row.pods, row.labels) == (2, (("team", "shop"),))


def test_pods_without_the_label_are_a_group_of_their_own() -> None:
    node = a_node(10, (a_pod(labels={"team": "pay"}), 1), (a_pod(), 1))

    groups = group_costs(allocate([node]), Grouping.from_text("label=team"))

    assert [group.name for group in groups] == ["(no label team)", "pay"]


@pytest.mark.parametrize("text", ["", "team", "label=", "label", "namespace=x", "Namespace"])
def test_other_groupings_are_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(ValueError, match="use namespace, workload or label=KEY"):
        Grouping.from_text(text)


@pytest.mark.parametrize("text", ["namespace", "workload", "label=app.kubernetes.io/name"])
def test_a_grouping_is_written_as_it_is_read(text: str) -> None:
    assert str(Grouping.from_text(text)) == text
