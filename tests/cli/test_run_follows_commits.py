"""``run PATH`` acts on what was committed, and on files that are being edited only if told so."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.cli.commands import run as daemon
from reconciler.cli.shared import request
from reconciler.cli.wiring.fleetsource import follow_commits
from reconciler.model.errors import UsageError
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.repositories import commit_all, init


def arguments(folder: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    daemon.add_arguments(parser)
    return parser.parse_args([str(folder), *words])


def write(folder: Path, weight: int) -> None:
    pool: dict[str, Any] = {**NODE_POOL, "spec": {**NODE_POOL["spec"], "weight": weight}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all([NODE_CLASS, pool]))


def weight(args: argparse.Namespace) -> int:
    fleet, _ = request.read_desired(request.read_source(args), any_class=False)
    number: int = fleet.node_pools[0].data["spec"]["weight"]
    return number


def test_a_file_that_is_only_saved_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path)
    write(tmp_path, 1)
    commit_all(tmp_path)
    args = arguments(tmp_path)
    follow_commits(args)
    assert capsys.readouterr().err == ""
    write(tmp_path, 2)
    assert weight(args) == 1
    commit_all(tmp_path)
    assert weight(args) == 2
    write(tmp_path, 3)
    follow_commits(arguments(tmp_path))
    assert "uncommitted changes, which are not acted on" in capsys.readouterr().err
    assert weight(arguments(tmp_path, "--dirty")) == 3


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    init(tmp_path)
    write(tmp_path, 1)
    with pytest.raises(UsageError, match=r"no commit yet.*--dirty"):
        follow_commits(arguments(tmp_path))


def test_a_folder_outside_git_is_followed_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, 1)
    args = arguments(tmp_path)
    follow_commits(args)
    assert weight(args) == 1
