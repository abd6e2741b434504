"""Finds the fleets that a pull request changes, moves or removes.

A fleet is known by its name, wherever its folder is: otherwise `git mv` would turn it into a new
fleet, which is compared with nothing and to which no policy of the base applies. A fleet whose name
is that of its folder is known by its files if the folder is renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.adapters.git.repository import find_repository
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.text.paths import is_below
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import FleetRequest

FLEETS_MAX: Final = 50
_FOLDERS_MAX: Final = 20_000
_DEPTH_MAX: Final = 12
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_MAX: Final = 100

_SAME_FILES_MIN: Final = 0.5
"""The minimum share of equal files of a folder that was renamed."""
_CONFIG_BYTES_MAX: Final = 2**20


class FleetChange(NamedTuple):
    """A fleet to plan.

    ``base`` is None without a comparison; a new fleet is not there. ``base_path`` is its folder at
    the base if that was another one. ``is_removed`` is whether it exists only at the base, and
    ``problem`` why the job cannot succeed, empty if it can.
    """

    folder: str
    base: str | None
    base_path: str | None = None
    is_removed: bool = False
    problem: str = ""


class _Known(NamedTuple):
    """A fleet at the base or at the head; ``path`` is relative to the top of the repository."""

    path: str
    name: str

    @property
    def may_have_folder_name(self) -> bool:
        """Whether its name is that of its folder, as it is without a name in its settings."""
        return self.name == self.path.rpartition("/")[2]


def fleets_below(folder: str) -> list[str]:
    """Return the folders with a ``reconciler.yaml``, in order; a fleet contains no other.

    Raises:
        UsageError: there are more than ``FLEETS_MAX``.
    """
    found = sorted(_find_fleets(folder))
    if len(found) > FLEETS_MAX:
        message = f"{len(found)} fleets; at most {FLEETS_MAX} are planned at once"
        raise UsageError(message, where=folder, remedy="name the fleets to plan")
    return found


def _find_fleets(folder: str) -> Iterator[str]:
    seen = 0
    top = folder.rstrip(os.sep).count(os.sep)
    for path, folders, files in os.walk(folder):
        seen += 1
        if seen > _FOLDERS_MAX:
            remedy = "name the fleets to plan"
            raise UsageError(f"more than {_FOLDERS_MAX:,} folders", where=folder, remedy=remedy)
        if any(name in files for name in CONFIG_FILES):
            folders.clear()
            yield os.path.normpath(path)
            continue
        remaining = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        folders[:] = remaining if path.count(os.sep) - top < _DEPTH_MAX else []


def changed_fleets(
    fleets: Sequence[str], base: str | None, *, are_named: bool = True
) -> list[FleetChange]:
    """Return the fleets that differ from those of ``base``; all of them without one.

    ``are_named`` is whether the user has named them: then a fleet that is no longer in its folder
    is a problem. Otherwise ``fleets`` are all below the current folder.

    Raises:
        UsageError: ``base`` is not a commit of the repository, or a folder never existed.
    """
    existing = [fleet for fleet in fleets if os.path.isdir(fleet)]
    missing = [fleet for fleet in fleets if fleet not in existing]
    if base is None:
        if missing:
            raise _missing_error(missing[0])
        return [FleetChange(fleet, None) for fleet in existing]
    return _Comparison(existing, missing, base, are_named=are_named).changes()


def at_former_folder(request: FleetRequest) -> FleetRequest:
    """Return the request with the folder at its base, if it has been moved or renamed since.

    A folder with files of a fleet at the base has not.

    Raises:
        UsageError: the base is not a commit of the repository.
        UnreadableError: git cannot read the repository.
    """
    if request.base is None or not request.reads_folder:
        return request
    fleet = request.path or "."
    repository = find_repository(fleet)
    if repository is None or not os.path.isdir(fleet):
        return request
    from reconciler.adapters.git.revision import has_fleet_files

    if has_fleet_files(fleet, request.base):
        return request
    around = os.path.relpath(repository.top)
    found = _Comparison([fleet], [], request.base, are_named=True, around=around).changes()
    folder = next((one.base_path for one in found if not one.is_removed), None)
    return request if folder is None else replace(request, base_path=folder)


def _missing_error(fleet: str) -> UsageError:
    remedy = "pass the folder of a fleet"
    return UsageError(f'folder "{fleet}" does not exist', where="FLEET", remedy=remedy)


class _Comparison:
    """The fleets of the head, matched with those of the base; they are all below ``around``."""

    def __init__(
        self,
        existing: Sequence[str],
        missing: Sequence[str],
        base: str,
        *,
        are_named: bool,
        around: str = ".",
    ) -> None:
        from reconciler.adapters.git.revision import changed_files

        self._place = existing[0] if existing else "."
        repository = find_repository(self._place)
        self._top = os.path.realpath(repository.top if repository is not None else ".")
        self._existing = {self._path_of(fleet): fleet for fleet in existing}
        self._missing = {self._path_of(fleet): fleet for fleet in missing}
        self._are_named, self._around = are_named, around
        folders = (*self._existing, *self._missing)
        found = changed_files(self._place, base, folders)
        self._base, self._merge_base = found.base, found.merge_base
        self._paths, self._was_there = found.paths, found.known
        for path, fleet in self._missing.items():
            if path not in self._was_there:
                raise _missing_error(fleet)

    def _path_of(self, fleet: str) -> str:
        return os.path.relpath(os.path.realpath(fleet), self._top).replace(os.sep, "/")

    def _shown(self, path: str) -> str:
        """Return a folder of the repository relative to the current folder."""
        return os.path.relpath(os.path.join(self._top, path), os.path.realpath("."))

    def changes(self) -> list[FleetChange]:
        """Return the fleets with a difference, in the order of their folders, then removed ones."""
        before = self._fleets_at(self._base)
        head = self._fleets_of_head(before)
        matches = match_fleets(head, before)
        renamed = self._renamed_folders(head, before, matches)
        matches |= renamed
        changed = [one for one in head if self._is_changed(one, matches.get(one))]
        names = {one.name for one in head}
        kept = {one for one in matches.values() if one.name in names}.union(renamed.values())
        gone = self._removed([one for one in before if one not in kept])
        return [
            *(self._change_of(one, matches.get(one)) for one in changed),
            *map(self._removal_of, gone),
        ]

    def _fleets_of_head(self, before: Sequence[_Known]) -> list[_Known]:
        """Return the fleets of the head; all of them if one that is named is not in its folder."""
        named = {one.path: one.name for one in before}
        head = [
            _Known(path, _name_in(self._read_head(fleet), path, named.get(path, "")))
            for path, fleet in self._existing.items()
        ]
        if self._are_named and not all(one in head for one in before if self._is_named(one)):
            head += self._unnamed_fleets()
        return head

    def _is_changed(self, one: _Known, before: _Known | None) -> bool:
        """Return whether a fleet that is compared has another content or folder than before."""
        if one.path not in self._existing and not self._is_named(before):
            return False
        return self._differs(one.path) or (before is not None and before.path != one.path)

    def _removed(self, gone: list[_Known]) -> list[_Known]:
        """Return which of the fleets that are gone are named, or were removed by the head."""
        if self._are_named:
            return [one for one in gone if self._is_named(one)]
        return self._without_late(gone) if gone else []

    def _renamed_folders(
        self, head: Sequence[_Known], before: Sequence[_Known], matches: Mapping[_Known, _Known]
    ) -> dict[_Known, _Known]:
        """Return the fleet of the base for each fleet whose folder, and so its name, is another.

        Most of its files are the same, as where git finds that a file was renamed.
        """
        from reconciler.adapters.git.revision import shares_kept

        left = _renamable(before, matches.values())
        new = _renamable(head, matches)
        kept = shares_kept(
            self._place, self._base, {one.path for one in left}, {one.path for one in new}
        )
        found: dict[_Known, _Known] = {}
        for one in new:
            shares = [(kept[b.path, one.path], b) for b in left if b not in found.values()]
            share, best = max(shares, default=(0.0, one))
            if share >= _SAME_FILES_MIN:
                found[one] = best
        return found

    def _is_named(self, one: _Known | None) -> bool:
        return one is not None and (one.path in self._existing or one.path in self._missing)

    def _without_late(self, gone: Sequence[_Known]) -> list[_Known]:
        """Leave out the fleets that came to the base after the branch point.

        A fleet that was there counts even if no file of its folder differs: a settings file
        above it hides it as well.
        """
        there = self._fleets_at(self._merge_base)
        paths, names = {one.path for one in there}, {one.name for one in there}
        return [one for one in gone if one.path in paths or one.name in names]

    def _differs(self, path: str) -> bool:
        # the folder itself changes where it becomes another repository, whose files are not ours
        return any(changed != path and is_below(changed, path) for changed in self._paths)

    def _change_of(self, one: _Known, before: _Known | None) -> FleetChange:
        folder = self._existing.get(one.path) or self._shown(one.path)
        if before is None or before.path == one.path:
            return FleetChange(folder, self._base)
        problem = ""
        if self._are_named and before.path in self._missing:
            problem = f"fleet {one.name} has moved here from {before.path}: name its new folder"
        return FleetChange(
            folder, self._base, os.path.join(self._top, before.path), problem=problem
        )

    def _removal_of(self, one: _Known) -> FleetChange:
        problem = f"fleet {one.name} is gone" if self._are_named else ""
        path = os.path.join(self._top, one.path)
        return FleetChange(
            self._shown(one.path), self._base, path, is_removed=True, problem=problem
        )

    def _fleets_at(self, commit: str) -> list[_Known]:
        """Return the fleets of a commit: all below the current folder, and those that are named."""
        from reconciler.adapters.git.source import AtRef, find_folders

        around = self._path_of(self._around)
        here = "" if around == "." else f"{around}/"
        listed = find_folders(AtRef(self._top, commit), CONFIG_FILES)
        wanted = {p for p in _top_folders(listed) if f"{p}/".startswith(here)} | self._was_there
        return [_Known(p, _name_in(self._read_at(commit, p), p)) for p in sorted(wanted)]

    def _read_at(self, commit: str, path: str) -> list[tuple[str, bytes]]:
        from reconciler.adapters.git.source import read_blob

        for name in CONFIG_FILES:
            with suppress(ReconcilerError):
                blob = f"{path}/{name}" if path != "." else name
                return [(name, read_blob(self._top, commit, blob, _CONFIG_BYTES_MAX))]
        return []

    def _read_head(self, fleet: str) -> list[tuple[str, bytes]]:
        from reconciler.adapters.git.folder import read_folder

        with suppress(ReconcilerError):
            return [(f.path, f.content) for f in read_folder(fleet)[0] if f.path in CONFIG_FILES]
        return []

    def _unnamed_fleets(self) -> list[_Known]:
        """Return the other fleets of the head: a named one may have moved there."""
        found = []
        with suppress(UsageError):  # too many folders
            found = sorted(_find_fleets(self._around))
        known = {self._path_of(fleet): fleet for fleet in found}
        return [
            _Known(path, _name_in(self._read_head(fleet), path))
            for path, fleet in known.items()
            if path not in self._existing
        ]


def _name_in(files: Sequence[tuple[str, bytes]], path: str, before: str = "") -> str:
    """Return the name of a fleet: that of its settings, or else of its folder.

    If its settings are invalid, it is the name ``before``: the fleet is reported as invalid, which
    does not mean that it is gone.
    """
    from reconciler.desired.fleet import SourceFile, read_fleet

    sources = [SourceFile(*file) for file in files]
    fleet, findings = read_fleet(sources, any_class=True, allow_empty=True)
    if before and any(finding.severity is Severity.ERROR for finding in findings):
        return before
    name = fleet.config.get("fleet")
    return name if isinstance(name, str) else path.rpartition("/")[2]


def _top_folders(folders: Collection[str]) -> Iterator[str]:
    """Yield the folders that are in no other one, without those that are never fleets."""
    for folder in folders:
        is_inner = any(folder != other and is_below(folder, other) for other in folders)
        if not is_inner and _SKIPPED.isdisjoint(folder.split("/")):
            yield folder


def _renamable(fleets: Iterable[_Known], matched: Collection[_Known]) -> list[_Known]:
    return [one for one in fleets if one not in matched and one.may_have_folder_name]


def match_fleets(head: Sequence[_Known], before: Sequence[_Known]) -> dict[_Known, _Known]:
    """Return the fleet of the base for each fleet of the head that has one.

    An unchanged folder and name come first, then the same name in another folder, then another
    name in the same folder. No fleet of the base is used twice.
    """
    found = {one: one for one in head if one in before}
    left = [one for one in before if one not in found]
    for field in ("name", "path"):
        for one in head:
            if one in found:
                continue
            alike = [old for old in left if getattr(one, field) == getattr(old, field)]
            if alike:
                best = max(alike, key=lambda old: (_common_end(one.path, old.path), old.path))
                found[one] = best
                left.remove(best)
    return found


def _common_end(one: str, other: str) -> int:
    """Return how many folders at the end of two paths are equal."""
    count = 0
    for a, b in zip(reversed(one.split("/")), reversed(other.split("/")), strict=False):
        if a != b:
            break
        count += 1
    return count


def file_stems(folders: Sequence[str]) -> list[str]:
    """Return a different file name for each folder, without the ending.

    It is the folder with safe characters. If two folders would have the same name, as on a file
    system that ignores case, or if it is long, it ends with a digest of the folder.

    Raises:
        UsageError: two folders still have the same name.
    """
    plain = [_UNSAFE.sub("-", folder).strip("-.") or "fleet" for folder in folders]
    used = [stem.casefold() for stem in plain]
    stems = [
        stem if used.count(key) == 1 and len(stem) <= _STEM_MAX else _with_digest(stem, folder)
        for stem, key, folder in zip(plain, used, folders, strict=True)
    ]
    keys = [stem.casefold() for stem in stems]
    for folder, key in zip(folders, keys, strict=True):
        if keys.count(key) > 1:
            what = "another fleet's files have the same name as those of this one"
            raise UsageError(what, where=folder, remedy="rename the folder")
    return stems


def _with_digest(stem: str, folder: str) -> str:
    digest = sha256(os.fsencode(folder)).hexdigest()[:12]
    return f"{stem[:_STEM_MAX]}-{digest}"
