"""Veneer's decisions on savings plans and reserved instances, tested with its own cases."""

from collections.abc import Callable
from typing import Any

import pytest

from reconciler.catalog.commitments.accounting import (
    CommitmentKind,
    CommitmentSettings,
    OverlayDecision,
    OverlayReason,
    ReservedInstances,
    SavingsPlan,
    decide_compute,
    decide_ec2_instance,
    decide_reserved,
    label_value,
    overlay_of,
)
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.metadata import Metadata
from tests.catalog.veneer import (
    ConfigError,
    applied,
    cycle_s,
    faults,
    is_fresh,
    parse_family_and_region,
    parse_type_and_region,
    read_config,
    settings_of,
    with_remaining,
)
from tests.tables import cases

Case = dict[str, Any]


def settings(given: Case) -> CommitmentSettings:
    weights = given.get("weights") or {}
    known = {
        "compute_weight": weights.get("computeSavingsPlan"),
        "ec2_instance_weight": weights.get("ec2InstanceSavingsPlan"),
        "reserved_weight": weights.get("reservedInstance"),
        "threshold_percent": given.get("threshold"),
        "ec2_instance_prefix": given.get("prefix"),
        "reserved_prefix": given.get("prefix"),
    }
    return CommitmentSettings(**{k: v for k, v in known.items() if v is not None})


def as_case(decision: OverlayDecision) -> Case:
    return {
        "name": decision.name,
        "capacity_type": str(decision.kind),
        "action": "create" if decision.wanted else "delete",
        "should_exist": decision.wanted,
        "weight": decision.weight,
        "price": "0.00",
        "target_selector": ", ".join(
            f"{r.key}: {r.operator}" + (f" [{', '.join(r.values)}]" if r.values else "")
            for r in decision.requirements
        ),
        "utilization_percent": pytest.approx(decision.utilization_percent, abs=1e-9),
        "remaining": pytest.approx(decision.remaining, abs=1e-9),
        "count": decision.count,
        "total_count": decision.count,
        "reason": decision.reason,
        "metric_reason": str(decision.outcome),
    }


def savings_plan(given: Case) -> Case:
    where = {key: given[key] for key in ("family", "region") if key in given}
    plans = [SavingsPlan(p["commitment"], p["remaining"], **where) for p in given["plans"]]
    if given["type"] == "compute":
        return as_case(decide_compute(plans, settings(given)))
    [decision] = decide_ec2_instance(plans, settings(given))
    return as_case(decision)


def reserved_instances(given: Case) -> Case:
    entries = [
        ReservedInstances(e["instance_type"], e["region"], e["count"]) for e in given["entries"]
    ]
    return {"decisions": [as_case(d) for d in decide_reserved(entries, settings(given))]}


def decision(fields: Case) -> OverlayDecision:
    """Return the decision of a case, with what Veneer would parse from its name."""
    kind = CommitmentKind(fields.get("capacity_type", CommitmentKind.COMPUTE))
    family = region = instance_type = ""
    if kind is CommitmentKind.EC2_INSTANCE:
        family, region = parse_family_and_region(fields["name"])
    elif kind is CommitmentKind.RESERVED:
        instance_type, region = parse_type_and_region(fields["name"])
        family = instance_type.partition(".")[0]
    return OverlayDecision(
        name=fields["name"],
        kind=kind,
        weight=fields.get("weight", 10),
        wanted=fields["should_exist"],
        outcome=OverlayReason.CAPACITY_AVAILABLE,
        reason=fields.get("reason", ""),
        count=1,
        family=family,
        region=region,
        instance_type=instance_type,
    )


def generate_overlay(given: Case) -> Case:
    overlay = overlay_of(decision(given["decision"]), disabled=given["disabled"])
    if overlay is None:
        return {"overlay": None}
    requirements = [
        {"key": r.key, "operator": str(r.operator)}
        | ({"values": list(r.values)} if r.values else {})
        for r in overlay.spec.requirements
    ]
    return {
        "overlay": {
            "name": overlay.name,
            "labels": overlay.metadata.labels,
            "weight": overlay.weight,
            "price": overlay.spec.price,
            "requirements": requirements,
        }
    }


def generate_all(given: Case) -> Case:
    decisions = [decision(fields) for fields in given["decisions"]]
    return {
        "actions": ["create" if d.wanted else "delete" for d in decisions],
        "has_overlay": [overlay_of(d) is not None for d in decisions],
    }


def capacity_join(given: Case) -> Case:
    plans = [
        SavingsPlan(c["value"], 0.0, c["instance_family"], c["region"], c["arn"])
        for c in given["commitment"]
    ]
    remaining = {entry["arn"]: entry["value"] for entry in given["remaining"]}
    kinds = {c["arn"]: c["type"] for c in given["commitment"]}
    return {
        "plans": [
            {"arn": p.arn, "type": kinds[p.arn]}
            | ({"family": p.family, "region": p.region} if kinds[p.arn] != "compute" else {})
            | {"remaining": p.remaining, "commitment": p.commitment}
            for p in with_remaining(plans, remaining)
        ]
    }


def freshness_gate(given: Case) -> Case:
    def known(age: float | str) -> float | None:
        return None if isinstance(age, str) else age

    return {
        "evaluate_savings_plans": is_fresh(known(given["savings_plans_age_s"])),
        "evaluate_reserved_instances": is_fresh(known(given["reserved_instances_age_s"])),
    }


def config(given: Case) -> Case:
    try:
        return {"valid": True, "values": read_config(given["yaml"], given.get("env") or {})}
    except ConfigError as error:
        return {"valid": False, "field": error.field}


def applying(given: Case) -> Case:
    existing = given["existing"]
    labels = existing and {"app.kubernetes.io/managed-by": existing.get("managed_by", "")}
    wanted = {"create": True, "delete": False, None: None}[given["decision"]]
    return {"action": applied(wanted=wanted, existing=labels) or "none"}


def pre_check(given: Case) -> Case:
    stated = given["overlay"]
    requirements = tuple(
        NodeSelectorRequirement(r.get("key", ""), r.get("operator"), tuple(r.get("values") or ()))
        for r in stated.get("requirements") or ()
    )
    spec = NodeOverlaySpec(
        requirements=requirements, price=stated.get("price"), weight=stated.get("weight")
    )
    metadata = Metadata(name=stated.get("name", ""), labels=stated.get("labels") or {})
    return {"error_fields": [fault.field for fault in faults(NodeOverlay(metadata, spec))]}


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "savings_plan": savings_plan,
    "reserved_instances": reserved_instances,
    "generate_overlay": generate_overlay,
    "generate_all": generate_all,
    "capacity_join": capacity_join,
    "freshness_gate": freshness_gate,
    "config": config,
    "apply": applying,
    "veneer_validate_overlay": pre_check,
    "interval": lambda given: {"seconds": cycle_s(given["configured"])},
    "sanitize_label": lambda given: {"result": label_value(given["value"])},
    "capacity_type_label": lambda given: {"result": CommitmentKind(given["value"]).label},
    "parse_ec2_sp_name": lambda given: dict(
        zip(("family", "region"), parse_family_and_region(given["name"]), strict=True)
    ),
    "parse_ri_name": lambda given: dict(
        zip(("instance_type", "region"), parse_type_and_region(given["name"]), strict=True)
    ),
}
FATE = {"note", "error", "lumina_data_available_gauge", "existing_sp_overlays"}
"""Fields of a case about Veneer's process instead of the decision."""


@pytest.mark.parametrize("case", cases("overlay_decision"))
def test_decisions_on_commitments_match_veneer(case: Case) -> None:
    given = case["input"]
    expected = {key: value for key, value in case["expect"].items() if key not in FATE}
    actual = ADAPTERS[given["kind"]](given)
    if "decisions" in expected:
        keys = [expected_one.keys() for expected_one in expected["decisions"]]
        decisions = zip(actual["decisions"], keys, strict=True)
        actual["decisions"] = [{k: one[k] for k in wanted} for one, wanted in decisions]
    if "values" in expected:
        actual["values"] = {key: actual["values"][key] for key in expected["values"]}
    assert {key: actual[key] for key in expected} == expected


def test_a_veneer_configuration_affects_the_decisions() -> None:
    file = {
        "aws": {"accountId": "123456789012", "region": "eu-central-1"},
        "overlays": {
            "utilizationThreshold": 80,
            "weights": {"reservedInstance": 300},
            "naming": {"computeSavingsPlanPrefix": "acme-sp"},
        },
    }
    found = settings_of(read_config(file, {"VENEER_AWS_REGION": "us-east-1"}))
    assert found == CommitmentSettings(
        threshold_percent=80.0, reserved_weight=300, compute_prefix="acme-sp"
    )
    assert decide_compute([SavingsPlan(10, 1.9)], found).wanted is False


def test_the_environment_overrides_the_veneer_file_unless_empty() -> None:
    file = {"aws": {"accountId": "123456789012", "region": "eu-central-1"}}
    environ = {"VENEER_AWS_REGION": "", "VENEER_OVERLAY_DISABLED": "true"}
    found = read_config(file, environ)
    assert (found["aws.region"], found["overlays.disabled"]) == ("eu-central-1", True)


def test_veneer_without_a_file_has_no_settings() -> None:
    found = read_config(None, {"VENEER_AWS_REGION": "eu-central-1"})
    assert (found["overlays.utilizationThreshold"], found["aws.region"]) == (0.0, "")
