"""``watch`` beside a cluster: it reads, predicts, scores, and writes nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from time import monotonic
from typing import Any

import pytest

from reconciler.adapters.kubernetes.kinds import cluster_role, watch_role
from reconciler.cli.main import main
from reconciler.watch.service import ENDS_WITHIN_S
from tests.adapters.kubernetes.apiserver import Call, Kube, serving, write_kubeconfig

POOL: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "web"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "example.com", "kind": "Machine", "name": "default"},
                "requirements": [],
            }
        }
    },
}
LABELS = {
    "karpenter.sh/nodepool": "web",
    "karpenter.sh/capacity-type": "on-demand",
    "node.kubernetes.io/instance-type": "m5.large",
    "topology.kubernetes.io/zone": "us-east-1a",
}


def a_watched_kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """Yield a cluster with a NodePool and the role of ``watch``, in an empty folder."""
    kube = Kube(rules=watch_role("any")["rules"], absent=frozenset({"capacitybuffers"}))
    kube.add(POOL)
    with serving(kube) as url:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", url)))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.chdir(tmp_path)
        yield kube


kube = pytest.fixture(a_watched_kube, name="kube")


def stop_after(kube: Kube, lists: int) -> None:
    """End the process's watch, as an operator would, once NodeClaims were read so often."""
    seen = [0]

    def count(call: Call) -> None:
        seen[0] += call.resource == "nodeclaims"
        if seen[0] == lists:
            os.kill(os.getpid(), signal.SIGTERM)

    kube.fault = count


def test_the_role_of_watch_is_enough_and_nothing_is_written(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(kube, 2)
    status = main(["watch", "--context", "shop", "--set", "aws.region=us-east-1"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "Watching Karpenter in " in printed.err
    calls = {(c.method, c.resource) for c in kube.calls}
    assert {method for method, _ in calls} == {"GET", "POST"}
    assert {name for method, name in calls if method == "POST"} == {"selfsubjectrulesreviews"}
    assert main(["watch", "report"]) == 0
    assert "Karpenter has done nothing since" in capsys.readouterr().out
    assert main(["watch", "report", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kinds"] == []


def test_a_server_that_does_not_answer_does_not_delay_the_end(kube: Kube) -> None:
    asked, answers = Event(), Event()

    def keep_waiting(call: Call) -> None:
        if call.resource != "pods":
            return
        if not asked.is_set():  # a second signal would end the test
            asked.set()
            os.kill(os.getpid(), signal.SIGTERM)
        answers.wait(120)

    kube.fault, begin = keep_waiting, monotonic()
    try:
        assert main(["watch", "--context", "shop", "--set", "aws.region=us-east-1"]) == 0
        assert monotonic() - begin < ENDS_WITHIN_S + 35, "two calls wait for 30 seconds each"
    finally:
        answers.set()
        for thread in enumerate_threads():  # it would write to the folder of another test
            if thread.name == "watch-shop":
                thread.join(60)


def test_credentials_that_could_write_are_refused_unless_allowed(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = [*watch_role("any")["rules"], *cluster_role("any", writes=True)["rules"]]
    words = ["watch", "--context", "shop", "--set", "aws.region=us-east-1"]
    stop_after(kube, 2)  # a watch that starts would not end
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "the credentials could write: create nodeclaims.karpenter.sh, " in error
    assert "create pods/eviction" in error
    assert "--allow-write-access" in error
    assert not Path(".reconciler").exists()
    stop_after(kube, 2)
    assert main([*words, "--allow-write-access"]) == 0


def test_no_episode_is_saved_through_a_link_of_a_checkout(
    kube: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    link = tmp_path / "checkout" / "misses"
    link.symlink_to(tmp_path / "outside")
    stop_after(kube, 2)  # a watch that starts would not end
    assert main(["watch", "--episodes", str(link / "new")]) == 1
    assert "misses: is a symbolic link in the checkout" in capsys.readouterr().err
    assert list((tmp_path / "outside").iterdir()) == []
    assert kube.calls == []


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["replay", "--help"]])
def test_help_names_the_subcommands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *words]) == 0
    assert "reconciler watch" in capsys.readouterr().out
