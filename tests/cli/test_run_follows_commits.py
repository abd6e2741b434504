"""``run PATH`` acts on what was committed, and on uncommitted files only if requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.assembly.fleetsource import follow_commits
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.repositories import commit_all, init


def request_for(folder: Path) -> FleetRequest:
    return FleetRequest(path=str(folder))


def write(folder: Path, weight: int) -> None:
    pool: dict[str, Any] = {**NODE_POOL, "spec": {**NODE_POOL["spec"], "weight": weight}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all([NODE_CLASS, pool]))


def weight(request: FleetRequest) -> int:
    fleet, _ = sources.read_desired(sources.read_source(request), any_class=False)
    number: int = fleet.node_pools[0].data["spec"]["weight"]
    return number


def test_an_uncommitted_file_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path)
    write(tmp_path, 1)
    commit_all(tmp_path)
    request = follow_commits(request_for(tmp_path))
    assert capsys.readouterr().err == ""
    write(tmp_path, 2)
    assert weight(request) == 1
    commit_all(tmp_path)
    assert weight(request) == 2
    write(tmp_path, 3)
    follow_commits(request_for(tmp_path))
    assert "uncommitted changes, which are not acted on" in capsys.readouterr().err
    assert weight(request_for(tmp_path)) == 3


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    init(tmp_path)
    write(tmp_path, 1)
    with pytest.raises(UsageError, match=r"no commit yet.*--dirty"):
        follow_commits(request_for(tmp_path))


def test_a_simulation_of_it_is_refused_before_a_dashboard_is_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path)
    write(tmp_path, 1)
    assert main(["run", str(tmp_path), "--simulated", "--listen", "127.0.0.1:0"]) == 1
    err = capsys.readouterr().err
    assert "no commit yet" in err
    assert "Dashboard" not in err


def test_a_folder_outside_git_is_followed_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, 1)
    request = follow_commits(request_for(tmp_path))
    assert weight(request) == 1
