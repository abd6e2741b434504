"""``plan --base REF --trace FILE``: what a change would have cost with a recorded workload."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from reconciler.plan.approval import read_saved_plan
from reconciler.plan.render.summary import summary_lines
from reconciler.plan.value.plan import from_json
from tests.engine.world import a_deployment, a_pool
from tests.repositories import commit_all, git, init
from tests.simulated.simulations import words, write_fleet

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
ROWS = ("a,1500,1024,0,0,0,7200,30", "b,1500,1024,0,0,600,4200,630")
Shown = Callable[..., str]


def pool(*capacity_types: str) -> dict[str, Any]:
    return a_pool(
        "web", policy="WhenEmptyOrUnderutilized", after="30s", capacity_types=capacity_types
    )


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Plan a change from on-demand to spot, with a trace of two pods."""
    write_fleet(tmp_path, [pool("on-demand")])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [pool("spot")])
    (tmp_path / "trace.csv").write_text("\n".join([COLUMNS, *ROWS, ""]))

    def plan(*more: str) -> str:
        trace = ("--trace", str(tmp_path / "trace.csv"), "--base", "HEAD")
        assert main(["plan", *words(tmp_path, *trace, *more)]) == 0
        return capsys.readouterr().out

    return plan


def schema(name: str) -> dict[str, Any]:
    with open(resource_path("schemas", name), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_the_plan_has_the_backtest_that_simulate_shows(
    shown: Shown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads(shown("-o", "json"))
    Draft202012Validator(schema("plan.v1.json")).validate(plan)
    more = ("--base", "HEAD", "--trace", str(tmp_path / "trace.csv"), "-o", "json")
    assert main(["simulate", *words(tmp_path, *more)]) == 0
    simulated = json.loads(capsys.readouterr().out)["backtest"]
    assert plan["backtest"] == simulated
    assert plan["backtest"]["difference"]["dollars"] < 0, "spot costs less"


def test_a_trace_is_not_replayed_for_a_new_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path, [pool("spot"), a_deployment("web", "web", 2)])
    (tmp_path / "trace.csv").write_text("\n".join([COLUMNS, *ROWS, ""]))
    init(tmp_path)
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "empty")
    more = ("--base", "HEAD", "--trace", str(tmp_path / "trace.csv"))
    assert main(["plan", *words(tmp_path, *more)]) == 0
    out = capsys.readouterr().out
    assert "New fleet: " in out
    assert "would have cost" not in out


def test_both_schemas_describe_the_same_object() -> None:
    plan, simulation = (
        schema(name)["properties"]["backtest"] for name in ("plan.v1.json", "simulation.v1.json")
    )
    assert plan.pop("description") != simulation.pop("description")
    assert plan == simulation


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_the_backtest_is_shown_next_to_the_cost_of_the_change(shown: Shown, form: str) -> None:
    found = json.loads(shown("-o", "json"))["backtest"]["difference"]
    cost = f"{-found['dollars']:.4f} less ({found['percent']:.0f}%)".replace("-", "−")
    page = html.unescape(shown("-o", form)).replace("\u200b", "")
    words = " ".join(page.split())
    assert f"Over 2 h, this change would have cost ${cost}; p99 waiting" in words
    assert "This change has no effect on the cost of the fleet as it is now; " in words
    assert words.index("as it is now;") < words.index("would have cost") < words.index("Rollout:")


def test_the_price_of_running_pods_comes_first(shown: Shown, tmp_path: Path) -> None:
    write_fleet(tmp_path, [pool("on-demand"), a_deployment("web", "web", 1)])
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [pool("spot"), a_deployment("web", "web", 1)])
    price, replayed, *_ = json.loads(shown("-o", "json"))["summary"]["text"]
    assert price.startswith("This change: −$")
    assert replayed.startswith("Over 2 h, this change would have cost $")


def test_a_saved_plan_with_a_backtest_is_read_back_unchanged(shown: Shown, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    shown("--out", str(file))
    plan = read_saved_plan(file.read_bytes(), "plan.json")
    assert plan.backtest is not None
    assert set(plan.backtest.sides) == {"head", "base"}
    edited = file.read_text().replace('"unplaced":0', '"unplaced":7', 1)
    with pytest.raises(UnreadableError, match="was changed after it was saved"):
        read_saved_plan(edited.encode(), "plan.json")


HOSTILE: dict[str, dict[str, object]] = {
    "no head": {"sides": {}},
    "a side that is missing": {"difference": {"against": "karpenter-defaults"}},
    "a name of its own": {"difference": {"against": "<img src=x>"}},
    "ends first": {"until": "2020-01-01T00:00:00Z"},
    "no time zone": {"until": "2027-01-01T00:00:00"},
    "no number": {"difference": {"dollars": "<b>"}},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_plan_with_an_invalid_backtest_is_rejected(
    shown: Shown, change: dict[str, dict[str, object]]
) -> None:
    plan = json.loads(shown("-o", "json"))
    for key, value in change.items():
        whole = plan["backtest"]
        whole[key] = {**whole[key], **value} if value and isinstance(value, dict) else value
    with pytest.raises(UnreadableError, match="not a plan: "):
        read_saved_plan(json.dumps(plan).encode(), "plan.json")


def test_a_backtest_without_a_comparison_is_not_rendered(shown: Shown) -> None:
    plan = from_json(shown("-o", "json").encode())
    assert plan.backtest is not None
    alone = msgspec.structs.replace(plan.backtest, difference=None)
    lines = summary_lines(msgspec.structs.replace(plan, backtest=alone))
    assert lines
    assert not any("would have cost" in line for line in lines)


def test_a_policy_can_read_the_cost_in_the_backtest(shown: Shown, tmp_path: Path) -> None:
    policy = """
apiVersion: reconciler/v1
kind: Policies
policies:
  - name: expensive
    expression: "!has(plan.backtest) || plan.backtest.difference.dollars <= -1000.0"
    message: saves too little
"""
    (tmp_path / "policies.yaml").write_text(policy)
    more = ("--base", "HEAD", "--policy", str(tmp_path / "policies.yaml"))
    trace = ("--trace", str(tmp_path / "trace.csv"))
    assert main(["plan", *words(tmp_path, *more)]) == 0
    assert main(["plan", *words(tmp_path, *more, *trace)]) == 3


def test_pods_of_a_snapshot_do_not_run_alongside_the_trace(shown: Shown, tmp_path: Path) -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "seen", "namespace": "default"},
        "spec": spec,
        "status": {"conditions": [{"type": "PodScheduled", "status": "False",
                                   "reason": "Unschedulable"}]},
    }  # fmt: skip
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    without = json.loads(shown("-o", "json"))
    beside = json.loads(shown("-o", "json", "--snapshot", str(file)))
    assert beside["placements"] != without["placements"], "the plan is of that pod"
    assert beside["backtest"] == without["backtest"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--trace", "{t}"), "Error: --trace: needs a base to compare with; add --base REF\n"),
        (("--base", "HEAD", "--trace", "none.csv"), "Error: none.csv: No such file or directory"),
        (("--base", "HEAD", "--trace", "{bad}"), "bad.csv:2"),
    ],
    ids=["no base", "missing", "malformed"],
)
def test_a_trace_that_cannot_be_replayed_is_a_one_line_error(
    shown: Shown,
    flags: tuple[str, ...],
    error: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "this change" in shown()
    (tmp_path / "bad.csv").write_text(f"{COLUMNS}\na,x,1,0,0,0,1,0\n")
    files = {"t": str(tmp_path / "trace.csv"), "bad": str(tmp_path / "bad.csv")}
    assert main(["plan", *words(tmp_path, *(flag.format(**files) for flag in flags))]) == 1
    output = capsys.readouterr().err
    assert error in output
    assert output.count("\n") == 1
