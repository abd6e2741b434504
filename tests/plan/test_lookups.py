"""An input that was not looked up has one sentence, where a decision depends on it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.karpenter.nodeclass import PlacementGroupSelector, SelectorTerm, Subnet
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.lookups import lookup_findings
from tests.engine.world import a_deployment, a_pool
from tests.plan.test_rest import inputs_of

CAPACITY_TYPE = "karpenter.sh/capacity-type"
ZONE = "topology.kubernetes.io/zone"
ZONE_ID = "topology.k8s.aws/zone-id"
RESERVATION_ID = "karpenter.k8s.aws/capacity-reservation-id"


def requirement(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def found(
    *requirements: dict[str, Any],
    spread: str = "",
    looked_up: bool = False,
    node_class: dict[str, Any] | None = None,
    **pod: Any,
) -> list[str]:
    """Return the findings on a NodePool with these requirements and its pods."""
    kinds = [r["values"] for r in requirements if r["key"] == CAPACITY_TYPE]
    pool = a_pool("web", capacity_types=kinds[0] if kinds else ("on-demand",))
    pool["spec"]["template"]["spec"]["requirements"] += requirements
    workload = a_deployment("web", "web", 1)
    spec = workload["spec"]["template"]["spec"]
    spec |= pod
    if spread:
        constraint = {"maxSkew": 1, "topologyKey": spread, "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [constraint]
    facts = facts_of(inputs_of([pool, workload]))
    classes = dict(facts.classes)
    for name, known in classes.items():
        if looked_up:
            status = replace(known.status, subnets=(Subnet("subnet-1", "us-east-1a"),))
            known = replace(known, status=status)
        classes[name] = replace(known, spec=replace(known.spec, **(node_class or {})))
    return [f.message for f in lookup_findings(replace(facts, classes=classes))]


def affinity_to_nodes(*expressions: dict[str, Any], preferred: bool = False) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions)}
    if preferred:
        weighted = {"weight": 1, "preference": term}
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("requirements", "spread", "words"),
    [
        ([requirement(ZONE_ID, "use1-az1")], "", "zone ids"),
        (
            [requirement(CAPACITY_TYPE, "reserved", "on-demand")],
            "",
            "capacity reservations",
        ),
        ([requirement(RESERVATION_ID, "cr-1")], "", "capacity reservations"),
        ([], ZONE, "subnets"),
        ([requirement(ZONE, "us-east-1a", "us-east-1-bos-1a")], "", "local and Wavelength zones"),
    ],
)
def test_an_input_that_was_not_looked_up_has_one_sentence(
    requirements: list[dict[str, Any]], spread: str, words: str
) -> None:
    (message,) = found(*requirements, spread=spread)
    assert message.startswith(words)
    assert found(*requirements, spread=spread, looked_up=True) == []


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"nodeSelector": {ZONE_ID: "use1-az1"}}, "zone ids"),
        ({"affinity": affinity_to_nodes(requirement(ZONE_ID, "use1-az1"))}, "zone ids"),
        (
            {"affinity": affinity_to_nodes(requirement(ZONE_ID, "use1-az1"), preferred=True)},
            "zone ids",
        ),
        ({"nodeSelector": {CAPACITY_TYPE: "reserved"}}, "capacity reservations"),
        ({"nodeSelector": {RESERVATION_ID: "cr-1"}}, "capacity reservations"),
        ({"nodeSelector": {ZONE: "us-east-1-bos-1a"}}, "local and Wavelength zones"),
        (
            {"affinity": affinity_to_nodes(requirement(ZONE, "us-east-1-wl1-bos-wlz-1"))},
            "local and Wavelength zones",
        ),
    ],
)
def test_what_pods_select_has_the_same_sentences(pod: dict[str, Any], words: str) -> None:
    (message,) = found(**pod)
    assert message.startswith(words)
    assert found(**pod, looked_up=True) == []


def test_what_a_node_class_selects_has_the_same_sentences() -> None:
    reserved = (SelectorTerm(id="cr-1"),)
    assert found(node_class={"capacity_reservation_selector_terms": reserved}) == []
    any_type = requirement(CAPACITY_TYPE, "on-demand", "reserved")
    (message,) = found(any_type, node_class={"capacity_reservation_selector_terms": reserved})
    assert message.startswith("capacity reservations")
    (message,) = found(node_class={"placement_group_selector": PlacementGroupSelector(name="near")})
    assert message.startswith("placement groups")


def test_a_spread_over_zone_ids_depends_on_ids_and_subnets() -> None:
    ids, subnets = found(spread=ZONE_ID)
    assert ids.startswith("zone ids")
    assert subnets.startswith("subnets")


def test_what_no_decision_depends_on_is_not_mentioned() -> None:
    assert found() == []
    assert found(spread="kubernetes.io/hostname") == []
    assert found(nodeSelector={ZONE: "us-east-1a"}) == []
    elsewhere = {"key": ZONE, "operator": "NotIn", "values": ["us-east-1-bos-1a"]}
    assert found(affinity=affinity_to_nodes(elsewhere)) == []
