"""Attacks by the objects of a repository: what they unpack to, and what their names promise."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from reconciler import exitcode
from reconciler.adapters import processes
from reconciler.adapters.git import objects as git_objects
from reconciler.adapters.git.directory import ALTERNATES_VARIABLE
from reconciler.adapters.git.repository import find_repository, repository_view
from reconciler.adapters.git.revision import changed_files
from reconciler.adapters.git.source import AtRef, find_folders, head_of, read
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from reconciler.source.document import LIMITS
from tests.adapters.git.conftest import Repository
from tests.hostile.test_git import POOL
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon

GIB = 2**30
NOW = ("--now", "2026-03-02T09:00:00Z")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Repository(tmp_path / "shop")
    made.commit({"pool.yaml": POOL})
    return made


# -- objects written byte by byte -----------------------------------------------------------------


def path_of(repository: Repository, oid: str) -> Path:
    path = repository.path / ".git/objects" / oid[:2] / oid[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def store(repository: Repository, oid: str, kind: str, content: bytes) -> None:
    """Write a loose object under any name."""
    path = path_of(repository, oid)
    path.unlink(missing_ok=True)
    path.write_bytes(zlib.compress(f"{kind} {len(content)}\0".encode() + content))


def store_genuine(repository: Repository, kind: str, content: bytes) -> str:
    oid = hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()
    store(repository, oid, kind, content)
    return oid


@cache
def zeros(prefix: bytes, size: int) -> tuple[bytes, str]:
    """Return compressed zeros after a prefix, and the SHA-1 of both."""
    packer, digest, block = zlib.compressobj(9), hashlib.sha1(prefix), bytes(2**20)
    parts = [packer.compress(prefix)]
    for _ in range(size >> 20):
        digest.update(block)
        parts.append(packer.compress(block))
    return b"".join([*parts, packer.flush()]), digest.hexdigest()


def store_zeros(repository: Repository, kind: str, claimed: int = GIB) -> str:
    """Write a loose object of 1 GiB of zeros, whose header has the size ``claimed``."""
    content, oid = zeros(f"{kind} {claimed}\0".encode(), GIB)
    path_of(repository, oid).write_bytes(content)
    return oid


def number(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def entry(kind: int, size: int, rest: bytes) -> bytes:
    """Return an entry of a pack."""
    first = kind << 4 | size & 15
    return (bytes([first | 128]) + number(size >> 4) if size > 15 else bytes([first])) + rest


def write_pack(repository: Repository, entries: dict[str, bytes]) -> None:
    """Write a pack and its index."""
    body = b"PACK" + struct.pack(">II", 2, len(entries))
    places: dict[bytes, tuple[int, int]] = {}
    for oid, data in entries.items():
        places[bytes.fromhex(oid)] = (len(body), zlib.crc32(data))
        body += data
    trailer = hashlib.sha1(body).digest()
    names = sorted(places)
    index = b"\xfftOc" + struct.pack(">I", 2)
    index += b"".join(struct.pack(">I", sum(n[0] <= i for n in names)) for i in range(256))
    index += b"".join(names)
    index += b"".join(struct.pack(">I", places[name][1]) for name in names)
    index += b"".join(struct.pack(">I", places[name][0]) for name in names) + trailer
    index += hashlib.sha1(index).digest()
    folder = repository.path / ".git/objects/pack"
    folder.mkdir(exist_ok=True)
    (folder / f"pack-{trailer.hex()}.pack").write_bytes(body + trailer)
    (folder / f"pack-{trailer.hex()}.idx").write_bytes(index)


def commit_of_tree(repository: Repository, tree: str, parent: str = "") -> str:
    """Write a commit, and let the branch name it."""
    who = "a <a@example.com> 1700000000 +0000"
    parents = f"parent {parent}\n" if parent else ""
    text = f"tree {tree}\n{parents}author {who}\ncommitter {who}\n\nx\n"
    oid = store_genuine(repository, "commit", text.encode())
    (repository.path / ".git/refs/heads/main").write_text(f"{oid}\n")
    return oid


def commit_with_blob(repository: Repository, oid: str) -> str:
    """Write a commit whose file ``pool.yaml`` is an object with that id."""
    tree = store_genuine(repository, "tree", b"100644 pool.yaml\0" + bytes.fromhex(oid))
    return commit_of_tree(repository, tree)


# -- objects that unpack to 1 GiB -----------------------------------------------------------------


def loose_blob(repository: Repository) -> None:
    commit_with_blob(repository, store_zeros(repository, "blob"))


def loose_blob_with_small_header(repository: Repository) -> None:
    commit_with_blob(repository, store_zeros(repository, "blob", claimed=100))


def loose_tree(repository: Repository) -> None:
    commit_of_tree(repository, store_zeros(repository, "tree"))


def loose_commit(repository: Repository) -> None:
    oid = store_zeros(repository, "commit")
    (repository.path / ".git/refs/heads/main").write_text(f"{oid}\n")


def loose_tag(repository: Repository) -> None:
    oid = store_zeros(repository, "tag")
    (repository.path / ".git/refs/heads/main").write_text(f"{oid}\n")


def packed_blob(repository: Repository) -> None:
    content, _ = zeros(b"", GIB)
    _, oid = zeros(f"blob {GIB}\0".encode(), GIB)
    write_pack(repository, {oid: entry(3, GIB, content)})
    commit_with_blob(repository, oid)


def packed_delta(repository: Repository) -> None:
    content, _ = zeros(b"", GIB)
    _, base = zeros(f"blob {GIB}\0".encode(), GIB)
    delta = number(GIB) + number(100) + bytes([0x90, 100])  # copies 100 bytes of the base
    oid = hashlib.sha1(b"blob 100\0" + bytes(100)).hexdigest()
    packed = entry(7, len(delta), bytes.fromhex(base) + zlib.compress(delta))
    write_pack(repository, {base: entry(3, GIB, content), oid: packed})
    commit_with_blob(repository, oid)


def packed_delta_that_grows(repository: Repository) -> None:
    """A small base, and a delta that copies it over and over."""
    small = b"x" * 65_536
    base = store_genuine(repository, "blob", small)
    copies = GIB // len(small)
    delta = number(len(small)) + number(GIB) + bytes([0x80]) * copies
    digest = hashlib.sha1(f"blob {GIB}\0".encode())
    for _ in range(copies):
        digest.update(small)
    packed = entry(7, len(delta), bytes.fromhex(base) + zlib.compress(delta))
    write_pack(repository, {digest.hexdigest(): packed})
    commit_with_blob(repository, digest.hexdigest())


BOMBS: list[Callable[[Repository], None]] = [
    loose_blob, loose_blob_with_small_header, loose_tree, loose_commit, loose_tag,
    packed_blob, packed_delta, packed_delta_that_grows,
]  # fmt: skip


def run_with_memory(words: Sequence[str], megabytes: int) -> tuple[int | None, str]:
    """Run the command line in a process, all of whose memory is limited, and git's as well."""
    code = (
        f"import sys, resource; sys.path[:] = {sys.path!r}; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({megabytes << 20},) * 2); "
        "sys.stderr = sys.stdout; "
        f"from reconciler.cli.main import main; sys.exit(main({list(words)!r}))"
    )
    line = [sys.executable, "-I", "-c", code]
    with processes.private_folder() as folder:
        status, out = processes.answer_of(
            line, b"", cwd=folder, variables=processes.environment(), timeout_s=120
        )
    return status, out.decode()


@attack(Threat.EXHAUSTION, "an object of a repository that unpacks to a gibibyte")
@pytest.mark.parametrize("prepare", BOMBS, ids=lambda f: f.__name__.replace("_", " "))
def test_an_object_is_not_unpacked_beyond_the_limit(
    prepare: Callable[[Repository], None], repository: Repository
) -> None:
    prepare(repository)
    plan = ["plan", str(repository.path), *NOW, "--ref", "main"]
    status, text = run_with_memory(plan, 700)
    assert status == exitcode.FAILED, text
    assert "internal error" not in text
    assert "Traceback" not in text


@attack(Threat.EXHAUSTION, "a snapshot in git that unpacks to a gibibyte")
def test_a_snapshot_in_git_is_not_unpacked_beyond_the_limit(repository: Repository) -> None:
    loose_blob(repository)
    plan = ["plan", str(repository.path), *NOW, "--snapshot", "git:main:pool.yaml"]
    status, text = run_with_memory(plan, 700)
    assert status == exitcode.FAILED, text
    assert f"{GIB} bytes, more than" in text


# -- objects that are not what their names say ----------------------------------------------------

MISMATCH = "does not match its name|hash mismatch"
HIDDEN = POOL.replace("general", "hidden")


def foreign_blob(repository: Repository) -> None:
    store(repository, repository.git("rev-parse", "HEAD:pool.yaml"), "blob", HIDDEN.encode())


def foreign_tree(repository: Repository) -> None:
    blob = store_genuine(repository, "blob", HIDDEN.encode())
    content = b"100644 pool.yaml\0" + bytes.fromhex(blob)
    store(repository, repository.git("rev-parse", "HEAD^{tree}"), "tree", content)


def foreign_commit(repository: Repository) -> None:
    head = repository.git("rev-parse", "HEAD")
    blob = store_genuine(repository, "blob", HIDDEN.encode())
    tree = store_genuine(repository, "tree", b"100644 pool.yaml\0" + bytes.fromhex(blob))
    who = "a <a@example.com> 1700000000 +0000"
    text = f"tree {tree}\nauthor {who}\ncommitter {who}\n\nx\n"
    store(repository, head, "commit", text.encode())


def foreign_pack(repository: Repository) -> None:
    oid = repository.git("rev-parse", "HEAD:pool.yaml")
    path_of(repository, oid).unlink()
    content = HIDDEN.encode()
    write_pack(repository, {oid: entry(3, len(content), zlib.compress(content))})


FOREIGN: list[Callable[[Repository], None]] = [
    foreign_blob, foreign_tree, foreign_commit, foreign_pack,
]  # fmt: skip


@attack(Threat.HIDDEN, "an object of a repository whose content does not match its name")
@pytest.mark.parametrize("prepare", FOREIGN, ids=lambda f: f.__name__.replace("_", " "))
def test_the_content_of_an_object_matches_its_name(
    prepare: Callable[[Repository], None],
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(repository)
    for words in (["--ref", "HEAD"], ["--base", "HEAD"]):
        assert main(["plan", str(repository.path), *NOW, *words]) == exitcode.FAILED
        shown = capsys.readouterr()
        assert re.search(MISMATCH, shown.err)
        assert "hidden" not in shown.out + shown.err


@attack(Threat.HIDDEN, "a tree under the name of another, so that a changed folder seems committed")
@pytest.mark.parametrize("prepare", [foreign_tree, foreign_commit], ids=["tree", "commit"])
def test_a_working_tree_is_not_compared_with_a_false_commit(
    prepare: Callable[[Repository], None],
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(repository)
    repository.write({"pool.yaml": HIDDEN})
    repository.git("add", "pool.yaml")
    assert main(["plan", str(repository.path), *NOW]) == exitcode.FAILED
    assert re.search(MISMATCH, capsys.readouterr().err)


@attack(Threat.HIDDEN, "a false commit between base and head, so that nothing seems changed")
@pytest.mark.parametrize("is_graph", [False, True], ids=["object", "commit-graph"])
def test_the_changed_files_follow_from_genuine_commits(
    is_graph: bool, repository: Repository
) -> None:
    repository.write({"fleet/reconciler.yaml": "fleet: shop\n"})
    base = repository.commit({"fleet/pool.yaml": POOL})
    repository.git("branch", "base")
    head = repository.commit({"fleet/pool.yaml": HIDDEN})
    tree = repository.git("rev-parse", "base^{tree}")
    who = "a <a@example.com> 1700000000 +0000"
    text = f"tree {tree}\nparent {base}\nauthor {who}\ncommitter {who}\n\nx\n"
    genuine = path_of(repository, head).read_bytes()
    store(repository, head, "commit", text.encode())
    if is_graph:  # the object is genuine, and git's summary of it is not
        repository.git("commit-graph", "write", "--reachable")
        path_of(repository, head).write_bytes(genuine)
        assert changed_files(str(repository.path), "base", ("fleet",)).paths == ("fleet/pool.yaml",)
    else:
        with pytest.raises(UnreadableError, match=MISMATCH):
            changed_files(str(repository.path), "base", ("fleet",))


# -- stores that lead elsewhere -------------------------------------------------------------------


@attack(Threat.SECRETS, "a list of alternates that is a link to a file of the user")
@pytest.mark.parametrize("kind", ["link", "folder link", "text", "quoted", "long", "deep"])
def test_no_message_shows_what_a_list_of_alternates_leads_to(
    kind: str, repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "home/alternates"
    secret.parent.mkdir()
    secret.write_text("machine example.com password correct-horse\n")
    info = repository.path / ".git/objects/info"
    if kind == "folder link":
        info.rmdir()
        info.symlink_to(secret.parent)
    elif kind == "link":
        (info / "alternates").symlink_to(secret)
    else:
        lines = {
            "text": f"{secret}\n",
            "quoted": f'"{secret.parent}"\n',
            "long": f"{tmp_path}/correct-horse\n" * 1000,
            "deep": f"{repository.path}/.git/objects\n",
        }
        (info / "alternates").write_text(lines[kind])
    for words in (["--ref", "HEAD~3"], ["--base", "HEAD~3"], ["--ref", "HEAD"], []):
        assert main(["plan", str(repository.path), *NOW, *words]) == exitcode.FAILED
        shown = capsys.readouterr()
        assert "correct-horse" not in shown.out + shown.err
        assert "internal error" not in shown.err
        assert len(shown.err.splitlines()) == 1


NO_STORES = {
    "a folder with another name": ("HEAD", "refs/x", "secrets/x"),
    "objects without refs": ("HEAD", "objects/x"),
    "objects without a head": ("refs/x", "objects/x"),
}


@attack(Threat.SECRETS, "alternates that are no repository, in the folder that may lend objects")
@pytest.mark.parametrize("files", NO_STORES.values(), ids=NO_STORES)
def test_only_repositories_lend_objects(
    files: tuple[str, ...],
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards: ``is_store`` and the head in ``_check_objects``."""
    monkeypatch.setenv(ALTERNATES_VARIABLE, str(tmp_path / "lent"))
    for name in files:
        path = tmp_path / "lent" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ref: refs/heads/main\n")
    lent = path.parent
    (repository.path / ".git/objects/info/alternates").write_text(f"{lent}\n")
    assert main(["plan", str(repository.path), *NOW, "--ref", "HEAD"]) == exitcode.FAILED
    assert "names a folder without the objects of a repository" in capsys.readouterr().err


@attack(Threat.SECRETS, "a relative folder in the variable that allows alternates")
@pytest.mark.parametrize("value", [".", "", "..:"])
def test_no_relative_folder_lends_objects(
    value: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one of the current folder, which is often the checkout of a stranger."""
    repository.git("clone", "--quiet", "--shared", str(repository.path), str(tmp_path / "one"))
    monkeypatch.setenv(ALTERNATES_VARIABLE, value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableError, match="outside the repository"):
        read(AtRef(str(tmp_path / "one"), "HEAD"))


def test_a_shared_clone_has_the_objects_of_its_source_if_the_user_allows_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository.git("rev-parse", "HEAD")
    repository.git("clone", "--quiet", "--shared", str(repository.path), str(tmp_path / "one"))
    repository.git("clone", "--quiet", "--shared", str(tmp_path / "one"), str(tmp_path / "two"))
    with pytest.raises(UnreadableError, match="outside the repository"):
        read(AtRef(str(tmp_path / "two"), "HEAD"))
    monkeypatch.setenv(ALTERNATES_VARIABLE, f"{repository.path}:{tmp_path / 'one'}")
    assert read(AtRef(str(tmp_path / "two"), "HEAD")).revision.head == head


@attack(Threat.EXHAUSTION, "ten folders that each contain the next one ten times")
def test_a_tree_that_multiplies_ends_at_a_limit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.adapters.git.objects.PATHS_MAX", 10_000)
    tree = repository.git("rev-parse", "HEAD^{tree}")
    for _ in range(10):
        rows = b"".join(b"40000 %d\0" % n + bytes.fromhex(tree) for n in range(10))
        tree = store_genuine(repository, "tree", rows)
    commit = commit_of_tree(repository, tree)
    assert head_of(AtRef(str(repository.path), "main")) == commit
    with pytest.raises(UnreadableError, match="more than 10,000 files"):
        find_folders(AtRef(str(repository.path), "main"), {"reconciler.yaml"})


def commit_of_entries(repository: Repository, mode: str, oid: str, count: int) -> None:
    """Commit a folder with many entries of one object, and the fleet's file behind them."""
    pool = repository.git("rev-parse", "HEAD:pool.yaml")
    rows = [(mode, f"a{number:06}.yaml", oid) for number in range(count)]
    rows += [("100644", "pool.yaml", pool)]
    tree = b"".join(f"{m} {name}\0".encode() + bytes.fromhex(o) for m, name, o in rows)
    commit_of_tree(repository, store_genuine(repository, "tree", tree))


@attack(Threat.EXHAUSTION, "thousands of links in a commit, each to the last of thousands of files")
def test_links_of_a_commit_are_followed_in_time_of_their_number(repository: Repository) -> None:
    """Guard: ``TreeObject.by_name``. To search all names for each link takes half a minute."""
    link = store_genuine(repository, "blob", b"pool.yaml")
    commit_of_entries(repository, "120000", link, 50)
    assert len(read(AtRef(str(repository.path), "main")).files) == 51
    opened = find_repository(str(repository.path))
    assert opened is not None
    with (
        repository_view(opened, "shop") as view,
        closing(git_objects.open_objects(view, "shop")) as objects,
    ):
        names = [f"a{number:06}" for number in range(50_000)]
        rows = b"".join(f"100644 {name}\0".encode() + bytes.fromhex(link) for name in names)
        top = git_objects.TreeObject(
            "", "", 0o040000, store_genuine(repository, "tree", rows), objects
        )
        with soon():
            assert all(top.find_entry(name) for name in names)


@attack(Threat.EXHAUSTION, "thousands of files of a commit that are each too large to be read")
def test_files_that_are_too_large_count_with_their_size(repository: Repository) -> None:
    """Guard: their bytes in ``_TreeReader.walk``. For each of them, git starts again."""
    large = store_genuine(repository, "blob", b"#" * (LIMITS.bytes_max + 1))
    commit_of_entries(repository, "100644", large, 2_000)
    found = read(AtRef(str(repository.path), "main"))
    assert [finding.code for finding in found.diagnostics] == ["too-large"] * 17
    assert "the folder holds more than" in found.diagnostics[-1].message


def test_only_the_time_in_which_git_is_waited_for_counts(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_objects, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(git_objects, "_CHECK_S", 0.05)
    oid = repository.git("rev-parse", "HEAD:pool.yaml")
    opened = find_repository(str(repository.path))
    assert opened is not None
    with (
        repository_view(opened, "shop") as view,
        closing(git_objects.open_objects(view, "shop")) as objects,
    ):
        first = objects.read(oid, 4096)
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            hashlib.sha256(bytes(2**16)).digest()
        assert objects.read(oid, 4096) == first


def test_links_within_the_store_are_followed(repository: Repository) -> None:
    pack = repository.path / ".git/objects/pack"
    os.rename(pack, pack.with_name("packs"))
    pack.symlink_to("packs")
    assert read(AtRef(str(repository.path), "HEAD")).revision.head
