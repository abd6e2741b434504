"""Attacks by which a symbolic link of a checkout makes a command write a file of the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.writing import write_file
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
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


@attack(Threat.FILES, "a folder that becomes a link after it was checked, and before it is opened")
def test_a_folder_that_becomes_a_link_is_not_entered(
    checkout: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses the link when the folder is opened, whatever was there before."""
    place = checkout / "results"
    place.mkdir()
    usual = os.stat
    swapped: list[str] = []

    def stat_and_swap(path: str | int, **more: Any) -> os.stat_result:
        found = usual(path, **more)
        if path == "results" and "dir_fd" in more and not swapped:
            swapped.append(path)
            place.rmdir()
            place.symlink_to(outside)
        return found

    before = sorted(outside.iterdir())
    monkeypatch.setattr(os, "stat", stat_and_swap)
    with pytest.raises(UnreadableError):
        write_file(str(place / "new"), b"x")
    assert swapped
    assert sorted(outside.iterdir()) == before
