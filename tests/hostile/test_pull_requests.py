"""Attacks by which a pull request hides a fleet, its plan or the policies for it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.cli.pullrequest import fleets
from reconciler.cli.pullrequest.fleets import fleets_below
from reconciler.model.errors import UsageError
from tests.cli.test_ci import POLICY, prod, repository
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, copy_small_web, git

__all__ = ["prod", "repository"]


@attack(Threat.HIDDEN, "folders whose plans would be written to the same file")
@pytest.mark.parametrize(
    "other", ["prod~a", "prod a", "prod-a", "prod//a", "prod%a", "PROD/a", "-prod-a", "prod-a-"]
)
def test_no_plan_takes_the_place_of_another(
    other: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, name in (("prod/a", "strict"), (other, "cheap")):
        copy_small_web(repository / folder)
        settings = repository / folder / "reconciler.yaml"
        settings.write_text(settings.read_text().replace("fleet: web", f"fleet: {name}"))
    commit_all(repository)
    main(["ci", "--base", "main", "--out", "plans"])
    plans = [json.loads(path.read_text()) for path in Path("plans").glob("*.json")]
    expected = ["cheap"] if other == "prod//a" else ["cheap", "strict"]
    assert sorted(plan["fleet"] for plan in plans) == expected


@attack(Threat.HIDDEN, "git mv of a fleet's folder, to lose the base and its policies")
@pytest.mark.parametrize("place", ["b2", "deep/er/a", "A2", ".a", "vendor/a", "b/a"])
@pytest.mark.parametrize("named", [(), ("a",), ("a", "b")])
def test_the_policies_of_the_base_follow_a_fleet(
    named: tuple[str, ...], place: str, prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = prod.parent
    (top / place).parent.mkdir(parents=True, exist_ok=True)
    git(top, "mv", "a", place)
    settings = top / place / "reconciler.yaml"
    settings.write_text(settings.read_text().replace(POLICY, ""))
    commit_all(top)
    code = main(["ci", *named, "--base", "main", "--out", "plans"])
    out, err = capsys.readouterr()
    assert (code == 3 and "policy cheap forbids" in err) or "no longer in" in out
    assert code == 3 or not named


@attack(Threat.HIDDEN, "a settings file at the top of the checkout, to hide the fleets below it")
def test_a_fleet_around_all_others_does_not_hide_them(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prod.parent / "reconciler.yaml").write_text("fleet: top\n")
    commit_all(prod.parent)
    main(["ci", "--base", "main", "--out", "plans"])
    out = capsys.readouterr().out
    assert 'fleet "prod" is no longer in "a"' in out
    assert 'fleet "web" is no longer in "b"' in out


@attack(Threat.HIDDEN, "a symbolic link in place of a fleet's folder")
def test_a_linked_folder_does_not_stand_for_the_fleet(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(prod.parent, "mv", "a", ".a")
    (prod.parent / "a").symlink_to(".a")
    commit_all(prod.parent)
    for named in ((), ("a",)):
        code = main(["ci", *named, "--base", "main", "--out", "plans"])
        assert code != 0 or "no longer in" in capsys.readouterr().out


def without_policy(folder: Path, **replaced: str) -> None:
    """Remove the policy from the settings of a fleet, and replace other text."""
    settings = folder / "reconciler.yaml"
    text = settings.read_text().replace(POLICY, "")
    for old, new in replaced.items():
        text = text.replace(f"fleet: {old}", new)
    settings.write_text(text)


def _move_and_rename(top: Path) -> None:
    git(top, "mv", "a", "new")
    without_policy(top / "new", prod="fleet: other")


def _swap_names(top: Path) -> None:
    without_policy(top / "a", prod="fleet: web")
    settings = top / "b" / "reconciler.yaml"
    settings.write_text(settings.read_text().replace("fleet: web", "fleet: prod"))


def _rename_the_settings(top: Path) -> None:
    without_policy(top / "a")
    git(top, "mv", "a/reconciler.yaml", "a/reconciler.yml")


MOVES = {
    "moved and renamed": _move_and_rename,
    "the names of two fleets swapped": _swap_names,
    "a name twice": lambda top: without_policy(top / "a", prod="fleet: prod\nfleet: web"),
    "settings that are no YAML": lambda top: (top / "a" / "reconciler.yaml").write_text("{"),
    "settings of another name": _rename_the_settings,
}


@attack(
    Threat.HIDDEN, "a fleet that is moved or renamed, or whose settings are, to lose its policies"
)
@pytest.mark.parametrize("named", [(), ("a",)], ids=["all", "named"])
@pytest.mark.parametrize("move", MOVES)
def test_no_change_of_a_fleet_loses_its_policies_silently(
    move: str, named: tuple[str, ...], prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = prod.parent
    MOVES[move](top)
    commit_all(top)
    code = main(["ci", *named, "--base", "main", "--out", "plans"])
    out, err = capsys.readouterr()
    assert "internal error" not in err
    assert code != 0 or 'fleet "prod" is no longer in' in out
    assert code != 0 or not named


@attack(Threat.HIDDEN, "settings that are wrong, for a plan that removes the fleet and its cost")
@pytest.mark.parametrize("text", ["wrong: true\n", "fleet: again\n", "- {\n"])
def test_a_fleet_with_invalid_settings_is_not_gone(
    text: str, prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the name ``before`` in ``_name_in``."""
    with (prod / "reconciler.yaml").open("a") as file:
        file.write(text)
    commit_all(prod.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    assert "no longer in" not in capsys.readouterr().out
    assert not list(Path("plans").glob("*-removed*"))
    (failure,) = Path("plans").glob("*.json")
    assert json.loads(failure.read_text())["fleet"] == "prod"


@attack(Threat.HIDDEN, "a folder whose name is not UTF-8, for an error in place of all plans")
@pytest.mark.parametrize("broken", [False, True], ids=["valid", "invalid"])
def test_a_name_that_is_not_utf_8_stops_no_other_plan(
    broken: bool,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guard: ``encodable`` for the names of a fleet, of its folder, and in outputs of the job."""
    outputs = repository.parent / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    for folder in (os.fsdecode(b"odd\xff"), "other"):
        copy_small_web(repository / folder)
        settings = repository / folder / "reconciler.yaml"
        settings.write_text(settings.read_text().replace("fleet: web\n", ""))
        if broken:
            (repository / folder / "broken.yaml").write_text("kind: [")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == (3 if broken else 0)
    assert "internal error" not in capsys.readouterr().err
    plans = [json.loads(path.read_text()) for path in Path("plans").glob("*.json")]
    assert {"odd\N{REPLACEMENT CHARACTER}", "other"} <= {plan["fleet"] for plan in plans}
    assert "odd\N{REPLACEMENT CHARACTER} other" in outputs.read_text()


@attack(Threat.HIDDEN, "a folder with a line break in its name, to set outputs of the job")
@pytest.mark.parametrize("folder", ["x\nexit-code=0", "x\rexit-code=0", "x\r\nexit-code=0\n"])
def test_no_name_of_a_folder_is_an_output_of_the_job(
    folder: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the delimiter in ``set_output``."""
    outputs = repository.parent / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    copy_small_web(repository / folder)
    (repository / folder / "broken.yaml").write_text("kind: [")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    codes, end = [], None
    for line in re.split(r"\r\n|\r|\n", outputs.read_bytes().decode()):
        name, mark, value = line.partition("=" if "<<" not in line else "<<")
        if end is not None:
            end = None if line == end else end
        elif mark == "<<":
            end = value
        elif name == "exit-code":
            codes.append(value)
    assert codes == ["3"]


@attack(Threat.EXHAUSTION, "a chain of folders that is deeper than a process can follow")
def test_a_deep_folder_does_not_end_the_search_for_fleets(tmp_path: Path) -> None:
    """Guard: ``_DEPTH_MAX`` of fleets. Without it, ``os.walk`` ends with a RecursionError."""
    copy_small_web(tmp_path / "prod")
    below = tmp_path / "deep"
    for _ in range(1_500):
        below.mkdir()
        below /= "a"
    copy_small_web(below)
    try:
        assert fleets_below(str(tmp_path)) == [str(tmp_path / "prod")]
    finally:  # pytest could not remove it either
        shutil.rmtree(below)
        while below.parent != tmp_path:
            below = below.parent
            below.rmdir()


@attack(Threat.EXHAUSTION, "more folders than a search for fleets may take time for")
def test_the_search_for_fleets_has_a_limit_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: ``_FOLDERS_MAX`` of fleets."""
    monkeypatch.setattr(fleets, "_FOLDERS_MAX", 50)
    for number in range(60):
        (tmp_path / f"f{number}").mkdir()
    with pytest.raises(UsageError, match="more than 50 folders") as caught:
        fleets_below(str(tmp_path))
    assert caught.value.remedy == "name the fleets to plan"
