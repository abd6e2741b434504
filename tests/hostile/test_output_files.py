"""Attacks by which a symbolic link of a checkout makes a command write a file of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.test_output_links import COMMANDS, checkout, outside
from tests.hostile.threats import Threat, attack

__all__ = ["checkout", "outside"]


@attack(Threat.FILES, "a symbolic link in place of a folder, above the file that a command writes")
@pytest.mark.parametrize("folder", ["outside", "deep/link", "deep/link/more", "deep/../outside"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_below_a_link(name: str, folder: str, checkout: Path) -> None:
    (checkout / "trace.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "a,1500,1024,0,0,0,120,30\n"
    )
    for place in (folder, f"./{folder}", str(checkout / folder)):
        line = COMMANDS[name].format(folder=place, file=f"{place}/new")
        assert main(line.split()) != 0


@attack(Threat.FILES, "symbolic links in place of the files of plans")
@pytest.mark.parametrize("name", ["web.json", "web.html", "web.md"])
@pytest.mark.parametrize("target", ["file", "new"])
def test_no_plan_is_written_through_a_link(
    name: str, target: str, checkout: Path, outside: Path
) -> None:
    plans = checkout / "reconciler-plans"
    plans.mkdir()
    (plans / name).symlink_to(outside / target)
    assert main(["ci", "web", "--base", "main"]) == 0
    assert not (plans / name).is_symlink()


@attack(Threat.FILES, "a .git further down, so that the links above it count as the user's")
def test_a_second_repository_does_not_move_the_top_of_the_checkout(
    checkout: Path, outside: Path
) -> None:
    (checkout / "deep" / "repo").symlink_to(outside)
    (checkout / "deep" / ".git").mkdir()
    for place in ("deep/repo/new", str(checkout / "deep" / "repo" / "new")):
        assert main(["plan", "web", "--out", place]) != 0
