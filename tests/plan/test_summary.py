"""The sentence about the gap to the minimum cost of new nodes."""

# ruff: noqa: E501 - a case reads best on one line

import pytest
from msgspec.structs import replace

from reconciler.plan.render.sections.gap import constraint_costs
from reconciler.plan.render.stuck import stuck_lines
from reconciler.plan.render.summary import summary_lines
from reconciler.plan.value.costs import AtRest, Cost, GapCost, PlannedGap, StuckNode
from reconciler.plan.value.ranges import FleetAtRest
from reconciler.render.cells import Text
from tests.plan.builders import a_plan


@pytest.mark.parametrize(
    ("bound", "gap", "held", "message"),
    [
        (None, None, None, None),
        (0.5, None, None, None),
        (0.5, 0.0, None, "This is already the cheapest possible set of nodes."),
        (0.5, 0.04, "PodRules", "Lower bound for these pods: $365/month; this plan: 4% more."),
        (0.5, 1.42, "Packing", "Lower bound for these pods: $365/month; this plan: 2.4 times that. `reconciler advise` finds what would lower it."),
        (0.5, 0.3, "PodRules", "Lower bound for these pods: $365/month; this plan: 30% more because of topology spread and (anti-)affinity."),
    ],
)  # fmt: skip
def test_the_summary_shows_the_gap_to_the_minimum_cost(
    bound: float | None, gap: float | None, held: str | None, message: str | None
) -> None:
    cost = Cost(before=0.0, after=1.0, lower_bound=bound, bound_gap=gap, bound_held_by=held)
    assert summary_lines(a_plan(cost=cost))[1:] == ([message] if message else [])


def stuck(*messages: str) -> str:
    """Return the line on nodes that are stuck, each for one of the messages."""
    fleet = FleetAtRest(nodes=len(messages), per_hour=1.0)
    nodes = tuple(
        StuckNode(node_claim=f"c{n}", node=f"n{n}", reason="Drifted", message=text)
        for n, text in enumerate(messages, 1)
    )
    change = AtRest(before=fleet, after=fleet, per_hour=0.0, per_month=0.0, stuck=nodes)
    (line,) = (one for one in summary_lines(a_plan(at_rest=change)) if "drifted node" in one)
    return line


def test_nodes_that_are_stuck_for_one_reason_are_named_together() -> None:
    assert stuck("a") == "1 drifted node cannot be replaced: n1 (a)."
    assert stuck("a", "b", "a") == "3 drifted nodes cannot be replaced: n1, n3 (a); n2 (b)."


def test_nodes_that_exist_only_in_a_plan_from_files_are_described_by_their_node_pool() -> None:
    nodes = [
        StuckNode(node_claim=f"c{n}", node=f"n{n}", node_pool=pool, reason="Expired", message="why")
        for n, pool in enumerate(["web", "web", "batch"])
    ]
    assert stuck_lines(nodes, "cluster") == ["3 nodes cannot be removed: n0, n1, n2 (why)."]
    (line,) = stuck_lines(nodes, "workloads")
    assert line == "3 nodes cannot be removed: 2 of NodePool web, 1 of NodePool batch (why)."
    nodes = [replace(nodes[0], node_claim=f"c{n}") for n in range(5)]
    assert stuck_lines(nodes, "workloads") == ["5 nodes of NodePool web cannot be removed: why."]


def test_the_most_expensive_constraint_costs_what_the_table_of_all_shows() -> None:
    """The dollars of $28.40, $28.30 and $28.30/month add up to $85: the first is shown as $29."""
    costs = tuple(
        GapCost(constraint=f"c{n}", owner="", price_per_hour=month / 730, change="drop it")
        for n, month in enumerate((28.4, 28.3, 28.3))
    )
    gap = PlannedGap(
        pods=1, unschedulable=0, price_per_hour=99.6 / 730, lower_bound=14.6 / 730,
        minimum=14.6 / 730, limited=False, costs=costs,
    )  # fmt: skip
    cost = Cost(
        before=0.0, after=99.6 / 730, lower_bound=14.6 / 730, bound_gap=6.0, bound_held_by="Packing"
    )
    plan = a_plan(cost=cost, gap=gap)
    table = constraint_costs(plan)
    assert table is not None
    (line,) = (line for line in summary_lines(plan) if "Largest avoidable part" in line)
    assert table.rows[0].cells[0] == Text("$29")
    assert "Largest avoidable part: c0, $29/month" in line


def test_reasons_that_differ_only_in_a_pod_of_a_workload_are_one() -> None:
    first, second, other = (
        f"not all pods would schedule, {pod} => does not tolerate the taint a/b-c=x:NoSchedule"
        for pod in ("web/api-00001", "web/api-0000a", "web/db-0")
    )
    assert stuck(first, second) == (
        "2 drifted nodes cannot be replaced: web/api-* do not tolerate the taint "
        "a/b-c=x:NoSchedule."
    )
    assert stuck(first, other) == (
        "2 drifted nodes cannot be replaced: web/api-*, web/db-* do not tolerate the taint "
        "a/b-c=x:NoSchedule."
    )


def test_every_reason_of_several_pods_is_about_several() -> None:
    reasons = "does not tolerate the taint a=b:NoSchedule; requires the label team"
    line = stuck(
        *(f"not all pods would schedule, web/api-{number} => {reasons}" for number in range(2))
    )
    assert line.endswith(
        "web/api-* do not tolerate the taint a=b:NoSchedule; require the label team."
    )


def test_a_reason_about_a_pod_follows_its_name() -> None:
    line = stuck("not all pods would schedule, a/b-0 => requires the label team; no room")
    assert line.endswith("a/b-* requires the label team; no room.")


def test_the_pods_of_a_file_and_those_that_replace_them_are_one_workload() -> None:
    old, new = (f"not all pods would schedule, {pod} => no room" for pod in ("a/b-0", "a/b-x9z-q1"))
    assert stuck(old, new) == "2 drifted nodes cannot be replaced: a/b-*: no room."


def test_replicas_of_one_workload_are_named_once_whatever_their_domains() -> None:
    said = "not all pods would schedule, shop/{} => no zone satisfies the spread ({}) of NodePool a"
    found = stuck(
        said.format("web-00001", "us-east-1a: 4, us-east-1b: 3"),
        said.format("web-kkj5zvm-00002", "us-east-1a: 3, us-east-1b: 3"),
    )
    assert found == (
        "2 drifted nodes cannot be replaced: shop/web-*: no zone satisfies the spread of NodePool a."
    )


def test_a_cut_list_of_stuck_nodes_names_where_all_of_it_is() -> None:
    everything = "`-o json` lists everything."
    assert (
        stuck(*"aaaaa")
        == f"5 drifted nodes cannot be replaced: n1, n2, n3 and 2 more (a). {everything}"
    )
    assert stuck(*"abcdd").endswith(f"n3 (c); and 2 more. {everything}")
    assert stuck("x" * 500).endswith(f"…). {everything}")
