"""An input that was not looked up has one sentence, where a decision depends on it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.karpenter.nodeclass import Subnet
from reconciler.plan.make.findings import lookup_findings
from reconciler.plan.make.gather import facts_of
from tests.engine.world import a_deployment, a_pool
from tests.plan.test_rest import inputs_of

CAPACITY_TYPE = "karpenter.sh/capacity-type"
ZONE = "topology.kubernetes.io/zone"


def requirement(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def found(*requirements: dict[str, Any], spread: str = "", looked_up: bool = False) -> list[str]:
    """Return the findings on a NodePool with these requirements and its pods."""
    kinds = [r["values"] for r in requirements if r["key"] == CAPACITY_TYPE]
    pool = a_pool("web", capacity_types=kinds[0] if kinds else ("on-demand",))
    pool["spec"]["template"]["spec"]["requirements"] += requirements
    workload = a_deployment("web", "web", 1)
    if spread:
        constraint = {"maxSkew": 1, "topologyKey": spread, "whenUnsatisfiable": "DoNotSchedule"}
        workload["spec"]["template"]["spec"]["topologySpreadConstraints"] = [constraint]
    facts = facts_of(inputs_of([pool, workload]))
    classes = dict(facts.classes)
    if looked_up:
        for name, node_class in classes.items():
            status = replace(node_class.status, subnets=(Subnet("subnet-1", "us-east-1a"),))
            classes[name] = replace(node_class, status=status)
    return [f.message for f in lookup_findings(facts.pools, classes, facts.cluster)]


@pytest.mark.parametrize(
    ("requirements", "spread", "words"),
    [
        ([requirement("topology.k8s.aws/zone-id", "use1-az1")], "", "zone ids"),
        (
            [requirement(CAPACITY_TYPE, "reserved", "on-demand")],
            "",
            "capacity reservations",
        ),
        ([], ZONE, "subnets"),
    ],
)
def test_an_input_that_was_not_looked_up_has_one_sentence(
    requirements: list[dict[str, Any]], spread: str, words: str
) -> None:
    (message,) = found(*requirements, spread=spread)
    assert message.startswith(words)
    assert found(*requirements, spread=spread, looked_up=True) == []


def test_what_no_decision_depends_on_is_not_mentioned() -> None:
    assert found() == []
    assert found(spread="kubernetes.io/hostname") == []
