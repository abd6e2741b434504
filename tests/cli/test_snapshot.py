"""``snapshot`` against a program that answers as kubectl does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.observed.snapshot import read_snapshot

KUBECTL = """#!/bin/sh
case "$*" in
  *karpenter*) echo "error: the server doesn't have a resource type \\"nodepools\\"" >&2; exit 1;;
  *"get pods "*) echo '{"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "web"}}]}';;
  *"get nodes "*) %s;;
  *) echo '{"kind": "List", "items": []}';;
esac
"""


def a_kubectl(folder: Path, nodes: str = """echo '{"kind": "List", "items": []}'""") -> str:
    program = folder / "kubectl"
    program.write_text(KUBECTL % nodes)
    program.chmod(0o755)
    return str(program)


def test_the_captured_file_is_a_valid_snapshot(tmp_path: Path) -> None:
    out = tmp_path / "cluster.json"
    assert main(["snapshot", "--kubectl", a_kubectl(tmp_path), "--out", str(out)]) == 0
    snapshot = read_snapshot(out.read_bytes(), str(out))
    assert [pod.metadata.name for pod in snapshot.pods] == ["web"]
    assert out.stat().st_mode & 0o077 == 0


def test_without_a_file_the_snapshot_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", "--kubectl", a_kubectl(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "List"


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("echo 'Unable to connect: refused' >&2; exit 1", "Unable to connect: refused"),
        ("echo 'error: no permission on nodes' >&2; exit 1", "no permission"),
        ("echo garbage", "the output is not a List"),
        ("echo '[]'", "the output is not a List"),
    ],
)
def test_an_incomplete_answer_of_the_cluster_gives_no_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, says: str
) -> None:
    out = tmp_path / "cluster.json"
    kubectl = a_kubectl(tmp_path, nodes)
    assert main(["snapshot", "--kubectl", kubectl, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "kubectl get nodes" in error
    assert not out.exists()


def test_a_missing_package_of_an_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client.exceptions", None)
    assert main(["snapshot", "--out", str(tmp_path / "cluster.json")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: the package kubernetes is not installed; run `")
    assert "[kubernetes]" in err
    assert "internal error" not in err


def test_a_missing_kubectl_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "--kubectl", str(tmp_path / "none")]) == 1
    assert "install kubectl" in capsys.readouterr().err
