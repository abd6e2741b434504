"""``reconciler explain gap``: the parts add up to the gap, and each has the right owner."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from reconciler.model.text.money import format_monthly
from reconciler.plan.render.summary import summary_lines
from reconciler.plan.rest import gap
from reconciler.plan.rest.steadystate import packing_saving
from reconciler.plan.value.plan import from_json
from reconciler.simulate.planinputs import read_inputs
from tests.cli.commandlines import request_of
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    TYPES,
    Object,
    a_pool,
    apart,
    pods,
    rule,
    spread,
    wanted,
)

NOW = "2026-03-01T12:00:00Z"
POOL = a_pool("general", wanted(CAPACITY_TYPE, "In", "on-demand"))
SMALL = a_pool(
    "general", wanted(CAPACITY_TYPE, "In", "on-demand"), wanted("example.com/size", "In", "2")
)
_numbers = count()


def test_a_plan_folds_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).resolve().parents[2] / "examples" / "web")
    words = [example, "--now", NOW]

    def output(*command: str) -> str:
        assert main([*command, *words]) == 0
        return capsys.readouterr().out

    explanation = json.loads(output("explain", "gap", "-o", "json"))
    found = json.loads(output("plan", "-o", "json"))["gap"]
    assert {**explanation, **found} == explanation
    comment = output("plan", "-o", "markdown")
    title = "<details><summary>What each constraint costs (&#36;596 → &#36;118/month"
    assert title in comment
    assert "| &#36;299 | soft preferences | Deployment shop/api |" in comment
    assert "none: with packing: cheapest, the steady state costs no less" in comment
    page = output("explain", "gap", "-o", "markdown").splitlines()
    assert page[2].startswith("web: &#36;596/month for 18 pods after the first pass; ")
    assert page[4] == "| $/month | constraint | owner | smallest change |"
    text = output("plan")
    assert "What each constraint costs" not in text
    assert "soft preferences of Deployment shop/api, $299/month" in " ".join(text.split())


def test_packing_is_proposed_for_what_it_saves_in_steady_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = str(Path(__file__).resolve().parents[2] / "examples" / "gpu")
    words = ["explain", "gap", example, "--set", "cluster=none", "--now", NOW]
    assert main([*words, "-o", "json"]) == 0
    parts = {part["constraint"]: part for part in json.loads(capsys.readouterr().out)["parts"]}
    saving = packing_saving(read_inputs(request_of(words).fleet, Timings()))

    assert saving is not None
    packing, rest = parts["packing"], parts["packing of the first pass"]
    assert packing["pricePerHour"] == pytest.approx(saving.mean)
    assert packing["change"] == "set packing: cheapest (mean of runs)"
    assert rest["pricePerHour"] > packing["pricePerHour"]
    assert rest["change"].startswith("none:")
    assert main(["plan", *words[2:]]) == 0
    line = " ".join(capsys.readouterr().out.split())
    assert f"packing, {format_monthly(saving.mean)}/month" in line


def test_the_steady_state_of_another_packing_is_left_to_simulate_for_many_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a plan, nobody waits seconds for it, least of all for the awkward pods of one tenant."""
    example = str(Path(__file__).resolve().parents[2] / "examples" / "gpu")
    pods = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    spec = {"replicas": 81, "template": {"metadata": {"labels": {"app": "x"}}, "spec": pods}}
    spec["selector"] = {"matchLabels": {"app": "x"}}
    more = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
    (tmp_path / "more.json").write_text(json.dumps(more))
    words = ["explain", "gap", example, "-f", str(tmp_path / "more.json"), "--now", NOW]
    assert main([*words, "--set", "cluster=none", "-o", "json"]) == 0
    parts = {part["constraint"]: part for part in json.loads(capsys.readouterr().out)["parts"]}
    assert parts["packing"]["change"].startswith("none known: `simulate --set packing=cheapest`")


def test_an_end_close_to_the_first_pass_is_stated_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = str(Path(__file__).resolve().parents[2] / "examples" / "web")
    words = ["plan", example, "--set", "cluster=none", "--set", "evictionCost=1000", "--now", NOW]
    assert main([*words, "-o", "json"]) == 0
    plan = from_json(capsys.readouterr().out)
    state = plan.steady_state
    assert state is not None
    assert state.range is not None
    assert 0.9 * plan.cost.after < state.per_hour < plan.cost.after
    assert any(line.startswith("Steady state: about ") for line in summary_lines(plan))


def test_a_plan_of_many_pods_leaves_the_parts_to_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gap, "PLAN_PODS_MAX", 17)
    example = str(Path(__file__).resolve().parents[2] / "examples" / "web")
    assert main(["plan", example, "-o", "json", "--now", NOW]) == 0
    assert "gap" not in json.loads(capsys.readouterr().out)


def owned(items: Iterable[Object]) -> list[Object]:
    """Return pods whose owner is their controller, as in a cluster."""
    for pod in items:
        for owner in pod["metadata"]["ownerReferences"]:
            owner["controller"] = True
    return list(items)


def explained(folder: Path, *objects: Object, words: Iterable[str] = ()) -> list[str]:
    """Return the words of a command about these objects."""
    place = folder / f"case-{next(_numbers)}"
    (place / "fleet").mkdir(parents=True)
    pools = [o for o in objects if o["kind"] == "NodePool"]
    text = "\n---\n".join(json.dumps({"apiVersion": "karpenter.sh/v1", **o}) for o in pools)
    (place / "fleet/pools.yaml").write_text(text)
    rest = [o for o in objects if o["kind"] != "NodePool"]
    (place / "snapshot.json").write_text(json.dumps({"kind": "List", "items": owned(rest)}))
    (place / "catalog.json").write_text(json.dumps(list(TYPES)))
    return [
        "explain", "gap", str(place / "fleet"), "--now", NOW,
        "--snapshot", str(place / "snapshot.json"), "--catalog", str(place / "catalog.json"),
        *words,
    ]  # fmt: skip


@pytest.fixture
def parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*objects: Object) -> dict[str, Any]:
        assert main(explained(tmp_path, *objects, words=("-o", "json"))) == 0
        schema = json.loads(Path(resource_path("schemas", "gapexplanation.v1.json")).read_bytes())
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        Draft202012Validator(schema).validate(found)
        return found

    return run


def named(found: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(p["constraint"], p["owner"]): p["pricePerHour"] for p in found["parts"]}


def test_anti_affinity_has_its_cost_and_its_owner(parts: Any) -> None:
    single = pods(6, "single", cpu="500m", affinity=apart(rule(HOST, "single")))
    found = parts(POOL, *single, *pods(6, "free", cpu="500m"))

    # six small nodes at $0.10; without the rule, one medium and one small node take all
    cost = named(found)["pod anti-affinity", "ReplicaSet default/single"]
    assert cost == pytest.approx(0.3)
    assert not any(owner.endswith("/free") for _, owner in named(found))


def test_a_spread_over_zones_has_its_cost(parts: Any) -> None:
    found = parts(
        POOL,
        *pods(3, cpu="300m", topologySpreadConstraints=[spread("topology.kubernetes.io/zone")]),
    )

    assert named(found)["topology spread", "ReplicaSet default/app"] == pytest.approx(0.2)


def test_requests_that_just_miss_a_size_name_the_size_and_the_amount(parts: Any) -> None:
    # a small node has 1.9 CPUs and 7.9 GiB: two pods of 0.98 CPU need 0.03 CPU each less
    found = parts(SMALL, *pods(6, cpu="980m"))

    (miss,) = [p for p in found["parts"] if p["constraint"] == "request just misses a size"]
    assert miss["owner"] == "ReplicaSet default/app"
    assert miss["change"] == "request 30m CPU less: 2 pods then fit on small (6 → 3 nodes)"
    assert miss["pricePerHour"] == pytest.approx(0.3)


def test_the_capacity_type_of_a_node_pool_is_the_last_part(parts: Any) -> None:
    found = parts(POOL, *pods(4))

    assert found["parts"][-1]["constraint"] == "capacity type"
    assert found["parts"][-1]["owner"] == "NodePool general"
    assert found["minimum"] == pytest.approx(found["lowerBound"] / 3, rel=1e-4)


def test_the_capacity_type_that_a_workload_asks_for_is_its_own(parts: Any) -> None:
    free = a_pool("general", wanted(CAPACITY_TYPE, "In", "on-demand", "spot"))
    found = parts(free, *pods(4, nodeSelector={CAPACITY_TYPE: "on-demand"}))

    assert ("capacity type", "ReplicaSet default/app") in named(found)


def test_pods_that_cannot_be_scheduled_are_left_out(parts: Any) -> None:
    found = parts(POOL, *pods(2), *pods(1, "large", cpu="400"))

    assert (found["pods"], found["unschedulable"]) == (2, 1)


def test_a_fleet_without_pods_has_no_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(explained(tmp_path, POOL)) == 0
    assert "This is the minimum." in capsys.readouterr().out


@settings(max_examples=examples(60))
@given(st.data())
def test_the_parts_add_up_to_the_gap(data: st.DataObject) -> None:
    objects: list[Object] = [POOL]
    for name in ("a", "b", "c"):
        fields: dict[str, Any] = {"cpu": data.draw(st.sampled_from(["300m", "980m", "3", "400"]))}
        match data.draw(st.sampled_from(["none", "apart", "spread", "soft"])):
            case "apart":
                fields["affinity"] = apart(rule(HOST, name))
            case "spread":
                fields["topologySpreadConstraints"] = [spread(HOST, name)]
            case "soft":
                fields["topologySpreadConstraints"] = [spread(HOST, name, soft=True)]
        objects += pods(data.draw(st.integers(0, 5)), name, **fields)
    out = io.StringIO()
    with TemporaryDirectory() as place, redirect_stdout(out):
        assert main(explained(Path(place), *objects, words=("-o", "json"))) == 0

    found = json.loads(out.getvalue())

    whole = found["pricePerHour"] - found["minimum"]
    assert sum(p["pricePerHour"] for p in found["parts"]) == pytest.approx(whole, abs=1e-9)
    assert all(p["pricePerHour"] > 0 for p in found["parts"])
    assert found["minimum"] <= found["lowerBound"] <= found["pricePerHour"]


def test_a_large_fleet_drops_the_constraints_of_small_workloads_together(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap, "PLACED_MAX", 10)
    single = [
        pod
        for name in "abcd"
        for pod in pods(2, name, cpu="500m", affinity=apart(rule(HOST, name)))
    ]

    found = parts(POOL, *single)

    assert found["limited"] is True
    owners = [o for what, o in named(found) if what == "pod anti-affinity"]
    assert "3 other workloads" in owners or len(owners) <= 2


@pytest.mark.parametrize("words", [("fleet", "more"), ("fleet", "--plan", "plan.json")])
def test_gap_takes_only_the_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    with pytest.raises(UsageError, match="gap takes only the fleet folder"):
        request_of(["explain", "gap", *words])
