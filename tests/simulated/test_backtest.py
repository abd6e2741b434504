"""``simulate --trace``: a recorded workload is replayed, and its cost is measured."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.backtest.replay import Replay
from reconciler.backtest.trace import BYTES_MAX, Trace, read_trace
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from reconciler.simulate.eventlog import Event
from tests.engine.world import a_pool
from tests.repositories import commit_all, init
from tests.simulated.simulations import words, write_fleet

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
ROWS = (
    "a,1500,1024,0,0,,LS,Succeeded,0,7200,30",
    "b,1500,1024,0,0,,LS,Succeeded,600,4200,630",
    "c,1500,1024,0,0,,LS,Failed,3600,5400,",
)
START = datetime.fromisoformat("2026-03-02T12:00:00+00:00")
Run = Callable[..., dict[str, Any]]


def openb(*rows: str) -> bytes:
    return "\n".join([HEADER, *rows, ""]).encode()


@pytest.fixture
def backtest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])

    def run(content: bytes, *more: str) -> dict[str, Any]:
        (tmp_path / "trace.csv").write_bytes(content)
        trace = ("--trace", str(tmp_path / "trace.csv"))
        assert main(["simulate", *words(tmp_path, *trace, "-o", "json", *more)]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        with open(resource_path("schemas", "simulation.v1.json"), encoding="utf-8") as schema:
            Draft202012Validator(json.load(schema)).validate(report)
        return report

    return run


def test_a_trace_is_replayed_and_measured(backtest: Run) -> None:
    found = backtest(openb(*ROWS))["backtest"]
    side = found["sides"]["head"]
    begin, until = (datetime.fromisoformat(found[key]) for key in ("from", "until"))
    assert until - begin == timedelta(hours=2)
    assert (side["pods"], side["unplaced"]) == (3, 0)
    assert 0 < side["lowerBound"] <= side["dollars"]
    assert side["dollarsPerMonth"] == pytest.approx(side["dollars"] / 2 * 730, rel=1e-5)
    waits = side["waitingSeconds"]
    assert 0 < waits["p50"] <= waits["p95"] <= waits["p99"]
    assert found["difference"] is None
    assert found["sides"].keys() == {"head"}


def test_the_same_trace_gives_the_same_bytes_in_any_form(backtest: Run) -> None:
    plain = backtest(openb(*ROWS))
    assert backtest(openb(*reversed(ROWS))) == plain
    assert backtest(gzip.compress(openb(*ROWS), mtime=0)) == plain


def test_an_empty_trace_costs_nothing(backtest: Run) -> None:
    side = backtest(openb())["backtest"]["sides"]["head"]
    assert (side["dollars"], side["lowerBound"], side["nodeHours"], side["pods"]) == (0, 0, 0, 0)
    assert side["utilization"] == {"cpu": 0, "memory": 0}


def test_identical_sides_differ_by_exactly_zero(backtest: Run) -> None:
    found = backtest(openb(*ROWS), "--against", "karpenter-defaults")["backtest"]
    assert found["sides"]["head"] == found["sides"]["karpenter-defaults"]
    change = found["difference"]
    assert change.pop("against") == "karpenter-defaults"
    amounts = [*change.pop("waitingSeconds").values(), *change.pop("utilization").values()]
    assert {*amounts, *change.values()} == {0}


def test_a_base_is_replayed_as_well(backtest: Run, tmp_path: Path) -> None:
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    spot = a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s", capacity_types=("spot",))
    write_fleet(tmp_path, [spot])
    found = backtest(openb(*ROWS), "--base", "HEAD")["backtest"]
    sides, change = found["sides"], found["difference"]
    assert change["against"] == "base"
    assert change["dollars"] == pytest.approx(sides["head"]["dollars"] - sides["base"]["dollars"])
    assert change["dollars"] < 0, "spot costs less"


DAEMON = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "logs", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"app": "logs"}},
        "template": {
            "metadata": {"labels": {"app": "logs"}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "logs", "resources": {"requests": {"cpu": "200m"}}}],
            },
        },
    },
}


@pytest.mark.parametrize(
    ("daemons", "milli"), [([], 1500), ([DAEMON], 1700)], ids=["a pod", "beside a DaemonSet"]
)
def test_utilization_is_requests_divided_by_allocatable(
    backtest: Run, tmp_path: Path, daemons: list[dict[str, Any]], milli: int
) -> None:
    """An m7i.large has 1.9 cores and 7.5 GiB allocatable; it joins after 30 s, ready after 40 s.

    The DaemonSet tolerates every taint, so its pod of 200m runs from the time at which it joins.
    kube-scheduler binds a pod within hundredths of a second, which the figures here leave out.
    """
    pool = a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")
    write_fleet(tmp_path, [pool, *daemons])
    side = backtest(openb(ROWS[0]))["backtest"]["sides"]["head"]
    share = (7200 - 40) / (7200 - 30)
    daemon = milli - 1500
    assert side["utilization"]["cpu"] == pytest.approx((1500 * share + daemon) / 1900, abs=1e-5)
    assert side["utilization"]["memory"] == pytest.approx(1 / 7.5 * share, abs=1e-6)


def test_a_longer_idle_time_lowers_the_utilization(backtest: Run, tmp_path: Path) -> None:
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="20m")])
    found = backtest(openb(*ROWS[1:]), "--base", "HEAD", "--seeds", "2")["backtest"]
    head, base = (found["sides"][name]["utilization"] for name in ("head", "base"))
    for what, lower in found["difference"]["utilization"].items():
        assert lower == pytest.approx(head[what] - base[what], abs=1e-6)
        assert -1 < lower < -0.01
    assert 0 < head["cpu"] < base["cpu"] < 1500 / 1900 + 1e-6


def test_several_seeds_have_a_mean_and_a_spread(backtest: Run) -> None:
    found = backtest(openb(*ROWS), "--seeds", "8")["backtest"]
    low, high = (found["spread"]["head"][key] for key in ("low", "high"))
    assert found["seeds"] == 8
    assert low <= found["sides"]["head"]["dollars"] <= high
    assert low < high, "nodes take their own time to join"


def test_our_trace_format_gives_the_same_result(backtest: Run) -> None:
    spec = {
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "1500m", "memory": "1024Mi"}}}
        ]
    }
    lines: list[dict[str, object]] = [
        {"apiVersion": "reconciler/v1", "kind": "Trace", "seconds": 7200},
        {"class": "small", "spec": spec},
        {"pod": "trace/a", "class": "small", "created": 0, "bound": 30, "deleted": 7200},
        {"pod": "trace/b", "class": "small", "created": 600, "bound": 630, "deleted": 4200},
        {"pod": "c", "class": "small", "created": 3600, "deleted": 5400},
    ]
    ours = backtest("\n".join(map(json.dumps, lines)).encode())["backtest"]
    assert ours["sides"] == backtest(openb(*ROWS))["backtest"]["sides"]


def test_the_terminal_shows_both_sides_in_columns(
    backtest: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backtest(openb(*ROWS))
    more = ("--trace", str(tmp_path / "trace.csv"), "--against", "karpenter-defaults")
    assert main(["simulate", *words(tmp_path, *more)]) == 0
    shown = capsys.readouterr().out
    assert "Backtest from 2026-03-02 09:00 UTC to 2026-03-02 11:00 UTC (2h)" in shown
    assert "head  karpenter-defaults" in shown
    assert re.search(r"CPU utilization +\d\d\.\d% +\d\d\.\d%", shown)
    assert re.search(r"memory utilization +\d\d\.\d%", shown)
    assert "this fleet would have cost the same compared with karpenter-defaults" in shown


def shown_as_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    trace = ("--trace", str(tmp_path / "trace.csv"))
    assert main(["simulate", *words(tmp_path, *trace, "-o", "html", *more)]) == 0
    return capsys.readouterr().out


def test_the_page_shows_the_sentence_the_figures_and_three_charts(
    backtest: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    spot = a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s", capacity_types=("spot",))
    write_fleet(tmp_path, [spot])
    more = ("--base", "HEAD", "--against", "karpenter-defaults", "--seeds", "2")
    found = backtest(openb(*ROWS), *more)["backtest"]
    page = shown_as_page(tmp_path, capsys, *more)
    assert not re.search(r"(src|href)=|url\(|@import|https?://| style=", page)
    assert page.count("<svg") == page.count("</svg>") == 3 + 3 * 3, "each with its key"
    assert page.index("this change would have cost") < page.index("<table") < page.index("<svg")
    assert f"{found['sides']['base']['utilization']['cpu']:.1%}</td>" in page
    for number, side in enumerate(("head", "base", "karpenter-defaults")):
        assert f'scope="col">{side}</th>' in page
        paths = re.findall(rf'<title>{side}</title><path class="curve s{number}" d="(.+?)"', page)
        assert len(paths) == 3
        assert all("V" in path for path in paths), "each changes over time"
    assert "means over 2 seeds" in page
    assert "The curves are those of the first seed." in page


def test_the_page_of_one_side_shows_its_cost(
    backtest: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side = backtest(openb(*ROWS))["backtest"]["sides"]["head"]
    page = shown_as_page(tmp_path, capsys)
    assert f"Over 2 h, this fleet would have cost ${side['dollars']:.4f} (" in page
    assert "CPU utilization over time: head at most 79%" in page
    assert "pods that got a node: head 3 of 3" in page


def test_the_page_of_an_empty_trace_has_empty_charts(
    backtest: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backtest(openb())
    page = shown_as_page(tmp_path, capsys)
    assert "would have cost $0.00" in page
    assert page.count("<svg") == 6


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--against", "karpenter-defaults"], "--against: needs a trace"),
        (["--seeds", "0"], "--seeds: 0 is not allowed"),
        (["--trace", "x.csv"], "x.csv: "),
    ],
)
def test_implausible_options_are_rejected(
    flags: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path, [a_pool("web")])
    assert main(["simulate", *words(tmp_path, *flags)]) == 1
    assert problem in capsys.readouterr().err


def test_gpus_of_any_model_are_counted_as_complete_devices() -> None:
    rows = ("a,4000,8192,1,460,T4|P100,LS,Running,0,10,1", "b,4000,8192,8,1000,,LS,Running,0,10,1")
    trace = read_trace(openb(*rows), "trace.csv")
    requests = [pod.pod.spec.containers[0].resources.requests for pod in trace.pods]
    assert [amounts["nvidia.com/gpu"] for amounts in requests] == ["1", "8"]
    assert trace.rounded == 1


BAD = {
    "other columns": (b"a,b,c\n1,2,3\n", "trace.csv:1", "is not a trace"),
    "empty": (b"", "trace.csv:1", "is not a trace"),
    "no number": (openb("a,x,1,0,0,,LS,Running,0,1,0"), "trace.csv:2", 'cpu_milli: "x"'),
    "negative": (openb("a,-1,1,0,0,,LS,Running,0,1,0"), "trace.csv:2", "cpu_milli"),
    "infinite": (openb("a,1,1,0,0,,LS,Running,0,inf,0"), "trace.csv:2", "deletion_time"),
    "too short": (openb("a,1"), "trace.csv:2", "does not have as many fields"),
    "too long": (openb("a,1,1,0,0,,LS,Running,0,1,0,7"), "trace.csv:2", "not have as many fields"),
    "twice": (openb(*[ROWS[0]] * 2), "trace.csv:3", '"a" is empty or not unique'),
    "ends first": (openb("a,1,1,0,0,,LS,Running,9,1,"), "trace.csv:2", "not in the order"),
    "open quote": (openb('"a,1,1,0,0,,LS,Running,0,1,0'), "trace.csv:2", "cannot be read as CSV"),
    "no UTF-8": (openb(*ROWS) + b"\xff", "trace.csv:5", "is not UTF-8"),
    "half a gzip": (gzip.compress(openb(*ROWS))[:40], "trace.csv", "ends within"),
    "no JSON": (b"{", "trace.csv:1", "truncated"),
    "another kind": (b'{"apiVersion":"v1","kind":"List","seconds":1}', "trace.csv:1", "is v1 List"),
    "unknown class": (
        b'{"apiVersion":"reconciler/v1","kind":"Trace","seconds":9}\n{"pod":"a","class":"x","created":1}',
        "trace.csv:2",
        'class "x" is not defined',
    ),
}


@pytest.mark.parametrize(("content", "where", "problem"), BAD.values(), ids=BAD)
def test_an_unreadable_trace_is_rejected_with_its_line(
    content: bytes, where: str, problem: str
) -> None:
    with pytest.raises(UnreadableError) as caught:
        read_trace(content, "trace.csv")
    assert problem in caught.value.message
    assert caught.value.where == where


def test_a_decompression_bomb_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BYTES_MAX == 2**30
    monkeypatch.setattr("reconciler.backtest.trace.BYTES_MAX", 10_000)
    with pytest.raises(UnreadableError, match="has more than"):
        read_trace(gzip.compress(openb() + b" " * 1_000_000), "trace.csv")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_trace_or_a_clean_error(content: bytes) -> None:
    for text in (content, openb() + content, b'{"apiVersion":"reconciler/v1",' + content):
        message = "trace.csv: read"
        try:
            read_trace(text, "trace.csv")
        except UnreadableError as error:
            message = str(error)
        assert re.match(r"trace\.csv(:\d+)*: .", message)
        assert len(message.splitlines()) == 1


rows = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 300), st.integers(0, 200)), max_size=12
)


@given(rows, st.lists(st.integers(1, 90), min_size=5, max_size=40))
@settings(max_examples=60, deadline=None)
def test_each_pod_is_pending_running_or_gone_at_each_time(
    made: Sequence[tuple[int, int, int]], steps: Sequence[int]
) -> None:
    lines = [
        f"p{n},100,1,0,0,,LS,Running,{created},{created + wait + life},{created + wait}"
        for n, (created, wait, life) in enumerate(made)
    ]
    trace: Trace = read_trace(openb(*lines), "trace.csv")
    replay, now = Replay(trace, START), START
    for number, step in enumerate(steps):
        present = {pod.key for pod in replay.workloads(now).pods}
        came = {p.pod.key for p in trace.pods if START + timedelta(seconds=p.created) <= now}
        gone = {key for key, stay in replay.stays.items() if stay.ended is not None}
        assert replay.stays.keys() == came
        assert present == came - gone
        for key in sorted(present)[: number % 3]:
            replay.record_event(Event(now, "PodBound", pod=key))
        for key in gone:
            stay = replay.stays[key]
            assert stay.bound is not None
            assert stay.traced.life is not None
            assert stay.ended == stay.bound + timedelta(seconds=stay.traced.life)
        now += timedelta(seconds=step)
