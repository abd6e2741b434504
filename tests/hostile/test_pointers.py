"""Pointers of Git LFS in place of files: what a checkout contains if LFS did not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import BASE, CHART, CLASS, POOL, below, write
from tests.hostile.test_sources import needs_helm, needs_kustomize
from tests.hostile.threats import Threat, attack

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
OVERLAY = {"kustomization.yaml": "resources: [base, lfs.yaml]\n", "lfs.yaml": POINTER}
NOW = ["--now", "2026-03-01T00:00:00Z"]


@attack(Threat.HIDDEN, "a pointer of Git LFS in place of a file, so that its objects seem deleted")
@pytest.mark.parametrize(
    "files",
    [
        {"class.yaml": CLASS, "pool.yaml": POOL, "more.yaml": POINTER},
        {"class.yaml": CLASS, "pool.yaml": POINTER},
        {"class.yaml": CLASS, "pool.json": POINTER},
        {"class.yaml": CLASS, "pool.yaml": POOL, "reconciler.yaml": POINTER},
        pytest.param(BASE | OVERLAY, marks=needs_kustomize),
        pytest.param(below("chart", CHART | {"values.yaml": POINTER}), marks=needs_helm),
        pytest.param(below("chart", CHART | {"templates/nodes.yaml": POINTER}), marks=needs_helm),
    ],
)
def test_a_pointer_is_not_a_file_without_objects(
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards: ``not-an-object`` is an error, and the tools refuse what is no YAML mapping."""
    write(tmp_path, files)
    (tmp_path / ".gitattributes").write_text("*.yaml filter=lfs diff=lfs merge=lfs -text\n")
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "."]) == 3
    printed = capsys.readouterr().out
    if set(files) == {"class.yaml", "pool.yaml", "more.yaml"} or files.get("pool.yaml") == POINTER:
        assert "is a pointer of Git LFS, not the file (run `git lfs pull`" in printed
    assert main(["plan", ".", "-o", "json", *NOW]) != 0


@attack(Threat.HIDDEN, "a pointer of Git LFS in place of a file that is taken over")
def test_a_pointer_is_not_left_out_of_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: its own code, as that of other files without objects only names them."""
    write(tmp_path, below("old", {"class.yaml": CLASS, "pool.yaml": POOL, "more.yaml": POINTER}))
    monkeypatch.chdir(tmp_path)
    main(["init", "new", "--from", "old"])
    printed = capsys.readouterr()
    assert "more.yaml:1:1" in printed.out + printed.err
    assert "git lfs pull" in printed.out + printed.err


@attack(Threat.EXHAUSTION, "a pointer of Git LFS in place of a snapshot, catalog, trace or plan")
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "fleet", "--snapshot", "lfs"],
        ["plan", "fleet", "--catalog", "lfs"],
        ["simulate", "fleet", "--trace", "lfs"],
        ["simulate", "fleet", "--faults", "lfs"],
        ["apply", "lfs", "fleet"],
        ["plan", "-f", "lfs"],
        ["explain", "pod", "x", "fleet", "--plan", "lfs"],
        ["watch", "replay", "lfs"],
        ["comment", "lfs", "--dry-run"],
    ],
)
def test_a_pointer_in_place_of_an_input_is_an_error_of_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, below("fleet", {"class.yaml": CLASS, "pool.yaml": POOL}) | {"lfs": POINTER})
    monkeypatch.chdir(tmp_path)
    assert main(words) != 0
    error = capsys.readouterr().err
    assert "internal error" not in error
    assert len([line for line in error.splitlines() if line.startswith("Error:")]) <= 1
