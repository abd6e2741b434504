"""``reconciler trace import --prometheus``: a trace of the series of kube-state-metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.cli.main import main
from tests.cli.prometheusapi import Server, serving
from tests.cli.recordedpods import SINCE, RecordedPod, record
from tests.engine.world import a_pool
from tests.simulated.simulations import words, write_fleet

HOUR = 3600


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("PROMETHEUS_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Server()) as found:
        yield found


def period(seconds: int = HOUR) -> list[str]:
    times = [datetime.fromtimestamp(SINCE + s, UTC).isoformat() for s in (0, seconds)]
    return ["--since", times[0], "--until", times[1]]


def run(server: Server, *more: str) -> int:
    return main(["trace", "import", "--prometheus", server.url, *(more or period())])


def imported(
    server: Server, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the lines of the trace and the report on stderr."""
    assert run(server, *more) == 0
    shown = capsys.readouterr()
    return [json.loads(line) for line in shown.out.splitlines()], shown.err


def rows(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {line["pod"]: line for line in lines if "pod" in line}


def spec_of(lines: list[dict[str, Any]], pod: str) -> dict[str, Any]:
    (made,) = (
        line for line in lines if "spec" in line and line["class"] == rows(lines)[pod]["class"]
    )
    return dict(made["spec"])


LIVES = {
    "stays": (RecordedPod("p"), (0, None)),
    "was there before": (RecordedPod("p", created=-900, scheduled=-880), (0, None)),
    "finishes": (RecordedPod("p", created=100, finished=1000), (100, 1000)),
    "is deleted": (RecordedPod("p", created=100, deleted=1000, gone=1020), (100, 1000)),
    "is not seen again": (RecordedPod("p", created=100, gone=1000), (100, 960 + 60)),
    "ends in the last step": (RecordedPod("p", gone=HOUR - 15), (0, None)),
    "is deleted later": (RecordedPod("p", deleted=HOUR + 600, grace=1200), (0, None)),
}


@pytest.mark.parametrize(("pod", "expected"), LIVES.values(), ids=LIVES)
def test_a_pod_runs_from_its_creation_to_its_end(
    pod: RecordedPod,
    expected: tuple[float, float | None],
    server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for each in (pod, RecordedPod("other")):
        record(server.recording, each, seconds=HOUR)
    lines, _ = imported(server, capsys)
    found = rows(lines)["shop/p"]
    assert (found["created"], found.get("deleted")) == expected
    assert lines[0]["seconds"] == HOUR


def test_a_trace_has_the_form_of_our_own_and_can_be_replayed(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        pod = RecordedPod(f"api-{number}", created=60, scheduled=90, gone=2000 + 300 * number)
        record(server.recording, pod, seconds=HOUR)
    record(server.recording, RecordedPod("db", owner=("StatefulSet", "db")), seconds=HOUR)
    out = tmp_path / "week.jsonl"
    assert run(server, *period(), "--out", str(out)) == 0
    with open(resource_path("schemas", "trace.v1.json"), encoding="utf-8") as file:
        schema = Draft202012Validator(json.load(file))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        schema.validate(line)
    assert sum("spec" in line for line in lines) == 2, "equal pods are of one class"
    assert rows(lines)["shop/api-0"]["bound"] == 90
    write_fleet(tmp_path, [a_pool("web")])
    capsys.readouterr()
    assert main(["simulate", *words(tmp_path, "--trace", str(out), "-o", "json")]) == 0
    found = json.loads(capsys.readouterr().out)["backtest"]["sides"]["head"]
    assert (found["pods"], found["unplaced"]) == (5, 0)


def test_requests_constraints_and_labels_become_those_of_the_pod(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = RecordedPod(
        "train",
        requests={"cpu": 2.007, "memory": 3 * 2**29, "nvidia_com_gpu": 2, "acme_io_fpga": 1},
        init_requests={"cpu": 2, "memory": 0.5},
        tolerations=(
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        ),
        selector={"kubernetes_io_arch": "arm64", "team": "ml", "node_role": "x"},
        labels={"app_kubernetes_io_name": "train", "pod_template_hash": "5d"},
        annotations={"karpenter_sh_do_not_disrupt": "true", "owner": "jane"},
    )
    record(server.recording, pod, seconds=HOUR)
    lines, report = imported(server, capsys)
    spec = spec_of(lines, "shop/train")
    requests = {"cpu": "2007m", "memory": "1536Mi", "nvidia.com/gpu": "2"}
    assert spec["containers"][0]["resources"] == {"requests": requests}
    assert spec["initContainers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "1"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "arm64", "team": "ml"}
    (made,) = (line for line in lines if "spec" in line)
    assert made["labels"] == {"app.kubernetes.io/name": "train"}
    assert made["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    assert made["owner"]["kind"] == "ReplicaSet"
    assert "acme_io_fpga (1 pod)" in report
    assert "node_role (1 pod)" in report


def test_omitted_pods_are_counted_and_unknown_facts_stated(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in (
        RecordedPod("api"),
        RecordedPod("agent-1", owner=("DaemonSet", "agent")),
        RecordedPod("agent-2", owner=("DaemonSet", "agent")),
        RecordedPod("kube-proxy", owner=("Node", "n")),
        RecordedPod("job", created=-900, finished=-600),
        RecordedPod("odd", requests={"cpu": float("nan")}),
        RecordedPod("huge", requests={"memory": 1e300}),
        RecordedPod("less", requests={"cpu": -1}),
        RecordedPod("no\x1b[31m", requests={}),
    ):
        record(server.recording, pod, seconds=HOUR)
    server.recording.add("kube_pod_info", {"pod": "orphan", "namespace": "x"}, [(SINCE + 60, 1)])
    server.recording.add("kube_pod_info", {"node": "n"}, [(SINCE + 60, 1)])
    lines, report = imported(server, capsys)
    assert list(rows(lines)) == ["shop/api"]
    assert "Imported 1 of 10 pods from 2027-01-15 08:00 UTC to 2027-01-15 09:00 UTC." in report
    assert (
        "Left out: 2 of DaemonSets, 1 static, 1 ended before the trace begins, 1 without a valid "
        "time of creation, 3 with a request that is not a valid amount, 1 with an invalid name."
    ) in report
    assert "Ignored 1 sample without" in report
    assert "affinity, topology spread" in report
    assert "No kube_pod_tolerations" in report
    assert "\x1b" not in report


def test_series_of_several_instances_and_of_a_scrape_without_honoured_labels_count_once(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for instance in ("a", "b"):
        record(server.recording, RecordedPod("api"), seconds=HOUR, more={"instance": instance})
    for (metric, labels), points in list(server.recording.series.items()):
        own = dict(labels)
        aside = {f"exported_{k}": own[k] for k in ("namespace", "pod", "container") if k in own}
        scraped = {"namespace": "monitoring", "pod": "ksm-0", "container": "ksm", "instance": "c"}
        server.recording.add(metric, own | aside | scraped, points)
    lines, report = imported(server, capsys)
    assert list(rows(lines)) == ["shop/api"]
    assert "Imported 1 of 1 pod " in report
    assert spec_of(lines, "shop/api")["containers"][0]["name"] == "container"


def test_a_reused_name_is_another_pod(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for uid, (created, gone) in {"1": (0, 600), "2": (660, 1200), "3": (1260, None)}.items():
        pod = RecordedPod("db-0", created, gone, uid=uid, owner=("StatefulSet", "db"))
        record(server.recording, pod, seconds=HOUR)
    lines, _ = imported(server, capsys)
    assert list(rows(lines)) == ["shop/db-0", "shop/db-0-2", "shop/db-0-3"]


def test_only_matching_series_are_read(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for namespace in ("shop", "kube-system"):
        record(server.recording, RecordedPod("p", namespace=namespace), seconds=HOUR)
    match = """{namespace!~"kube-.*", pod=~"p|q"}"""
    lines, _ = imported(server, capsys, *period(), "--match", match)
    assert list(rows(lines)) == ["shop/p"]


def test_a_trace_covers_only_the_recorded_time(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without samples, pods are unknown: they have not ended at the end of the recording."""
    pods = [RecordedPod("old", created=-9000), RecordedPod("new", created=600, gone=1000)]
    other_shard = RecordedPod("late", gone=HOUR)
    for pod in (*pods, other_shard):
        record(server.recording, pod, seconds=HOUR)
    lines, report = imported(server, capsys, *period(3 * HOUR))
    assert "from 2027-01-15 08:00 UTC to 2027-01-15 09:01 UTC" in report
    assert "deleted" not in rows(lines)["shop/old"]
    assert "deleted" not in rows(lines)["shop/late"], "the next scrape of its shard is not there"
    begin = datetime.fromtimestamp(SINCE - 40 * 86_400, UTC).isoformat()
    until = period()[-1]
    lines, report = imported(server, capsys, "--since", begin, "--until", until)
    assert "from 2027-01-15 08:00 UTC to 2027-01-15 09:00 UTC" in report
    assert rows(lines)["shop/new"]["created"] == 600


def test_an_anonymized_prometheus_trace_contains_no_names(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = RecordedPod("payroll-1", namespace="secret", owner=("ReplicaSet", "payroll"))
    record(server.recording, pod, seconds=HOUR)
    lines, _ = imported(server, capsys, *period(), "--anonymize")
    assert len(rows(lines)) == 1
    assert not any(name in json.dumps(lines) for name in ("payroll", "secret"))


def test_pods_with_gpus_tolerate_their_taint_where_tolerations_are_not_recorded(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, requests in {"gpu": {"nvidia_com_gpu": 1}, "cpu": {"cpu": 1}}.items():
        record(server.recording, RecordedPod(name, requests=requests), seconds=HOUR)
    lines, _ = imported(server, capsys)
    assert spec_of(lines, "shop/gpu")["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"}
    ]
    assert "tolerations" not in spec_of(lines, "shop/cpu")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["week.csv"], "trace import: FILE and --prometheus exclude each other"),
        (["--match", "cluster=prod"], '--match: cannot be read from "cluster=prod" on'),
        (["--match", 'a="b"} or up{c="d"'], '--match: cannot be read from "} or up'),
        (["--step", "soon"], '--step: invalid duration "soon"'),
        (["--step", "100ms"], "--step: 100ms is not between 1s and 1h"),
        (["--since", "2027-01-15T10:00:00Z"], "--since: a trace from 2027-01-15 10:00 to"),
        (["--since", "1990-01-15T10:00:00Z"], "is empty or too long"),
        (["--prometheus", "ftp://x"], "--prometheus: not a"),
        (["--prometheus", "https://x:y"], "--prometheus: not a valid URL"),
        (["--prometheus", "https://x/?a=b"], "--prometheus: the URL contains ? or #"),
        (["--prometheus", "https://x/\n"], "--prometheus: not a"),
    ],
)
def test_invalid_arguments_are_rejected_before_the_first_query(
    more: list[str], problem: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, *period(), *more) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Error: ")
    assert problem in shown
    assert shown.count("\n") == 1
    assert server.paths == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "neither FILE nor --prometheus is given"),
        (["week.csv", "--match", 'a="b"'], "--match: needs --prometheus"),
    ],
)
def test_a_source_is_required(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "import", *words]) == 1
    assert problem in capsys.readouterr().err


def test_a_server_without_pods_in_the_period_is_an_error(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, *period(), "--match", 'cluster="x"') == 1
    shown = capsys.readouterr()
    assert 'kube_pod_created{cluster="x"} is empty; check --since and --match' in shown.err
    assert shown.out == ""


def test_owners_are_read_from_either_metric(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in (RecordedPod("api"), RecordedPod("agent", owner=("DaemonSet", "agent"))):
        record(server.recording, pod, seconds=HOUR)
        labels = {"namespace": "shop", "pod": pod.name, "uid": f"u-{pod.name}"}
        owner = {"owner_kind": pod.owner[0], "owner_name": pod.owner[1]}
        points = [(SINCE + 60, 1.0)]
        server.recording.add("kube_pod_owner", {**labels, **owner}, points)
    first, _ = imported(server, capsys)
    server.recording.remove("kube_pod_info")
    second, report = imported(server, capsys)
    assert first == second
    assert list(rows(second)) == ["shop/api"]
    assert "kube_pod_owner" not in report
    server.recording.remove("kube_pod_owner")
    third, report = imported(server, capsys)
    assert list(rows(third)) == ["shop/agent", "shop/api"]
    assert "No kube_pod_info and no kube_pod_owner: pods of DaemonSets are not left out." in report


def test_jobs_and_pods_without_owners_share_one_class(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = {"a": ("Job", "a"), "b": ("Job", "b"), "c": ("<none>", "<none>")}
    for name, owner in owners.items():
        record(server.recording, RecordedPod(name, owner=owner), seconds=HOUR)
    lines, _ = imported(server, capsys)
    (made,) = (line for line in lines if "spec" in line)
    assert "owner" not in made


def test_a_pod_that_failed_without_a_time_ends_when_that_is_first_seen(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet of an evicted pod reports no container."""
    record(server.recording, RecordedPod("api", finished=601), seconds=HOUR)
    server.recording.remove("kube_pod_completion_time")
    lines, _ = imported(server, capsys)
    assert rows(lines)["shop/api"]["deleted"] == 660


def test_a_pod_created_after_the_end_by_clock_skew_is_left_out(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    record(server.recording, RecordedPod("api"), seconds=HOUR)
    labels = {"namespace": "shop", "pod": "ahead", "uid": "1"}
    server.recording.add("kube_pod_created", labels, [(SINCE + 3590, SINCE + HOUR)])
    lines, report = imported(server, capsys)
    assert list(rows(lines)) == ["shop/api"]
    assert "Left out: 1 created after it ends." in report


def test_a_terminated_container_does_not_end_its_pod(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube_pod_completion_time exists as soon as one container has terminated."""
    record(server.recording, RecordedPod("api", finished=600), seconds=HOUR)
    server.recording.remove("kube_pod_status_phase")
    lines, report = imported(server, capsys)
    assert "deleted" not in rows(lines)["shop/api"]
    assert "No kube_pod_status_phase of finished pods" in report


def test_a_sidecar_counts_in_addition_to_the_containers(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    record(server.recording, RecordedPod("api", init_requests={"cpu": 1}), seconds=HOUR)
    labels = {"namespace": "shop", "pod": "api", "uid": "u-api", "container": "init_container"}
    info = {**labels, "restart_policy": "Always"}
    server.recording.add("kube_pod_init_container_info", info, [(SINCE + 60, 1.0)])
    lines, _ = imported(server, capsys)
    assert spec_of(lines, "shop/api")["initContainers"][0]["restartPolicy"] == "Always"
