"""Pipes, devices, links and archives in place of the files that commands read."""

from __future__ import annotations

import gzip
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.assembly.inputs import files
from reconciler.assembly.inputs.files import read_bytes, read_checkout_file
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from reconciler.source.compressed import decompress
from tests.cli.test_plan import CATALOG, CLASS, POOL
from tests.hostile.threats import Threat, attack

SECRET = "s3cret-of-the-user"
INPUTS = {
    "snapshot": ["plan", "fleet", "--snapshot", "odd"],
    "catalog": ["plan", "fleet", "--catalog", "odd"],
    "trace": ["simulate", "fleet", "--trace", "odd"],
    "faults": ["simulate", "fleet", "--faults", "odd"],
    "manifests": ["plan", "-f", "odd"],
    "objects": ["plan", "fleet", "--with", "odd"],
    "policies": ["plan", "fleet", "--policy", "odd"],
    "settings": ["plan", "fleet", "--config", "odd"],
    "a saved plan": ["explain", "pod", "a/b", "fleet", "--plan", "odd"],
    "a plan to apply": ["apply", "odd", "fleet", "--simulated"],
    "a plan to post": ["comment", "github", "odd"],
    "a trace to summarize": ["trace", "summary", "odd"],
    "a capture": ["trace", "import", "odd", "--out", "trace.jsonl"],
    "an episode": ["watch", "replay", "odd"],
    "an export of the state": ["state", "import", "odd", "fleet"],
    "a fleet to take over": ["init", "new", "--from", "odd", "--name", "a", "--no-lock"],
    "values of a chart": ["init", "new", "--from", "chart", "--values", "odd", "--no-lock"],
    "objects for a lock": ["lock", "fleet", "--check", "--snapshot", "odd"],
    "objects to hash": ["hash", "odd"],
}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet in a folder where commands run."""
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    templates = tmp_path / "chart" / "templates"
    templates.mkdir(parents=True)
    (templates / "pool.yaml").write_text(POOL)
    (tmp_path / "chart" / "Chart.yaml").write_text("apiVersion: v2\nname: c\nversion: 0.1.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Fail a test whose command waits for a file without an end, instead of waiting with it."""

    def give_up(*_: object) -> None:
        pytest.fail("it waits for a file")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


DEVICES = {"a device": "/dev/zero", "a new terminal": "/dev/ptmx", "the kernel's log": "/proc/kmsg"}


@attack(Threat.EXHAUSTION, "a pipe or a device in place of a file that a command line names")
@pytest.mark.parametrize("kind", ["a pipe", *DEVICES])
@pytest.mark.parametrize("words", INPUTS.values(), ids=INPUTS)
def test_a_file_without_an_end_is_an_error_of_one_line(
    words: list[str],
    kind: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``_expect_end``."""
    monkeypatch.setattr(files, "_PIPE_WAIT_S", 0.05)
    if kind == "a pipe":
        os.mkfifo(work / "odd")
    else:
        (work / "odd").symlink_to(DEVICES[kind])
    assert main(words) != 0
    out, err = capsys.readouterr()
    assert "internal error" not in err
    assert (out + err).count("\n") <= 2
    assert len(err) < 400


@attack(Threat.SECRETS, "a file of the kernel in place of a file, for the variables of the process")
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="this system has no /proc")
@pytest.mark.parametrize("name", ["environ", "cmdline", "maps"])
def test_no_file_of_the_kernel_is_read(name: str) -> None:
    """Guard: a file of size 0 with content, in ``_expect_end``."""
    with pytest.raises(UnreadableError, match="like a file of the kernel"):
        read_bytes(f"/proc/self/{name}")


@attack(Threat.EXHAUSTION, "a device in place of a file, for memory up to the limit of the file")
def test_nothing_of_a_device_is_read() -> None:
    """Guard: ``_expect_end``."""
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="is a device"):
            read_bytes("/dev/zero")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert read_bytes(os.devnull) == b""


@attack(Threat.EXHAUSTION, "a small archive that takes a multiple of its limit of memory")
@pytest.mark.parametrize("members", [1, 40])
def test_an_archive_is_unpacked_once(members: int) -> None:
    """Guard: the step of ``decompress``."""
    bytes_max = 64 * 2**20
    bomb = gzip.compress(bytes(320 * 2**20 // members)) * members
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="has more than 64 MiB"):
            decompress(bomb, bytes_max, "bomb.gz")
        assert tracemalloc.get_traced_memory()[1] < 1.8 * bytes_max
    finally:
        tracemalloc.stop()


def test_an_archive_of_several_members_is_read_completely() -> None:
    parts = [os.urandom(100_000), b"", b"x" * 3_000_000, b"end"]
    packed = b"".join(gzip.compress(part) for part in parts)
    assert decompress(packed, 2**24, "a.gz") == b"".join(parts)
    with pytest.raises(UnreadableError, match="ends within its compressed data"):
        decompress(packed[:-4], 2**24, "a.gz")
    with pytest.raises(UnreadableError, match="cannot be decompressed"):
        decompress(packed + b"more", 2**24, "a.gz")


SETTINGS = {
    "config": ["config", "fleet"],
    "config as JSON": ["config", "fleet", "-o", "json"],
    "validate": ["validate", "fleet"],
    "plan": ["plan", "fleet", "--catalog", "catalog.json"],
    "status": ["status", "fleet"],
    "get": ["get", "nodes", "fleet"],
    "report": ["report", "fleet"],
    "lock": ["lock", "fleet", "--check"],
    "hash": ["hash", "fleet"],
}


@attack(Threat.SECRETS, "a link from a settings or lock file to a file of the user, to be quoted")
@pytest.mark.parametrize("name", ["reconciler.yaml", "reconciler.yml", "reconciler.lock"])
@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_no_command_shows_what_a_link_of_the_fleet_leads_to(
    words: list[str], name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: the real path in ``read_checkout_file``, and ``outside-link`` of folders."""
    (work / "secret").write_text(f"{SECRET}\n")
    (work / "fleet" / name).symlink_to(work / "secret")
    main(words)
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "internal error" not in err


@attack(Threat.SECRETS, "a folder above a settings file that is a link to another place")
def test_a_checkout_file_is_below_its_folder(work: Path) -> None:
    """Guard: the real path in ``read_checkout_file``."""
    other = work / "other"
    other.mkdir()
    (other / "a.yaml").write_text(SECRET)
    (work / "fleet" / "linked").symlink_to(other)
    with pytest.raises(UnreadableError, match="leads out of the folder"):
        read_checkout_file(work / "fleet" / "linked" / "a.yaml", work / "fleet")
    assert read_checkout_file(work / "fleet" / "pool.yaml", work / "fleet") == POOL.encode()


@pytest.fixture
def checkout(work: Path) -> Path:
    """A checkout, with a token in its ``.git`` as CI services keep it."""
    (work / ".git").mkdir()
    (work / ".git" / "token.yaml").write_text(SECRET)
    return work


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the user outside of every checkout, with a token."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "token.yaml").write_text(SECRET)
    return folder


@attack(Threat.SECRETS, "a link of a pull request in place of a file that a job names, to a token")
@pytest.mark.parametrize("place", ["outside", "in .git", "below a linked folder"])
@pytest.mark.parametrize("words", INPUTS.values(), ids=INPUTS)
def test_no_input_is_a_link_out_of_the_checkout(
    words: list[str],
    place: str,
    checkout: Path,
    outside: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``refuse_link_out`` in ``read_start``. A trace and manifests would be quoted."""
    if place == "below a linked folder":
        (checkout / "linked").symlink_to(outside)
        words = [word.replace("odd", "linked/token.yaml") for word in words]
    else:
        token = outside / "token.yaml" if place == "outside" else ".git/token.yaml"
        (checkout / "odd").symlink_to(token)
    assert main(words) != 0
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "internal error" not in err


@attack(Threat.SECRETS, "a link of a pull request in place of a fleet that a job names")
@pytest.mark.parametrize("place", ["outside", "in .git"])
@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_no_fleet_is_a_link_out_of_the_checkout(
    words: list[str],
    place: str,
    checkout: Path,
    outside: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``refuse_link_out`` in ``read_folder``. Findings quote lines."""
    target = outside if place == "outside" else Path(".git")
    (checkout / "linked").symlink_to(target)
    main([word.replace("fleet", "linked") for word in words])
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert "internal error" not in err


def test_links_within_a_checkout_and_above_it_are_followed(
    work: Path, outside: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (work / "linked.yaml").symlink_to(outside / "token.yaml")
    assert read_bytes(str(work / "linked.yaml")) == SECRET.encode()  # no checkout
    (work / ".git").mkdir()
    (work / "inner.yaml").symlink_to("fleet/pool.yaml")
    assert read_bytes(str(work / "inner.yaml")) == POOL.encode()
    above = tmp_path_factory.mktemp("links") / "work"
    above.symlink_to(work)
    assert read_bytes(str(above / "inner.yaml")) == POOL.encode()
