"""The records of `reconciler run` become a trace, and the trace a backtest."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Site, started

site = live.site
Capture = pytest.CaptureFixture[str]


def export(site: Site, out: Path, *more: str) -> int:
    words = site.words("trace")
    kept = [w for flag in ("--now", "--state", "--config") for w in _flag(words, flag)]
    return main(["trace", "export", str(site.folder), *kept, "--out", str(out), *more])


def _flag(words: list[str], flag: str) -> list[str]:
    at = words.index(flag)
    return words[at : at + 2]


@pytest.mark.exhaustive
def test_the_workload_of_a_cluster_is_replayed(site: Site, tmp_path: Path, capsys: Capture) -> None:
    sandbox = started(site)
    sandbox.replicas = 4
    site.keep(lambda: len(sandbox.cloud.running_instances()) == 4 and sandbox.settled())
    sandbox.replicas = 1
    site.keep_for(40)
    out = tmp_path / "week.jsonl.gz"
    assert export(site, out) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["trace", "summary", str(out), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mostAtOnce"], found["classes"]) == (4, 1)
    assert found["pods"] >= 4, "a pod that is evicted comes again as another one"
    assert found["nodes"] >= 4
    assert found["dollars"] > 0
    words = ["simulate", str(site.folder), "--trace", str(out), "-o", "json"]
    words += [w for flag in ("--now", "--catalog") for w in _flag(site.words("x"), flag)]
    assert main(words) == 0, capsys.readouterr().err
    head = json.loads(capsys.readouterr().out)["backtest"]["sides"]["head"]
    assert (head["pods"], head["unplaced"]) == (found["pods"], 0)
    assert head["dollars"] > 0


def test_an_anonymized_export_contains_no_names(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    started(site)
    out = tmp_path / "shared.jsonl"
    assert export(site, out, "--anonymize") == 0, capsys.readouterr().err
    text = out.read_text()
    assert '"node":"node-1"' in text
    assert "shop" not in text
    assert "ip-172" not in text


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dt%H:%M:%S+00:00"])
def test_an_export_begins_at_a_time_or_a_duration_before_its_end(
    site: Site, tmp_path: Path, capsys: Capture, form: str
) -> None:
    started(site)
    site.keep_for(40)
    by_time, by_duration = tmp_path / "time.jsonl", tmp_path / "duration.jsonl"
    since = site.clock.now() - timedelta(hours=1)
    assert export(site, by_time, "--since", since.strftime(form)) == 0, capsys.readouterr().err
    assert export(site, by_duration, "--since", "1h") == 0, capsys.readouterr().err
    assert by_time.read_text() == by_duration.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "soon"], '--since: neither a duration nor a time: "soon"'),
        (["--since", "2026-01-01"], '--since: invalid time "2026-01-01"'),
        (["--since", "99999999d"], "--since"),
        (["--since", "2026-99-01T00:00:00Z"], "--since: invalid time"),
        (["--until", "2020-01-01T00:00:00Z"], "there is no record of the workload"),
    ],
    ids=["no duration", "a date", "before all time", "no time", "before the record"],
)
def test_a_time_that_cannot_be_exported_is_refused(
    site: Site, tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    started(site)
    out = tmp_path / "none.jsonl"
    assert export(site, out, *words) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()
