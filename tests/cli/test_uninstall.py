"""``reconciler uninstall`` through the real client, against the API server of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.adapters.kubernetes.apiserver import Call, Kube, ResetError, serving, write_kubeconfig
from tests.adapters.kubernetes.sandbox import a_node

OURS = "reconciler/termination"


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    kube = Kube()
    for number in range(3):
        node = a_node(f"n{number}", f"aws:///us-east-1a/i-{number}")
        node["metadata"]["finalizers"] = ["example.com/mine", OURS] if number else [OURS]
        kube.add(node)
    kube.add(a_node("stranger", "aws:///us-east-1a/i-9"))
    with serving(kube) as url:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", url)))
        monkeypatch.chdir(tmp_path)
        yield kube


def finalizers(kube: Kube) -> dict[str, list[str]]:
    return {name: n["metadata"].get("finalizers", []) for name, n in kube.of("nodes").items()}


def uninstall(*more: str) -> int:
    return main(["uninstall", "--auto-approve", "--settle", "0s", *more])


def test_uninstall_removes_only_our_finalizer(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uninstall() == 0
    assert "Removed the finalizer from 3 nodes" in capsys.readouterr().out
    mine = ["example.com/mine"]
    assert finalizers(kube) == {"n0": [], "n1": mine, "n2": mine, "stranger": []}
    patched = [c.name for c in kube.calls if c.method != "GET"]
    assert patched == ["n0", "n1", "n2"]


def test_a_node_pending_deletion_is_removed(kube: Kube) -> None:
    kube.delete("nodes", "n0")
    assert uninstall() == 0
    assert set(kube.of("nodes")) == {"n1", "n2", "stranger"}


def test_a_daemon_that_adds_the_finalizer_again_is_detected(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    def hold(call: Call) -> None:
        if call.verb == "list":
            kube.change("nodes", "n0", lambda n: n["metadata"].update(finalizers=[OURS]))

    kube.fault = hold
    assert uninstall() == 1
    err = capsys.readouterr().err
    assert "keeps coming back, now on n0: a daemon is still running" in err


def test_without_a_terminal_the_flag_is_required(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["uninstall"]) == 1
    assert "pass --auto-approve" in capsys.readouterr().err
    assert kube.calls == []


@pytest.mark.exhaustive  # it waits between attempts, as the command does
def test_an_incomplete_list_is_an_error(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    def cut(call: Call) -> None:
        if "continue" in call.query:
            raise ResetError

    kube.page_max = 2
    kube.fault = cut
    assert uninstall() == 1
    assert "nodes" in capsys.readouterr().err
    assert all(OURS in names for name, names in finalizers(kube).items() if name != "stranger")
