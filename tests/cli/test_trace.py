"""``reconciler trace``: traces are converted, summed up, and stripped of names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.cli.main import main
from tests.engine.world import a_pool
from tests.simulated.simulations import words, write_fleet

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
OPENB = f"{COLUMNS}\nb,500,1024,1,460,0,90,30\na,500,1024,0,0,0,60,\nc,500,1024,0,0,20,7200,25\n"
SECRET = {"app": "payroll", "team": "acquisitions"}


def own_trace() -> str:
    spread = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchLabels": {"app": "payroll"}},
    }
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "namespaces": ["project-x", "project-z"],
        "labelSelector": {
            "matchExpressions": [{"key": "team", "operator": "In", "values": ["acquisitions"]}]
        },
    }
    spec = {
        "containers": [{"name": "payroll-db", "resources": {"requests": {"cpu": "1500m"}}}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "topologySpreadConstraints": [spread],
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "payroll-data"}}],
    }
    plain = {"containers": [{"name": "payroll-web", "resources": {"requests": {"cpu": "700m"}}}]}
    notes = {"owner": "jane", "karpenter.sh/do-not-disrupt": "true"}
    lines: list[dict[str, object]] = [
        {"apiVersion": "reconciler/v1", "kind": "Trace", "seconds": 7200},
        {"class": "db", "labels": SECRET, "annotations": notes, "spec": spec},
        {"class": "web", "labels": {"app": "payroll"}, "spec": plain},
        *(
            {"pod": f"project-x/payroll-{n}", "class": c, "created": 60, "bound": 90, "deleted": d}
            for n, (c, d) in enumerate((("web", 4000), ("web", 5000), ("web", 6000)))
        ),
        {"pod": "project-a/payroll-9", "class": "web", "created": 60},
    ]
    return "\n".join(map(json.dumps, lines)) + "\n"


def written(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_an_imported_trace_has_our_form_and_is_read_as_the_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = written(tmp_path, "t.csv", OPENB)
    assert main(["trace", "import", given]) == 0
    first = capsys.readouterr().out
    with open(resource_path("schemas", "trace.v1.json"), encoding="utf-8") as file:
        schema = Draft202012Validator(json.load(file))
    lines = [json.loads(line) for line in first.splitlines()]
    for line in lines:
        schema.validate(line)
    assert lines[0]["roundedGpus"] == 1
    assert sum("class" in line and "pod" not in line for line in lines) == 2, "classes come once"
    again = written(tmp_path, "own.jsonl", first)
    assert main(["trace", "import", again]) == 0
    assert capsys.readouterr().out == first
    summaries = []
    for file in (given, again):
        assert main(["trace", "summary", file, "-o", "json"]) == 0
        summaries.append(json.loads(capsys.readouterr().out))
    assert summaries[0] == summaries[1]


def test_a_trace_is_gzipped_if_its_name_ends_in_gz(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl.gz"
    assert main(["trace", "import", written(tmp_path, "t.csv", OPENB), "--out", str(out)]) == 0
    assert json.loads(gzip.decompress(out.read_bytes()).splitlines()[0])["kind"] == "Trace"


def test_a_summary_counts_pods_and_what_they_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "summary", written(tmp_path, "t.csv", OPENB), "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == {
        "seconds": 7200.0,
        "pods": 3,
        "classes": 2,
        "gpuPods": 1,
        "roundedGpus": 1,
        "mostAtOnce": 3,
        "medianLifeSeconds": 60.0,
        "cpuHours": pytest.approx((60 + 60 + 7175) * 0.5 / 3600, abs=0.001),
        "memoryGibHours": pytest.approx((60 + 60 + 7175) / 3600, abs=0.001),
        "gpuHours": pytest.approx(60 / 3600, abs=0.001),
        "nodes": 0,
        "nodeHours": None,
        "dollars": None,
        "market": None,
    }
    assert main(["trace", "summary", str(tmp_path / "t.csv")]) == 0
    shown = capsys.readouterr().out
    assert "maximum pods at a time" in shown
    assert "1 pod requested a share of a GPU" in shown


@pytest.mark.parametrize("kind", ["web", "db"])
def test_an_anonymized_trace_contains_no_name(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = own_trace().replace('payroll-9", "class": "web"', f'payroll-9", "class": "{kind}"')
    assert main(["trace", "import", written(tmp_path, "t.jsonl", given), "--anonymize"]) == 0
    text = capsys.readouterr().out
    for name in ("payroll", "acquisitions", "project", "jane", '"owner"', '"app"', '"team"'):
        assert name not in text


def test_selectors_still_select_the_same_pods_without_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = own_trace().replace('payroll-9", "class": "web"', 'payroll-9", "class": "db"')
    assert main(["trace", "import", written(tmp_path, "t.jsonl", given), "--anonymize"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (made,) = (line for line in lines if "topologySpreadConstraints" in line.get("spec", {}))
    spread = made["spec"]["topologySpreadConstraints"][0]
    assert spread["labelSelector"]["matchLabels"].items() <= made["labels"].items()
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    side = made["spec"]["affinity"]["podAntiAffinity"]
    (term,) = side["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = term["labelSelector"]["matchExpressions"]
    assert made["labels"][expression["key"]] == expression["values"][0]
    (pod,) = (line for line in lines if line.get("class") == made["class"] and "pod" in line)
    own = pod["pod"].partition("/")[0]
    assert own not in term["namespaces"], "it was in another namespace"
    others = {line["pod"].partition("/")[0] for line in lines if "pod" in line} - {own}
    assert [name in others for name in term["namespaces"]] == [True, False]
    assert made["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert made["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}


def test_a_replay_without_names_decides_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    plain = written(tmp_path, "t.jsonl", own_trace())
    bare = str(tmp_path / "bare.jsonl")
    assert main(["trace", "import", plain, "--anonymize", "--out", bare]) == 0
    found = []
    for file in (plain, bare):
        assert main(["simulate", *words(tmp_path, "--trace", file, "-o", "json")]) == 0
        found.append(json.loads(capsys.readouterr().out)["backtest"])
    sides = [backtest["sides"]["head"] for backtest in found]
    for figure in ("pods", "unplaced", "commands", "evictions"):
        assert sides[0][figure] == sides[1][figure]
    assert sides[0]["dollars"] == pytest.approx(sides[1]["dollars"], rel=0.01), "by chance"
    assert sides[0]["pods"] == 4


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["summary", "no-such-file"], "no-such-file: "),
        (["import", "{t}", "--out", "{t}/x"], "cannot be written"),
        (["summary", "{bad}"], "bad.csv:2"),
    ],
    ids=["missing", "unwritable", "malformed"],
)
def test_unsupported_requests_are_explained(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "t": written(tmp_path, "t.csv", OPENB),
        "bad": written(tmp_path, "bad.csv", f"{COLUMNS}\na,x,1,0,0,0,1,0\n"),
    }
    assert main(["trace", *(word.format(**names) for word in words)]) == 1
    assert problem in capsys.readouterr().err
