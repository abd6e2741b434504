"""Changes to NodePools and settings, and the files of a fleet with them.

A change names its target and not where that is written, so several can be applied one after
another. All other text of a file is preserved (``source/edit.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from typing import Final, Protocol

from reconciler.desired.fleet import SourceFile
from reconciler.model.json import JsonDict, as_mappings
from reconciler.model.karpenter.labels import CAPACITY_TYPE
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.edit import AddItem, FieldEdit, RemoveItem, SetField, Value, apply_edits
from reconciler.source.objects import Entry, entries
from reconciler.source.plainyaml import dump
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE
from reconciler.source.rewrite import RewriteError
from reconciler.source.schema import value_at

REQUIREMENTS: Final = ("spec", "template", "spec", "requirements")
_NEW_CONFIG: Final = b"apiVersion: reconciler/v1\nkind: Configuration\n"

Files = tuple[SourceFile, ...]

_NO_NEWLINE: Final = "\\ No newline at end of file\n"


class DesiredChange(Protocol):
    """A change of the desired state."""

    @property
    def target(self) -> tuple[object, ...]:
        """The target: of two changes with the same target, only the later one has an effect."""

    def apply_to(self, files: Files) -> Files:
        """Return the files with the change.

        Raises:
            RewriteError: they cannot be changed without changing something else.
        """


def with_changes(files: Files, changes: Iterable[DesiredChange]) -> Files:
    """Return the files with all changes, made in order.

    Raises:
        RewriteError: one of them cannot be made.
    """
    for change in changes:
        files = change.apply_to(files)
    return files


def digests_of_files(files: Files) -> list[tuple[str, str]]:
    """Return the path and the SHA-256 of each file."""
    return [(file.path, sha256(file.content).hexdigest()) for file in files]


@dataclass(frozen=True, slots=True)
class AllowValues:
    """A NodePool's requirements on a label allow more values."""

    node_pool: str
    key: str
    values: tuple[str, ...]

    @property
    def target(self) -> tuple[object, ...]:
        """The values: others can be allowed in addition."""
        return ("allow", self.node_pool, self.key, self.values)

    def apply_to(self, files: Files) -> Files:
        """Return the files with the values in each ``In``, and in no ``NotIn``."""
        for value in self.values:
            files = _edit_pool(files, self.node_pool, lambda data, v=value: self._edits(data, v))
        return files

    def _edits(self, data: JsonDict, value: str) -> Iterator[FieldEdit]:
        rows = list(enumerate(_requirements(data)))
        for number, row in reversed(rows):
            if row.get("key") != self.key:
                continue
            pointer = (*REQUIREMENTS, number, "values")
            values = list(row.get("values") or ())
            if row.get("operator") == "In" and value not in values:
                yield AddItem(pointer, value)
            elif row.get("operator") == "NotIn" and value in values:
                whole = len(values) == 1
                yield RemoveItem(pointer[:-1] if whole else (*pointer, values.index(value)))


@dataclass(frozen=True, slots=True)
class DropRequirement:
    """A NodePool loses its requirements on a label; ``operators`` limits it to these."""

    node_pool: str
    key: str
    operators: tuple[str, ...] = ()

    @property
    def target(self) -> tuple[object, ...]:
        """The requirements."""
        return ("drop", self.node_pool, self.key, self.operators)

    def apply_to(self, files: Files) -> Files:
        """Return the files without the requirements."""
        return _edit_pool(files, self.node_pool, self._edits)

    def _edits(self, data: JsonDict) -> Iterator[FieldEdit]:
        for number, row in reversed(list(enumerate(_requirements(data)))):
            is_meant = not self.operators or row.get("operator") in self.operators
            if row.get("key") == self.key and is_meant:
                yield RemoveItem((*REQUIREMENTS, number))


@dataclass(frozen=True, slots=True)
class AddRequirement:
    """A NodePool gets one more requirement."""

    node_pool: str
    key: str
    operator: str
    values: tuple[str, ...]

    @property
    def target(self) -> tuple[object, ...]:
        """The label and the operator: a stricter requirement makes the other one redundant."""
        return ("require", self.node_pool, self.key, self.operator)

    def apply_to(self, files: Files) -> Files:
        """Return the files with the requirement at the end of the others."""
        return _edit_pool(files, self.node_pool, self._edits)

    def _edits(self, data: JsonDict) -> Iterator[FieldEdit]:
        row: Value = {"key": self.key, "operator": self.operator, "values": list(self.values)}
        if _requirements(data):
            yield AddItem(REQUIREMENTS, row)
        else:
            yield _set_field(data, REQUIREMENTS, [row])


@dataclass(frozen=True, slots=True)
class SetPoolField:
    """A field of a NodePool gets a value."""

    node_pool: str
    pointer: Pointer
    value: str | int | bool

    @property
    def target(self) -> tuple[object, ...]:
        """The field."""
        return ("field", self.node_pool, self.pointer)

    def apply_to(self, files: Files) -> Files:
        """Return the files with the value; missing mappings are added."""
        return _edit_pool(
            files, self.node_pool, lambda data: iter((_set_field(data, self.pointer, self.value),))
        )


@dataclass(frozen=True, slots=True)
class CopyPool:
    """A NodePool is copied to a file in the same folder, with another name and one capacity type.

    The copy launches at most ``vcpus`` vCPUs, and is preferred to the others by its ``weight``.
    """

    node_pool: str
    name: str
    capacity_type: str
    vcpus: int
    weight: int

    @property
    def target(self) -> tuple[object, ...]:
        """The copy."""
        return ("copy", self.name)

    def apply_to(self, files: Files) -> Files:
        """Return the files with one more."""
        file, entry = _find_pool(files, self.node_pool)
        path = f"{file.path.rpartition('/')[0]}/{self.name}.yaml".lstrip("/")
        if not isinstance(entry.data, dict) or any(f.path == path for f in files):
            raise RewriteError(f"{path} exists, or NodePool {self.node_pool} is not a mapping")
        data = deepcopy(entry.data)
        data["metadata"] = {**data["metadata"], "name": self.name}
        spec = data["spec"]
        spec["weight"], spec["limits"] = self.weight, {"cpu": str(self.vcpus)}
        rows = [row for row in _requirements(data) if row.get("key") != CAPACITY_TYPE]
        rows.append({"key": CAPACITY_TYPE, "operator": "In", "values": [self.capacity_type]})
        spec["template"]["spec"]["requirements"] = rows
        return (*files, SourceFile(path, dump(data, sort_keys=False).encode()))


@dataclass(frozen=True, slots=True)
class RemovePoolItem:
    """A list of a NodePool loses a value."""

    node_pool: str
    pointer: Pointer

    @property
    def target(self) -> tuple[object, ...]:
        """The value."""
        return ("item", self.node_pool, self.pointer)

    def apply_to(self, files: Files) -> Files:
        """Return the files without the value."""
        return _edit_pool(files, self.node_pool, lambda _: iter((RemoveItem(self.pointer),)))


@dataclass(frozen=True, slots=True)
class SetSetting:
    """A setting in ``reconciler.yaml`` gets a value; the file is created if there is none."""

    key: str
    value: str | int | bool

    @property
    def target(self) -> tuple[object, ...]:
        """The setting."""
        return ("setting", self.key)

    def apply_to(self, files: Files) -> Files:
        """Return the files with the setting."""
        file = next((f for f in files if f.path in CONFIG_FILES), None)
        if file is None:
            file = SourceFile(CONFIG_FILES[0], _NEW_CONFIG)
            files = (*files, file)
        documents, findings = parse_documents(file.path, file.content)
        if findings or not documents:
            raise RewriteError(f"{file.path} has no mapping of settings")
        document = documents[0]
        edit = _set_field(document.data, tuple(self.key.split(".")), self.value)
        return _replace_content(files, file, _edit_text(file, document, [edit]))


def _edit_pool(files: Files, name: str, edits: _Edits) -> Files:
    file, entry = _find_pool(files, name)
    if not isinstance(entry.data, dict):
        raise RewriteError(f"NodePool {name} is not a mapping")
    moved = [edit._replace(pointer=(*entry.base, *edit.pointer)) for edit in edits(entry.data)]
    return (
        _replace_content(files, file, _edit_text(file, entry.document, moved)) if moved else files
    )


class _Edits(Protocol):
    def __call__(self, data: JsonDict, /) -> Iterator[FieldEdit]: ...


def _edit_text(file: SourceFile, document: Document, edits: Sequence[FieldEdit]) -> bytes:
    if file.path.endswith(".json"):
        raise RewriteError(f"{file.path} is JSON; only YAML is edited")
    return apply_edits(file.content, document, edits)


def _replace_content(files: Files, old: SourceFile, content: bytes) -> Files:
    return tuple(SourceFile(f.path, content) if f is old else f for f in files)


def _find_pool(files: Files, name: str) -> tuple[SourceFile, Entry]:
    for file in files:
        if file.path in (*CONFIG_FILES, LOCK_FILE) or b"NodePool" not in file.content:
            continue
        for document in parse_documents(file.path, file.content)[0]:
            for entry, _ in entries(document):
                if entry.kind == "NodePool" and entry.name == name:
                    return file, entry
    raise RewriteError(f"NodePool {name} is not in the files")


def _requirements(data: JsonDict) -> list[JsonDict]:
    return as_mappings(value_at(data, REQUIREMENTS))


def _set_field(data: object, pointer: Pointer, value: Value) -> SetField:
    """Return the edit that sets a field, also if its parent mappings are missing."""
    depth, at = 0, data
    while depth < len(pointer) - 1:
        step = pointer[depth]
        below = at.get(step) if isinstance(at, Mapping) and isinstance(step, str) else None
        if isinstance(at, list) and isinstance(step, int) and step < len(at):
            below = at[step]
        if below is None:
            break
        at, depth = below, depth + 1
    for step in reversed(pointer[depth + 1 :]):
        value = {str(step): value}
    return SetField(pointer[: depth + 1], value)


def changed_files(before: Files, after: Files) -> tuple[tuple[SourceFile | None, SourceFile], ...]:
    """Return each file that differs, before (None if there was none) and after."""
    known = {file.path: file for file in before}
    return tuple(
        (known.get(file.path), file)
        for file in after
        if file.path not in known or known[file.path].content != file.content
    )


def format_patch(before: Files, after: Files) -> str:
    """Return the unified diff; its paths start at the fleet folder."""
    return "".join(
        line for old, new in changed_files(before, after) for line in _file_patch(old, new)
    )


def _file_patch(old: SourceFile | None, new: SourceFile) -> Iterator[str]:
    yield from map(
        _end_line,
        unified_diff(
            _lines(old.content) if old is not None else (),
            _lines(new.content),
            f"a/{old.path}" if old is not None else "/dev/null",
            f"b/{new.path}",
        ),
    )


def _lines(content: bytes) -> Sequence[str]:
    """Return the lines with their ends; only a line feed ends one, as for git."""
    text = content.decode()
    lines = text.split("\n")
    return (
        [*(f"{line}\n" for line in lines[:-1]), *lines[-1:]]
        if lines[-1]
        else [f"{line}\n" for line in lines[:-1]]
    )


def _end_line(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"
