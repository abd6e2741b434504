"""Cached results, and evaluations on a Dask cluster: the same bytes as without either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from moto import mock_aws

from reconciler.cli.main import main
from tests.cli import advisedfleet
from tests.engine.processes import wait_for
from tests.engine.world import a_pool
from tests.simulated.simulations import words, write_fleet

if TYPE_CHECKING:
    from distributed import LocalCluster

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with a fleet and a trace."""
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    write_trace(tmp_path, 4)
    return tmp_path


def write_trace(folder: Path, pods: int) -> None:
    rows = [f"p{n},1500,1024,0,0,{n * 300},{n * 300 + 1800}," for n in range(pods)]
    (folder / "trace.csv").write_text("\n".join([COLUMNS, *rows, ""]))


def command_line(folder: Path, *more: str) -> list[str]:
    trace = str(folder / "trace.csv")
    return ["simulate", *words(folder, "--trace", trace, "-o", "json", *more)]


def shown(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line) == 0
    return capsys.readouterr().out


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# Results that are kept.


def test_cached_results_are_not_evaluated_again(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command_line(fleet, "--seeds", "2")
    expected = shown(line, capsys)
    cache = tmp_path / "cache"
    assert shown([*line, "--cache", str(cache)], capsys) == expected
    kept = files_in(cache)
    assert len(kept) == 2
    content = json.loads(kept[0].read_text())
    content["result"]["dollars"] = 1e6
    kept[0].write_text(json.dumps(content))
    changed = json.loads(shown([*line, "--cache", str(cache)], capsys))
    assert changed["backtest"]["sides"]["head"]["dollars"] > 1e5, "the one that was kept counts"
    assert files_in(cache) == kept


def test_only_missing_results_are_evaluated(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    shown(command_line(fleet, "--seeds", "2", "--cache", str(cache)), capsys)
    before = {path: path.stat().st_mtime_ns for path in files_in(cache)}
    three = shown(command_line(fleet, "--seeds", "3", "--cache", str(cache)), capsys)
    assert three == shown(command_line(fleet, "--seeds", "3"), capsys)
    after = {path: path.stat().st_mtime_ns for path in files_in(cache)}
    assert len(after) == 3
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    "more",
    [
        ["--seed", "1"],
        ["--set", "packing=cheapest"],
        ["--until", "20m"],
        ["--faults", "faults.yaml"],
        ["another trace"],
        ["another NodePool"],
    ],
    ids=" ".join,
)
def test_different_inputs_have_different_cache_keys(
    fleet: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    shown(command_line(fleet, "--cache", str(cache)), capsys)
    (tmp_path / "faults.yaml").write_text("interruptions: 0.1\n")
    if more == ["another trace"]:
        write_trace(fleet, 5)
    elif more == ["another NodePool"]:
        write_fleet(fleet, [a_pool("web", policy="WhenEmpty", after="10m")])
    else:
        more = [str(tmp_path / word) if word.endswith(".yaml") else word for word in more]
    others = more if more[0].startswith("--") else []
    expected = shown(command_line(fleet, *others), capsys)
    assert shown(command_line(fleet, *others, "--cache", str(cache)), capsys) == expected
    assert len(files_in(cache)) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"result": 1}'])
def test_an_invalid_cache_entry_counts_as_missing(
    fleet: Path, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    expected = shown(command_line(fleet, "--cache", str(cache)), capsys)
    (one,) = files_in(cache)
    whole = one.read_bytes()
    one.write_bytes(content)
    assert shown(command_line(fleet, "--cache", str(cache)), capsys) == expected
    assert one.read_bytes() == whole


def test_advice_is_cached_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = advice_line(tmp_path)
    expected = shown(line, capsys)
    cache = tmp_path / "cache"
    assert shown([*line, "--cache", str(cache)], capsys) == expected
    kept = {path: path.stat().st_mtime_ns for path in files_in(cache)}
    assert len(kept) > 5
    assert shown([*line, "--cache", str(cache)], capsys) == expected
    assert {path: path.stat().st_mtime_ns for path in files_in(cache)} == kept


def advice_line(folder: Path) -> list[str]:
    (folder / "advised").mkdir()
    shop = folder / "advised" / "shop"
    advisedfleet.write_fleet(shop)
    trace = shop.parent / "trace.csv"
    trace.write_text(advisedfleet.TRACE)
    more = ("--new-nodes", "--trace", str(trace), "-o", "json")
    return ["advise", *advisedfleet.words(shop, *more)]


def test_results_are_shared_through_s3(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = shown(command_line(fleet), capsys)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="sweeps")
        for _ in range(2):
            line = command_line(fleet, "--cache", "s3://sweeps/backtests")
            assert shown(line, capsys) == expected
        (found,) = client.list_objects_v2(Bucket="sweeps")["Contents"]
        assert found["Key"].startswith("backtests/")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--cache", "ftp://x/y", "--trace", "t"], 'results are not kept at "ftp://x/y"'),
        (["--cache", "s3://", "--trace", "t"], "not an S3 object"),
        (["--cache", "/dev/null/x", "--trace", "t"], "Not a directory"),
        (["--cache", "here"], "--cache: needs a trace"),
        (["--scheduler", "tcp://h:1"], "--scheduler: needs a trace"),
        (["--scheduler", "h:1", "--trace", "t"], 'invalid address "h:1"'),
        (["--scheduler", "tcp://u:p@h:1", "--trace", "t"], "invalid address"),
        (["--scheduler", "tcp://h:1", "--workers", "2", "--trace", "t"], "cannot be used with"),
    ],
)
def test_an_implausible_cache_location_is_rejected(
    fleet: Path, flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(fleet / "trace.csv") if word == "t" else word for word in flags]
    assert main(["simulate", *words(fleet, *named)]) == 1
    output = capsys.readouterr().err
    assert problem in output
    assert output.count("\n") == 1


def test_results_for_the_present_are_not_cached(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["simulate", str(fleet / "fleet"), "--trace", str(fleet / "trace.csv"), "--cache", "x"]
    assert main(line) == 1
    assert "--cache: results depend on the time" in capsys.readouterr().err


# A Dask cluster.


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Two workers with a process each; one that is killed is started again."""
    with a_cluster() as found:
        yield found


def a_cluster(*preload: str) -> LocalCluster:
    from distributed import LocalCluster

    return LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",  # another test may have the usual port
        silence_logs=50,
        preload=list(preload),
    )


@pytest.mark.exhaustive
def test_a_dask_cluster_gives_the_same_bytes_as_one_process(
    fleet: Path, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (command_line(fleet, "--seeds", "3"), advice_line(fleet)):
        expected = shown(line, capsys)
        assert shown([*line, "--scheduler", cluster.scheduler_address], capsys) == expected


@pytest.mark.exhaustive
def test_killed_workers_lose_only_their_evaluations(
    fleet: Path, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(fleet, 60)
    cache = fleet / "cache"
    line = command_line(fleet, "--seeds", "6")
    expected = shown(line, capsys)
    more = ["--scheduler", cluster.scheduler_address, "--cache", str(cache)]
    command = [sys.executable, "-m", "reconciler", *line, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: process.poll() is not None or files_in(cache) != [])
        for nanny in cluster.workers.values():
            os.kill(nanny.pid, signal.SIGKILL)
        found = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert found == expected
    assert len(files_in(cache)) == 6


@pytest.mark.exhaustive
def test_an_error_on_a_worker_is_the_same_error(
    fleet: Path, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "faults.yaml").write_text("neverRegister: 7\n")
    line = command_line(fleet, "--faults", str(fleet / "faults.yaml"))
    output = []
    for more in ([], ["--scheduler", cluster.scheduler_address]):
        assert main([*line, *more]) == 1
        output.append(capsys.readouterr().err)
    assert "neverRegister" in output[0]
    assert output[0] == output[1]


@pytest.mark.exhaustive
def test_a_worker_of_another_version_is_rejected(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = fleet / "other.py"
    other.write_text("import reconciler\nreconciler.__version__ = '0.0.1'\n")
    with a_cluster(str(other)) as found:
        assert main(command_line(fleet, "--scheduler", found.scheduler_address)) == 1
    output = capsys.readouterr().err
    assert "a worker has reconciler 0.0.1, and this command is" in output
    assert output.count("\n") == 1


@pytest.mark.exhaustive
def test_an_unreachable_scheduler_is_an_error(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command_line(fleet, "--scheduler", "tcp://127.0.0.1:1")) == 1
    assert "the Dask scheduler cannot be reached" in capsys.readouterr().err
