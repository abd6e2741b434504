"""NodePools of EKS Auto Mode: AWS launches their nodes, so a plan does not forecast them."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.engine.world import a_deployment, a_pool
from tests.repositories import commit_all, init
from tests.simulated.simulations import write_fleet

Capture = pytest.CaptureFixture[str]
Objects = list[dict[str, Any]]

TAINT = {"key": "auto", "effect": "NoSchedule"}
SMALL = {
    "requirements": [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}
    ]
}


def an_auto_pool(category: str = "c", **template: Any) -> dict[str, Any]:
    pool = a_pool("apps")
    pool["spec"]["template"]["spec"] |= {
        "nodeClassRef": {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"},
        "requirements": [
            {"key": "eks.amazonaws.com/instance-category", "operator": "In", "values": [category]}
        ],
        **template,
    }
    return pool


def a_class(role: str = "nodes") -> dict[str, Any]:
    return {
        "apiVersion": "eks.amazonaws.com/v1",
        "kind": "NodeClass",
        "metadata": {"name": "default"},
        "spec": {"role": role},
    }


def auto_pods(replicas: int) -> dict[str, Any]:
    """Return a workload that selects nodes of EKS Auto Mode."""
    made = a_deployment("auto", "web", replicas, cpu="500m")
    spec = made["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"eks.amazonaws.com/compute-type": "auto"}
    spec["tolerations"] = [{"key": "auto", "operator": "Exists"}]
    return made


ALONE = [an_auto_pool(), a_class()]
BESIDE = [an_auto_pool(taints=[TAINT]), a_pool("general", template=SMALL)]


@pytest.fixture
def plan(tmp_path: Path, capsys: Capture) -> Any:
    def run(before: Objects, after: Objects, *options: str) -> dict[str, Any]:
        init(tmp_path)
        for objects in (before, after):
            write_fleet(tmp_path, objects)
            commit_all(tmp_path, "fleet")
        base = () if before == after and "--base" not in options else ("--base", "HEAD~1")
        code = main(["plan", str(tmp_path), *base, *options, "-o", "json"])
        found = capsys.readouterr()
        assert code in (0, 3), found.err
        return {**json.loads(found.out), "code": code}

    return run


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            [*ALONE, a_deployment("web", "apps", 3)], [*ALONE, a_deployment("web", "apps", 6)],
            "Cost unknown: 3 → 6 pods run on nodes of EKS Auto Mode, which AWS launches and a plan does not forecast; the workloads in the files request",
        ),
        (
            [*ALONE, a_deployment("web", "apps", 3)], [an_auto_pool("m"), a_class(), a_deployment("web", "apps", 3)],
            "Cost unknown: the nodes of NodePool apps are those of EKS Auto Mode, which AWS launches and a plan does not forecast.",
        ),
        (
            [*BESIDE, auto_pods(2)], [*BESIDE, auto_pods(4)],
            "Cost unknown: 2 → 4 pods run on nodes of EKS Auto Mode",
        ),
        (
            [*ALONE, a_deployment("web", "apps", 3)], [an_auto_pool(), a_class("other"), a_deployment("web", "apps", 3)],
            "Effect of this change unknown: it only changes what a plan does not read.",
        ),
    ],
)  # fmt: skip
def test_a_change_of_what_auto_mode_launches_has_no_known_cost(
    plan: Any, before: Objects, after: Objects, expected: str
) -> None:
    """It read "no effect on cost; 3 pods become unschedulable"."""
    found = plan(before, after, "--fail-on", "unschedulable")
    assert found["summary"]["text"][0].startswith(expected)
    assert "perMonth" not in found["summary"] or "Effect of this" in expected
    assert found["unschedulable"] == []
    assert found["code"] == 0, "no pod is lost"


def test_what_karpenter_launches_beside_auto_mode_is_priced(plan: Any) -> None:
    before, after = (
        [*BESIDE, auto_pods(2), a_deployment("web", "general", number, cpu="1500m")]
        for number in (1, 3)
    )
    found = plan(before, after)
    assert "nodes of EKS Auto Mode not included" in found["summary"]["text"][0]
    assert found["summary"]["perMonth"] > 0
    assert set(found["cost"]["byNodePool"]) == {"general"}
    assert "eks-label" not in {row["code"] for row in found["diagnostics"]}, "such nodes exist"


def test_pods_that_no_node_of_auto_mode_may_take_stay_unschedulable(plan: Any) -> None:
    fleet = [an_auto_pool(taints=[TAINT]), a_class(), a_deployment("web", "apps", 3)]
    found = plan(fleet, fleet, "--fail-on", "unschedulable")
    assert len(found["unschedulable"]) == 3
    assert found["code"] == 3
