"""Pipes, devices, links and archives in place of the files that commands read."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
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
    monkeypatch.chdir(tmp_path)
    return tmp_path


@attack(Threat.EXHAUSTION, "a pipe or a device in place of a file that a command line names")
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
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
        (work / "odd").symlink_to("/dev/zero")
    assert main(words) != 0
    out, err = capsys.readouterr()
    assert "internal error" not in err
    assert (out + err).count("\n") <= 2
    assert len(err) < 400


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
