"""``reconciler explain`` with separate inputs: alternatives and their prices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from tests.cli.recorded_fleet import record
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    PREFERRED,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    apart,
    pods,
    rule,
    spread,
    wanted,
)

NOW = "2026-03-01T12:00:00Z"
Explain = Callable[..., str]


def _dearer_outside_a(kind: Object) -> Object:
    offerings = [
        {**o, "price": o["price"] * (1 if o["zone"] == "zone-a" else 2)} for o in kind["offerings"]
    ]
    return {**kind, "offerings": offerings}


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    def explained(
        kind: str, name: str, *objects: Object, code: int = 0, form: str = "text", chosen: str = ""
    ) -> str:
        folder = tmp_path / "fleet"
        folder.mkdir(exist_ok=True)
        fleet = [o for o in objects if o["kind"] == "NodePool"]
        (folder / "pools.yaml").write_text(
            "\n---\n".join(json.dumps({"apiVersion": "karpenter.sh/v1", **o}) for o in fleet)
        )
        rest = [o for o in objects if o["kind"] != "NodePool"]
        (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": rest}))
        catalog = [_dearer_outside_a(t) for t in TYPES]
        (tmp_path / "catalog.json").write_text(json.dumps(catalog))
        words = ["explain", kind, name, str(folder), "--now", NOW, "-o", form]
        words += ["--snapshot", str(tmp_path / "snapshot.json")]
        words += ["--set", chosen] if chosen else []
        assert main([*words, "--catalog", str(tmp_path / "catalog.json")]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return explained


def _document(text: str) -> dict[str, Any]:
    schema = json.loads(Path(resource_path("schemas", "explanation.v1.json")).read_bytes())
    found: dict[str, Any] = json.loads(text)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(found)
    return found


ON_DEMAND = wanted(CAPACITY_TYPE, "In", "on-demand")


def test_the_state_of_a_simulated_run_is_explained_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nodes and a fleet, but its EC2 and cluster ended with the process that made them."""
    folder = tmp_path / "web"
    folder.mkdir()
    pool = {"apiVersion": "karpenter.sh/v1", **a_pool("web")}
    (folder / "pools.yaml").write_text(json.dumps(pool))
    state = folder / ".reconciler/simulated"
    state.parent.mkdir()
    record(state)
    words = ["explain", "nodepool", "web", str(folder), "--now", NOW, "--state", str(state)]
    assert main(words) == 0
    assert "no cluster: counted with the 3 recorded nodes" in capsys.readouterr().out
    elsewhere = tmp_path / "state"
    record(elsewhere)
    assert main([*words[:-1], str(elsewhere)]) == 1
    assert "no cluster configured" in capsys.readouterr().err


def test_an_unschedulable_pod_lists_each_pool_with_the_types_left_by_each_filter(
    explain: Explain,
) -> None:
    world = (
        a_pod("app-0", "70"),
        a_pool("big"),
        a_pool("other", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}]),
    )
    text = explain("pod", "default/app-0", *world)
    assert "requests 70 cpu, but the largest allowed instance type has 15.9" in text
    assert "the closest instance type, huge, lacks 54.1 cpu" in text
    assert "catalog 6 · NodePool 6 · offerings 6 · resources 0" in text
    found = _document(explain("pod", "app-0", *world, form="json"))
    pools = {p["nodePool"]: p for p in found["pools"]}
    assert {name: p["code"] for name, p in pools.items()} == {
        "big": "TooLarge",
        "other": "TaintNotTolerated",
    }
    assert pools["big"]["nearestType"] == "huge"


def test_a_scheduled_pod_lists_its_alternatives(explain: Explain) -> None:
    world = (a_pod("app-0", "1"), a_pool("default", ON_DEMAND), a_pool("spot"), *a_node("n1"))
    text = explain("pod", "app-0", *world)
    assert text.startswith("Pod default/app-0: it fits on the existing node n1.")
    assert "1 of 1 existing node match its constraints; it fits on n1" in text
    found = _document(explain("pod", "app-0", *world, form="json"))
    launches = {p["nodePool"]: p["launch"] for p in found["pools"]}
    assert launches["default"]["capacityType"] == "on-demand"
    assert launches["spot"]["price"] < launches["default"]["price"]
    assert found["nodes"] == {"total": 1, "suited": 1, "takers": ["n1"]}


def test_a_running_pod_lists_other_possible_nodes(explain: Explain) -> None:
    world = (a_pod("app-0", node="n1"), a_pool(), *a_node("n1"), *a_node("n2"))
    text = explain("pod", "app-0", *world)
    assert "it fits on n2" in text


def test_a_pod_lists_preferences_dropped_for_their_cost(explain: Explain) -> None:
    liked = {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": rule(HOST)}]}}
    world = [a_pool(), *pods(4, affinity=liked)]
    printed = explain("pod", "app-00", *world, chosen="packing=cheapest")
    dropped = f"dropped preference: preferred pod anti-affinity on {HOST} (honouring it costs more"
    assert dropped in " ".join(printed.split())
    assert "maximumPreferenceCostPercent" in printed
    kept = explain("pod", "app-00", *world)
    assert "given up" not in kept


def _planned(explain: Explain, *world: Object) -> str:
    found = _document(explain("pod", "app-00", *world, form="json"))
    name: str = found["verdict"].split()[3].rstrip(",")
    return name


def test_a_claim_lists_the_cost_of_each_constraint(explain: Explain) -> None:
    even = pods(3, cpu="3", topologySpreadConstraints=[spread(ZONE)])
    world = (*even, a_pool("default", ON_DEMAND))
    name = _planned(explain, *world)
    found = _document(explain("nodeclaim", name, *world, form="json"))
    saved = {c["constraint"]: c["saves"] for c in found["constraints"]}
    # three mediums: one in zone-a at 0.2, two outside at 0.4; one huge would hold them for 0.8
    assert saved[f"the topology spread over {ZONE}"] == pytest.approx(0.2)
    assert saved[f"the NodePool's requirement on {CAPACITY_TYPE}"] == pytest.approx(2 / 3, abs=1e-5)
    assert found["filters"][0] == {"filter": "catalog", "types": 6}
    assert found["offerings"][0]["capacityType"] == "on-demand"
    prices = [o["price"] for o in found["offerings"]]
    assert prices == sorted(prices)
    text = explain("nodeclaim", name, *world)
    assert re.search(r"\n  TYPE +CAPACITY +ZONE +\$/HOUR", text)
    assert re.search(r"\n  EFFECT +CONSTRAINT\n", text)
    assert f"the NodePool's requirement on {CAPACITY_TYPE}" in text
    assert "Instance types left after each filter: catalog 6 ·" in text


def test_a_constraint_can_make_a_pod_unschedulable(explain: Explain) -> None:
    world = (
        *pods(2, affinity=apart(rule(ZONE))),
        a_pool("default", wanted(ZONE, "In", "zone-a")),
    )
    name = _planned(explain, *world)
    found = _document(explain("nodeclaim", name, *world, form="json"))
    first = found["constraints"][0]
    assert (first["constraint"], first["placed"]) == (f"the pod anti-affinity by {ZONE}", 1)
    assert "schedules 1 more pod" in explain("nodeclaim", name, *world)


def test_an_existing_claim_shows_its_cheapest_possible_offering(explain: Explain) -> None:
    world = (a_pod("app-0", "3", node="n1"), a_pool(), *a_node("n1"))
    text = explain("nodeclaim", "claim-n1", *world)
    assert "cheapest offering that its requirements allow now: small spot in zone-a" in text


def test_an_unknown_name_is_rejected(explain: Explain) -> None:
    assert "pod nosuch is not in plan" in explain("pod", "nosuch", a_pool(), code=1)
    assert 'NodeClaim "x" is not in plan' in explain("nodeclaim", "x", a_pool(), code=1)


def test_without_recorded_state_the_folder_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECONCILER_STATE", "RECONCILER_FLEET"):
        monkeypatch.delenv(name, raising=False)
    from tests.cli.test_plan import CLASS, DEPLOYMENT, POOL

    for name, text in (("pool", POOL), ("class", CLASS), ("api", DEPLOYMENT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert main(["explain", "pod", "web/api-00000", str(tmp_path), "--now", NOW]) == 0
    assert "NodePool general: launch" in capsys.readouterr().out
