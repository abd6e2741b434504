"""A watch publishes snapshots, from which a plan can be made without the cluster."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.model.errors import ReconcilerError, UnreadableError
from reconciler.observed.snapshot import read_snapshot
from reconciler.watch.publishing import SnapshotPublisher
from tests.adapters.kubernetes.apiserver import Kube
from tests.watch.claims import after, claim
from tests.watch.test_live import POOL, a_watched_kube, stop_after
from tests.watch.test_session import Seen

kube = pytest.fixture(a_watched_kube, name="kube")


def test_a_snapshot_is_written_once_in_the_interval_with_the_time_of_its_observation() -> None:
    written: list[bytes] = []
    publisher = SnapshotPublisher(written.append, timedelta(minutes=10), list, lambda error: None)
    for second in (0, 300, 599, 600, 700):
        publisher.publish(Seen((claim("a"),)), after(second))
    first, last = (read_snapshot(content, "the test") for content in written)
    assert (first.captured_at, last.captured_at) == (after(0), after(600))
    assert [c.name for c in first.node_claims] == ["a"]


def test_a_snapshot_that_cannot_be_written_is_reported_and_tried_again_later() -> None:
    problems: list[ReconcilerError] = []
    tried: list[bytes] = []

    def write(content: bytes) -> None:
        tried.append(content)
        raise UnreadableError("disk full", where="cluster.json")

    publisher = SnapshotPublisher(write, timedelta(minutes=10), list, problems.append)
    for second in (0, 1, 599, 600):
        publisher.publish(Seen(()), after(second))
    assert len(tried) == 2
    assert [problem.message for problem in problems] == ["disk full"] * 2


@pytest.mark.parametrize("more", [[], ["--anonymize"]])
def test_a_plan_is_made_from_the_published_snapshot_without_the_cluster(
    more: list[str],
    kube: Kube,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "secret-namespace"}})
    stop_after(kube, 2)
    place = tmp_path / "published" / "cluster.json"
    place.parent.mkdir()
    words = ["watch", "--context", "shop", "--set", "aws.region=us-east-1"]
    assert main([*words, "--publish", str(place), *more]) == 0, capsys.readouterr().err
    assert place.stat().st_mode & 0o077 == 0
    assert ("secret-namespace" in place.read_text()) == (not more)
    assert {c.method for c in kube.calls} == {"GET", "POST"}
    monkeypatch.delenv("KUBECONFIG")
    calls = len(kube.calls)
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(json.dumps(POOL))
    plan = ["plan", "fleet", "--snapshot", str(place), "--set", "aws.region=us-east-1"]
    capsys.readouterr()
    assert main([*plan, "--set", "decide=karpenter", "-o", "json"]) == 0, capsys.readouterr().err
    plan_document = json.loads(capsys.readouterr().out)
    assert (plan_document["actor"], plan_document["observation"]) == ("karpenter", "snapshot")
    assert len(kube.calls) == calls


def test_standard_output_is_not_a_place_to_publish(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--context", "shop", "--publish", "-"]) == 1
    assert "--publish" in capsys.readouterr().err
    assert kube.calls == []
