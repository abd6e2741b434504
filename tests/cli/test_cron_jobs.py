"""CronJobs run in time: by schedule, time zone and concurrency policy."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.cli.main import main
from tests.cli.test_scaled_workloads import FLEET, NOW, plan

POOL: Final = FLEET.partition("---\napiVersion: apps/v1")[0]


def cron_job(
    schedule: str, name: str = "report", job: Any = None, requests: Any = None, **spec: Any
) -> str:
    """Return the document of a CronJob with one pod of 3 CPU, a whole m7i.xlarge."""
    container = {"name": "c", "image": "x", "resources": {"requests": requests or {"cpu": "3"}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "schedule": schedule,
            "jobTemplate": {"spec": {"template": {"spec": pod}, **(job or {})}},
            **spec,
        },
    }
    return f"---\n{json.dumps(cron)}\n"


def a_cron_job(schedule: str, **spec: Any) -> str:
    return POOL + cron_job(schedule, **spec)


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


@pytest.mark.parametrize(
    ("schedule", "is_restless"),
    [
        pytest.param("* * * * *", True, id="pods at any time"),
        pytest.param("0 3 * * *", False, id="pods once a day"),
    ],
)
def test_a_fleet_that_is_never_at_rest_is_simulated_for_a_day_or_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str, is_restless: bool
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET + cron_job(schedule))
    assert main(["simulate", str(tmp_path), "--now", NOW, "--seeds", "1", "-o", "json"]) == 0
    out, note = capsys.readouterr()
    found = json.loads(out)
    begin, end = (datetime.fromisoformat(found[key]) for key in ("startedAt", "at"))
    assert found["converged"] == (not is_restless)
    assert (timedelta(hours=24) <= end - begin) == is_restless
    assert end - begin < timedelta(hours=49)
    assert ("the fleet does not settle" in note) == is_restless


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


def peak(capsys: pytest.CaptureFixture[str], folder: Path, *documents: str) -> Any:
    (folder / "fleet.yaml").write_text(POOL + "".join(documents))
    return plan(capsys, folder).get("atPeak")


@pytest.mark.parametrize(
    ("documents", "at", "pods"),
    [
        pytest.param([cron_job("0 3 * * *")], "2026-11-02T03:00:00Z", 1, id="daily"),
        pytest.param(
            [cron_job("0 3 * * *", "a"), cron_job("0 4 * * *", "b"), cron_job("5 4 * * *", "c")],
            "2026-11-02T04:05:00Z", 2, id="two of three overlap",
        ),
        pytest.param([cron_job("*/5 * * * *")], "2026-11-01T12:00:00Z", 2, id="overlaps itself"),
        pytest.param(
            [cron_job("*/5 * * * *", concurrencyPolicy="Forbid")], "2026-11-01T12:00:00Z", 1,
            id="forbids overlaps",
        ),
        pytest.param(
            [cron_job("*/5 * * * *", concurrencyPolicy="Replace")], "2026-11-01T12:00:00Z", 1,
            id="replaces",
        ),
        pytest.param(
            [cron_job("0 9 * * *", timeZone="Asia/Tokyo")], "2026-11-02T00:00:00Z", 1,
            id="time zone",
        ),
        pytest.param(
            [cron_job("0 3 * * *", job={"parallelism": 4, "completions": 3})],
            "2026-11-02T03:00:00Z", 3, id="no more pods than completions",
        ),
        pytest.param(
            [
                cron_job("0 3 * * *", "a", job={"parallelism": 1, "completions": 6}),
                cron_job("50 3 * * *", "b"),
            ],
            "2026-11-02T03:50:00Z", 2, id="completions take turns",
        ),
        pytest.param(
            [
                cron_job("0 3 * * *", "a", job={"completions": 6, "activeDeadlineSeconds": 1200}),
                cron_job("50 3 * * *", "b"),
            ],
            "2026-11-02T03:00:00Z", 1, id="ended at its deadline",
        ),
        pytest.param(
            [
                cron_job("0 3 * * *", "small", job={"parallelism": 3}, requests={"cpu": "100m"}),
                cron_job("0 5 * * *", "large", job={"parallelism": 2}),
            ],
            "2026-11-02T05:00:00Z", 2, id="dollars count, not pods",
        ),
    ],
)  # fmt: skip
def test_a_plan_has_the_worst_hour_of_the_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: list[str], at: str, pods: int
) -> None:
    found = peak(capsys, tmp_path, *documents)
    assert (found["at"], found["pods"]) == (at, pods)
    assert found["nodes"] == pods, "each pod needs a node"
    assert found["perHour"] == pytest.approx(pods * 0.2016)


def test_the_worst_hour_is_on_top_of_the_workloads_of_the_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET + cron_job("0 3 * * *"))
    found = plan(capsys, tmp_path)
    assert (len(found["nodeClaims"]), found["atPeak"]["nodes"]) == (2, 3)
    assert found["atPeak"]["cronJobs"] == ["shop/report"]


@pytest.mark.parametrize(
    "documents",
    [[], [cron_job("0 3 * * *", suspend=True)], [cron_job("0 3 1 1 *")]],
    ids=["none", "suspended", "in two months"],
)
def test_without_a_job_within_a_day_there_is_no_worst_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: list[str]
) -> None:
    assert peak(capsys, tmp_path, *documents) is None


def test_quotas_and_limits_hold_in_the_worst_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four = cron_job("0 3 * * *", job={"parallelism": 4})
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "shop"},
        "spec": {"hard": {"pods": "3"}},
    }  # fmt: skip
    limited = POOL.replace("  template:\n", "  limits: {cpu: '8'}\n  template:\n", 1)
    (tmp_path / "fleet.yaml").write_text(f"{limited}{four}---\n{json.dumps(quota)}\n")
    found = plan(capsys, tmp_path)["atPeak"]
    assert (found["pods"], found["nodes"], len(found["unschedulable"])) == (3, 2, 1)


def test_the_headline_has_one_line_about_the_worst_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(a_cron_job("0 3 * * *"))
    assert main(["plan", str(tmp_path), "--now", NOW, "--set", "cluster=none"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Pods of CronJobs are not planned. In their worst hour of the day, from "
        "2026-11-02 03:00 UTC (1 pod, if each runs 10 minutes): 1 node, $0.20/hour."
    ) in text


def test_jobs_that_run_now_are_not_counted_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(a_cron_job("55 11 * * *"))
    running = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "report-29366155-abcde", "namespace": "shop", "uid": "u",
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "report-29366155", "uid": "j"}
            ],
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }  # fmt: skip
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [running]}))
    found = plan(capsys, tmp_path, "--snapshot", str(snapshot))
    assert len(found["nodeClaims"]) == found["atPeak"]["nodes"] == found["atPeak"]["pods"] == 1


STARTED: Final = "2026-11-01T03:00:00Z"


def recorded_status(begin: str, end: str) -> str:
    """Return a daily CronJob as a cluster has it, with the times of its last Job."""
    (document,) = cron_job("0 3 * * *", "long").split("---\n")[1:]
    status = {"lastScheduleTime": begin, "lastSuccessfulTime": end}
    return f"---\n{json.dumps({**json.loads(document), 'status': status})}\n"


def ended_pod(end: str, phase: str = "Succeeded", cron: str = "long") -> dict[str, Any]:
    """Return a pod of a Job of a CronJob that started at 3:00 and has ended."""
    name = f"{cron}-29366100"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "j"}
    ready = {"type": "Ready", "status": "False", "reason": "PodCompleted"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{end[11:16].replace(':', '')}", "namespace": "shop", "uid": end,
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
        "status": {
            "phase": phase, "startTime": STARTED,
            "conditions": [{**ready, "lastTransitionTime": end}],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "ended", "words", "pods"),
    [
        pytest.param(None, [], [], 1, id="ten minutes are assumed"),
        pytest.param(None, [], ["--duration", "cronjob/shop/long=40m"], 2, id="stated"),
        pytest.param("2026-11-01T03:40:00Z", [], [], 2, id="the last Job took 40 minutes"),
        pytest.param("2026-11-01T02:20:00Z", [], [], 1, id="the last Job has not succeeded"),
        pytest.param(None, [ended_pod("2026-11-01T03:40:00Z")], [], 2, id="a pod ran 40 minutes"),
        pytest.param(
            None, [ended_pod("2026-11-01T03:05:00Z"), ended_pod("2026-11-01T03:40:00Z")], [], 2,
            id="the longest pod counts",
        ),
        pytest.param(
            None, [ended_pod("2026-11-01T03:40:00Z", "Failed")], [], 1, id="failed pods do not"
        ),
        pytest.param(
            None, [ended_pod("2026-11-01T03:40:00Z", cron="other")], [], 1, id="another CronJob"
        ),
        pytest.param(
            "2026-11-01T03:40:00Z", [ended_pod("2026-11-01T03:05:00Z")], [], 1,
            id="pods say more than the Job",
        ),
        pytest.param(
            "2026-11-01T03:40:00Z", [], ["--duration", "cronjob/long=5m"], 1,
            id="what is stated counts before what is recorded",
        ),
    ],
)  # fmt: skip
def test_the_worst_hour_is_that_of_recorded_durations(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: str | None,
    ended: list[dict[str, Any]],
    words: list[str],
    pods: int,
) -> None:
    long = cron_job("0 3 * * *", "long") if status is None else recorded_status(STARTED, status)
    (tmp_path / "fleet.yaml").write_text(POOL + long + cron_job("30 3 * * *", "half"))
    if ended:
        snapshot = tmp_path / "snapshot.json"
        snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": ended}))
        words = [*words, "--snapshot", str(snapshot)]
    found = plan(capsys, tmp_path, *words)["atPeak"]
    assert found["pods"] == pods
    if pods == 2:
        assert found["assumed"] == ["shop/half"], "only the other CronJob is assumed"


def test_a_simulation_uses_recorded_durations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"lastScheduleTime": STARTED, "lastSuccessfulTime": "2026-11-01T03:40:00Z"}
    document = json.loads(a_cron_job("30 12 * * *").rpartition("---\n")[2])
    content = f"{POOL}---\n{json.dumps({**document, 'status': status})}\n"
    (tmp_path / "fleet.yaml").write_text(content)
    words = ("--now", NOW, "--until", "1h", "-o", "json")
    assert main(["simulate", str(tmp_path), *words]) == 0
    found = capsys.readouterr()
    assert "assumed to run" not in found.err
    assert sum(claim["pods"] for claim in json.loads(found.out)["fleet"]) == 1, "it runs at 13:00"


def test_a_plan_refuses_the_duration_of_an_unknown_cron_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(a_cron_job("0 3 * * *"))
    words = ("--now", NOW, "--set", "cluster=none", "--duration", "cronjob/other=5m")
    assert main(["plan", str(tmp_path), *words]) == 1
    assert 'CronJob "other" not found' in capsys.readouterr().err


DEPLOYMENT: Final = "---\napiVersion: apps/v1" + FLEET.partition("---\napiVersion: apps/v1")[2]
NO_REPLICAS: Final = DEPLOYMENT.partition("---\napiVersion: autoscaling")[0].replace(
    "  selector:", "  replicas: 0\n  selector:"
)


@pytest.mark.parametrize(
    ("workloads", "is_known"),
    [
        (cron_job("0 3 * * *", suspend=True), True),
        (cron_job("0 3 * * *"), True),
        (NO_REPLICAS, True),
        (NO_REPLICAS.replace("Deployment", "DaemonSet"), False),
        ("", False),
    ],
    ids=["suspended", "cron-job", "no-replicas", "daemon-set", "nothing"],
)
def test_files_that_state_that_nothing_runs_are_no_lack_of_workloads(
    workloads: str, is_known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(POOL + workloads)
    assert main(["plan", str(tmp_path), "--now", NOW, "--set", "cluster=none"]) == 0
    text = capsys.readouterr().out
    assert ("Cost unknown: no workloads and no snapshot" in text) is not is_known
    assert ("0 nodes; $0/month" in text) is is_known
