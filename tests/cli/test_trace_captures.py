"""``trace import`` reads audit logs of EKS in each form of export, and kubereplay's captures."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.backtest.captures.reading import read_capture
from reconciler.backtest.trace import Trace
from reconciler.backtest.writing import encode_trace
from reconciler.cli.main import main
from reconciler.model.errors import ReconcilerError, UnreadableError
from tests.examples import examples

Event = dict[str, Any]
SPEC = {
    "nodeName": "ip-10-0-0-1",
    "containers": [
        {
            "name": "main",
            "env": [{"name": "PASSWORD", "value": "secret"}],
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        }
    ],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
}


def event(second: float, verb: str, name: str, subresource: str = "", **more: Any) -> Event:
    about = {"resource": "pods", "namespace": "shop", "name": name, "subresource": subresource}
    return {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "RequestResponse",
        "stage": "ResponseComplete",
        "verb": verb,
        "objectRef": about,
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": f"2026-03-02T09:{int(second) // 60:02}:{second % 60:09.6f}Z",
        **more,
    }


def created(second: float, name: str, kind: str = "ReplicaSet") -> Event:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "api", "controller": True, "uid": "u"}
    metadata = {
        "name": name,
        "namespace": "shop",
        "labels": {"app": "api", "pod-template-hash": "5d"},
        "annotations": {"karpenter.sh/do-not-disrupt": "true", "note": "x"},
        "ownerReferences": [owner],
        "creationTimestamp": None,
    }
    return event(second, "create", "", responseObject={"metadata": metadata, "spec": SPEC})


LOG = [
    created(0, "api-1"),
    event(4, "create", "api-1", "binding"),
    created(1, "api-2"),
    created(2, "agent-1", "DaemonSet"),
    event(30, "delete", "api-2"),
    event(31, "delete", "old-1"),
    created(5, "job-1", "Job"),
    event(50, "patch", "job-1", "status", responseObject={"status": {"phase": "Succeeded"}}),
    event(51, "patch", "api-1", "status", responseObject={"status": {"phase": "Running"}}),
    event(52, "delete", "api-1", responseStatus={"code": 409}),
    event(60, "get", "api-1"),
]


def lines(events: list[Event]) -> bytes:
    return "".join(json.dumps(e) + "\n" for e in events).encode()


def exported(events: list[Event]) -> bytes:
    """Return an export of CloudWatch Logs to S3, with a line of another log."""
    rows = ["2026-03-02T09:00:00.123Z I0302 scheduler started"]
    rows += [f"2026-03-02T09:00:00.000Z {json.dumps(e)}" for e in events]
    return gzip.compress("\n".join(rows).encode())


def filtered(events: list[Event]) -> bytes:
    found = [{"logStreamName": "s", "timestamp": 1, "message": json.dumps(e)} for e in events]
    return json.dumps({"events": found, "searchedLogStreams": []}, indent=4).encode()


def compact(events: list[Event]) -> bytes:
    """Return the same on one line, as jq prints it."""
    return json.dumps(json.loads(filtered(events)), separators=(",", ":")).encode()


def delivered(events: list[Event]) -> bytes:
    rows = [{"id": "1", "timestamp": 1, "message": json.dumps(e)} for e in events]
    parts = [
        {"messageType": "DATA_MESSAGE", "logGroup": "/aws/eks/prod/cluster", "logEvents": part}
        for part in (rows[:3], rows[3:])
    ]
    return gzip.compress("".join(map(json.dumps, parts)).encode())


FORMS: list[Callable[[list[Event]], bytes]] = [lines, exported, filtered, compact, delivered]


def read(content: bytes) -> tuple[Trace, str]:
    found = read_capture(content, "audit.gz")
    assert found is not None
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_audit_log_has_the_same_pods(
    form: Callable[[list[Event]], bytes],
) -> None:
    trace, report = read(form(LOG))
    rows = [(p.pod.key, p.created, p.bound, p.deleted) for p in trace.pods]
    assert rows == [
        ("shop/api-1", 0, 4, None),
        ("shop/api-2", 1, None, 30),
        ("shop/job-1", 5, None, 50),
    ]
    assert trace.seconds == 60
    first = trace.pods[0].pod
    assert first.metadata.labels == {"app": "api"}
    assert first.metadata.annotations == {"karpenter.sh/do-not-disrupt": "true"}
    assert first.spec.node_selector == {"kubernetes.io/arch": "amd64"}
    assert first.spec.node_name == ""
    assert first.spec is trace.pods[1].pod.spec, "pods of one class share its spec"
    assert "Imported 3 pods from 2026-03-02 09:00 UTC" in report
    assert "Left out: 1 pods of DaemonSets." in report
    assert "1 pod ended or bound here were created before" in report
    assert b"secret" not in encode_trace(trace, compressed=False)


def test_the_order_of_events_does_not_count() -> None:
    assert read(lines(LOG))[0].pods == read(lines(LOG[::-1]))[0].pods


def test_a_name_that_is_used_again_is_another_pod() -> None:
    trace, _ = read(lines([created(0, "db-0"), event(10, "delete", "db-0"), created(20, "db-0")]))
    assert [(p.pod.metadata.name, p.created, p.deleted) for p in trace.pods] == [
        ("db-0", 0, 10),
        ("db-0-2", 20, None),
    ]


def template(app: str) -> Event:
    return {"metadata": {"labels": {"app": app}, "creationTimestamp": None}, "spec": SPEC}


def capture(*events: Event) -> bytes:
    """Return a capture as kubereplay writes it: indented, and not in the order of time."""
    whole = {"cluster": "prod", "captured": "2026-03-02T10:00:00.5Z", "events": list(events)}
    return json.dumps(whole, indent=2).encode()


def deployment(minute: int, name: str, replicas: int | None = None) -> Event:
    spec: Event = {"selector": {}, "template": template(name), "strategy": {}}
    if replicas is not None:
        spec["replicas"] = replicas
    body = {"metadata": {"name": name, "namespace": "kubereplay"}, "spec": spec, "status": {}}
    return {
        "type": "create",
        "kind": "Deployment",
        "key": f"kubereplay/{name}",
        "deployment": body,
        "timestamp": f"2026-03-02T09:{minute:02}:00.25Z",
    }


def change(minute: int, name: str, kind: str = "scale", **more: Any) -> Event:
    at = f"2026-03-02T09:{minute:02}:00.25Z"
    return {
        "type": kind, "kind": "Deployment", "key": f"kubereplay/{name}", "timestamp": at, **more
    }  # fmt: skip


def job(minute: int, **spec: Any) -> Event:
    made = {"metadata": {"name": "job-0"}, "spec": {"template": template("job-0"), **spec}}
    at = f"2026-03-02T09:{minute:02}:00.25Z"
    return {
        "type": "create", "kind": "Job", "key": "kubereplay/job-0", "job": made, "timestamp": at
    }  # fmt: skip


def test_a_capture_of_kubereplay_has_the_pods_of_its_replicas() -> None:
    trace, report = read(
        capture(
            deployment(0, "deployment-0", 3),
            deployment(2, "deployment-1"),
            job(3, parallelism=3, completions=2, activeDeadlineSeconds=90),
            change(10, "deployment-0", replicas=1),
            change(5, "deployment-0", replicas=4),
            change(20, "deployment-0", "delete"),
            change(21, "unknown", "delete"),
        )
    )
    rows = [(p.pod.metadata.name, p.created, p.deleted) for p in trace.pods]
    assert rows == [
        ("deployment-0-0", 0, 1200),
        ("deployment-0-1", 0, 600),
        ("deployment-0-2", 0, 600),
        ("deployment-1-0", 120, None),
        ("job-0-0", 180, 270),
        ("job-0-1", 180, 270),
        ("deployment-0-3", 300, 600),
    ]
    assert trace.seconds == 3600.25
    assert "1 events of Deployments that were not seen before" in report
    assert "when pods were bound" in report


def test_an_imported_capture_can_be_replayed(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit.gz").write_bytes(exported(LOG))
    assert main(["trace", "import", str(tmp_path / "audit.gz"), "--out", str(tmp_path / "t")]) == 0
    assert "Imported 3 pods" in capsys.readouterr().err
    assert main(["trace", "summary", str(tmp_path / "t"), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pods"], found["classes"], found["seconds"]) == (3, 2, 60)


BAD = {**created(0, "x")}
BAD_REQUEST = created(0, "x")
BAD_REQUEST["responseObject"] = {
    "metadata": {"name": "x"},
    "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "many"}}}]},
}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lines(LOG[:2]) + b'{"apiVersion": "audit.k8s.io/v1", cut', "audit.gz:3: "),
        (lines(LOG[:1]) + b'{"apiVersion": "v1"}\n', "audit.gz:2: is not an event"),
        (lines([{**LOG[0], "requestReceivedTimestamp": "0001-01-01T00:00:00Z"}]), "audit.gz:1: a"),
        (lines([LOG[0], {**LOG[1], "requestReceivedTimestamp": None}]), "audit.gz:2: requestRec"),
        (lines([LOG[1], BAD_REQUEST]), "audit.gz:2: a request: cpu: not a quantity"),
        (lines([{**LOG[0], "responseObject": {"metadata": {"labels": 1}}}]), "audit.gz:1: "),
        (exported(LOG)[:-20], "audit.gz: "),
        (filtered([LOG[0], {"apiVersion": "v1"}]), "audit.gz:11: is not an event"),
        (b'{"events": [], "nextToken": "x"}', "audit.gz:1: has no event"),
        (b'{"events": [' + b"[" * 100_000, "audit.gz:1: "),
        (capture(), "audit.gz:1: has no event"),
        (capture(deployment(0, "a", 2_000_001)), "audit.gz:5: has more than 2,000,000 pods"),
        (capture(deployment(0, "a", -1)), "audit.gz:5: "),
        (capture(deployment(0, "a", 1), change(1, "a")), "replicas: is missing"),
        (capture({**deployment(0, "a"), "timestamp": "9999-01-01T00:00:00Z"}), "audit.gz:5: a t"),
    ],
)
def test_a_damaged_or_hostile_file_is_an_error_with_its_line(content: bytes, problem: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError) as caught:
            read_capture(content, "audit.gz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert problem in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert peak < 64 * 2**20


def test_what_decompresses_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reconciler.backtest.captures.reading.BYTES_MAX", 1 << 20)
    with pytest.raises(UnreadableError, match="has more than 1 MiB"):
        read_capture(gzip.compress(b"{" + b" " * (2 << 20)), "bomb.gz")


@settings(max_examples=examples(60))
@given(
    st.sampled_from([lines(LOG), filtered(LOG), capture(deployment(0, "a", 2), job(1))]),
    st.integers(0, 4000),
    st.binary(max_size=6),
)
def test_any_bytes_are_a_trace_or_an_error(content: bytes, place: int, noise: bytes) -> None:
    place %= len(content)
    message = "x: read"
    try:
        read_capture(content[:place] + noise + content[place + len(noise) :], "x")
    except ReconcilerError as error:
        message = str(error)
    assert re.match(r"x(:\d+)*: .", message)
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"name,cpu_milli\n", b'{"kind": "Trace"}', b"[]"])
def test_other_files_are_not_captures(content: bytes) -> None:
    assert read_capture(content, "x") is None
