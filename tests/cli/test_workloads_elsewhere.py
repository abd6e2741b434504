"""A plan without workloads names those of the rest of the repository, with the command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.engine.world import a_deployment, a_node_class, a_pool
from tests.repositories import commit_all, init
from tests.yamltext import dump_all

Capture = pytest.CaptureFixture[str]
CODE = "workloads-elsewhere"
SETTINGS = """\
apiVersion: reconciler/v1
kind: Configuration
clusterName: web
aws: {region: us-east-1}
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a fleet that has no workloads, as the current folder."""
    init(tmp_path)
    add_fleet(tmp_path / "web" / "fleet", a_pool("web"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_fleet(folder: Path, *objects: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "reconciler.yaml").write_text(SETTINGS)
    (folder / "fleet.yaml").write_text(dump_all([a_node_class(), *objects]))


def add(folder: Path, *objects: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "all.yaml").write_text(dump_all(objects))


def hints(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    assert main(["plan", "web/fleet", *words, "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    return [finding for finding in plan["diagnostics"] if finding["code"] == CODE]


def test_the_command_plans_the_workloads_of_another_folder(
    repository: Path, capsys: Capture
) -> None:
    add(repository / "apps" / "shop", a_deployment("api", "web", 3))
    commit_all(repository, "all")

    (hint,) = hints(capsys)

    assert hint["message"].endswith('not planned: "apps/shop/all.yaml"')
    command = re.fullmatch(r"plan with those of this cluster: `reconciler (.*)`", hint["hint"])
    assert command is not None
    capsys.readouterr()
    assert main([*shlex.split(command[1]), "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["placements"]) == 3


def test_files_that_make_no_pods_of_this_fleet_are_not_named(
    repository: Path, capsys: Capture
) -> None:
    add_fleet(repository / "other", a_pool("web"), a_deployment("api", "web", 3))
    add(repository / "config", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    add(repository / "chart" / "templates", a_deployment("{{ .Values.name }}", "web", 3))
    commit_all(repository, "all")
    assert hints(capsys) == []


def test_a_fleet_with_workloads_needs_no_others(repository: Path, capsys: Capture) -> None:
    add(repository / "apps", a_deployment("api", "web", 3))
    add(repository / "web" / "fleet" / "workloads", a_deployment("own", "web", 1))
    commit_all(repository, "all")
    assert hints(capsys) == []


def test_a_job_names_them_too(repository: Path, capsys: Capture) -> None:
    add(repository / "apps", a_deployment("api", "web", 3))
    commit_all(repository, "all")
    assert main(["ci", "--out", "plans", "web/fleet"]) == 0
    assert (
        "workloads of the repository that are not in this folder"
        in Path("plans/web-fleet.md").read_text()
    )
