"""Sources of ``--snapshot`` other than a file, and the maximum age of a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from reconciler.cli.main import main
from tests.cli.test_plan import CATALOG, DEPLOYMENT, a_fleet
from tests.repositories import commit_all, git, init

NOW = "2026-01-03T12:00:00Z"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "only-in-the-snapshot", "namespace": "web"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    },
}


def content(at: str | None = None) -> str:
    capture = {"apiVersion": "reconciler/v1", "kind": "SnapshotCapture", "at": at}
    items = [POD, *([capture] if at else [])]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return a_fleet(tmp_path, DEPLOYMENT, CATALOG)


def plan(fleet: Path, place: str, *more: str) -> int:
    catalog = str(fleet.parent / "catalog.json")
    words = ["--now", NOW, "--catalog", catalog, "--snapshot", place]
    return main(["plan", str(fleet), *words, *more])


def placed(text: str) -> list[str]:
    return [row["pod"] for row in json.loads(text)["placements"]]


def test_a_snapshot_is_read_from_the_commit_not_the_folder(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(fleet.parent)
    state = fleet.parent / "clusters"
    state.mkdir()
    (state / "prod.json").write_text(content())
    commit_all(fleet.parent)
    git(fleet.parent, "branch", "snapshots")
    (state / "prod.json").write_text("not this")
    assert plan(fleet, "git:snapshots:clusters/prod.json", "-o", "json") == 0
    assert placed(capsys.readouterr().out) == ["web/only-in-the-snapshot"]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("git:main:none.json", "the file does not exist"),
        ("git:main:fleet", "the file does not exist"),
        ("git:none:fleet/pool.yaml", "commit none not found"),
        ("git:main", "use git:REF:PATH"),
        ("git:main:", "use git:REF:PATH"),
        ("git:main:../etc/passwd", "use git:REF:PATH"),
        ("git:--output=x:fleet/pool.yaml", "is not a valid ref"),
    ],
)
def test_an_invalid_location_in_git_is_rejected(
    fleet: Path, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    init(fleet.parent)
    commit_all(fleet.parent)
    git(fleet.parent, "branch", "-M", "main")
    assert plan(fleet, place) != 0
    assert says in capsys.readouterr().err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="fleet-snapshots")
        yield s3


def test_an_object_of_s3_is_read(fleet: Path, bucket, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.put_object(Bucket="fleet-snapshots", Key="prod/now.json", Body=content().encode())
    assert plan(fleet, "s3://fleet-snapshots/prod/now.json", "-o", "json") == 0
    assert placed(capsys.readouterr().out) == ["web/only-in-the-snapshot"]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("s3://fleet-snapshots/none.json", "S3 GetObject failed"),
        ("s3://fleet-snapshots", "use s3://BUCKET/KEY"),
        ("s3:///key", "use s3://BUCKET/KEY"),
    ],
)
def test_an_unreadable_object_in_s3_stops_the_plan(
    fleet: Path, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    assert plan(fleet, place) != 0
    output = capsys.readouterr()
    assert says in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    ("at", "more", "age", "warns"),
    [
        ("2026-01-03T09:00:00Z", (), "3 h old", False),
        ("2026-01-03T09:00:00Z", ("--snapshot-max-age", "2h"), "3 h old", True),
        ("2026-01-02T12:00:00Z", (), "24 h old", False),
        ("2026-01-02T11:59:59Z", (), "24 h old", True),
        ("2025-12-20T12:00:00Z", (), "14 days old", True),
        ("2025-12-20T12:00:00Z", ("--snapshot-max-age", "720h"), "14 days old", False),
    ],
)
def test_the_plan_shows_the_age_of_its_snapshot(
    fleet: Path,
    capsys: pytest.CaptureFixture[str],
    at: str,
    more: tuple[str, ...],
    age: str,
    *,
    warns: bool,
) -> None:
    place = fleet.parent / "cluster.json"
    place.write_text(content(at))
    assert plan(fleet, str(place), *more) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"observed: the snapshot, {age}" in shown
    assert ("the cluster may have changed since" in shown) is warns
    assert plan(fleet, str(place), *more, "-o", "json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["observedAt"] == at
    assert ("old-snapshot" in [d["code"] for d in output["diagnostics"]]) is warns


def test_a_plan_omits_an_unknown_age_of_its_snapshot(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = fleet.parent / "cluster.json"
    place.write_text(content())
    assert plan(fleet, str(place), "-o", "json") == 0
    assert "observedAt" not in json.loads(capsys.readouterr().out)
