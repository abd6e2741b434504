"""CronJobs run in time: by schedule, time zone and concurrency policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.cli.main import main
from tests.cli.test_scaled_workloads import FLEET, NOW

POOL: Final = FLEET.partition("---\napiVersion: apps/v1")[0]


def a_cron_job(schedule: str, **spec: Any) -> str:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "3"}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "report", "namespace": "shop"},
        "spec": {
            "schedule": schedule,
            "jobTemplate": {"spec": {"template": {"spec": pod}}},
            **spec,
        },
    }
    return f"{POOL}---\n{json.dumps(cron)}\n"


def bound(
    capsys: pytest.CaptureFixture[str], folder: Path, content: str, *words: str
) -> list[tuple[str, str]]:
    """Return the time at which each pod is bound, and its name without that of its Job's pod."""
    (folder / "fleet.yaml").write_text(content)
    fixed = ("--now", NOW, "--until", "3h", "-o", "json")
    assert main(["simulate", str(folder), *fixed, *words]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    return [(e["at"][11:16], e["pod"]) for e in events if e["kind"] == "PodBound"]


def test_a_job_is_created_at_each_time_of_the_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bound(capsys, tmp_path, a_cron_job("0 * * * *"), "--duration", "cronjob/report=5m")
    assert [at[:2] for at, _ in found] == ["13", "14", "15"][: len(found)]
    assert len({pod for _, pod in found}) == len(found) >= 2


def test_a_schedule_is_in_its_time_zone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = a_cron_job("30 22 * * *", timeZone="Asia/Tokyo")  # 13:30 UTC
    ((at, _),) = bound(capsys, tmp_path, content)
    assert at.startswith("13:3")


@pytest.mark.parametrize(("policy", "most"), [("Allow", 3), ("Forbid", 1), ("Replace", 1)])
def test_the_policy_decides_whether_jobs_overlap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, most: int
) -> None:
    content = a_cron_job("*/20 * * * *", concurrencyPolicy=policy)
    (tmp_path / "fleet.yaml").write_text(content)
    words = ("--now", NOW, "--until", "2h", "--duration", "cronjob/shop/report=50m", "-o", "json")
    assert main(["simulate", str(tmp_path), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    jobs = [e for e in found["events"] if e["kind"] == "PodBound"]
    assert (len(jobs) >= 5) == (policy != "Forbid")
    assert sum(claim["pods"] for claim in found["fleet"]) <= most


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cronjob/other=5m", 'CronJob "other" not found'),
        ("report=5m", "is not a duration of a CronJob"),
        ("cronjob/report=long", "long"),
    ],
)
def test_a_wrong_duration_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, message: str
) -> None:
    (tmp_path / "fleet.yaml").write_text(a_cron_job("0 * * * *"))
    assert main(["simulate", str(tmp_path), "--now", NOW, "--duration", value]) == 1
    assert message in capsys.readouterr().err
