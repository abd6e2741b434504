"""A commit's files read from git's objects: nothing is checked out, nothing is run.

The same limits and refusals hold as for a folder (``folder.py``): symbolic links may not lead out
of the fleet's folder, submodules are not followed, sizes and counts are bounded. git itself returns
whatever a repository has stored under a name, so the hash of each object is compared with its name:
a commit id then determines everything that is read.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from threading import Event, Thread
from time import monotonic
from typing import IO, Final, NamedTuple

from reconciler.adapters import processes
from reconciler.adapters.git import folder as limits
from reconciler.adapters.git.command import TIMEOUT_S, local_environment, start_process
from reconciler.adapters.git.repository import RepositoryView
from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import MissingFleetError, UnreadableError
from reconciler.model.text.visible import encodable
from reconciler.source.document import LIMITS

_LINK_HOPS_MAX: Final = 8
_LINK_BYTES_MAX: Final = 4096
_COMMIT_BYTES_MAX: Final = 2**20
_TREE_BYTES_MAX: Final = limits.BYTES_MAX
PATHS_MAX: Final = 2_000_000
UNPACKED_MAX: Final = 2 * limits.BYTES_MAX
"""The largest object that is unpacked to read another, in bytes: what a delta is based on."""
_CHECK_S: Final = 1.0
"""How often git's time is checked at most, in seconds."""
_SUBJECT_MAX: Final = 1000
_TIME: Final = re.compile(r"[0-9]{1,18}")
_KINDS: Final = {0o040000: "tree", 0o120000: "link", 0o160000: "submodule"}


def read_commit(
    view: RepositoryView, commit: str, folder: str, where: str
) -> tuple[list[SourceFile], list[Diagnostic], Commit]:
    """Return the fleet files below ``folder`` at ``commit``, diagnostics, and the commit itself.

    Raises:
        UnreadableError: the folder does not exist, or the repository cannot be read.
    """
    with closing(open_objects(view, where)) as objects:
        found = objects.commit(commit)
        root = find_folder(objects.root(commit), folder, where)
        reading = _TreeReader(root)
        reading.walk()
        return reading.files, reading.findings, found


def open_objects(view: RepositoryView, where: str, *, unpacked_max: int = UNPACKED_MAX) -> Objects:
    """Return the objects of a repository; close them after use.

    An object that git can only read by unpacking one of more than ``unpacked_max`` bytes is
    unreadable.
    """
    return Objects(view, where, unpacked_max)


class Commit(NamedTuple):
    """A commit: the id of its tree, those of its parents, its date (Unix time), its subject.

    ``author`` is the name of its author. Whoever made the commit has chosen its date and author.
    """

    tree: str
    parents: tuple[str, ...]
    committed_at: int
    subject: str
    author: str = ""


class Objects:
    """The objects of a repository, read by their ids through one run of ``git cat-file``."""

    def __init__(self, view: RepositoryView, where: str, unpacked_max: int = UNPACKED_MAX) -> None:
        self._view = view
        self._where = where
        self._unpacked_max = unpacked_max
        self._process: processes.Process | None = None
        self._watchdog: Thread | None = None
        self._closing = Event()
        self._waited_s = 0.0
        self._asked_at: float | None = None

    def close(self) -> None:
        """End the run."""
        if self._watchdog is not None:
            self._closing.set()
            self._watchdog.join()
        if self._process is not None:
            processes.end(self._process)
        self._process = self._watchdog = None

    def read(self, oid: str, bytes_max: int) -> tuple[str, int, bytes | None]:
        """Return kind, size and content of an object; no content if it exceeds ``bytes_max`` bytes.

        Raises:
            UnreadableError: the object is missing or damaged, or its content has another name.
        """
        began = self._asked_at = monotonic()
        try:
            kind, size, content = self._ask(oid, bytes_max)
        except OSError as error:
            raise self._missing_error(oid) from error
        finally:
            self._asked_at = None
            self._waited_s += monotonic() - began
        if content is not None and object_id(kind, content, oid) != oid:
            what = f"the content of object {oid[:60]} does not match its name"
            remedy = "clone the repository again: it is damaged or was changed"
            raise UnreadableError(what, where=self._where, remedy=remedy)
        return kind, size, content

    def _ask(self, oid: str, bytes_max: int) -> tuple[str, int, bytes | None]:
        """Return what git answers about an object."""
        stdin, stdout = self._pipes()
        stdin.write(f"{oid}\n".encode())
        stdin.flush()
        header = stdout.readline(_LINK_BYTES_MAX).decode("ascii", "replace").split()
        if len(header) != 3 or not header[2].isdigit():
            raise self._missing_error(oid)
        size = int(header[2])
        if size > bytes_max:
            self.close()  # the rest is too large to read
            return header[1], size, None
        content, end = stdout.read(size), stdout.read(1)
        if len(content) != size or end != b"\n":
            raise self._missing_error(oid)
        return header[1], size, content

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None:
            self._process = start_process(
                self._view.command("cat-file", "--batch"),
                cwd=self._view.home,
                environment=local_environment(
                    self._view.home, self._view.repository.top, memory_max=self._unpacked_max
                ),
                stdin=processes.PIPE,
            )
            self._closing.clear()
            self._watchdog = Thread(target=self._watch, args=(self._process,), daemon=True)
            self._watchdog.start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        return stdin, stdout

    def _watch(self, process: processes.Process) -> None:
        """End git once it has been waited for too long; the time between two reads is not its."""
        left_s = max(TIMEOUT_S - self._waited_s, 0)
        while not self._closing.wait(left_s):
            asked_at = self._asked_at
            waited_s = self._waited_s + (0 if asked_at is None else monotonic() - asked_at)
            if waited_s >= TIMEOUT_S:
                process.kill()
                return
            left_s = max(TIMEOUT_S - waited_s, _CHECK_S)

    def _missing_error(self, oid: str) -> UnreadableError:
        if self._waited_s >= TIMEOUT_S:
            what = f"git took more than {TIMEOUT_S:.0f} seconds to read the objects"
            remedy = "plan a smaller repository, or clone it again"
            return UnreadableError(what, where=self._where, remedy=remedy)
        remedy = "fetch it (`git fetch --refetch`), or run `git fsck`"
        what = f"git cannot read object {oid[:60]}"
        return UnreadableError(what, where=self._where, remedy=remedy)

    def size_error(self, paths_max: int) -> UnreadableError:
        """Return the error of a commit with more than ``paths_max`` files."""
        remedy = "plan a commit with fewer files"
        what = f"more than {paths_max:,} files are listed"
        return UnreadableError(what, where=self._where, remedy=remedy)

    def commit(self, commit: str) -> Commit:
        """Return a commit.

        Raises:
            UnreadableError: it is missing, damaged or not a commit.
        """
        kind, _, content = self.read(commit, _COMMIT_BYTES_MAX)
        if kind != "commit" or content is None or not content.startswith(b"tree "):
            raise self._missing_error(commit)
        head, _, message = content.partition(b"\n\n")
        fields: dict[str, list[str]] = {"committer": [], "author": [], "parent": []}
        for line in head.decode("utf-8", "replace").split("\n"):
            name, _, value = line.partition(" ")
            fields.setdefault(name, []).append(value)
        subject = message.decode("utf-8", "replace").strip().partition("\n")[0]
        committer, author = (next(iter(fields[name]), "") for name in ("committer", "author"))
        time = committer.rsplit(" ", 2)[-2:][0]
        return Commit(
            tree=fields["tree"][0],
            parents=tuple(fields["parent"]),
            committed_at=int(time) if _TIME.fullmatch(time) else 0,
            subject=subject[:_SUBJECT_MAX],
            author=author.partition(" <")[0][:_SUBJECT_MAX],
        )

    def root(self, commit: str) -> TreeObject:
        """Return the top folder of a commit."""
        return TreeObject("", "", 0o040000, self.commit(commit).tree, self)

    def tree(self, entry: TreeObject) -> Sequence[TreeObject]:
        """Return the entries of a folder, sorted by name."""
        kind, _, content = self.read(entry.oid, _TREE_BYTES_MAX)
        if kind != "tree" or content is None:
            raise self._missing_error(entry.oid)
        length = len(entry.oid) // 2
        found: list[TreeObject] = []
        at = 0
        while at < len(content):
            space, nul = content.find(b" ", at), content.find(b"\0", at)
            oid = content[nul + 1 : nul + 1 + length]
            if not at < space < nul or len(oid) != length:
                raise self._missing_error(entry.oid)
            mode = int(content[at:space], 8) if content[at:space].isdigit() else 0
            name = content[space + 1 : nul].decode("utf-8", "surrogateescape")
            path = f"{entry.path}/{name}" if entry.path else name
            found.append(TreeObject(path, name, mode, oid.hex(), self))
            at = nul + 1 + length
        return sorted(found, key=lambda e: e.name)


def object_id(kind: str, content: bytes, like: str) -> str:
    """Return the id of an object, with the hash function of the id ``like``."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    found = algorithm(f"{kind} {len(content)}\0".encode(), usedforsecurity=False)
    found.update(content)
    return found.hexdigest()


class TreeObject:
    """One name of a tree: its path below the fleet's folder, its mode and its object's id."""

    def __init__(self, path: str, name: str, mode: int, oid: str, objects: Objects) -> None:
        self.path = path
        self.name = name
        self.mode = mode
        self.kind = _KINDS.get(mode, "blob")
        self.oid = oid
        self.objects = objects

    @cached_property
    def entries(self) -> Sequence[TreeObject]:
        """The entries of a folder."""
        return self.objects.tree(self)

    @cached_property
    def by_name(self) -> Mapping[str, TreeObject]:
        """The entries of a folder by name; git's trees have no name twice, a forged one may."""
        return {entry.name: entry for entry in reversed(self.entries)}

    def find_entry(self, path: str) -> TreeObject | None:
        """Return the entry of that path below a folder; links in the path are not followed."""
        here = self
        for part in path.split("/"):
            found = None
            if here.kind == "tree":
                found = here.by_name.get(part)
            if found is None:
                return None
            here = found
        return here


def walk_files(tree: TreeObject) -> Iterator[TreeObject]:
    """Yield everything below a folder that is not a folder itself, in no particular order.

    Raises:
        UnreadableError: there is too much of it, or an object cannot be read.
    """
    return _differing_files({}, _entries_by_name(tree))


def changed_paths(old: TreeObject, new: TreeObject) -> list[str]:
    """Return the paths of the files that differ between two trees, sorted.

    Raises:
        UnreadableError: there are too many, or an object cannot be read.
    """
    files = _differing_files(_entries_by_name(old), _entries_by_name(new))
    return sorted({file.path for file in files})


def _entries_by_name(tree: TreeObject | None) -> dict[str, TreeObject]:
    if tree is None or tree.kind != "tree":
        return {}
    return dict(tree.by_name)


def _differing_files(
    old: Mapping[str, TreeObject], new: Mapping[str, TreeObject]
) -> Iterator[TreeObject]:
    """Yield the files of both sides that differ; equal folders are not read."""
    stack = [(old, new)]
    count = 0
    while stack:
        left, right = stack.pop()
        for name in left.keys() | right.keys():
            before, after = left.get(name), right.get(name)
            changed = list(filter(None, (before, after)))
            if len({(entry.mode, entry.oid) for entry in changed}) < len(changed):
                continue  # the same on both sides
            count += 1
            if count > PATHS_MAX:
                raise changed[0].objects.size_error(PATHS_MAX)
            yield from (entry for entry in changed if entry.kind != "tree")
            if any(entry.kind == "tree" for entry in changed):
                stack.append((_entries_by_name(before), _entries_by_name(after)))


def find_folder(tree: TreeObject, folder: str, where: str) -> TreeObject:
    """Return a folder of a commit as the root of a fleet: paths below are relative to it.

    Raises:
        MissingFleetError: the folder does not exist.
    """
    if folder in ("", "."):
        return tree
    found = tree.find_entry(folder)
    if found is None or found.kind != "tree":
        raise MissingFleetError(
            f"folder {folder} does not exist in that commit",
            where=where,
            remedy="name a commit that has it, or none for a new fleet",
        )
    return TreeObject("", "", found.mode, found.oid, found.objects)


class _TreeReader:
    """Walks a tree of git objects, in order of paths."""

    def __init__(self, root: TreeObject) -> None:
        self.root = root
        self.files: list[SourceFile] = []
        self.findings: list[Diagnostic] = []
        self.bytes = 0

    def walk(self) -> None:
        for path, blob in self._blobs():
            if len(self.files) >= limits.FILES_MAX or self.bytes >= limits.BYTES_MAX:
                limit = f"{limits.FILES_MAX} files or {limits.BYTES_MAX // 2**20} MiB"
                self._refuse("too-large", path, f"the folder holds more than {limit}")
                return
            _, size, content = blob.objects.read(blob.oid, LIMITS.bytes_max)
            self.bytes += size
            if content is None:
                message = (
                    f"{size / 2**20:.1f} MiB exceeds the limit of {LIMITS.bytes_max >> 20} MiB"
                )
                self._refuse("too-large", path, message)
                continue
            self.files.append(SourceFile(encodable(path), content))

    def _blobs(self) -> Iterator[tuple[str, TreeObject]]:
        """Yield (path below the root, blob) of the fleet files; loops end."""
        seen = {self.root.path}
        stack = [("", self.root, 0)]
        entries = 0
        while stack:
            prefix, tree, depth = stack.pop()
            below: list[tuple[str, TreeObject, int]] = []
            for entry in tree.entries:
                entries += 1
                path = f"{prefix}{entry.name}"
                if entries > limits.ENTRIES_MAX:
                    self._refuse("too-large", path, f"more than {limits.ENTRIES_MAX} entries")
                    return
                item = self._follow_links(entry, path)
                if item is None:
                    continue
                if item.kind == "blob":
                    if limits.is_fleet_file(path):
                        yield path, item
                elif item.path in seen:
                    self.findings.append(limits.read_once(path))
                elif depth >= limits.DEPTH_MAX:
                    message = f"more than {limits.DEPTH_MAX} folders deep"
                    self._refuse("too-deep", path, message)
                else:
                    seen.add(item.path)
                    below.append((f"{path}/", item, depth + 1))
            stack.extend(reversed(below))

    def _follow_links(self, entry: TreeObject, path: str) -> TreeObject | None:
        """Return the object of an entry; None if it is not read, possibly with a finding."""
        if entry.name.startswith("."):
            return None
        for _ in range(_LINK_HOPS_MAX):
            if entry.kind == "submodule":
                self.findings.append(submodule_finding(path))
                return None
            if entry.kind != "link":
                return entry
            target = self._link_target(entry)
            if target is None:
                self._refuse_link(path, "outside-link", "the symbolic link leads out of the folder")
                return None
            found = self.root.find_entry(target) if target != "." else self.root
            if found is None:
                self._refuse_link(
                    path, "broken-link", ("the target of the symbolic link does not exist")
                )
                return None
            entry = found
        self._refuse_link(path, "broken-link", "the symbolic link leads to itself")
        return None

    def _link_target(self, link: TreeObject) -> str | None:
        """Return the target of a link below the root; None if it is outside."""
        _, _, content = link.objects.read(link.oid, _LINK_BYTES_MAX)
        if content is None:
            return None
        text = content.decode("utf-8", "surrogateescape")
        here = posixpath.dirname(link.path)
        target = posixpath.normpath(posixpath.join(here, text))
        return None if target.startswith(("/", "../")) or target == ".." else target

    def _refuse_link(self, path: str, code: str, message: str) -> None:
        """Record a bad link if it could be meant as part of the fleet."""
        if code == "outside-link" or limits.is_fleet_file(path):
            self._refuse(code, path, message)

    def _refuse(self, code: str, path: str, message: str) -> None:
        place = Place(encodable(path), 1, 1)
        self.findings.append(Diagnostic(Severity.ERROR, code, message, place))


def submodule_finding(path: str) -> Diagnostic:
    """Return the finding on a submodule: NodePools that it replaces must not look removed."""
    return Diagnostic(
        Severity.WARNING,
        "submodule",
        "is a git submodule, which is not read: its files would be missing from the fleet",
        Place(encodable(path), 1, 1),
        hint="commit the files themselves, or move the submodule out of the fleet folder",
    )
