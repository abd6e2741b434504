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
    "rich": ("8", "33Gi", {"on-demand": 0.4}),
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


def undecided_fleet(folder: Path) -> list[str]:
    """Write a fleet with several possible ends, and return the line that simulates it.

    A lean node for seven pods and a tiny spot node for the eighth cost less than a rich one. The
    eighth pod suits both, and chance decides when kube-scheduler binds it.
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
    (folder / "fleet").mkdir()
    (folder / "fleet" / "fleet.yaml").write_text(dump_all(objects))
    (folder / "catalog.json").write_text(catalog())
    words = ["--catalog", str(folder / "catalog.json"), "--now", "2026-03-02T09:00:00Z"]
    return ["simulate", str(folder / "fleet"), *words, "-o", "json"]


def test_a_fleet_comes_to_rest_although_pods_do_not_take_the_places_packed_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With some seed, the pod that suits both nodes is bound early, to the node with more left.

    The names of NodeClaims decide between equal nodes, and follow from the seed.
    One of the others then needs a small node, which is removed once the pods have moved.
    """
    line = undecided_fleet(tmp_path)
    for seed in range(80):
        assert main([*line, "--seed", str(seed)]) == 0
        found = json.loads(capsys.readouterr().out)
        launched = [e["message"].split()[1] for e in found["events"] if e["kind"] == "Launched"]
        ends = [claim["instanceType"] for claim in found["fleet"]]
        assert found["converged"]
        if {"small", "tiny"} <= set(launched) and "small" not in ends:
            return
    pytest.fail("no seed binds the pod early")


def test_another_seed_ends_in_the_range_about_as_often_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of runs with other seeds, 9 of 11 end between the lowest and the highest of ten."""
    line = undecided_fleet(tmp_path)
    assert main([*line, "--seeds", "10"]) == 0
    stated = json.loads(capsys.readouterr().out)["range"]["perHour"]
    costs = []
    for seed in range(100, 111):
        assert main([*line, "--seed", str(seed)]) == 0
        costs.append(json.loads(capsys.readouterr().out)["cost"]["after"])
    assert stated["low"] < stated["high"], "its end depends on chance"
    assert sum(stated["low"] <= cost <= stated["high"] for cost in costs) >= 9
