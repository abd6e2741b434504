"""The first line of a plan, from which a reviewer decides."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.decision.changes import Change, FieldChange
from reconciler.model.decision.finding import PlanFinding
from reconciler.plan.render.headline import headline
from reconciler.plan.render.markdown import render_markdown
from reconciler.plan.render.sections.fleet import who_pays
from reconciler.plan.render.sections.pods import unschedulable_pods as unschedulable_section
from reconciler.plan.render.stuck import stuck_lines
from reconciler.plan.render.summary import summary_lines, summary_of
from reconciler.plan.render.text import render_text
from reconciler.plan.render.unplaced import pods_at_fault
from reconciler.plan.value.costs import (
    AtRest,
    Cost,
    FleetAtMaximum,
    ListCosts,
    PoolAtRest,
    PoolChange,
    PoolCost,
    StuckNode,
    combine_seeds,
)
from reconciler.plan.value.nodes import OfferedTypes, OffersChange, Reason, UnschedulablePod
from reconciler.plan.value.plan import JudgedPolicy, ObservationSource
from reconciler.plan.value.ranges import (
    CostDifference,
    CostSpan,
    CountSpan,
    FleetAtRest,
    FleetRange,
    NewFleet,
    NewFleets,
    new_fleets,
)
from reconciler.plan.value.shares import CostShares, ShareChange
from reconciler.render.cells import Dollars, Name, Text, ValueChange
from tests.plan.builders import a_plan

HOUR = 100 / 730
"""USD an hour that are $100 a month."""


CHANGED = (Change(kind="NodePool", name="web", op="update"),)


def change(before: float, after: float, nodes: tuple[int, int] = (4, 4), **more: Any) -> AtRest:
    """Return a change between two costs, in hundreds of dollars a month."""
    return AtRest(
        before=FleetAtRest(nodes=nodes[0], per_hour=before * HOUR),
        after=FleetAtRest(nodes=nodes[1], per_hour=after * HOUR),
        per_hour=(after - before) * HOUR,
        per_month=(after - before) * 100,
        rollout="PT0S",
        **more,
    )


def over_runs(*pairs: tuple[float, float]) -> AtRest:
    """Return a change over several runs, each with its two costs."""
    return combine_seeds([change(*pair) for pair in pairs])


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (change(1, 1), "This change has no effect on cost; 4 nodes."),
        (change(1, 3, (4, 6)), "This change: +$200/month in steady state; 4 → 6 nodes."),
        (over_runs((1, 1), (2, 2)), "This change has no effect on cost; 4 nodes."),
        (over_runs((1, 2), (1, 4)), "This change: +$200/month in steady state (+$100 to +$300 in 2 runs); 4 nodes."),
        (replace(over_runs((1, 2), (1, 4)), is_estimate=True), "This change: +$200/month in steady state (estimate: +$100 to +$300 in 2 runs); 4 nodes."),
        (over_runs((2, 1), (1, 2)), "This change has no effect on cost beyond chance (−$100 to +$100 in 2 runs); 4 nodes."),
        (change(1, 2, bounds=(0.0, 3 * HOUR)), "This change: about +$100/month, between $0 and +$300 (the search reached its work limit); 4 nodes."),
        (change(1, 1, unschedulable=("a/b", "a/c"), unschedulable_before=("a/c",)), "This change has no effect on cost; 4 nodes; 1 pod becomes unschedulable (1 → 2)."),
        (change(1, 1, unschedulable=("a/c",), unschedulable_before=("a/c",)), "This change has no effect on cost; 4 nodes; 1 pod stays unschedulable."),
        (change(1, 1, unschedulable_before=("a/c", "a/d")), "This change has no effect on cost; 4 nodes; 2 pods become schedulable (2 → 0)."),
        (change(1, 1, stuck=(StuckNode(node_claim="c", reason="Drifted", message="m"),)), "This change has no effect on cost; 4 nodes; 1 node cannot be replaced."),
    ],
)  # fmt: skip
def test_a_change_begins_with_its_cost_its_nodes_and_what_it_breaks(
    found: AtRest, line: str
) -> None:
    assert headline(a_plan(at_rest=found, changes=CHANGED)) == line


def test_list_prices_of_a_valuation_are_those_of_the_present_nodes() -> None:
    """New nodes may be of other types, which AWS bills otherwise."""
    finding = PlanFinding(severity="info", code="change-of-overlay", message="m")
    found = change(1, 1, new_nodes=later(1, 2), list_costs=ListCosts(before=HOUR, after=HOUR))
    line = headline(a_plan(at_rest=found, changes=CHANGED, diagnostics=(finding,)))
    assert "no effect at list prices while the present nodes last; 4 nodes." in line


def test_a_policy_that_forbids_the_change_is_in_the_first_line() -> None:
    policy = JudgedPolicy(name="cap", severity="error", result="failed", source="base")
    plan = a_plan(at_rest=change(1, 3), policies=(policy,))
    assert headline(plan).endswith("; 4 nodes; forbidden by policy cap.")


def waiting(code: str) -> tuple[UnschedulablePod, ...]:
    return (UnschedulablePod(pod="shop/web-0", reasons=(Reason(code=code, message="m"),)),)


def test_pods_that_no_new_node_can_take_are_no_pods_of_a_later_pass() -> None:
    plan = a_plan(at_rest=change(1, 1), unschedulable=waiting("TaintNotTolerated"))
    assert headline(plan) == (
        "This change has no effect on cost while the present nodes last; 4 nodes; "
        "1 pod becomes unschedulable once its node is gone."
    )
    assert (
        "1 pod runs only until its present node is gone, because no new node can take it: "
        "shop/web-0." in summary_lines(plan)
    )


def test_a_change_of_comments_says_that_no_object_changes() -> None:
    same = change(1, 1)
    plan = a_plan(at_rest=same)
    assert headline(plan) == "This change has no effect: no object of the fleet changes; 4 nodes."
    unread = PlanFinding(severity="warning", code="change-not-read", message="a chart")
    unknown = headline(a_plan(at_rest=same, diagnostics=(unread,)))
    assert unknown == ("This change has no effect on cost; 4 nodes; changed files not included.")


def test_pods_that_a_limit_delays_are_not_lost() -> None:
    plan = a_plan(at_rest=change(1, 1), unschedulable=waiting("LimitsExceeded"), changes=CHANGED)
    assert headline(plan) == "This change has no effect on cost; 4 nodes."


UNREAD = PlanFinding(severity="warning", code="change-not-included", message="not included")


@pytest.mark.parametrize(
    ("kinds", "line"),
    [
        (("Deployment",), "Cost unknown: only workloads change, and the pods are those observed."),
        (("Deployment", "NodePool"), "This change: +$200/month in steady state; 4 nodes; changed workloads not included."),
    ],
)  # fmt: skip
def test_changed_workloads_beside_a_cluster_are_not_free(kinds: tuple[str, ...], line: str) -> None:
    changes = tuple(Change(kind=kind, name="web", op="update") for kind in kinds)
    plan = a_plan(at_rest=change(1, 3), diagnostics=(UNREAD,), changes=changes)
    lines = summary_lines(plan)
    assert lines[0] == line
    assert "not included." in lines
    assert (summary_of(plan).per_month is None) is (len(kinds) == 1)


CLOSED = PlanFinding(severity="warning", code="change-blocks-evictions", message="blocked")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ((), "This change only limits evictions, and launches and removes no node by itself."),
        ((CLOSED,), "This change only limits evictions, and launches and removes no node by itself; 1 PodDisruptionBudget then allows no eviction."),
    ],
)  # fmt: skip
def test_a_change_of_budgets_beside_a_cluster_begins_with_what_it_does(
    more: tuple[PlanFinding, ...], line: str
) -> None:
    changes = (Change(kind="PodDisruptionBudget", name="web", op="update"),)
    plan = a_plan(at_rest=change(1, 1), diagnostics=(UNREAD, *more), changes=changes)
    assert summary_lines(plan)[0] == line


@pytest.mark.parametrize(
    ("costs", "what"),
    [
        (None, "as valued by NodeOverlays and not as billed"),
        (ListCosts(before=HOUR, after=2 * HOUR), "as valued by NodeOverlays; about +$100/month at list prices"),
        (ListCosts(before=HOUR, after=HOUR), "as valued by NodeOverlays; no effect at list prices"),
    ],
)  # fmt: skip
def test_a_change_of_overlays_begins_with_both_prices(costs: ListCosts | None, what: str) -> None:
    finding = PlanFinding(severity="info", code="change-of-overlay", message="values")
    found = replace(change(3, 1), list_costs=costs)
    line = headline(a_plan(at_rest=found, diagnostics=(finding,)))
    assert line == f"This change: −$200/month in steady state, {what}; 4 nodes."


def test_a_fleet_without_workloads_names_the_objects_whose_nodes_drift() -> None:
    drifting = FieldChange(path="spec.template.spec.taints", old=None, new="a", drifts=True)
    rows = (
        Change(kind="NodePool", name="web", op="update", fields=(drifting,)),
        Change(kind="NodePool", name="beside", op="update"),
    )
    plan = a_plan(at_rest=change(0, 0, (0, 0)), diagnostics=(NOBODY,), changes=rows)
    first, second = summary_lines(plan)
    assert first == (
        "Cost unknown: no workloads and no snapshot; the instance types of NodePools and their "
        "prices do not change."
    )
    assert second == (
        "Rollout: replaces the nodes of NodePool web that have drifted; how many is not known."
    )


NOBODY = PlanFinding(severity="warning", code="workloads-unknown", message="no workloads")


def test_unknown_is_not_zero() -> None:
    offers = OffersChange(
        before=OfferedTypes(types=348, cheapest="c6g.medium spot", per_vcpu=0.0131),
        after=OfferedTypes(types=12, cheapest="p5.4xlarge spot", per_vcpu=0.25),
    )
    plan = a_plan(at_rest=change(0, 0, (0, 0)), diagnostics=(NOBODY,), offers={"general": offers})
    (line,) = summary_lines(plan)
    assert line == (
        "Cost unknown: no workloads and no snapshot; NodePool general: 348 → 12 instance types, "
        "cheapest vCPU $9.56 → $182.50/month."
    )
    assert summary_of(plan).per_month is None
    assert summary_of(a_plan(at_rest=change(1, 2))).per_month == 100


def test_a_change_of_no_object_costs_nothing_whatever_the_fleet_costs() -> None:
    """A pull request that changes a README, or a template that nothing renders."""
    plan = a_plan(at_rest=change(0, 0, (0, 0)), diagnostics=(NOBODY,))
    assert summary_lines(plan) == ["This change has no effect: no object of the fleet changes."]
    assert summary_of(plan).per_month == 0


def test_nodes_of_unknown_workloads_are_not_counted_beside_an_invalid_base() -> None:
    invalid = PlanFinding(severity="warning", code="base-invalid", message="the base has no plan")
    lines = summary_lines(a_plan(diagnostics=(NOBODY, invalid)))
    assert lines == ["Cost unknown: no workloads and no snapshot."]


@pytest.mark.parametrize(
    ("op", "counts", "expected"),
    [
        ("delete", (1, 0), "NodePool general is deleted, with its nodes"),
        ("update", (1, 0), "NodePool general can launch no node any more"),
        (
            "create",
            (0, 12),
            "new NodePool general: 12 instance types, cheapest vCPU $146.00/month",
        ),
    ],
)
def test_what_becomes_of_a_node_pool_is_named(
    op: Any, counts: tuple[int, int], expected: str
) -> None:
    sides = [OfferedTypes(types=n, per_vcpu=0.2 if n else None) for n in counts]
    offers = OffersChange(before=sides[0], after=sides[1])
    plan = a_plan(
        at_rest=change(0, 0, (0, 0)), diagnostics=(NOBODY,), offers={"general": offers},
        changes=(Change(kind="NodePool", name="general", op=op),),
    )  # fmt: skip
    assert headline(plan) == f"Cost unknown: no workloads and no snapshot; {expected}."


@pytest.mark.parametrize(
    ("nodes", "what"),
    [(1, "its node is removed"), (2, "both nodes are removed"), (3, "all 3 nodes are removed")],
)
def test_a_fleet_without_node_pools_shows_no_state_in_which_it_still_has_nodes(
    nodes: int, what: str
) -> None:
    """Its nodes stay while their pods have no other, and cost nothing in the end."""
    shares = CostShares(
        by="namespace",
        groups={name: ShareChange(before=HOUR, after=HOUR / 2) for name in ("dev", "prod")},
    )
    pools = {
        "web": PoolChange(
            before=PoolAtRest(nodes=nodes, per_hour=2 * HOUR),
            after=PoolAtRest(nodes=1, per_hour=HOUR),
        )
    }
    emptied = PlanFinding(severity="warning", code="fleet-emptied", message="no NodePool any more")
    plan = a_plan(
        at_rest=change(2, 1, (nodes, 1), shares=shares, by_node_pool=pools),
        diagnostics=(emptied,),
        at_maximum=FleetAtMaximum(nodes=0, per_hour=0.0, unschedulable=("prod/web-1",)),
    )
    first, rollout = summary_lines(plan)
    assert first == (
        f"This change deletes every NodePool: {what}; −$200/month once the nodes are gone."
    )
    assert rollout.startswith("Rollout: a node is removed once its pods are gone")
    assert "steady state" not in render_markdown(plan)


OVERLAY = PlanFinding(severity="info", code="change-of-overlay", message="values nodes differently")
NEW = PlanFinding(severity="info", code="fleet-new", message="the fleet is new")


@pytest.mark.parametrize(
    ("found", "others", "line"),
    [
        (change(0, 3, (0, 4)), (), "4 nodes, $300/month in steady state."),
        (combine_seeds([change(0, 2, (0, 3)), change(0, 4, (0, 3))]), (),
         "3 nodes, $300/month in steady state ($200 to $400 in 2 runs)."),
        (change(0, 3, (0, 1), unschedulable=("web/a-1", "web/b-1")), (),
         "1 node, $300/month in steady state; 2 pods cannot be scheduled."),
        (change(0, 3, (0, 4), bounds=(2 * HOUR, 5 * HOUR)), (),
         "about 4 nodes, $200 to $500/month (the search reached its work limit)."),
        (change(0, 3, (0, 4), list_costs=ListCosts(before=0, after=5 * HOUR)), (OVERLAY,),
         "4 nodes, $300/month in steady state, as valued by NodeOverlays; about +$500/month at list prices."),
    ],
)  # fmt: skip
def test_a_new_fleet_begins_with_what_it_is(
    found: AtRest, others: tuple[PlanFinding, ...], line: str
) -> None:
    assert headline(a_plan(at_rest=found, diagnostics=(NEW, *others))) == f"New fleet: {line}"


TAINT = Reason(code="TaintNotTolerated", message="the pods do not tolerate team=a:NoSchedule")
LIMIT = Reason(code="LimitReached", message="NodePool web has reached its limits")


@pytest.mark.parametrize(
    ("reasons", "why"),
    [
        ([(TAINT,), (TAINT,)], " Reason: the pods do not tolerate team=a:NoSchedule."),
        ([(TAINT,), (LIMIT,)], ""),
        ([(TAINT, LIMIT), (TAINT,)], ""),
    ],
)
def test_pods_that_a_change_breaks_for_one_reason_have_it_beside_them(
    reasons: list[tuple[Reason, ...]], why: str
) -> None:
    waiting = tuple(
        UnschedulablePod(pod=f"web/{name}-9", reasons=each)
        for name, each in zip(("api", "db"), reasons, strict=True)
    )
    broken = change(1, 1, unschedulable=("web/api-1", "web/db-1"))
    plan = a_plan(at_rest=broken, unschedulable=waiting)
    assert summary_lines(plan)[1] == (
        f"2 pods cannot be scheduled because of this change: web/api-1, web/db-1.{why}"
    )
    other = change(1, 1, unschedulable=("web/api-1", "web/gone-1"))
    assert "team=a" not in summary_lines(a_plan(at_rest=other, unschedulable=waiting))[1]


def test_the_first_pass_is_not_beside_the_steady_state() -> None:
    """It also does what is due without the change, and would contradict the headline."""
    pools = {"web": PoolCost(nodes_before=2, nodes_after=2, before=0.2, after=0.2)}
    cost = Cost(before=0.2, after=0.2, by_node_pool=pools)
    for given in ({"cost": cost}, {}):
        lines = summary_lines(a_plan(at_rest=change(1, 3, (2, 4)), **given))
        assert not [line for line in lines if "now" in line or "First pass" in line]


def test_the_lower_bound_of_a_change_is_compared_with_its_steady_state() -> None:
    cost = Cost(before=0.0, after=9.0, lower_bound=HOUR, bound_gap=5.0, bound_held_by="PodRules")
    assert summary_lines(a_plan(at_rest=change(1, 3), cost=cost))[-1] == (
        "Lower bound for these pods: $100/month; the steady state: 3.0 times that because of "
        "topology spread and (anti-)affinity."
    )


def test_nodes_that_could_not_be_launched_again_are_not_compared_with_the_lower_bound() -> None:
    cost = Cost(before=0.0, after=9.0, lower_bound=5 * HOUR, bound_gap=1.0, bound_held_by="Packing")
    lines = summary_lines(a_plan(at_rest=change(1, 3), cost=cost))
    assert not [line for line in lines if "ower bound" in line]


def test_the_run_closest_to_the_means_describes_the_change() -> None:
    runs = [change(1, 1, (4, n), stuck=(), replaced=n, unschedulable=(f"a/{n}",)) for n in (9, 5)]
    found = combine_seeds([*runs, change(1, 1, (4, 4), replaced=4)])
    assert found.range == FleetRange(
        seeds=3,
        nodes=CountSpan(low=4, mean=6.0, high=9),
        per_hour=CostSpan(low=HOUR, mean=HOUR, high=HOUR),
    )
    assert found.difference == CostDifference(low=0.0, mean=0.0, high=0.0, beyond_chance=False)
    assert (found.replaced, found.unschedulable) == (5, ("a/5",)), "as its numbers of nodes"


def test_every_amount_is_the_difference_of_those_beside_it() -> None:
    """The headline, the NodePools and the workloads of one comment must not disagree by a dollar."""
    costs = ShareChange(before=1.954 * HOUR, after=1.586 * HOUR)  # $195.4 → $158.6: −$36.8
    side = [PoolAtRest(nodes=4, per_hour=cost) for cost in (costs.before, costs.after)]
    found = change(
        1.954, 1.586,
        shares=CostShares(by="workload", groups={"web/api": costs, "web/db": ShareChange(after=HOUR / 20)}),
        by_node_pool={"web": PoolChange(before=side[0], after=side[1])},
    )  # fmt: skip
    comment = render_markdown(a_plan(at_rest=found))
    assert comment.count("&#36;195 → &#36;159") == 2
    assert comment.count("−&#36;36") == 3
    assert "&#36;37" not in comment


def later(before: float, *after: float, **lost: Any) -> NewFleets:
    """Return what new nodes cost on both sides, in hundreds of dollars a month."""
    base = NewFleet(fleet=FleetAtRest(nodes=4, per_hour=before * HOUR))
    return new_fleets(
        [(base, NewFleet(fleet=FleetAtRest(nodes=4, per_hour=x * HOUR), **lost)) for x in after]
    )


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (change(1, 1, new_nodes=later(1, 1)), "This change has no effect on cost; 4 nodes."),
        (change(1, 3, new_nodes=later(1, 3)), "This change: +$200/month in steady state; 4 nodes."),
        (change(1, 1, new_nodes=later(1, 2, 4)), "This change has no effect on cost until nodes are replaced, then +$200/month (estimate, with new nodes for all pods at once: +$100 to +$300 in 2 runs); 4 nodes."),
        (change(1, 1, new_nodes=later(1, 2, 4), replaced=4), "This change has no effect on cost until the nodes are next replaced, then +$200/month (estimate, with new nodes for all pods at once: +$100 to +$300 in 2 runs); 4 nodes."),
        (change(1, 3, new_nodes=later(1, 1)), "This change: +$200/month in steady state until the nodes are next replaced, then no effect; 4 nodes."),
        (change(1, 3, new_nodes=later(1, 5)), "This change: +$200/month in steady state until the nodes are next replaced, then +$400/month (estimate, with new nodes for all pods at once); 4 nodes."),
        (change(1, 2, new_nodes=later(1, 1.5, 2.5)), "This change: +$100/month in steady state; 4 nodes."),
        (change(100, 100, new_nodes=later(100, 100.5)), "This change has no effect on cost; 4 nodes."),
        (change(1, 1, new_nodes=later(1, 0, unschedulable=("a/b",))), "This change has no effect on cost while the present nodes last; 4 nodes; 1 pod becomes unschedulable once its node is gone."),
    ],
)  # fmt: skip
def test_what_later_nodes_cost_is_stated_where_it_is_another_amount(
    found: AtRest, line: str
) -> None:
    assert headline(a_plan(at_rest=found, changes=CHANGED)) == line


@pytest.mark.parametrize(
    ("first_pass", "stranded", "shown"),
    [
        ("shop/ledger-2", "shop/ledger-0", "shop/ledger-0"),
        ("shop/ledger-2", "shop/other-0", "shop/ledger-2"),
        ("shop/one", "shop/two", "shop/one"),
    ],
)
def test_the_section_names_the_pod_of_the_headline(
    first_pass: str, stranded: str, shown: str
) -> None:
    reason = Reason(node_pool="web", code="TaintNotTolerated", message="the taint")
    plan = a_plan(
        unschedulable=(UnschedulablePod(pod=first_pass, reasons=(reason,)),),
        at_rest=change(1, 1, new_nodes=later(1, 0, unschedulable=(stranded,))),
    )
    section = unschedulable_section(plan)
    assert section is not None
    assert section.rows[0].cells[0] == Name(shown)


def test_a_pod_that_a_limit_keeps_from_new_nodes_is_named_and_fails_a_job() -> None:
    lost = later(1, 0, unschedulable=("a/b", "a/c"), limited=("a/c",))
    plan = a_plan(at_rest=change(1, 1, new_nodes=lost))
    lines = summary_lines(plan)
    assert (
        "1 pod runs only until its present node is gone, because of the limits of NodePools: a/c."
        in lines
    )
    assert pods_at_fault(plan) == ["a/b", "a/c"]
    assert "2 pods become unschedulable once their nodes are gone" in lines[0]


def test_a_run_that_loses_fewer_pods_than_another_decides_what_is_lost() -> None:
    base = NewFleet(fleet=FleetAtRest(nodes=1, per_hour=1.0), unschedulable=("a/x",))
    heads = [
        NewFleet(fleet=FleetAtRest(nodes=1, per_hour=1.0), unschedulable=names, limited=names)
        for names in (("a/b", "a/c", "a/x"), ("a/c", "a/y"))
    ]
    found = new_fleets([(base, head) for head in heads])
    assert found.unschedulable == ("a/c",)
    assert found.limited == ("a/c",)


RISKS = [
    PlanFinding(severity="info", code="change-of-overlay", message="overlay"),
    PlanFinding(severity="warning", code="change-never-disrupts", message="closed"),
    PlanFinding(severity="warning", code="change-blocks-evictions", message="blocked"),
]


def test_what_is_wrong_with_a_changed_object_is_listed_and_with_others_not() -> None:
    rows = (Change(kind="NodePool", name="web", op="update", file="web.yaml"),)
    short = PlanFinding(
        severity="warning", code="short-expiry", message="nodes are replaced",
        file="web.yaml", line=7, path="spec.template.spec.expireAfter",
    )  # fmt: skip
    others = (
        replace(short, file="other.yaml"),
        PlanFinding(severity="warning", code="overlay-gate-off", message="the gate is off"),
    )
    bounded = change(1, 3, bounds=(0.0, 3 * HOUR))
    lines = summary_lines(a_plan(at_rest=bounded, diagnostics=(short, *others), changes=rows))
    assert "nodes expire before the fleet settles" in lines[0]
    assert lines[2:] == ["web.yaml:7: expireAfter: nodes are replaced."]


def test_what_a_change_brings_about_later_is_listed_below_the_first_line() -> None:
    lines = summary_lines(a_plan(at_rest=change(1, 3), diagnostics=tuple(RISKS)))
    assert lines[0] == (
        "This change: +$200/month in steady state, as valued by NodeOverlays and not as billed; 4 nodes."
    )
    assert lines[2:5] == ["closed.", "blocked.", "overlay."]
    more = (*RISKS, *(RISKS[2:] * 3))
    assert "And 2 more (see the notes)." in summary_lines(
        a_plan(at_rest=change(1, 3), diagnostics=more)
    )


def test_a_comment_states_each_finding_once() -> None:
    """The notes repeated what the list below the first line had stated."""
    five = [
        PlanFinding(severity="warning", code="change-of-budgets", message=f"risk {n}")
        for n in range(5)
    ]
    hinted = PlanFinding(
        severity="warning", code="change-never-disrupts", message="closed", hint="open it"
    )
    note = PlanFinding(severity="info", code="catalog", message="types are bundled")
    plan = a_plan(at_rest=change(1, 3), diagnostics=(*five, hinted, note))
    for text in (render_markdown(plan), render_text(plan)):
        for finding in plan.diagnostics:
            assert text.count(finding.message) == 1, finding.message
        assert "closed (open it)." in text
        assert "And 2 more (see the notes)." in text


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        (["a"], "1 node of deleted NodePool a stays until its removal is allowed."),
        (["a", "a"], "2 nodes of deleted NodePool a stay until their removal is allowed."),
        (["a", "b"], "2 nodes of deleted NodePools stay until their removal is allowed."),
    ],
)
def test_nodes_of_a_deleted_node_pool_are_kept_and_not_drifted(
    pools: list[str], words: str
) -> None:
    kept = tuple(
        StuckNode(node_claim=f"c{n}", node_pool=pool, reason="NodePoolDeleted", message="m")
        for n, pool in enumerate(pools)
    )
    assert headline(a_plan(at_rest=change(1, 1, stuck=kept))).endswith(f"; {words}")


def test_another_region_says_which_pods_it_strands() -> None:
    region = PlanFinding(severity="warning", code="region-changed", message="moves")
    lost = change(2, 0, unschedulable=("shop/a",))
    text = headline(a_plan(at_rest=lost, diagnostics=(region,)))
    assert text.startswith("This change sets another region; new nodes for all pods there: ")
    assert "1 pod becomes unschedulable (0 → 1)" in text


def test_replacements_are_unknown_where_images_were_not_looked_up() -> None:
    unknown = PlanFinding(severity="warning", code="selection-unknown", message="not looked up")
    lines = summary_lines(a_plan(at_rest=change(1, 1), diagnostics=(unknown,)))
    assert lines[0].endswith("; 4 nodes; which nodes it replaces is unknown.")
    assert lines[1] == "Rollout: not looked up."


@pytest.mark.parametrize(
    ("observation", "nodes", "is_unknown"),
    [("workloads", 0, True), ("workloads", 1, False), ("snapshot", 0, False)],
)
def test_a_change_of_a_node_pool_without_known_pods_is_not_free(
    observation: ObservationSource, nodes: int, is_unknown: bool
) -> None:
    offers = OffersChange(before=OfferedTypes(types=4), after=OfferedTypes(types=2))
    side = PoolAtRest(nodes=nodes, per_hour=0.1 * nodes)
    plan = a_plan(
        at_rest=change(1, 1, by_node_pool={"gpu": PoolChange(before=side, after=side)}),
        offers={"gpu": offers},
        observation=observation,
    )
    line = "NodePool gpu: 4 → 2 instance types; no pod of the files runs there, so its cost is unknown."
    assert (line in summary_lines(plan)) is is_unknown
    first_pass = Cost(before=0.0, after=1.0, by_node_pool={"gpu": PoolCost(nodes_after=1)})
    assert line not in summary_lines(replace(plan, cost=first_pass))


def test_other_replicas_of_a_workload_that_wait_are_not_more_pods() -> None:
    """Which replicas have no node is chance; they counted as pods that lose their place later."""
    lost = NewFleet(
        fleet=FleetAtRest(nodes=4, per_hour=HOUR),
        unschedulable=("web/api-3", "web/api-4", "web/api-5", "web/db-0"),
    )
    new = new_fleets([(NewFleet(fleet=FleetAtRest(nodes=4, per_hour=HOUR)), lost)])
    waiting = ("web/api-7c9d8f4b6-x", "web/api-1", "web/api-3")
    plan = a_plan(
        at_rest=change(1, 1, unschedulable=waiting, new_nodes=new),
        unschedulable=tuple(UnschedulablePod(pod=p, reasons=(TAINT,)) for p in lost.unschedulable),
    )
    assert "; 1 pod becomes unschedulable once its node is gone" in headline(plan)
    section = unschedulable_section(plan)
    assert section is not None
    assert section.note == "3 pods cannot be scheduled, and 1 more once its node is gone"


def test_amounts_that_differ_by_chance_are_marked_and_nobody_pays_for_them() -> None:
    """ "No effect beyond chance" stood above a table in which a workload paid $14 more."""
    shares = CostShares(
        by="workload",
        groups={"a/b": ShareChange(after=HOUR), "a/c": ShareChange(after=HOUR / 10)},
    )
    pools = {"web": PoolChange(before=PoolAtRest(nodes=4), after=PoolAtRest(nodes=4))}
    changes = [change(2, to, shares=shares, by_node_pool=pools) for to in (1, 4)]
    chance, sure = (
        render_markdown(a_plan(at_rest=combine_seeds(c)))
        for c in (changes, changes[1:] * 2 + [change(2, 3, shares=shares, by_node_pool=pools)])
    )
    assert "(base → head; costs are means of 2 runs and differ by chance)" in chance
    assert "Cost by workload" not in chance
    assert "(base → head; costs are means of 3 runs)" in sure
    assert "Cost by workload" in sure


def test_a_single_payer_is_left_out() -> None:
    """A list of one entry, and a table of one row, repeated the amount of the headline."""
    groups = {"a/b": ShareChange(after=HOUR), "a/c": ShareChange(before=1.0, after=1.0)}
    found = change(2, 4, shares=CostShares(by="workload", groups=groups))
    comment = render_markdown(a_plan(at_rest=found))
    assert "By workload" not in comment
    assert "Cost by workload" not in comment


def test_workloads_that_are_not_listed_are_one_row_with_their_sum() -> None:
    """The table ended after 20 of 104 workloads, and the rest of the change was nowhere."""
    groups = {f"a/w{n:02}": ShareChange(before=1.0, after=float(n)) for n in range(3, 33)}
    groups["a/same"] = ShareChange(before=1.0, after=1.0)
    shares = CostShares(by="workload", groups=groups)
    section = who_pays(a_plan(at_rest=change(2, 4, shares=shares)))

    assert section is not None
    assert [row.cells[0] for row in section.rows[:2]] == [Name("a/w32"), Name("a/w31")]
    assert len(section.rows) == 21
    hours = sum(range(3, 13)) + 1.0
    assert section.rows[-1].cells == (
        Text("11 others"),
        ValueChange(Dollars(11.0, per_month=True), Dollars(hours, per_month=True)),
        Dollars(hours - 11, signed=True, per_month=True),
    )
    few = CostShares(by="workload", groups=dict(list(groups.items())[:20]))
    section = who_pays(a_plan(at_rest=change(2, 4, shares=few)))
    assert section is not None
    assert len(section.rows) == 20


def test_a_job_fails_on_what_the_change_breaks() -> None:
    known = change(1, 1, unschedulable=("a/b", "a/c"), unschedulable_before=("a/c",))
    assert pods_at_fault(a_plan(at_rest=known)) == ["a/b"]
    taken = a_plan(at_rest=change(1, 1), unschedulable=waiting("TaintNotTolerated"))
    assert pods_at_fault(taken) == ["shop/web-0"]
    assert pods_at_fault(a_plan(unschedulable=waiting("LimitsExceeded"))) == ["shop/web-0"]


def test_present_nodes_that_drift_are_named_where_the_steady_state_has_none_of_them() -> None:
    """ "No node is replaced" stood above "4 nodes drifted" and the replacement of the first."""
    fields = (FieldChange(path="spec.template", old=1, new=2, drifts=True),)
    row = Change(kind="NodePool", name="web", op="update", fields=fields, drifted=("a", "b"))
    lines = summary_lines(a_plan(at_rest=change(1, 1), changes=(row,)))
    assert lines[1] == (
        "Rollout: 2 present nodes have drifted, and are replaced unless consolidation removes them "
        "first; from the steady state, no node is replaced, added or removed."
    )
    assert summary_lines(a_plan(at_rest=change(1, 1)))[1].startswith("Rollout: no node is")


def test_nodes_that_do_not_exist_yet_have_no_name() -> None:
    """A comment named nodes that were only part of the simulation."""
    stuck = tuple(
        StuckNode(node_claim=f"c{n}", node=f"n{n}", reason="Drifted", message="m", is_new=n > 1)
        for n in range(4)
    )
    lines = stuck_lines(stuck, "snapshot")
    assert lines == [
        "4 drifted nodes cannot be replaced: n0, n1 and 2 nodes launched until then (m)."
    ]
    assert stuck_lines(stuck[2:], "snapshot") == [
        "2 drifted nodes cannot be replaced: 2 nodes launched until then (m)."
    ]


def test_a_table_on_a_terminal_says_what_its_numbers_are_of() -> None:
    """Its columns alone did not show that they were those of the steady state."""
    pools = {"web": PoolChange(before=PoolAtRest(nodes=4), after=PoolAtRest(nodes=4))}
    found = change(1, 2, by_node_pool=pools)
    lines = render_text(a_plan(at_rest=found)).splitlines()
    assert "NodePools in steady state (base → head)" in lines
    many = combine_seeds([change(2, to, by_node_pool=pools) for to in (1, 4)])
    wide = render_text(a_plan(at_rest=many), width=60).splitlines()
    title = wide.index("NodePools in steady state")
    assert wide[title + 1].startswith("(base → head; costs are means of 2 runs")
