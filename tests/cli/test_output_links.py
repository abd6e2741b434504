"""No command writes through a symbolic link of the checkout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.writing import make_folder, refuse_links, write_file
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.snapshots import destination_of
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from tests.cli.recorded_fleet import record
from tests.engine.world import a_pool
from tests.repositories import commit_all, copy_small_web, git, init
from tests.simulated.simulations import write_fleet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OLD = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: old}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      expireAfter: 10d
      requirements: []
"""


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user, which must be the same afterwards."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("of the user")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "of the user"


@pytest.fixture
def checkout(tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a fleet and links that lead out of it, and the files that commands read."""
    folder = tmp_path / "checkout"
    write = folder / "work"
    write.mkdir(parents=True)
    write_fleet(write, [a_pool("web", policy="WhenEmpty")])
    copy_small_web(folder / "web")
    init(folder)
    commit_all(folder)
    git(folder, "switch", "--quiet", "--create", "change")
    (folder / "web" / "notes.yaml").write_text("# changed\n")
    (folder / "outside").symlink_to(outside)
    (folder / "linked.json").symlink_to(outside / "file")
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(outside)
    (folder / "dangling").symlink_to(outside / "new")
    commit_all(folder)
    record(folder / ".reconciler")
    monkeypatch.delenv("RECONCILER_STATE", raising=False)
    monkeypatch.chdir(folder)
    for name in ("GITHUB_BASE_REF", "GITHUB_ACTIONS", "CI_MERGE_REQUEST_DIFF_BASE_SHA"):
        monkeypatch.delenv(name, raising=False)
    return folder


PLACES = ["outside/new", "outside/file", "deep/link/new", "deep/link/more/new"]
COMMANDS = {
    "ci": "ci web --base main --out {folder}",
    "plan": "plan web --out {file}",
    "state export": "state export {file} --set fleet=web",
    "overlays": "overlays web --out {folder}",
    "cache": "simulate web --trace trace.csv --cache {folder} --now 2026-03-01T12:00:00Z",
    "init": "init {folder} --region us-east-1 --no-lock",
    "demo": "demo --dir {folder}",
    "trace import": "trace import trace.csv --out {file}",
}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_written_below_a_link(place: str, checkout: Path) -> None:
    with pytest.raises(
        UnreadableError, match=r"symbolic link in the checkout|not a directory|No such"
    ):
        write_file(place, b"x")
    with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
        write_file(str(checkout / place), b"x")
    with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
        make_folder(place)
    with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
        refuse_links(place)


def test_a_link_in_place_of_the_file_is_replaced(checkout: Path, outside: Path) -> None:
    write_file("linked.json", b"new")
    assert not Path("linked.json").is_symlink()
    assert Path("linked.json").read_text() == "new"
    write_file("dangling", b"new")
    assert Path("dangling").read_text() == "new"
    with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
        make_folder("deep/link")


def test_links_above_the_checkout_are_those_of_the_user(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    write_file(str(tmp_path / "own" / "plan.json"), b"x")
    make_folder(str(tmp_path / "own" / "plans" / "all"))
    assert (tmp_path / "real" / "plans" / "all").is_dir()
    write_file("../real/other", b"x", mode=0o600)
    assert (tmp_path / "real" / "other").stat().st_mode & 0o777 == 0o600
    monkeypatch.chdir(tmp_path / "own")
    write_file("here", b"x")


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_only_a_regular_file_is_replaced(kind: str, checkout: Path) -> None:
    if kind == "fifo":
        os.mkfifo("thing")
    else:
        Path("thing").mkdir()
    with pytest.raises(UnreadableError, match="not a regular file"):
        write_file("thing", b"x")


@pytest.mark.parametrize("target", ["/dev/null", "/proc/self/fd/1", "thing"])
def test_a_link_to_a_device_or_pipe_is_not_replaced(target: str, checkout: Path) -> None:
    """Run as root, a command would otherwise replace /dev/stdout, which leads to such a thing."""
    os.mkfifo("thing")
    Path("stdout").symlink_to(target)
    with pytest.raises(UnreadableError, match="not a regular file"):
        write_file("stdout", b"x")
    assert Path("stdout").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(checkout: Path) -> None:
    Path("kept").write_text("old")
    Path("kept").chmod(0o640)

    def content() -> Iterator[bytes]:
        yield b"new"
        raise ValueError("a fault")

    with pytest.raises(UnreadableError, match="a fault"):
        write_file("kept", content())
    assert Path("kept").read_text() == "old"
    assert not list(Path().glob(".*.tmp"))
    write_file("kept", b"new")
    assert Path("kept").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_writes_nothing_outside_of_the_checkout(
    name: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "trace.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "a,1500,1024,0,0,0,120,30\n"
    )
    for folder in ("outside", "deep/link", "deep/link/more"):
        line = COMMANDS[name].format(folder=folder, file=f"{folder}/new")
        assert main(line.split()) != 0, line
        err = capsys.readouterr().err
        assert err.startswith("Error: ")
        assert any(words in err for words in REFUSALS), err


REFUSALS = (
    "symbolic link in the checkout",
    "a symbolic link leads out of the checkout",
    "--cache: git tracks",
)


def test_a_snapshot_is_not_written_through_a_link(checkout: Path, outside: Path) -> None:
    for place in ("outside/new", "deep/link/new"):
        destination = destination_of(place, FleetRequest(), remote=None, author=None)
        with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
            destination.write(b"{}")
    destination_of("linked.json", FleetRequest(), remote=None, author=None).write(b"{}")
    assert Path("linked.json").stat().st_mode & 0o777 == 0o600
    assert not Path("linked.json").is_symlink()


@pytest.mark.parametrize("ending", ["json", "html", "md"])
def test_links_in_the_folder_of_plans_are_replaced(
    ending: str, checkout: Path, outside: Path
) -> None:
    plans = checkout / "reconciler-plans"
    plans.mkdir()
    (plans / f"web.{ending}").symlink_to(outside / "file")
    assert main(["ci", "web", "--base", "main"]) == 0
    assert not (plans / f"web.{ending}").is_symlink()


def test_a_fix_is_not_written_through_a_linked_fleet(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(EXAMPLES / "web", elsewhere)
    (elsewhere / "old.yaml").write_text(OLD)
    (checkout / "linked").symlink_to(elsewhere)
    main(["validate", "linked", "--fix"])
    assert (elsewhere / "old.yaml").read_text() == OLD
    assert "a symbolic link leads out of the checkout" in "".join(capsys.readouterr())


def test_advice_is_not_written_through_a_linked_fleet(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reconciler.advise.applying import write_changes
    from reconciler.desired.fleet import SourceFile

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (checkout / "linked").symlink_to(elsewhere)
    with pytest.raises(UnreadableError, match="symbolic link in the checkout"):
        write_changes("linked", [(None, SourceFile("reconciler.yaml", b"{}"))])
    assert list(elsewhere.iterdir()) == []
