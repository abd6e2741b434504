"""Savings plans, reserved instances and preferences, through ``plan``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.test_plan import NOW, POOL, a_fleet, a_node, a_snapshot, validator

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]
"""
FAMILY = "karpenter.k8s.aws/instance-family"
PRICES = {"c7g.large": 0.08, "m7i.large": 0.10, "r7i.large": 0.13}
CATALOG = [
    {
        "name": name,
        "capacity": {"cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "20Gi"},
        "overhead": {"cpu": "100m"},
        "requirements": [
            {"key": FAMILY, "operator": "In", "values": [name.partition(".")[0]]},
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z-a", "z-b"]},
        ],
        "offerings": [
            {"zone": f"z-{zone}", "capacityType": kind, "price": price * share}
            for zone in "ab"
            for kind, share in (("on-demand", 1.0), ("spot", 0.9))
        ],
    }
    for name, price in PRICES.items()
]
PLAN = "{type: EC2Instance, family: m7i, commitment: 0.25, usedElsewhere: 0}"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return a_fleet(tmp_path, DEPLOYMENT, CATALOG)


@pytest.fixture
def plan(fleet: Path, capsys: pytest.CaptureFixture[str]):
    def run(*words: str, **commitments: str) -> SimpleNamespace:
        lists = "".join(f"  {key}: {value}\n" for key, value in commitments.items())
        head = "apiVersion: reconciler/v1\nkind: Configuration\nfleet: web\n"
        body = f"commitments:\n{lists}" if lists else ""
        (fleet / "reconciler.yaml").write_text(head + body)
        catalog = str(fleet.parent / "catalog.json")
        code = main(["plan", str(fleet), "--now", NOW, "--catalog", catalog, "-o", "json", *words])
        out, err = capsys.readouterr()
        found = json.loads(out) if code == 0 else {}
        if found:
            validator().validate(found)
        return SimpleNamespace(code=code, err=err, plan=found, types=launched(found))

    return run


def launched(found: dict[str, Any]) -> Counter[str]:
    return Counter(c["launch"]["instanceType"] for c in found.get("nodeClaims", ()))


def codes(found: dict[str, Any]) -> set[str]:
    return {d["code"] for d in found["diagnostics"]}


def a_running(name: str, instance_type: str) -> list[dict[str, Any]]:
    """A node with room for one pod."""
    claim, node = a_node(name, **{"karpenter.sh/do-not-disrupt": "true"})
    for item in (claim, node):
        item["metadata"]["labels"]["node.kubernetes.io/instance-type"] = instance_type
        for amounts in (item["status"]["capacity"], item["status"]["allocatable"]):
            amounts["cpu"] = "2"
    return [claim, node]


def a_pod(name: str, node: str = "") -> dict[str, Any]:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "web",
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api", "uid": "u"}
            ],
        },
        "spec": {
            "containers": [
                {"name": "api", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
            ],
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": [] if node else [waits],
        },
    }


def test_without_commitments_the_cheapest_type_is_launched(plan) -> None:
    assert plan().types == {"c7g.large": 4}


def test_a_savings_plan_favours_its_family_until_it_is_used_up(plan) -> None:
    answer = plan(savingsPlans=f"[{PLAN}]")
    assert answer.types == {"m7i.large": 2, "c7g.large": 2}
    assert answer.plan["cost"]["after"] == pytest.approx(2 * 0.08, abs=1e-6)
    covered = [
        c["launch"] for c in answer.plan["nodeClaims"] if c["launch"]["instanceType"] == "m7i.large"
    ]
    assert {c["basePrice"] for c in covered} == {0.10}
    assert {(c["priceSource"]["source"], c["priceSource"]["note"]) for c in covered} == {
        ("commitment", "m7i savings plan, 0% used")
    }


def test_the_discount_of_a_savings_plan_extends_its_coverage(plan) -> None:
    discounted = PLAN.replace("usedElsewhere", "discountPercent: 40, usedElsewhere")
    assert plan(savingsPlans=f"[{discounted}]").types == {"m7i.large": 4}


@pytest.mark.parametrize(
    ("stated", "covered"),
    [
        ("usedElsewhere: 0.14", 1),
        ("usedElsewhere: 0.24", 0),  # beyond the threshold
        ("utilizationPercent: 20", 2),
        ("utilizationPercent: 96", 0),
        ("usedElsewhere: 0, region: eu-west-1", 0),
        ("usedElsewhere: 0, until: '2026-01-03T11:00:00Z'", 0),
        ("usedElsewhere: 0, until: '2026-01-03T13:00:00Z'", 2),
    ],
)
def test_only_unused_commitments_of_this_region_and_time_count(
    plan, stated: str, covered: int
) -> None:
    answer = plan(savingsPlans=f"[{PLAN.replace('usedElsewhere: 0', stated)}]")
    assert answer.types["m7i.large"] == covered
    assert answer.types.total() == 4


def test_unknown_usage_of_a_commitment_is_not_free(plan) -> None:
    answer = plan(savingsPlans=f"[{PLAN.replace(', usedElsewhere: 0', '')}]")
    assert answer.types == {"c7g.large": 4}
    assert "commitment-use-unknown" in codes(answer.plan)


def test_a_compute_savings_plan_keeps_the_order_of_types(plan) -> None:
    answer = plan(savingsPlans="[{type: Compute, commitment: 10, usedElsewhere: 0}]")
    assert answer.types == {"c7g.large": 4}
    assert answer.plan["cost"]["after"] == pytest.approx(0, abs=1e-6)


def test_a_compute_savings_plan_prefers_on_demand_to_spot(plan, fleet: Path) -> None:
    (fleet / "pool.yaml").write_text(POOL.replace("[on-demand]", "[spot, on-demand]"))
    kinds = "[{type: Compute, commitment: 0.17, usedElsewhere: 0}]"
    without, covered = plan().plan, plan(savingsPlans=kinds).plan
    assert {c["launch"]["capacityType"] for c in without["nodeClaims"]} == {"spot"}
    assert Counter(c["launch"]["capacityType"] for c in covered["nodeClaims"]) == {
        "on-demand": 2,
        "spot": 2,
    }


def test_reserved_instances_are_used_one_by_one_in_their_zone(plan) -> None:
    zonal = "[{instanceType: r7i.large, count: 3, zone: z-b, usedElsewhere: 1}]"
    answer = plan(reservedInstances=zonal)
    assert answer.types == {"r7i.large": 2, "c7g.large": 2}
    zones = {
        c["launch"]["zone"]
        for c in answer.plan["nodeClaims"]
        if c["launch"]["instanceType"] == "r7i.large"
    }
    assert zones == {"z-b"}


def test_running_nodes_use_up_commitments(plan, tmp_path: Path) -> None:
    running = [*a_running("one", "m7i.large"), a_pod("old", "node-one"), a_pod("new")]
    more = [*a_running("two", "m7i.large"), a_pod("older", "node-two")]
    first = a_snapshot(tmp_path / "first.json", *running)
    second = a_snapshot(tmp_path / "second.json", *running, *more)
    kinds = f"[{PLAN.replace('0.25', '0.21')}]"
    assert plan("--snapshot", first, savingsPlans=kinds).types == {"m7i.large": 1}
    assert plan("--snapshot", second, savingsPlans=kinds).types == {"c7g.large": 1}


def test_a_covered_node_is_not_replaced_by_a_cheaper_one(plan, tmp_path: Path) -> None:
    claim, node = a_running("one", "m7i.large")
    for item in (claim, node):
        item["metadata"]["annotations"].clear()
    snapshot = a_snapshot(tmp_path / "s.json", claim, node, a_pod("old", "node-one"))
    without = plan("--snapshot", snapshot)
    covered = plan("--snapshot", snapshot, savingsPlans=f"[{PLAN}]")
    assert [c["reason"] for c in without.plan["commands"]] == ["Underutilized"]
    assert covered.plan["commands"] == []
    used_up = PLAN.replace("0.25", "0.1")
    assert plan("--snapshot", snapshot, savingsPlans=f"[{used_up}]").plan["commands"] == []


OVERLAY = """\
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: mine}
spec:
  weight: 5
  requirements: [{key: karpenter.k8s.aws/instance-family, operator: In, values: [m7i]}]
  SETS
"""
GATE = ("--set", "featureGates.NodeOverlay=true")


def test_an_overlay_adjusts_the_price_after_commitments(plan, fleet: Path) -> None:
    (fleet / "overlay.yaml").write_text(OVERLAY.replace("SETS", 'price: "0.09"'))
    assert plan(*GATE, savingsPlans=f"[{PLAN}]").types == {"c7g.large": 4}
    (fleet / "overlay.yaml").write_text(OVERLAY.replace("SETS", 'priceAdjustment: "-50%"'))
    answer = plan(*GATE, savingsPlans=f"[{PLAN}]")
    cheap = next(c["launch"] for c in answer.plan["nodeClaims"] if c["launch"]["price"] < 0.01)
    assert cheap["priceSource"]["source"] == "overlay"
    assert cheap["priceSource"]["note"] == "m7i savings plan, 0% used"
    assert 0 < cheap["price"] < cheap["basePrice"]


def prefer(fleet: Path, **preferences: str) -> None:
    lines = "".join(
        f'    veneer.io/preference.{number}: "{value}"\n'
        for number, value in ((k.removeprefix("n"), v) for k, v in preferences.items())
    )
    annotated = f"metadata:\n  name: general\n  annotations:\n{lines}"
    (fleet / "pool.yaml").write_text(POOL.replace("metadata: {name: general}\n", annotated))


def test_a_preference_of_the_node_pool_changes_the_launch(plan, fleet: Path) -> None:
    prefer(fleet, n1=f"{FAMILY}=r7i adjust=-50%")
    answer = plan()
    assert answer.types == {"r7i.large": 4}
    [price] = {c["launch"]["price"] for c in answer.plan["nodeClaims"]}
    assert price == pytest.approx(0.065)


def test_an_invalid_preference_is_reported_and_the_others_apply(plan, fleet: Path) -> None:
    prefer(
        fleet,
        n1=f"{FAMILY}=r7i adjust=-50%",
        n2=f"{FAMILY}>=r7i adjust=-50%",
        n3=f"{FAMILY}=m7i adjust=-120%",
        n4=f"{FAMILY}=c7g adjust=+12.5%",
    )
    answer = plan()
    assert answer.types == {"r7i.large": 4}
    findings = [d for d in answer.plan["diagnostics"] if d["code"].startswith("preference-")]
    assert [d["code"] for d in findings] == [
        "preference-invalid",
        "preference-invalid",
        "preference-rounded",
    ]
    assert "preference.2" in findings[0]["message"]
    assert "preference.3" in findings[1]["message"]


def test_a_preference_that_is_also_an_overlay_in_git_counts_once(plan, fleet: Path) -> None:
    prefer(fleet, n1=f"{FAMILY}=r7i adjust=-50%")
    written = OVERLAY.replace("name: mine", "name: pref-general-1").replace(
        "weight: 5", "weight: 1"
    )
    (fleet / "overlay.yaml").write_text(written.replace("SETS", 'priceAdjustment: "-50%"'))
    answer = plan(*GATE)
    assert answer.types == {"m7i.large": 4}
    assert not {c for c in codes(answer.plan) if c.startswith("overlay-")}


@pytest.mark.parametrize(
    ("key", "entry", "findings"),
    [
        ("savingsPlans", "{type: Compute, commitment: 1, family: m7i}", "family"),
        ("savingsPlans", "{type: EC2Instance, commitment: 1}", "family"),
        (
            "savingsPlans",
            "{type: Compute, commitment: 1, usedElsewhere: 0, utilizationPercent: 5}",
            "usedElsewhere",
        ),
        ("savingsPlans", "{type: Compute, commitment: 0}", "commitment"),
        ("savingsPlans", "{type: Compute, commitment: 1, until: tomorrow}", "until"),
        ("reservedInstances", "{instanceType: m7i, count: 1}", "instanceType"),
        ("reservedInstances", "{instanceType: m7i.large, count: 1.5}", "count"),
    ],
)
def test_implausible_commitments_are_rejected(plan, key: str, entry: str, findings: str) -> None:
    answer = plan(**{key: f"[{entry}]"})
    assert answer.code != 0
    assert findings in answer.err
