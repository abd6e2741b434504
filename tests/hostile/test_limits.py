"""Inputs that exhaust a machine: each ends quickly, with a finding that names the limit.

Without its limit each of these runs for minutes, needs gigabytes or ends with an internal error.
Time limits are stated in turns of a loop on the same processor, because machines differ in speed.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.adapters.aws.bootstrap.kubelet import evaluate
from reconciler.cli.main import main
from reconciler.desired.findings import FINDINGS_MAX
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.hash import object_hash
from reconciler.desired.objects import node_pools
from reconciler.model.duration import NANOSECONDS_MAX, parse_nanoseconds, parse_span
from reconciler.model.karpenter.budget import Budget, allowance
from reconciler.model.resources import AMOUNT_MAX, parse_quantity
from reconciler.model.schedule import is_open, next_change, parse_schedule, steady_until
from reconciler.observed.snapshot import read_snapshot
from reconciler.simulate import driver
from reconciler.source.document import parse_documents
from reconciler.source.plainyaml import dump
from reconciler.source.schema import load_schema
from tests.cli.test_plan import CATALOG, CLASS, DEPLOYMENT, NOW, POOL
from tests.hostile.documentedlimits import CONSTANTS
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon
from tests.yamltext import load as read_yaml

ROOT = Path(__file__).resolve().parents[2]

MOMENT = datetime(2026, 1, 3, 12, tzinfo=UTC)


def a_fleet(folder: Path, **files: str) -> str:
    fleet = folder / "fleet"
    fleet.mkdir(exist_ok=True)
    for name, content in {"pool": POOL, "class": CLASS, **files}.items():
        (fleet / f"{name}.yaml").write_text(content)
    (folder / "catalog.json").write_text(json.dumps(CATALOG))
    return str(fleet)


def a_pool(template: dict[str, Any] | None = None, **spec: Any) -> str:
    data = read_yaml(POOL)
    data["spec"].update(spec)
    data["spec"]["template"]["spec"].update(template or {})
    return json.dumps(data, indent=1)  # also valid YAML, and fast to write at any length


def requirements(*entries: dict[str, Any]) -> str:
    return a_pool({"requirements": [*entries]})


def an_overlay(**spec: Any) -> str:
    wanted = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]
    return json.dumps(
        {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": "o"},
            "spec": {"requirements": wanted, **spec},
        }
    )


def budgets(**budget: str) -> dict[str, Any]:
    return {"consolidateAfter": "0s", "budgets": [{"nodes": "1", **budget}]}


REFUSED: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "a billion static nodes": (
        lambda: {"pool": a_pool(replicas=10**9)},
        "more than 20000 nodes in total",
    ),
    "a billion pods": (
        lambda: {"app": DEPLOYMENT.replace("replicas: 3", "replicas: 1000000000")},
        "more than 200000",
    ),
    "a limit beyond every amount": (
        lambda: {"pool": a_pool(limits={"cpu": "1e400"})},
        "out of range",
    ),
    "a limit with a fraction in its exponent": (
        lambda: {"pool": a_pool(limits={"cpu": "1e5.5"})},
        "not a quantity",
    ),
    "a request beyond every amount": (
        lambda: {
            "app": DEPLOYMENT.replace("cpu: 500m", "cpu: '1e400'"),
            "reconciler": "fleet: web\n",
        },
        "out of range",
    ),
    "a volume of no size": (
        lambda: {
            "class": CLASS + "  blockDeviceMappings: [{deviceName: a, ebs: {volumeSize: Ti}}]\n"
        },
        "not a quantity",
    ),
    "a duration of a billion years": (
        lambda: {"pool": a_pool(disruption={"consolidateAfter": "9999999999999h"})},
        "292 years",
    ),
    "a duration of a million parts": (
        lambda: {"pool": a_pool(disruption={"consolidateAfter": "1h" * 1_000_000})},
        "2000000 characters",
    ),
    "a window of a billion years": (
        lambda: {"pool": a_pool(disruption=budgets(schedule="@daily", duration="9999999999999h"))},
        "292 years",
    ),
    "a schedule of a million fields": (
        lambda: {
            "pool": a_pool(disruption=budgets(schedule="* " * 1_000_000 + "x", duration="1h"))
        },
        "at most 1000 are read",
    ),
    "a schedule of spaces": (
        lambda: {"pool": a_pool(disruption=budgets(schedule=" " * 900 + "\t", duration="1h"))},
        "schedule",
    ),
    "a quantity of a million digits": (
        lambda: {"pool": a_pool(limits={"cpu": "1" * 1_000_000})},
        "not a quantity",
    ),
    "a name of a million characters": (
        lambda: {"pool": POOL.replace("general", "a-" * 500_000)},
        "253",
    ),
    "a label key of a million parts": (
        lambda: {"pool": requirements({"key": "a." * 500_000 + "/b", "operator": "Exists"})},
        "characters",
    ),
    "fifty thousand requirements": (
        lambda: {
            "pool": requirements(
                *({"key": f"example.com/a{i}", "operator": "Exists"} for i in range(50_000))
            )
        },
        "at most 100 are allowed",
    ),
    "more minimum values than can be": (
        lambda: {"pool": requirements({"key": "a/b", "operator": "Exists", "minValues": 10**9})},
        "at most 50",
    ),
    "a price beyond every number": (
        lambda: {"overlay": an_overlay(price="9" * 400)},
        "is out of range",
    ),
    "an adjustment beyond every number": (
        lambda: {"overlay": an_overlay(priceAdjustment=f"+{'9' * 400}%")},
        "is out of range",
    ),
    "a weight beyond every number": (lambda: {"pool": a_pool(weight=10**30)}, "must be an integer"),
    "a hundred thousand levels": (lambda: {"deep": "a: " + "[" * 100_000}, "more than 100 levels"),
    "aliases that write out to billions": (
        lambda: {
            "bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n"
                for i in range(9)
            )
        },
        "expand to too much data",
    ),
    "merges that write out to millions": (
        lambda: {
            "bomb": "a: &a {"
            + ",".join(f"k{i}: 1" for i in range(1000))
            + "}\n"
            + "".join(f"b{i}: {{<<: *a}}\n" for i in range(5000))
        },
        "expand to too much data",
    ),
    "thirty thousand documents": (
        lambda: {"many": "---\n{kind: X, apiVersion: v1}\n" * 30_000},
        "10000 documents",
    ),
    "a file of five megabytes": (
        lambda: {"long": "a: " + "x" * 5_000_000},
        "the file is too large; at most 4 MiB are allowed",
    ),
    "fifty thousand unknown fields": (
        lambda: {"pool": POOL + "".join(f"  unknown{i}: 1\n" for i in range(50_000))},
        "unknown field",
    ),
}


@attack(Threat.EXHAUSTION, "a fleet that requests too much")
@pytest.mark.parametrize(("files", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_too_much_is_a_finding_that_names_the_limit(
    files: Callable[[], dict[str, str]],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet = a_fleet(tmp_path, **files())
    with soon():
        assert main(["validate", fleet]) == 3
    out, err = capsys.readouterr()
    assert words in out
    assert not err
    with soon():
        assert main(["plan", fleet, "--now", NOW]) == 1
    err = capsys.readouterr().err
    assert "internal error" not in err
    assert err.count("\n") == 1


BORNE: dict[str, Callable[[], dict[str, str]]] = {
    "a hundred thousand values": lambda: {
        "pool": requirements(
            {"key": "a/b", "operator": "In", "values": [f"v{i}" for i in range(100_000)]}
        )
    },
    "fifty schedules that never fire": lambda: {
        "pool": a_pool(
            disruption={
                "consolidateAfter": "0s",
                "budgets": [{"nodes": "1", "schedule": "0 0 30 2 *", "duration": "1h"}] * 50,
            }
        )
    },
    "fifty windows longer than their schedule": lambda: {
        "pool": a_pool(
            disruption={
                "consolidateAfter": "0s",
                "budgets": [{"nodes": "1", "schedule": "* * * * *", "duration": "2000000h"}] * 50,
            }
        )
    },
    "the largest skew and priority": lambda: {
        "app": DEPLOYMENT.replace(
            "    spec:\n",
            "    spec:\n      priority: 4611686018427387904\n      topologySpreadConstraints:\n"
            "        - {maxSkew: 1099511627776, topologyKey: topology.kubernetes.io/zone,"
            " whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: api}}}\n",
        )
    },
    "the largest limits": lambda: {
        "pool": a_pool(limits={"cpu": str(AMOUNT_MAX), "nodes": "9e18"})
    },
}


@attack(Threat.EXHAUSTION, "a fleet at the limits")
@pytest.mark.parametrize("files", BORNE.values(), ids=BORNE.keys())
def test_what_is_within_the_limits_is_planned_soon(
    files: Callable[[], dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = a_fleet(tmp_path, **{"app": DEPLOYMENT, **files()})
    with soon():
        assert main(["validate", fleet]) == 0
    with soon():
        assert main(["plan", fleet, "--now", NOW, "-o", "json"]) == 0
    with soon():
        assert main(["explain", "nodepool", "general", fleet, "--now", NOW]) == 0
    capsys.readouterr()


@attack(Threat.EXHAUSTION, "twenty thousand files")
def test_the_files_of_a_folder_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.adapters.git.folder.FILES_MAX", 20)
    fleet = a_fleet(tmp_path, **{f"f{i}": "" for i in range(30)})
    assert main(["validate", fleet]) == 3
    assert "the folder holds more than 20 files" in capsys.readouterr().out


@attack(Threat.EXHAUSTION, "a simulation without an end")
@pytest.mark.parametrize("until", ["1000000h", "2126-01-01T00:00:00Z"])
def test_a_simulation_is_at_most_a_year(
    until: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = a_fleet(tmp_path)
    with soon():
        assert main(["simulate", fleet, "--until", until, "--now", NOW]) == 1
    assert "longer than 366 days" in capsys.readouterr().err


@attack(Threat.EXHAUSTION, "a simulation that changes every minute")
def test_the_passes_of_a_simulation_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PASSES_MAX", 5)
    pool = a_pool(disruption=budgets(schedule="* * * * *", duration="1m"))
    fleet = a_fleet(tmp_path, pool=pool, app=DEPLOYMENT)
    catalog = str(tmp_path / "catalog.json")
    words = ["simulate", fleet, "--until", "300d", "--now", NOW, "--catalog", catalog]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "the simulation stopped after 5 passes" in err
    assert "--until" in err


@attack(Threat.EXHAUSTION, "a current time to which nothing can be added")
@pytest.mark.parametrize("now", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_dates_outside_the_calendar_are_rejected(
    now: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", a_fleet(tmp_path), "--now", now]) == 1
    assert "between the years 1970 and 2200" in capsys.readouterr().err


LIVE: dict[str, dict[str, Any]] = {
    "a node class whose images are text": {
        "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "status": {"amis": [{"id": "ami-1", "requirements": "x"}]},
    },
    "a node class whose conditions are text": {
        "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "status": {"conditions": ["Ready"]},
    },
    "a pool without a name": {"kind": "NodePool", "metadata": {}},
    "a pool whose name is a list": {"kind": "NodePool", "metadata": {"name": ["a"]}},
    "a pool without metadata": {"kind": "NodePool", "metadata": "x"},
    "a pool whose template is text": {
        "kind": "NodePool",
        "metadata": {"name": "general"},
        "spec": {"template": {"spec": "x"}},
    },
    "a pool whose duration is too long": {
        "kind": "NodePool",
        "metadata": {"name": "general"},
        "spec": {"template": {"spec": {"expireAfter": "9" * 400 + "h"}}},
    },
}


@attack(Threat.EXHAUSTION, "an object of our own kind in a snapshot that cannot be read")
@pytest.mark.parametrize("item", LIVE.values(), ids=LIVE.keys())
def test_an_unreadable_live_object_is_skipped(
    item: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = a_fleet(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps({"kind": "List", "items": [item]}))
    words = ["plan", fleet, "--snapshot", str(tmp_path / "s.json"), "--now", NOW]
    assert main([*words, "--catalog", str(tmp_path / "catalog.json")]) == 0, capsys.readouterr()
    capsys.readouterr()


SUFFIXES = [
    *("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"),
    *("e0", "e5", "E9", "e-9", "e18", "e19", "e400", "e-400", "e5.5", "e", "Zi", "K"),
]
ENDLESS = "[1,1,1,1,1,1,1,1,1,1].map(vcpus, {})"
for _ in range(8):
    ENDLESS = ENDLESS.replace("{}", "[1,1,1,1,1,1,1,1,1,1].map(vcpus, {})")
ENDLESS = ENDLESS.replace("{}", "1")


@attack(Threat.EXHAUSTION, "an expression in kubelet settings that does not end")
@pytest.mark.parametrize(
    "text",
    [
        ENDLESS,
        f'""" " """ == "x" ? 1 : size({ENDLESS}) + size("")',
        f"'\\'' == 'x' ? 1 : size({ENDLESS}) + size('')",
        f"1 // '\n + size({ENDLESS}) //'",
        "size({" + ",".join(f"{i}: 1" for i in range(50)) + "})",
        "1 + " * 300 + "1",
        "(" * 499 + "1" + ")" * 499,
    ],
    ids=[
        "loops in loops",
        "loops behind a string of three quotes",
        "loops behind an escaped quote",
        "loops behind a comment",
        "a mapping",
        "too many terms",
        "too many parentheses",
    ],
)
def test_an_endless_expression_is_rejected(text: str) -> None:
    with soon(200), pytest.raises(ValueError, match=r"not supported|at most|has no value"):
        evaluate(text, {"vcpus": 8})


DEEP = {
    "a hundred thousand lists": '{"kind":"List","items":[' + "[" * 100_000,
    "a hundred thousand objects": '{"kind":"NodePool","spec":' + '{"a":' * 100_000 + "1",
    "three thousand Lists in Lists": '{"kind":"List","items":[' * 3000 + "]}" * 3000,
    "a hundred thousand levels of YAML": "a: " + "[" * 100_000 + "]" * 100_000,
    "aliases that write out to billions": REFUSED["aliases that write out to billions"][0]()[
        "bomb"
    ],
    "merges of merges": "a: &a {k: 1}\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 9)}]}}\n"
        for i in range(9)
    ),
    "an alias within itself": "a: &a [*a]",
    "a number of ten thousand digits": "kind: Pod\nspec: {priority: " + "9" * 10_000 + "}",
    "a date that does not exist": "kind: Pod\nmetadata: {creationTimestamp: 2026-99-99}",
}


@attack(Threat.EXHAUSTION, "a file that crashes the parser")
@pytest.mark.parametrize("flag", ["--snapshot", "--catalog", "--faults", "plan"])
@pytest.mark.parametrize("content", DEEP.values(), ids=DEEP.keys())
def test_no_file_exhausts_the_parser(
    content: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, file = a_fleet(tmp_path), tmp_path / "hostile"
    file.write_text(content)
    words = ["plan", fleet, "--now", NOW, flag, str(file)]
    if flag == "--faults":
        words = ["simulate", fleet, "--now", NOW, "--until", "1m", flag, str(file)]
    if flag == "plan":
        words = ["apply", str(file)]
    with soon():
        assert main(words) == 1
    out, err = capsys.readouterr()
    assert not out
    assert "internal error" not in err
    assert err.count("\n") == 1


quantities = st.one_of(
    st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,9})?|\.[0-9]{1,9})", fullmatch=True).flatmap(
        lambda number: st.sampled_from(SUFFIXES).map(lambda suffix: number + suffix)
    ),
    st.from_regex(load_schema("nodepool.v1")["$defs"]["quantity"]["pattern"]),
    st.text(max_size=10),
)


def findings_of(pool: str, more: str = "") -> tuple[Any, list[Any]]:
    files = [SourceFile("p.yaml", pool.encode()), SourceFile("c.yaml", CLASS.encode())]
    files += [SourceFile("w.yaml", more.encode())] if more else []
    fleet, found = read_fleet(files)
    return fleet, [d for d in found if d.severity == "error"]


@attack(Threat.EXHAUSTION, "generated quantities")
@given(text=quantities)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_quantity_is_a_finding_or_usable_everywhere(text: str) -> None:
    fleet, errors = findings_of(a_pool(limits={"cpu": text}), "")
    if errors:
        assert all(d.place is not None and d.place.file == "p.yaml" for d in errors)
        assert any("limits" in d.path for d in errors) or any(d.code == "syntax" for d in errors)
        return
    [pool] = node_pools(fleet)
    assert abs(pool.limits()["cpu"]) <= AMOUNT_MAX * 1000
    assert object_hash(fleet.node_pools[0].data)


@attack(Threat.EXHAUSTION, "generated requests of pods")
@given(text=quantities)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_request_is_a_finding_or_usable_everywhere(text: str) -> None:
    from reconciler.desired.workloads.pods import expand

    data = read_yaml(DEPLOYMENT)
    container = data["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": text}}
    fleet, errors = findings_of(POOL, dump(data))
    if not errors:
        workloads, found = expand(fleet.workloads)
        assert not found
        assert len(workloads.pods) == 3
        assert all(pod.requests()["cpu"] >= 0 for pod in workloads.pods)


durations = st.one_of(
    st.from_regex(r"^(([0-9]{1,30}(s|m|h)){1,4}|Never)$", fullmatch=True),
    st.from_regex(r"^([0-9]{1,9}(s|m|h)){1,3}$", fullmatch=True),
)


@attack(Threat.EXHAUSTION, "generated durations")
@given(text=durations)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_duration_is_a_finding_or_usable_everywhere(text: str) -> None:
    pool = a_pool({"expireAfter": text}, disruption={"consolidateAfter": text})
    fleet, errors = findings_of(pool)
    if errors:
        assert {d.code for d in errors} == {"bad-duration"}
        return
    [read] = node_pools(fleet)
    for length in (read.expires_after, read.spec.disruption.consolidates_after):
        assert length is None or MOMENT + length >= MOMENT
    assert object_hash(fleet.node_pools[0].data)


@attack(Threat.EXHAUSTION, "durations at the edge of 64 bits")
def test_durations_have_the_range_of_go() -> None:
    assert parse_nanoseconds(f"{NANOSECONDS_MAX}ns") == NANOSECONDS_MAX
    for text in (f"{NANOSECONDS_MAX + 1}ns", "2562048h", "9" * 90 + "h"):
        with pytest.raises(ValueError, match="292 years"):
            parse_nanoseconds(text)
    for text in ("200000d", "9" * 90 + "d"):
        with pytest.raises(ValueError, match="292 years"):
            parse_span(text)


@attack(Threat.EXHAUSTION, "quantities at the edge of 64 bits")
@pytest.mark.parametrize(
    ("text", "milli"),
    [
        (str(AMOUNT_MAX), AMOUNT_MAX * 1000),
        (f"-{AMOUNT_MAX}", -AMOUNT_MAX * 1000),
        ("1e-1000000", 1),
        ("0e999999999", 0),
        ("7Ei", 7 * 2**60 * 1000),
    ],
)
def test_the_largest_and_smallest_quantities_are_read(text: str, milli: int) -> None:
    assert parse_quantity(text) == milli


@attack(Threat.EXHAUSTION, "quantities beyond 64 bits")
@pytest.mark.parametrize(
    "text", [str(AMOUNT_MAX + 1), "8Ei", "10E", "1e19", "1e400", "1e999999999"]
)
def test_larger_quantities_are_refused(text: str) -> None:
    with soon(200), pytest.raises(ValueError, match="out of range"):
        parse_quantity(text)


@attack(Threat.EXHAUSTION, "schedules and durations of every kind")
@given(
    fields=st.lists(
        st.sampled_from(["*", "0", "*/7", "30", "2", "29", "31", "1-5", "59", "23", "mon", "?"]),
        min_size=5,
        max_size=5,
    ),
    hours=st.integers(1, 2_000_000),
)
@settings(max_examples=100, deadline=None)
def test_no_schedule_takes_long_to_evaluate(fields: list[str], hours: int) -> None:
    try:
        schedule = parse_schedule(" ".join(fields))
    except ValueError:
        return
    length = timedelta(hours=hours)
    with soon(40):
        is_open(schedule, length, MOMENT)
        next_change(schedule, length, MOMENT)
        steady_until(schedule, length, MOMENT)


@attack(Threat.EXHAUSTION, "ten thousand evaluations of a schedule that never fires")
def test_a_schedule_that_never_matches_is_found_at_once() -> None:
    budget = Budget(nodes="1", schedule="0 0 30 2 *", duration="1h")
    with soon(40):
        for _ in range(10_000):
            assert allowance([budget], "Empty", 10, MOMENT).nodes == 1


@attack(Threat.EXHAUSTION, "windows that overlap without end, and some that open every four years")
@pytest.mark.parametrize(
    ("text", "hours"), [("*/2 * * * *", 10), ("* * * * *", 1), ("7 3 29 2 *", 1)]
)
def test_a_schedule_that_is_evaluated_often_is_searched_once(text: str, hours: int) -> None:
    """Guards: ``_Searched``, ``_Overlap`` and ``last_of_day`` of a schedule."""
    schedule, duration = parse_schedule(text), timedelta(hours=hours)
    with soon(40):
        for minutes in range(10_000):
            next_change(schedule, duration, MOMENT + timedelta(minutes=minutes))


@attack(Threat.EXHAUSTION, "hostile text for our regular expressions")
@pytest.mark.parametrize(
    "text",
    ["a." * 300_000 + "!", "-" * 300_000, "a-" * 300_000, " " * 300_000, "\\u" * 100_000],
    ids=["dots", "dashes", "pairs", "spaces", "escapes"],
)
def test_no_regular_expression_backtracks(text: str) -> None:
    quoted = json.dumps(text)
    pool = (
        POOL.replace("general", quoted) + f"      taints: [{{key: {quoted}, effect: {quoted}}}]\n"
    )
    with soon():
        findings_of(pool)
        parse_documents("a.json", json.dumps({text: text}).encode())
        findings_of(POOL, f"apiVersion: v1\nkind: {quoted}\nmetadata: {{name: {quoted}}}\n")


@attack(Threat.EXHAUSTION, "a snapshot of two hundred thousand irrelevant objects")
def test_a_large_snapshot_is_read_quickly() -> None:
    item = b'{"kind":"Secret","metadata":{"name":"x"}}'
    content = b'{"kind":"List","items":[' + b",".join([item] * 200_000) + b"]}"
    with soon():
        assert read_snapshot(content, "s.json").skipped == {"Secret": 200_000}


ROW = re.compile(r"^\| ([^|]+) \| ([0-9][^|]*) \|", re.MULTILINE)
DOCUMENTED = ROW.findall((Path(__file__).parents[2] / "docs" / "limits.md").read_text())


@pytest.mark.parametrize(
    ("row", "constant"), list(zip(DOCUMENTED, CONSTANTS, strict=True)), ids=str
)
def test_the_documented_limits_match_the_code(row: tuple[str, str], constant: str) -> None:
    module, _, name = constant.partition(":")
    value: Any = importlib.import_module(f"reconciler.{module}")
    for part in name.split("."):
        value = getattr(value, part)
    number = int(re.match(r"[0-9,]+", row[1])[0].replace(",", ""))  # type: ignore[index]
    if isinstance(value, timedelta):
        value = value.days
    number *= {"MiB": 2**20, "GiB": 2**30}.get(row[1].split()[-1], 1)
    assert value == number


@attack(Threat.EXHAUSTION, "warnings that hide the error of an invalid fleet")
def test_an_error_is_reported_however_many_warnings_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    types = ", ".join(f"c{number}" for number in range(90))
    pools = [
        POOL.replace("general", f"p{number}").replace("[on-demand]", f"[on-demand, {types}]")
        for number in range(15)
    ]
    (tmp_path / "a.yaml").write_text("---\n".join([CLASS, *pools]), encoding="utf-8")
    (tmp_path / "z.yaml").write_text(
        "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: z}}\n", encoding="utf-8"
    )
    assert main(["validate", str(tmp_path), "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert sum(d["severity"] == "warning" for d in found) > FINDINGS_MAX - 10
    assert any(d["file"] == "z.yaml" and d["severity"] == "error" for d in found)
    assert len(found) == FINDINGS_MAX + 1
    assert "more findings are not shown" in found[-1]["message"]


@attack(Threat.EXHAUSTION, "a snapshot of three gibibytes")
def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "cluster.json"
    with snapshot.open("wb") as file:
        file.truncate(3 * 2**30)  # a hole: nothing is written
    assert main(["plan", str(ROOT / "examples" / "web"), "--snapshot", str(snapshot)]) == 1
    assert "more than 64 MiB, and not JSON" in capsys.readouterr().err
