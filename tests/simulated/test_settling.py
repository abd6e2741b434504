"""Fleets come to rest although the scheduler of the cluster places pods otherwise than planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.engine.world import a_deployment, a_node_class, a_pool
from tests.yamltext import dump_all

TYPES = {
    "rich": ("8", "33Gi", {"on-demand": 0.344}),
    "lean": ("8", "16Gi", {"on-demand": 0.306}),
    "small": ("1", "3Gi", {"on-demand": 0.051}),
    "tiny": ("1", "5Gi", {"spot": 0.008}),
}
"""CPUs, memory, and prices in USD an hour."""


def catalog() -> str:
    def is_(key: str, value: str) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": [value]}

    return json.dumps(
        [
            {
                "name": name,
                "capacity": {"cpu": cpu, "memory": memory, "pods": "30"},
                "requirements": [
                    is_("kubernetes.io/arch", "amd64"),
                    is_("kubernetes.io/os", "linux"),
                    is_("node.kubernetes.io/instance-type", name),
                ],
                "offerings": [
                    {"zone": "us-east-1a", "capacityType": kind, "price": price}
                    for kind, price in prices.items()
                ],
            }
            for name, (cpu, memory, prices) in TYPES.items()
        ]
    )


def a_workload(name: str, replicas: int, memory: str, **selector: str) -> dict[str, Any]:
    """Return a Deployment whose pods request memory, and select nodes."""
    workload = a_deployment(name, "web", replicas, cpu="100m")
    spec = workload["spec"]["template"]["spec"]
    spec["nodeSelector"] |= selector
    spec["containers"][0]["resources"]["requests"]["memory"] = memory
    return workload


def test_a_fleet_comes_to_rest_although_pods_do_not_take_the_places_packed_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lean node for seven pods and a tiny spot node for the eighth cost less than a rich one.

    The eighth pod suits both, and kube-scheduler binds it first, to the node with more left. One of
    the others then needs a small node, and the tiny one stays empty and is removed.
    """
    pool = a_pool(
        "web",
        policy="WhenEmptyOrUnderutilized",
        budgets=[{"nodes": "100%"}],
        capacity_types=["spot", "on-demand"],
    )
    objects = [
        a_node_class(),
        pool,
        a_workload("a-flexible", 1, "2250Mi"),
        a_workload("b-bound", 7, "2250Mi", **{"karpenter.sh/capacity-type": "on-demand"}),
        a_workload("c-full", 1, "16Gi", **{"node.kubernetes.io/instance-type": "lean"}),
    ]
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text(dump_all(objects))
    (tmp_path / "catalog.json").write_text(catalog())
    words = ["--catalog", str(tmp_path / "catalog.json"), "--now", "2026-03-02T09:00:00Z"]

    assert main(["simulate", str(tmp_path / "fleet"), *words, "-o", "json"]) == 0

    found = json.loads(capsys.readouterr().out)
    launched = [e["message"].split()[1] for e in found["events"] if e["kind"] == "Launched"]
    assert sorted(launched) == ["lean", "lean", "rich", "small", "tiny"]
    assert sum(event["kind"] == "PodEvicted" for event in found["events"]) == 8
    assert found["converged"]
