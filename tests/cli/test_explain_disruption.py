"""``reconciler explain node`` and ``nodepool`` with separate inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from tests.disruption.builders import SIZES, a_node, a_pod

Explain = Callable[..., str]
POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {
                    "group": "karpenter.k8s.aws",
                    "kind": "EC2NodeClass",
                    "name": "default",
                },
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "Exists"}],
            }
        },
        "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "1"}, {"nodes": "2"}]},
    },
}


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(json.dumps(POOL))
    items = [*a_node("n", "large"), a_pod("p", "n", "1")]
    (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": items}))
    types = [
        {
            "name": name,
            "capacity": {"cpu": str(cpu), "memory": f"{cpu * 4}Gi", "pods": "110"},
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}
            ],
            "offerings": [{"zone": "zone-a", "capacityType": "on-demand", "price": price}],
        }
        for name, (cpu, price) in SIZES.items()
    ]
    (tmp_path / "catalog.json").write_text(json.dumps(types))

    def explained(kind: str, name: str, *more: str, code: int = 0) -> str:
        words = ["explain", kind, name, str(fleet), "--now", "2026-01-05T12:00:00Z", *more]
        if "--plan" not in more:
            words += ["--snapshot", str(tmp_path / "snapshot.json")]
            words += ["--catalog", str(tmp_path / "catalog.json")]
        assert main(words) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return explained


def test_a_node_pool_that_can_launch_no_node_says_why(explain: Explain, tmp_path: Path) -> None:
    requirement = {"key": INSTANCE_TYPE, "operator": "In", "values": ["m5.lrage"]}
    spec = POOL["spec"]["template"]["spec"] | {"requirements": [requirement]}
    pool = POOL | {"spec": POOL["spec"] | {"template": {"spec": spec}}}
    (tmp_path / "fleet" / "pool.yaml").write_text(json.dumps(pool))
    text = explain("nodepool", "default")
    assert "Why it cannot launch nodes:\n  no instance type satisfies" in text
    (reason,) = _document(explain("nodepool", "default", "-o", "json"))["reasons"][:1]
    assert reason["code"] == "NoInstanceTypes"


def _document(text: str) -> dict[str, Any]:
    schema = json.loads(Path(resource_path("schemas", "explanation.v1.json")).read_bytes())
    found: dict[str, Any] = json.loads(text)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(found)
    return found


def test_a_node_shows_its_replacement_and_its_budgets(explain: Explain) -> None:
    text = explain("node", "n")
    assert "Node n: to be disrupted for underutilization" in text
    assert "cheapest replacement considered: small for $0.1000/hour" in text
    assert "budget of default: 1 of 1 node may be disrupted for drift, emptiness and" in text
    assert _document(explain("node", "n", "-o", "json"))["about"] == {"kind": "Node", "name": "n"}


def test_a_pool_shows_its_calendar_and_conflicting_settings(explain: Explain) -> None:
    text = explain("nodepool", "default")
    assert "2026-01-05 12:00 UTC to 2026-01-12 12:00 UTC: drift 1, emptiness 1" in text
    assert "Gaps and conflicts in the disruption settings:\n  budgets[1] has no effect" in text
    found = _document(explain("nodepool", "default", "-o", "json"))
    assert [reason["code"] for reason in found["reasons"]] == ["Shadowed"]


def test_the_config_is_part_of_the_calendar(explain: Explain) -> None:
    suspend = 'disruption.suspend=[{"owner": "me"}]'
    assert "no disruption for drift" in explain("nodepool", "default", "--set", suspend)


def test_a_missing_pool_and_a_saved_plan_are_rejected(explain: Explain) -> None:
    assert "did you mean default?" in explain("nodepool", "defalt", code=1)
    assert "--plan: a saved plan does not contain" in explain(
        "nodepool", "x", "--plan", "p", code=1
    )
