"""Which fleets `run` serves: the folders that are named, and the fleets below a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from reconciler.assembly import decoding
from reconciler.cli.commands.acting.run import fleet_roster_of
from reconciler.cli.main import main
from reconciler.daemon.service import with_own_config
from reconciler.model.errors import UnreadableError
from tests.cli.commandlines import request_of
from tests.repositories import commit_all, git, init


def a_fleet(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "reconciler.yaml").write_text("apiVersion: reconciler/v1\nkind: Configuration\n")


def served(*words: object) -> list[str]:
    roster = fleet_roster_of(request_of(["run", *map(str, words)]))
    assert roster is not None
    return list(roster.read())


def test_a_folder_with_a_configuration_is_one_fleet(tmp_path: Path) -> None:
    a_fleet(tmp_path / "web")
    assert fleet_roster_of(request_of(["run", str(tmp_path / "web")])) is None


def test_a_folder_without_any_configuration_is_one_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("{}")
    assert fleet_roster_of(request_of(["run", str(tmp_path)])) is None


def test_a_folder_of_fleets_contains_the_fleets_below_it(tmp_path: Path) -> None:
    for name in ("us/web", "eu/shop", "eu/shop/inner", ".hidden/x", "node_modules/y"):
        a_fleet(tmp_path / name)
    assert served(tmp_path) == [str(tmp_path / "eu/shop"), str(tmp_path / "us/web")]


def test_named_fleets_and_folders_are_served_together(tmp_path: Path) -> None:
    a_fleet(tmp_path / "web")
    a_fleet(tmp_path / "all" / "shop")
    assert served(tmp_path / "web", tmp_path / "all") == [
        str(tmp_path / "web"),
        str(tmp_path / "all" / "shop"),
    ]


def test_only_committed_fleets_count_unless_files_are_followed(tmp_path: Path) -> None:
    init(tmp_path)
    a_fleet(tmp_path / "web")
    commit_all(tmp_path)
    a_fleet(tmp_path / "shop")
    assert served(tmp_path) == [str(tmp_path / "web")]
    assert served(tmp_path, "--dirty") == [str(tmp_path / "shop"), str(tmp_path / "web")]


def test_the_fleets_of_a_remote_follow_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote = tmp_path / "remote"
    remote.mkdir()
    init(remote)
    for name in ("clusters/web", "clusters/shop"):
        a_fleet(remote / name)
    commit_all(remote)
    roster = fleet_roster_of(request_of(["run", "--repo", str(remote), "--path", "clusters"]))
    assert roster is not None
    assert list(roster.read()) == ["clusters/shop", "clusters/web"]
    git(remote, "rm", "-q", "-r", "clusters/shop", "clusters/web")
    commit_all(remote)
    with pytest.raises(UnreadableError):
        roster.read()
    (remote / "clusters").mkdir()
    a_fleet(remote / "clusters" / "blog")
    commit_all(remote)
    assert list(roster.read()) == ["clusters/blog"]


def test_a_missing_folder_is_not_a_folder_without_fleets(tmp_path: Path) -> None:
    a_fleet(tmp_path / "all" / "web")
    roster = fleet_roster_of(request_of(["run", str(tmp_path / "all")]))
    assert roster is not None
    roster.read()
    (tmp_path / "all").rename(tmp_path / "elsewhere")
    with pytest.raises(UnreadableError, match="does not exist"):
        roster.read()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-wait"], "several fleets wait for their leases (--no-wait)"),
        (["--set", "fleet=web"], "several fleets cannot have one name (--set fleet=web)"),
    ],
    ids=["no-wait", "one-name"],
)
def test_settings_for_a_single_fleet_are_rejected_for_several(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_fleet(tmp_path / "web")
    a_fleet(tmp_path / "shop")
    assert main(["run", str(tmp_path), *words]) == 1
    output = capsys.readouterr().err
    assert len(output.splitlines()) == 1
    assert message.split(" (", maxsplit=1)[0] in output
    assert message.split(" (")[1].rstrip(")") in output


def test_a_folder_that_does_not_exist_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_fleet(tmp_path / "web")
    assert main(["run", str(tmp_path / "web"), str(tmp_path / "shpo")]) == 1
    output = capsys.readouterr().err
    assert len(output.splitlines()) == 1
    assert f'folder "{tmp_path / "shpo"}" does not exist' in output


OF_COMMANDS = (
    *("reconciler.cli.", "reconciler.advise.", "reconciler.backtest.", "reconciler.simulate."),
    "reconciler.watch.",
    "reconciler.render.",
    "reconciler.inspection.",
    "reconciler.adapters.prometheus",
)
"""What only commands decode, which have one thread."""


def test_every_type_that_a_daemon_decodes_is_prepared() -> None:
    """Two threads that decode a type for the first time at once crash the process."""
    decoding.prepare_decoders()

    def below(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
        return {kind}.union(*(below(derived) for derived in kind.__subclasses__()))

    modules = {kind.__module__ for kind in below(msgspec.Struct)}
    ours = {name for name in modules if name.startswith("reconciler.")}
    others = {name for name in ours if not name.startswith((*decoding.PREPARED, *OF_COMMANDS))}
    assert others == set()


def test_each_fleet_uses_the_operator_file_with_its_name(tmp_path: Path) -> None:
    a_fleet(tmp_path / "all" / "web")
    operator = tmp_path / "operator"
    operator.mkdir()
    (operator / "web.yaml").write_text("kubernetes: {context: web}\n")
    request = request_of(["run", str(tmp_path / "all" / "web"), "--config", str(operator)]).fleet
    assert with_own_config(request).config == str(operator / "web.yaml")
    other = replace(request, path=str(tmp_path / "all" / "shop"))
    assert with_own_config(other).config == str(operator / "default.yaml")
    file = replace(request, config=str(operator / "web.yaml"))
    assert with_own_config(file) == file
