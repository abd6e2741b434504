"""Real plans of fleets with many NodePools, as in the pull request of a platform team."""

from __future__ import annotations

from functools import cache

from reconciler.plan.planning import plan_of
from reconciler.plan.value.plan import Plan
from tests.plan.test_planner import a_class, a_node, a_pod, a_pool, inputs

POOLS = 50


def _pool(number: int, **template: object) -> dict:
    pool = a_pool(
        f"team-{number:02}",
        disruption={"budgets": [{"nodes": "1"}], "consolidationPolicy": "WhenEmpty"},
    )
    pool["spec"]["template"]["spec"].update(template)
    return pool


def _types(*names: str) -> list[dict]:
    return [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(names)},
    ]


@cache
def the_same_change(pools: int = POOLS) -> Plan:
    """Return the plan of a change that drifts two nodes of every NodePool in the same way."""
    base = [_pool(n, requirements=_types("large")) for n in range(pools)]
    head = [_pool(n, requirements=_types("small", "medium")) for n in range(pools)]
    observed = [
        item
        for n in range(pools)
        for node in (f"node-{n:02}-a", f"node-{n:02}-b")
        for item in (*a_node(node, pool=f"team-{n:02}"), a_pod(f"{node}-pod", 500 + n, node))
    ]
    return plan_of(
        inputs(
            [*head, a_class()],
            [*base, *observed],
            base=[*base, a_class()],
            compared_with="base",
            observation="snapshot",
        )
    )


@cache
def pods_that_all_reject(pools: int = POOLS) -> Plan:
    """Return a plan with pods for one NodePool, too large for it, that the others do not take."""
    desired = [_pool(0)]
    for number in range(1, pools):
        taint = {"key": "team", "value": f"team-{number:02}", "effect": "NoSchedule"}
        desired.append(_pool(number, taints=[taint]))
    pods = [a_pod(f"train-{n}", 90_000 + n) for n in range(6)]
    return plan_of(inputs([*desired, a_class()], pods))
