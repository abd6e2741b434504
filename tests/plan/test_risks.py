"""What a change brings about later: closed budgets, blocked evictions, moving images, overlays."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.model.settings import FeatureGate, Settings
from reconciler.plan.make.inputs import RevisionPair
from reconciler.plan.planning import plan_of
from reconciler.plan.rest.compare import compare_new_nodes
from tests.engine.world import a_deployment, a_pool, catalog_file
from tests.plan.test_rest import FREE, OTHER, SMALL, a_budget, inputs_of

Objects = list[dict[str, Any]]
WEB = a_deployment("web", "web", 4)
OVERLAID = Settings(fleet="test", feature_gates={FeatureGate.NODE_OVERLAY: True})


def risks(base: Objects, head: Objects, **given: Any) -> dict[str, str]:
    """Return the messages about what a change brings about later, by code."""
    from msgspec.structs import replace

    before = inputs_of(base, **given)
    objects = tuple(r.data for r in before.fleet.resources)
    inputs = replace(inputs_of(head, **given), against=before, base=objects, compared_with="base")
    plan = plan_of(inputs)
    return {f.code: f.message for f in plan.diagnostics if f.code.startswith("change-")}


def overlay(**spec: Any) -> dict[str, Any]:
    requirement = {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": ["m7i.large"],
    }
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "plan"},
        "spec": {"requirements": [requirement], **spec},
    }


def pool(**more: Any) -> dict[str, Any]:
    return a_pool("web", template=SMALL, **{"budgets": FREE, **more})


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ({"budgets": FREE}, {"budgets": [{"nodes": "0"}]}, True),
        ({"budgets": FREE}, {"budgets": [{"nodes": "0%"}, {"nodes": "10%"}]}, True),
        ({"budgets": [{"nodes": "0"}]}, {"budgets": [{"nodes": "0"}]}, False),
        ({"budgets": FREE}, {"budgets": [{"nodes": "0", "reasons": ["Drifted"]}]}, False),
        ({"budgets": FREE}, {"budgets": [{"nodes": "0", "schedule": "0 9 * * *", "duration": "8h"}]}, False),
        ({"budgets": FREE}, {"budgets": [{"nodes": "0", "schedule": "@daily", "duration": "24h"}]}, True),
    ],
)  # fmt: skip
def test_budgets_that_a_change_closes_are_named(
    base: Mapping[str, Any], head: Mapping[str, Any], expected: bool
) -> None:
    found = risks([pool(**base), WEB], [pool(**head), WEB])
    assert ("change-never-disrupts" in found) is expected


@pytest.mark.parametrize(
    ("budget", "is_named"),
    [
        ({"schedule": "@daily", "duration": "23h"}, True),
        ({"schedule": "@daily", "duration": "23h", "reasons": ["Underutilized"]}, False),
        ({"schedule": "@daily", "duration": "1m"}, False),  # it is over
    ],
)
def test_windows_that_drifted_nodes_wait_for_are_named(
    budget: Mapping[str, Any], is_named: bool
) -> None:
    def labelled(value: str) -> dict[str, Any]:
        return pool(labels={"tier": value}, budgets=[*FREE, {"nodes": "0", **budget}])

    found = risks([labelled("a"), WEB], [labelled("b"), WEB]).get("change-waits-for-windows")
    message = "NodePool web: its drifted nodes are not replaced at all times (closed "
    assert (found or "").startswith(message) is is_named
    assert (found is not None) is is_named


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ("336h", "24h", "NodePool web: every node is replaced after 24h (336h before), and its pods are evicted"),
        ("Never", "720h", "NodePool web: every node is replaced after 720h (never before), and its pods are evicted"),
        ("24h", "336h", None),
        ("24h", "Never", None),
        ("24h", "5m", None),  # the NodePool has a finding of its own
    ],
)  # fmt: skip
def test_nodes_that_expire_earlier_are_named(base: str, head: str, expected: str | None) -> None:
    def expiring(after: str) -> dict[str, Any]:
        made = pool()
        made["spec"]["template"]["spec"]["expireAfter"] = after
        return made

    found = risks([expiring(base), WEB], [expiring(head), WEB])
    assert found.get("change-expires-earlier") == expected


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (None, "1h", "NodePool web: PodDisruptionBudgets and do-not-disrupt protect pods on a draining node for 1h (without end before), and drift may replace nodes that have such pods"),
        ("1h", "5m", "NodePool web: PodDisruptionBudgets and do-not-disrupt protect pods on a draining node for 5m (1h before)"),
        ("1h", None, "NodePool web: a drain waits without end for pods that PodDisruptionBudgets or do-not-disrupt protect (1h before), and drift no longer replaces their nodes"),
        ("1h", "60m", None),
        ("0s", "1h", None),
        ("1h", "30s", None),  # the NodePool has a finding of its own
    ],
)  # fmt: skip
def test_drains_that_end_at_another_time_are_named(
    base: str | None, head: str | None, expected: str | None
) -> None:
    def draining(period: str | None) -> dict[str, Any]:
        made = pool()
        if period is not None:
            made["spec"]["template"]["spec"]["terminationGracePeriod"] = period
        return made

    found = risks([draining(base), WEB], [draining(head), WEB])
    assert found.get("change-of-grace-period") == expected


@pytest.mark.parametrize(
    ("base", "head", "replicas", "expected"),
    [
        (1, 0, (4, 4), True),
        (None, 0, (4, 4), True),
        (0, 0, (4, 4), False),
        (1, 1, (4, 4), False),
        (0, 1, (4, 4), False),
    ],
)
def test_a_disruption_budget_that_a_change_closes_is_named(
    base: int | None, head: int, replicas: tuple[int, int], expected: bool
) -> None:
    before = [pool(), a_deployment("web", "web", replicas[0])]
    before += [a_budget(base)] if base is not None else []
    found = risks(before, [pool(), a_deployment("web", "web", replicas[1]), a_budget(head)])
    assert ("change-blocks-evictions" in found) is expected


@pytest.mark.parametrize(
    ("spec", "beside", "expected"),
    [
        ({}, None, "neither consolidated nor replaced after drift, and an expired node drains without end"),
        ({"expireAfter": "Never"}, None, "neither consolidated nor replaced after drift"),
        (
            {"terminationGracePeriod": "1h"}, None,
            "not consolidated; drift and expiry replace them, but each drain waits for 1h (terminationGracePeriod), and then deletes the pods",
        ),
        (
            {"terminationGracePeriod": "1h"}, {},
            "not consolidated; after drift or expiry they are replaced only in NodePool web, once a drain has waited for terminationGracePeriod",
        ),
        (
            {"terminationGracePeriod": "1h"}, {"terminationGracePeriod": "2h"},
            "not consolidated; drift and expiry replace them, but each drain waits (terminationGracePeriod), and then deletes the pods",
        ),
        ({}, {"terminationGracePeriod": "1h", "taints": [{"key": "a", "effect": "NoSchedule"}]},
            "neither consolidated nor replaced after drift, and an expired node drains without end"),
    ],
)  # fmt: skip
def test_a_closed_budget_names_what_becomes_of_its_nodes(
    spec: dict[str, Any], beside: dict[str, Any] | None, expected: str
) -> None:
    """Whether drift, consolidation or expiry still replaces nodes depends on their NodePool."""
    pools = [pool(), *([pool_beside()] if beside is not None else [])]
    for made, more in zip(pools, (spec, beside or {}), strict=False):
        made["spec"]["template"]["spec"] |= {"expireAfter": "720h", **more}
    before, after = ([*pools, WEB, a_budget(number)] for number in (1, 0))
    assert risks(before, after)["change-blocks-evictions"].endswith(
        f"nodes with them are {expected}"
    )


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ("1m", "6h", "NodePool web: a node is consolidated once its pods have not changed for 6h (1m before)"),
        (None, "1m", "NodePool web: a node is consolidated once its pods have not changed for 1m (0s before)"),
        ("1m", "Never", "NodePool web: its nodes are not consolidated any more (consolidateAfter: Never, 1m before)"),
        ("6h", "1m", None),
        ("Never", "1m", None),
        ("60s", "1m", None),
        ("1m", "30m WhenEmpty", "NodePool web: only its empty nodes are removed, 30m after their last pod (before, underutilized ones too, after 1m)"),
        ("6h", "1m WhenEmpty", "NodePool web: only its empty nodes are removed, 1m after their last pod (before, underutilized ones too, after 6h)"),
        ("1m WhenEmpty", "2m WhenEmpty", "NodePool web: an empty node is removed 2m after its last pod (1m before)"),
        ("1m WhenEmpty", "1m", None),
        ("Never", "1m WhenEmpty", None),
    ],
)  # fmt: skip
def test_nodes_that_are_consolidated_later_are_named(
    base: str | None, head: str, expected: str | None
) -> None:
    def consolidating(after: str | None) -> dict[str, Any]:
        made = pool()
        made["spec"]["disruption"] = {"budgets": FREE}
        for value in () if after is None else after.split():
            field = "consolidationPolicy" if value == "WhenEmpty" else "consolidateAfter"
            made["spec"]["disruption"][field] = value
        return made

    found = risks([consolidating(base), WEB], [consolidating(head), WEB])
    assert found.get("change-consolidates-later") == expected


TAINT = {"key": "dedicated", "value": "shop", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("base", "head", "tolerated", "expected"),
    [
        ([], [TAINT], False, True),
        ([], [TAINT], True, False),
        ([TAINT], [TAINT], False, False),
        ([], [{**TAINT, "effect": "PreferNoSchedule"}], False, False),
    ],
)
def test_a_new_taint_that_no_pod_tolerates_is_named(
    base: Objects, head: Objects, tolerated: bool, expected: bool
) -> None:
    def tainted(taints: Objects) -> dict[str, Any]:
        made = pool()
        made["spec"]["template"]["spec"]["taints"] = taints
        return made

    web = a_deployment("web", "web", 4)
    if tolerated:
        web["spec"]["template"]["spec"]["tolerations"] = [{"key": "dedicated"}]
        web["spec"]["template"]["spec"]["tolerations"][0]["operator"] = "Exists"
    found = risks([tainted(base), pool_beside(), web], [tainted(head), pool_beside(), web])
    message = "NodePool web: no pod tolerates dedicated=shop:NoSchedule, so this NodePool launches no nodes any more"
    assert found.get("change-untolerated-taint") == (message if expected else None)


def pool_beside() -> dict[str, Any]:
    """Return another NodePool, which takes the pods that the first repels."""
    return a_pool("beside", template=SMALL, budgets=FREE)


def test_a_budget_of_the_files_that_a_change_closes_is_named_beside_a_snapshot() -> None:
    before, after = ([pool(), WEB, a_budget(number)] for number in (1, 0))
    found = risks(before, after, observation="snapshot")
    assert "allows no eviction any more: all of its 4 pods" in found["change-blocks-evictions"]
    assert "change-blocks-evictions" not in risks(after, after, observation="snapshot")


def test_fewer_replicas_may_close_a_disruption_budget() -> None:
    budget = {
        **a_budget(1),
        "spec": {"minAvailable": 3, "selector": a_budget(1)["spec"]["selector"]},
    }
    found = risks([pool(), WEB, budget], [pool(), a_deployment("web", "web", 3), budget])
    assert found["change-blocks-evictions"].startswith(
        "PodDisruptionBudget default/web allows no eviction any more: all of its 3 pods must stay"
    )


def test_an_overlay_whose_gate_is_off_values_no_node() -> None:
    found = risks([pool(), WEB], [pool(), WEB, overlay(priceAdjustment="+50%")])
    assert "change-of-overlay" not in found


def test_an_overlay_changes_how_nodes_are_valued_and_not_what_they_cost_at_list_prices() -> None:
    found = risks([pool(), WEB], [pool(), WEB, overlay(priceAdjustment="+50%")], settings=OVERLAID)
    assert found["change-of-overlay"] == (
        "NodeOverlay plan changes how nodes are valued, not what AWS bills: amounts here have the "
        "prices of NodeOverlays; at list prices, the cost does not change"
    )


def test_changed_workloads_beside_a_cluster_are_named_and_not_free() -> None:
    more = a_deployment("web", "web", 8)
    found = risks([pool(), WEB], [pool(), more], observation="snapshot")
    assert found["change-not-included"] == (
        "Deployment web changes, which is not included: pods and budgets are those of the snapshot"
    )
    assert found["change-of-requests"] == ("the workloads in the files request +6 cpu (+4 pods)")
    assert "change-not-included" not in risks([pool(), WEB], [pool(), more])


def test_a_changed_workload_beside_a_cluster_may_request_the_same() -> None:
    other = a_deployment("web", "web", 4)
    other["spec"]["template"]["metadata"]["labels"]["release"] = "2"
    found = risks([pool(), WEB], [pool(), other], observation="snapshot")
    assert found["change-of-requests"] == (
        "the requests of the workloads in the files do not change"
    )


def test_a_change_without_risks_has_none() -> None:
    assert risks([pool(), WEB], [a_pool("web", template=OTHER, budgets=FREE), WEB]) == {}


def test_new_nodes_for_all_pods_show_what_a_change_costs_once_no_present_node_is_left() -> None:
    base, head = ([a_pool("web", template=t, budgets=FREE), WEB] for t in (SMALL, OTHER))
    found = compare_new_nodes(RevisionPair(base=inputs_of(base), head=inputs_of(head)))
    assert found is not None
    assert (found.before.nodes, found.after.nodes, found.unschedulable) == (4, 4, ())
    assert found.difference.mean == pytest.approx(0.04)


def test_new_nodes_show_the_pods_that_a_limit_keeps_out() -> None:
    base = [pool(), WEB]
    found = compare_new_nodes(
        RevisionPair(base=inputs_of(base), head=inputs_of([pool(limits={"cpu": "4"}), WEB]))
    )
    assert found is not None
    assert (len(found.unschedulable), len(found.limited)) == (2, 2)
    none = compare_new_nodes(
        RevisionPair(base=inputs_of(base), head=inputs_of([pool(limits={"cpu": "1"}), WEB]))
    )
    assert none is not None
    assert (len(none.unschedulable), none.limited) == (4, ())


WINDOW = {"nodes": "0", "schedule": "0 7 * * mon-fri", "duration": "13h"}


@pytest.mark.parametrize(
    ("base", "head", "what"),
    [
        ([{"nodes": "2"}, WINDOW], [{"nodes": "2"}, {**WINDOW, "duration": "23h"}], "closed Mon–Fri 07:00–20:00 UTC → closed Mon–Fri 07:00–06:00 UTC"),
        ([{"nodes": "2"}], [{"nodes": "2"}, WINDOW], "new: closed Mon–Fri 07:00–20:00 UTC"),
        ([{"nodes": "2"}, WINDOW], [{"nodes": "2"}], "no longer: closed Mon–Fri 07:00–20:00 UTC"),
        ([{"nodes": "1"}], [{"nodes": "50%"}], "at most 1 node → at most 50% of the nodes"),
        ([{"nodes": "2"}], [WINDOW], "at most 2 nodes → closed Mon–Fri 07:00–20:00 UTC; otherwise any number of nodes at once"),
        ([{"nodes": "2"}], [{"nodes": "2", "reasons": ["Drifted"]}], "at most 2 nodes → at most 2 nodes for drift; otherwise any number of nodes at once for emptiness and underutilization"),
        ([{"nodes": "2"}, WINDOW], [WINDOW, {"nodes": "2"}], None),
        ([{"nodes": "2"}], [{"nodes": "0"}], None),  # named as closed
    ],
)  # fmt: skip
def test_other_budgets_and_windows_are_in_words(
    base: Objects, head: Objects, what: str | None
) -> None:
    found = risks([pool(budgets=base), WEB], [pool(budgets=head), WEB])
    expected = what and f"NodePool web: its nodes may be disrupted under other rules ({what})"
    assert found.get("change-of-budgets") == expected


def test_without_pods_a_lower_limit_and_a_new_taint_are_named() -> None:
    low = pool(limits={"cpu": "16", "memory": "64Gi"})
    found = risks([pool(limits={"cpu": "200"})], [low])
    assert found["change-lowers-limit"].startswith(
        "NodePool web: its limits are lower, cpu 16 (200 before) and memory 64Gi (no limit before)"
    )
    assert "change-lowers-limit" not in risks([low], [pool(limits={"cpu": "200"})])
    assert "change-lowers-limit" not in risks([pool(limits={"cpu": "200"}), WEB], [low, WEB])
    taint = {"key": "dedicated", "value": "shop", "effect": "NoSchedule"}
    tainted = a_pool("web", template={**SMALL, "taints": [taint]}, budgets=FREE)
    assert risks([pool()], [tainted])["change-adds-taint"] == (
        "NodePool web: new nodes take only pods that tolerate dedicated=shop:NoSchedule; whether "
        "there are any is not known"
    )
    assert "change-adds-taint" not in risks([tainted], [tainted])


def test_a_lower_limit_that_the_nodes_nearly_use_is_named() -> None:
    """It had no effect on cost, and the next pod of an autoscaler had no node."""
    wide, tight, low = (pool(limits={"cpu": n, "memory": "1Ti"}) for n in ("200", "9", "40"))
    found = risks([wide, WEB], [tight, WEB])
    assert found["change-leaves-little-room"] == (
        "NodePool web: its limits are lower, and its nodes use 8 of 9 cpu in steady state: more "
        "pods may have no node"
    )
    for base, head in ((wide, low), (tight, wide), (tight, tight)):
        assert "change-leaves-little-room" not in risks([base, WEB], [head, WEB])


def of_architecture(*names: str) -> dict[str, Any]:
    """Return the NodePool ``web`` for these architectures of the catalog below."""
    wanted = {"key": "kubernetes.io/arch", "operator": "In", "values": [*names]}
    return a_pool("web", template={"requirements": [wanted]}, budgets=FREE)


def web_on(architecture: str) -> dict[str, Any]:
    found = a_deployment("web", "web", 4)
    found["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/arch"] = architecture
    return found


@pytest.mark.parametrize(
    ("base", "head", "pods"),
    [
        (of_architecture("amd64"), of_architecture("arm64"), "4 pods that may run there"),
        (of_architecture("amd64"), of_architecture("amd64", "arm64"), "4 pods that may run there"),
        (of_architecture("amd64", "arm64"), of_architecture("arm64"), None),
        (of_architecture("arm64"), of_architecture("arm64"), None),
    ],
)
def test_a_new_architecture_asks_for_images(
    base: dict[str, Any], head: dict[str, Any], pods: str | None
) -> None:
    found = risks([base, WEB], [head, WEB], catalog=of_both_architectures())
    expected = None
    if pods is not None:
        expected = (
            "NodePool web may launch arm64 nodes, which it could not before: the container "
            f"images of {pods} must be built for arm64"
        )
    assert found.get("change-of-architecture") == expected


def test_pods_that_require_an_architecture_are_not_affected_by_another() -> None:
    base, head = of_architecture("amd64"), of_architecture("amd64", "arm64")
    found = risks([base, web_on("amd64")], [head, web_on("amd64")], catalog=of_both_architectures())
    assert "change-of-architecture" not in found


def test_a_new_node_pool_is_compared_with_the_others() -> None:
    base, more = of_architecture("amd64"), of_architecture("arm64")
    more["metadata"]["name"] = "more"
    found = risks([base, WEB], [base, more, WEB], catalog=of_both_architectures())
    assert found["change-of-architecture"].startswith("NodePool more may launch arm64 nodes")


def of_types(types: int, *capacity: str) -> dict[str, Any]:
    """Return the NodePool ``web`` for some types of the catalog below, and capacity types."""
    values = [f"m{number}.large" for number in range(types)]
    wanted = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": values},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [*capacity]},
    ]
    found = a_pool("web", budgets=FREE)
    found["spec"]["template"]["spec"]["requirements"] = wanted
    return found


FEW = (
    "NodePool web may launch spot nodes of only {}: EC2 may reclaim many of them at once, and {} "
    "launched while it has no capacity of {}"
)


@pytest.mark.parametrize(
    ("base", "head", "words"),
    [
        (of_types(20, "spot"), of_types(1, "spot"),
         ("1 instance type (20 before)", "no node is", "it")),
        (of_types(20, "spot", "on-demand"), of_types(14, "spot", "on-demand"),
         ("14 instance types (20 before)", "on-demand nodes are", "them")),
        (of_types(3, "on-demand"), of_types(3, "spot"), ("3 instance types", "no node is", "them")),
        (of_types(14, "spot"), of_types(13, "spot"),
         ("13 instance types (14 before)", "no node is", "them")),
        (of_types(20, "spot"), of_types(15, "spot"), None),
        (of_types(3, "spot"), of_types(3, "spot", "on-demand"), None),
        (of_types(3, "spot"), of_types(4, "spot"), None),
        (of_types(20, "spot"), of_types(3, "on-demand"), None),
    ],
)  # fmt: skip
def test_spot_nodes_of_few_types_are_a_risk(
    base: dict[str, Any], head: dict[str, Any], words: tuple[str, ...] | None
) -> None:
    found = risks([base, WEB], [head, WEB], catalog=of_many_types())
    assert found.get("change-of-spot-types") == (words and FEW.format(*words))


@pytest.mark.parametrize(
    ("policy", "is_on", "needs"),
    [
        ("WhenEmptyOrUnderutilized", True, True),
        ("WhenEmptyOrUnderutilized", False, False),
        ("WhenEmpty", True, False),
    ],
)
def test_consolidation_needs_many_types_only_where_it_replaces_spot_nodes(
    policy: str, is_on: bool, needs: bool
) -> None:
    head = of_types(3, "spot")
    head["spec"]["disruption"]["consolidationPolicy"] = policy
    settings = Settings(feature_gates={FeatureGate.SPOT_TO_SPOT_CONSOLIDATION: is_on})
    before = of_types(3, "on-demand")
    found = risks([before, WEB], [head, WEB], catalog=of_many_types(), settings=settings)
    message = found["change-of-spot-types"]
    assert ("consolidation of spot nodes needs 15 types" in message) is needs


def of_many_types() -> Catalog:
    """Return a catalog of 20 types with spot and on-demand offerings, ``m0.large`` and so on."""
    text = json.dumps(json.loads(catalog_file())[0])
    rows = [json.loads(text.replace("m7i.large", f"m{number}.large")) for number in range(20)]
    return read_catalog(json.dumps(rows).encode(), "catalog.json")


def of_both_architectures() -> Catalog:
    """Return the small catalog, whose type ``c7i.large`` has an arm64 CPU here."""
    rows = json.loads(catalog_file())
    for requirement in rows[1]["requirements"]:
        if requirement["key"] == "kubernetes.io/arch":
            requirement["values"] = ["arm64"]
    return read_catalog(json.dumps(rows).encode(), "catalog.json")
