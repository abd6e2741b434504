"""The name of the distribution, and the command that adds an extra to an installation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from reconciler import DISTRIBUTION
from reconciler.installation import Installation, current_installation

ROOT = Path(__file__).resolve().parents[1]


def test_the_name_of_the_distribution_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["name"] == DISTRIBUTION


@pytest.mark.parametrize(
    ("installation", "command"),
    [
        (Installation("/env", active="/env"), "pip install 'fleet-reconciler[cel]'"),
        (Installation("/env"), "/env/bin/pip install 'fleet-reconciler[cel]'"),
        (Installation("/env", active="/other"), "/env/bin/pip install 'fleet-reconciler[cel]'"),
        (Installation("/my env"), "'/my env/bin/pip' install 'fleet-reconciler[cel]'"),
        (
            Installation("/env", active="/env", source="/src/fleet"),
            "pip install '/src/fleet[cel]'",
        ),
        (
            Installation("/env", active="/env", source="/src", is_editable=True),
            "pip install -e '/src[cel]'",
        ),
        (
            Installation("/env", has_pip=False),
            "uv pip install --python /env/bin/python 'fleet-reconciler[cel]'",
        ),
        (
            Installation("/home/a/.local/share/uv/tools/fleet-reconciler"),
            "uv tool install --force 'fleet-reconciler[cel]'",
        ),
        (
            Installation("/home/a/.cache/uv/archive-v0/x1"),
            "uvx 'fleet-reconciler[cel]'",
        ),
        (
            Installation("/home/a/.local/share/pipx/venvs/fleet-reconciler"),
            "pipx install --force 'fleet-reconciler[cel]'",
        ),
    ],
)
def test_an_extra_is_added_in_the_way_of_the_installation(
    installation: Installation, command: str
) -> None:
    assert installation.command_for("cel") == command


def test_the_command_of_uvx_has_the_name_of_the_distribution() -> None:
    """``uvx NAME`` runs the command that is named like the distribution."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[DISTRIBUTION] == scripts["reconciler"]


def test_the_running_installation_is_that_of_this_checkout() -> None:
    assert current_installation().source in ("", str(ROOT))


def test_no_text_installs_another_project_of_the_name_reconciler() -> None:
    pattern = re.compile(
        r"(?<![-/.\w])reconciler\[[a-z]|(pip|pipx|tool) install '?reconciler\b|uvx reconciler"
    )
    texts = [
        *(ROOT / "reconciler").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "templates").rglob("*"),
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / ".github").rglob("*.yml"),
        ROOT / "Dockerfile",
        ROOT / "README.md",
        ROOT / "action.yml",
    ]

    assert [
        f"{path}: {found[0]}"
        for path in texts
        if path.is_file()
        for found in pattern.finditer(path.read_text(encoding="utf-8"))
    ] == []
