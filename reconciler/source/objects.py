"""Convert documents to Kubernetes objects: expand Lists, check kinds and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Final, NamedTuple

from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import as_text
from reconciler.model.text.nearest import did_you_mean, nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Document, Pointer
from reconciler.source.finding import Finding
from reconciler.source.resource import (
    CONFIG_FILES,
    KUBERNETES_KINDS,
    LOCK_FILE,
    SUCCESSORS,
    VALIDATED_KINDS,
    group_of,
    is_kubernetes,
    is_other_class,
    is_ours,
)

_KUSTOMIZE: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_CONFIGURING: Final = (*CONFIG_FILES, LOCK_FILE, *_KUSTOMIZE, "Chart.yaml")
_UNPARSED: Final = frozenset(
    {
        "bad-key",
        "bad-merge",
        "bad-number",
        "bad-tag",
        "duplicate-key",
        "indentation",
        "syntax",
        "unknown-anchor",
        "unsupported-tag",
    }
)
"""Codes of what is no YAML, or not that of Kubernetes."""
_LIST_DEPTH_MAX: Final = 5
_SIMILARITY_MIN: Final = 0.85

_LFS: Final = "version https://git-lfs.github.com/spec/"

_FIELDS: Final = {"apiVersion": None, "kind": None, "metadata": None, "spec": None}.keys()
"""The fields of any object, in order."""

_MIGRATE: Final = "migrate to {}, as `reconciler init --from` does"


class Entry(NamedTuple):
    """One object: its position (``base`` is its pointer in ``document``) and its data."""

    document: Document
    base: Pointer
    data: Any
    kind: str = ""
    api_version: str = ""

    @property
    def pruned_data(self) -> Any:
        """The data as the API server reads it, without nulls."""
        return without_nulls(self.data)

    @property
    def name(self) -> str:
        return self._metadata("name")

    @property
    def namespace(self) -> str:
        return self._metadata("namespace") or "default"

    def _metadata(self, field: str) -> str:
        metadata = self.data.get("metadata") if isinstance(self.data, dict) else None
        value = metadata.get(field) if isinstance(metadata, dict) else None
        return as_text(value)

    def place(self, pointer: Pointer, *, of_key: bool = False) -> Place:
        """Return the position of the field at ``pointer``."""
        return self.document.place((*self.base, *pointer), of_key=of_key)


def without_nulls(data: object) -> object:
    """Return ``data`` without the null entries of mappings, as the API server prunes them.

    Data without nulls is returned as it is, not copied.
    """
    if isinstance(data, dict):
        pruned = {k: without_nulls(v) for k, v in data.items() if v is not None}
        same = len(pruned) == len(data) and all(map(is_, pruned.values(), data.values()))
        return data if same else pruned
    if isinstance(data, list):
        items = [without_nulls(v) for v in data]
        return data if all(map(is_, items, data)) else items
    return data


def entries(document: Document) -> Iterator[tuple[Entry, Finding | None]]:
    """Yield the objects of a document; an object with a finding cannot be processed further."""
    if document.file.rpartition("/")[2] in _KUSTOMIZE:
        yield Entry(document, (), document.data, kind="Kustomization"), None
        return
    yield from _entries(document, (), document.data, 0)


def _not_an_object(data: object, base: Pointer) -> Finding:
    if not base and _is_foreign_list(data):
        return _no_object("it is a list, such as a playbook of Ansible")
    if isinstance(data, str) and data.startswith(_LFS):
        hint = "run `git lfs pull` in the checkout, or commit the file itself"
        return Finding("lfs-pointer", (), "is a pointer of Git LFS, not the file", hint)
    message = f"{quote_value(data)} is not a Kubernetes object"
    hint = "an object is a mapping with apiVersion and kind"
    return Finding("not-an-object", (), message, hint)


def _entries(
    document: Document, base: Pointer, data: object, depth: int
) -> Iterator[tuple[Entry, Finding | None]]:
    entry = Entry(document, base, data)
    if not isinstance(data, dict):
        yield entry, _not_an_object(data, base)
        return
    finding = _header_finding(data)
    if finding is not None:
        yield entry, finding
        return
    kind, api_version = data["kind"], data["apiVersion"]
    if not kind.endswith("List") or "items" not in data or depth >= _LIST_DEPTH_MAX:
        yield Entry(document, base, data, kind, api_version), _version_finding(kind, api_version)
        return
    items = data["items"]
    if items is not None and not isinstance(items, list):
        message = f"must be a list, not {quote_value(items)}"
        yield entry, Finding("wrong-type", ("items",), message)
        return
    for index, item in enumerate(items or ()):
        yield from _entries(document, (*base, "items", index), item, depth + 1)


def foreign_file(content: bytes, findings: Sequence[Diagnostic]) -> Diagnostic | None:
    """Return one warning in place of the ``findings`` if the file is that of another program.

    Compilers and editors allow comments in their JSON, which are an error in YAML, templates of
    CloudFormation have tags of their own, and others are YAML only once they are rendered. An
    object has an apiVersion, so none is lost. What configures this program or a tool needs none.
    """
    place = findings[0].place if findings else None
    if place is None or b"apiVersion" in content:
        return None
    if place.file.rpartition("/")[2] in _CONFIGURING:
        return None
    why = _foreign_because(place.file, content, findings)
    if not why:
        return None
    found = _no_object(why)
    return Diagnostic(found.severity, found.code, found.message, place, hint=found.hint)


def _foreign_because(file: str, content: bytes, findings: Sequence[Diagnostic]) -> str:
    codes = {finding.code for finding in findings}
    if file.endswith(".json"):
        return "it is not JSON, and has no apiVersion"
    if codes == {"unsupported-tag"}:
        return "it has tags of another program, and no apiVersion"
    if b"{{" in content and codes <= _UNPARSED:
        return "it is a template, and has no apiVersion"
    if b"kind" not in content and codes == {"duplicate-key"}:
        return f"{findings[0].message}, and it has no apiVersion and no kind"
    return ""


def _header_finding(data: dict[str, object]) -> Finding | None:
    """Return the finding on ``apiVersion`` and ``kind``, one for both.

    Without any field of an object, it is something else, such as the values of a chart. So is the
    index of a repository of charts, which has only a version, and a file of Grafana, whose
    ``apiVersion`` is a number.
    """
    if not data.keys() & _FIELDS:
        return _no_object(f"it has none of {', '.join(_FIELDS)}")
    if data.keys() & _FIELDS == {"apiVersion"} and len(data) > 1:
        return _no_object("it has none of kind, metadata, spec")
    if "kind" not in data and isinstance(data.get("apiVersion"), int):
        return _no_object("its apiVersion is a number, and it has no kind")
    lacking = [field for field in ("apiVersion", "kind") if data.get(field) in (None, "")]
    if lacking:
        return _missing_kind_finding(lacking)
    for field in ("apiVersion", "kind"):
        if not isinstance(data[field], str):
            return Finding(
                "wrong-type", (field,), f"must be a string, not {quote_value(data[field])}"
            )
    return None


def _missing_kind_finding(lacking: Sequence[str]) -> Finding:
    message = f"required field `{lacking[0]}` is missing"
    if len(lacking) > 1:
        names = " and ".join(f"`{field}`" for field in lacking)
        message = f"required fields {names} are missing"
    hint = "every Kubernetes object has apiVersion and kind"
    return Finding("missing-kind", (lacking[0],), message, hint)


def _is_foreign_list(data: object) -> bool:
    """Return whether data is a list whose items have no field that only an object has."""
    return isinstance(data, list) and not any(
        isinstance(item, dict) and item.keys() & {"apiVersion", "kind"} for item in data
    )


def _no_object(reason: str) -> Finding:
    message = "is not a Kubernetes object, and is not read"
    return Finding("no-object", (), message, reason, Severity.WARNING)


def _version_finding(kind: str, api_version: str) -> Finding | None:
    """Return the finding on a version or kind that is no longer supported."""
    group = group_of(api_version)
    successor = SUCCESSORS.get((group, kind))
    if successor is not None:
        hint = _MIGRATE.format(successor)
        return Finding("old-version", ("kind",), f"unsupported alpha kind {kind}", hint)
    if is_ours(api_version, kind) and not is_other_class(api_version, kind):
        expected = "/".join(VALIDATED_KINDS[kind])
        if api_version != expected:
            is_old = group == VALIDATED_KINDS[kind][0]
            code = "old-version" if is_old else "wrong-version"
            hint = _MIGRATE.format(expected) if is_old else f"{kind} is {expected}"
            return _unsupported(code, api_version, hint)
    if kind in KUBERNETES_KINDS and not is_kubernetes(api_version, kind):
        expected = KUBERNETES_KINDS[kind]
        if group in ("", group_of(expected), "extensions"):
            return _unsupported("old-version", api_version, f"migrate to {expected}")
        if nearest(group, [group_of(expected)], _SIMILARITY_MIN) is not None:
            return _unsupported("wrong-version", api_version, f"{kind} is {expected}")
    return _kind_finding(kind, api_version)


def _unsupported(code: str, api_version: str, hint: str) -> Finding:
    message = f"unsupported apiVersion {quote_value(api_version)[1:-1]}"
    return Finding(code, ("apiVersion",), message, hint)


def _kind_finding(kind: str, api_version: str) -> Finding | None:
    """Return the finding on an unknown kind, or on a known one that is misspelled.

    All kinds of Karpenter's groups are known. Kubernetes' own groups have many kinds that are not
    read here, so only a kind that is nearly equal to a known one counts as misspelled.
    """
    group = group_of(api_version)
    ours = [name for name, (its_group, _) in VALIDATED_KINDS.items() if its_group == group]
    if ours and kind not in VALIDATED_KINDS:
        message = f"{group} has no kind {quote_value(kind)}"
        return Finding("unknown-kind", ("kind",), message, did_you_mean(kind, ours))
    theirs = [name for name, version in KUBERNETES_KINDS.items() if version == api_version]
    meant = nearest(kind, theirs, _SIMILARITY_MIN) if kind not in KUBERNETES_KINDS else None
    if meant is not None:
        message = f"{api_version} has no kind {quote_value(kind)}"
        return Finding("unknown-kind", ("kind",), message, f"did you mean {meant}?")
    return None


def lines_of_document(document: Document) -> dict[str, int]:
    """Return the line of each key of a document by its dotted path."""
    return {
        ".".join(map(str, pointer)): document.place(pointer, of_key=True).line
        for pointer in _keys(document.data, ())
    }


def _keys(data: object, above: Pointer) -> Iterator[Pointer]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield (*above, str(key))
            yield from _keys(value, (*above, str(key)))
