"""Sorts the objects that were read: those that a fleet takes over, migrated, and those left out.

Each object is kept as data, and with its comments if it came from a file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from io import StringIO
from typing import TYPE_CHECKING, Final, TypeVar

from reconciler.desired.fleet import SourceFile
from reconciler.desired.migration import controller
from reconciler.desired.migration.nodeclass import migrate_node_class, node_class_of_provider
from reconciler.desired.migration.nodepool import (
    MigrationResult,
    migrate_node_pool,
    migrate_provisioner,
)
from reconciler.desired.migration.objects import (
    Note,
    placeholders,
    remove_live_fields,
    substitute_placeholders,
)
from reconciler.desired.workloads.entries import select_entries
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import Finding, field_path
from reconciler.source.objects import Entry, entries, without_nulls

if TYPE_CHECKING:
    from ruamel.yaml import YAML

_NAME_MAX: Final = 63

T = TypeVar("T")


_POOLS: Final = ("NodePool", "Provisioner")
_CLASSES: Final = ("EC2NodeClass", "AWSNodeTemplate")
_OTHERS: Final = ("NodeOverlay", "CapacityBuffer")
_READABLE: Final = ("old-version", "wrong-version")
_OWNED: Final = ("NodeClaim", "Machine")
_ADOPT: Final = "describes a running node; `reconciler state adopt` takes nodes over"
_ORDER: Final = ("EC2NodeClass", "NodePool", "NodeOverlay", "CapacityBuffer")


@dataclass
class Collection:
    """The result: objects to take over in order, settings, and notes on everything else."""

    items: list[SourceObject] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    left_out: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[SourceObject]:
        """Return the objects of some kinds, in order of their names."""
        return sorted((i for i in self.items if i.kind in kinds), key=lambda i: i.name)

    def note(self, item: SourceObject, note: Note) -> None:
        """Record a remark on an object."""
        path = field_path(note.pointer)
        self.notes.append(
            Diagnostic(
                note.severity, "migrated", f"{item.kind} {item.name}: {note.message}",
                item.place_of(note.pointer), path, note.hint,
            )
        )  # fmt: skip

    def leave_out(self, place: Place | None, message: str, hint: str = "") -> None:
        """Record that an object is not taken over, and why."""
        self.left_out.append(Diagnostic(Severity.WARNING, "left-out", message, place, hint=hint))


def collect(items: Iterable[SourceObject]) -> Collection:
    """Return the objects that a fleet takes over, migrated to the current API."""
    found = Collection()
    taken_over: list[SourceObject] = []
    profile = ""
    every = list(items)
    made = {id(e) for e in select_entries((i.entry for i in every), BUILT_IN).left_out}
    for item in every:
        if id(item.entry) in made:
            found.leave_out(item.place, f"{_describe_object(item)} has ended, or has an owner here")
            continue
        item.change(remove_live_fields)
        settings = _controller_settings(item)
        if settings is not None:
            found.settings.update(settings.values)
            profile = settings.default_profile or profile
            found.leave_out(
                item.place, f"{_describe_object(item)} runs Karpenter; its settings are read"
            )
            for name, why in settings.left_out.items():
                found.leave_out(item.place, f"setting {name[:80]} {why}")
        elif _belongs_to_fleet(item, found):
            taken_over.append(item)
    _migrate(taken_over, found, profile)
    return found


def _controller_settings(item: SourceObject) -> controller.ControllerSettings | None:
    if item.finding is None and controller.is_controller(item.data):
        return controller.settings_of_deployment(item.data)
    if item.kind == "ConfigMap" and item.name == controller.CONFIG_MAP:
        return controller.settings_of_config_map(item.data)
    return None


def _describe_object(item: SourceObject) -> str:
    return f"{item.kind[:80]} {item.name[:80]}".strip() or "an object without a kind"


def _belongs_to_fleet(item: SourceObject, found: Collection) -> bool:
    """Return whether an object belongs in a fleet; if not, the reason is recorded."""
    kind, finding = item.kind, item.finding
    if kind in _OWNED:
        found.leave_out(item.place, f"{_describe_object(item)} {_ADOPT}")
        return False
    if kind in (*_POOLS, *_CLASSES) and (finding is None or finding.code in _READABLE):
        if item.name:
            return True
        found.leave_out(item.place, f"the {kind} has no name", "set metadata.name")
        return False
    if finding is not None:
        what = f"{item.kind}: " if item.kind else ""
        found.leave_out(item.place, f"{what}{finding.message}", finding.hint)
        return False
    if kind in _OTHERS or BUILT_IN.reads(item.entry.api_version, kind):
        return True
    found.leave_out(item.place, f"{_describe_object(item)}: the planner does not read this kind")
    return False


def _migrate(items: list[SourceObject], found: Collection, profile: str) -> None:
    kubelets: dict[str, JsonDict | None] = {}
    inline: list[tuple[SourceObject, JsonDict]] = []
    for item in items:
        if item.kind in _POOLS:
            if not _is_first(item, "NodePool", found):
                continue
            edit = migrate_provisioner if item.kind == "Provisioner" else migrate_node_pool
            migrated: MigrationResult = item.change(edit)
            kubelets[item.name] = migrated.kubelet
            if migrated.provider is not None:
                inline.append((item, migrated.provider))
            notes = migrated.notes
        elif item.kind in _CLASSES:
            if not _is_first(item, "EC2NodeClass", found):
                continue
            notes = item.change(partial(migrate_node_class, default_profile=profile))
        elif _is_first(item, item.kind, found):
            notes = []
        else:
            continue
        found.items.append(item)
        for note in notes:
            found.note(item, note)
    for pool, provider in inline:
        data = node_class_of_provider(pool.name, provider, profile)
        found.items.append(SourceObject(pool.entry, None, data, is_changed=True))
    _move_kubelets(found, kubelets)


def _is_first(item: SourceObject, kind: str, found: Collection) -> bool:
    """Return whether no object of that name was taken over yet; if not, the reason is recorded."""
    version = item.entry.api_version
    space = item.entry.namespace if BUILT_IN.is_namespaced(version, kind) else ""
    unique = BUILT_IN.object_kind(version, kind)
    for other in found.items if item.name else ():
        known = other.entry.namespace if space else ""
        its_kind = BUILT_IN.object_kind(other.entry.api_version, other.kind)
        if (its_kind, other.name, known) == (unique, item.name, space):
            message = f"duplicate {kind} {item.name}, the one at {other.place} is taken over"
            found.leave_out(item.place, message, "to have both, rename one and repeat the command")
            return False
    return True


def _move_kubelets(found: Collection, kubelets: dict[str, JsonDict | None]) -> None:
    """Copy to each EC2NodeClass the kubelet settings of its NodePools.

    NodePools that share a class but not their settings get a copy of the class each.
    """
    classes = {item.name: item for item in found.items if item.kind == "EC2NodeClass"}
    users: dict[str, list[SourceObject]] = {}
    for pool in found.of_kind("NodePool"):
        users.setdefault(_class_of(pool), []).append(pool)
    for name, pools in sorted(users.items()):
        settings = [kubelets.get(pool.name) for pool in pools]
        if not any(settings):
            continue
        node_class = classes.get(name)
        if node_class is None:
            for pool in pools:
                if kubelets.get(pool.name):
                    message = f"EC2NodeClass {name} is not here, which kubelet settings belong to"
                    hint = "set spec.kubelet of that class by hand"
                    found.note(pool, Note(Severity.ERROR, ("spec",), message, hint))
            continue
        _split_node_class(found, node_class, pools, kubelets)


def _distinct_name(name: str, used: set[str]) -> str:
    """Return a name of at most 63 characters that no other object has."""
    short = name[:_NAME_MAX].rstrip("-.")
    if short == name and name not in used:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _NAME_MAX - 9].rstrip('-.')}-{digest}"


def _split_node_class(
    found: Collection,
    original: SourceObject,
    pools: list[SourceObject],
    kubelets: dict[str, JsonDict | None],
) -> None:
    names = {item.name for item in found.items if item.kind == "EC2NodeClass"}
    first = kubelets.get(pools[0].name)
    template = copy.deepcopy(original)
    if first:
        original.change(partial(_set_kubelet, kubelet=first))
    for pool in pools[1:]:
        kubelet = kubelets.get(pool.name)
        if kubelet == first:
            continue
        copied = copy.deepcopy(template)
        name = _distinct_name(f"{original.name}-{pool.name}", names)
        names.add(name)
        copied.change(partial(_rename, name=name))
        if kubelet:
            copied.change(partial(_set_kubelet, kubelet=kubelet))
        pool.change(partial(_set_class_reference, name=name))
        found.items.append(copied)
        message = f"gets EC2NodeClass {name}: it shared {original.name}, but not its kubelet"
        found.note(pool, Note(Severity.INFO, ("spec",), message))


def _class_of(pool: SourceObject) -> str:
    from reconciler.source.schema import value_at

    at: Pointer = ("spec", "template", "spec", "nodeClassRef", "name")
    return str(value_at(pool.data, at) or "")


def _set_kubelet(data: JsonDict, kubelet: JsonDict) -> None:
    spec = data.get("spec")
    if isinstance(spec, dict):
        spec.setdefault("kubelet", copy.deepcopy(kubelet))


def _rename(data: JsonDict, name: str) -> None:
    data["metadata"]["name"] = name


def _set_class_reference(data: JsonDict, name: str) -> None:
    data["spec"]["template"]["spec"]["nodeClassRef"]["name"] = name


def fill_placeholders(found: Collection, values: dict[str, str]) -> None:
    """Fill in the placeholders that have a value, and record the others."""
    for item in found.items:
        known = [p for p in placeholders(item.data) if p.text[2:-1] in values]
        for pointer in dict.fromkeys(p.pointer for p in known):
            item.change(partial(_fill_placeholder, pointer=pointer, values=values))
        for text in dict.fromkeys(p.text for p in known):
            message = f"{text} is replaced by {values[text[2:-1]]}"
            found.note(item, Note(Severity.INFO, ("spec",), message))
        for placeholder in placeholders(item.data):
            message = f"contains the placeholder {placeholder.text[:60]}"
            found.note(
                item, Note(Severity.WARNING, placeholder.pointer, message, "write its value")
            )


def _fill_placeholder(data: JsonDict, pointer: Pointer, values: dict[str, str]) -> None:
    *above, last = pointer
    place: object = data
    for step in above:
        place = place[step]  # type: ignore[index] # the pointer was found in this very object
    if isinstance(place, dict | list):
        old = place[last]  # type: ignore[index]
        place[last] = type(old)(substitute_placeholders(str(old), values))  # type: ignore[index]


def sorted_objects(found: Collection) -> Iterator[SourceObject]:
    """Yield the objects in the order of a report: classes, pools, then the rest by name."""
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    yield from sorted(
        found.items,
        key=lambda i: (rank.get(i.kind, len(rank)), i.kind, i.entry.namespace, i.name),
    )


_MARKER: Final = re.compile(r"^(?:---(?=[ \t\r\n]|$)[ \t]*|\.\.\.(?=[ \t\r\n]|$).*)", re.MULTILINE)


_INDENTED_LIST: Final = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n\1 +- ", re.MULTILINE)


_BLANK: Final = re.compile(r"\A(?:[ \t]*+\r?\n)++")


@dataclass
class SourceObject:
    """One object: its plain data, and the same with comments (``tree``) if it has any.

    ``text`` is the original text, None if it was part of a List. ``entry`` and ``finding`` are the
    result of reading it as part of a fleet.
    """

    entry: Entry
    finding: Finding | None
    data: JsonDict
    tree: JsonDict | None = None
    text: str | None = None
    is_changed: bool = False

    @property
    def kind(self) -> str:
        return str(self.data.get("kind", ""))

    @property
    def name(self) -> str:
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def place(self) -> Place:
        return self.entry.place(())

    def place_of(self, pointer: Pointer) -> Place:
        """Return the place of a field, or of its nearest ancestor."""
        return self.entry.place(pointer)

    def change(self, edit: Callable[[JsonDict], T]) -> T:
        """Apply an edit to the data, and to the copy with comments; return what it returns."""
        before = copy.deepcopy(self.data)
        result = edit(self.data)
        if self.data != before:
            self.is_changed = True
        if self.tree is not None:
            try:
                edit(self.tree)
            except (AttributeError, LookupError, TypeError, ValueError):
                self.tree = None  # ruamel.yaml reads a key or value differently from Kubernetes
        return result

    def to_yaml(self) -> str:
        """Return the object as YAML: the original text if unchanged, else with its comments.

        Comments of an object in a List, or if a round trip would alter data, are not kept.
        """
        if self.text is not None and not self.is_changed:
            return self.text.rstrip() + "\n"
        text = _dump_tree(self.tree, self.text) if self.tree is not None and self.text else None
        if text is not None and _parses_to(text, self.data):
            return text
        from reconciler.source.plainyaml import dump

        return dump(self.data, sort_keys=False)


def objects_in_file(file: SourceFile) -> tuple[list[SourceObject], list[Diagnostic]]:
    """Return the objects of a file, and why parts of it cannot be read."""
    documents, findings = parse_documents(file.path, file.content)
    if findings:
        return [], findings
    texts = _document_texts(documents)
    return [item for d in documents for item in _objects_in_document(d, texts.get(d.mark[:2]))], []


def objects_from_cluster(objects: Sequence[JsonDict], source: str) -> list[SourceObject]:
    """Return the objects that a cluster has listed."""
    return [
        SourceObject(entry, finding, copy.deepcopy(entry.pruned_data))
        for number, data in enumerate(objects, 1)
        for entry, finding in entries(Document(f"{source}#{number}", data, (1, 1, None)))
        if isinstance(entry.pruned_data, dict)
    ]


def _objects_in_document(document: Document, text: str | None) -> Iterator[SourceObject]:
    for entry, finding in entries(document):
        plain = entry.pruned_data
        data = copy.deepcopy(plain) if isinstance(plain, dict) else {}
        if entry.base or text is None:
            yield SourceObject(entry, finding, data)
        else:
            yield SourceObject(entry, finding, data, _parse_tree(text), text)


def _document_texts(documents: Sequence[Document]) -> dict[tuple[int, int], str]:
    """Return the text of each document by its position, empty if the file cannot be split.

    Comments before the first marker belong to the document after it.
    """
    if not documents:
        return {}
    text = documents[0].text
    starts = [0, *(m.end() for m in _MARKER.finditer(text))]
    ends = [*(m.start() for m in _MARKER.finditer(text)), len(text)]
    found: list[str] = []
    comments = ""
    for start, end in zip(starts, ends, strict=True):
        part = _BLANK.sub("", text[start:end])
        if all(not line.strip() or line.lstrip().startswith("#") for line in part.splitlines()):
            comments += part
        else:
            found.append(comments + part)
            comments = ""
    if len(found) != len(documents):
        return {}
    return {
        document.mark[:2]: part
        for document, part in zip(documents, found, strict=True)
        if _parses_to(part, document.data)
    }


def _parses_to(text: str, data: object) -> bool:
    documents, findings = parse_documents("", text.encode())
    if findings or len(documents) != 1:
        return False
    return without_nulls(documents[0].data) == without_nulls(data)


def _yaml(text: str) -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 10**6
    if _INDENTED_LIST.search(text):
        yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _parse_tree(text: str) -> JsonDict | None:
    from ruamel.yaml.error import YAMLError

    try:
        tree = _yaml(text).load(text)
    except (YAMLError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def _dump_tree(tree: JsonDict, text: str) -> str | None:
    from ruamel.yaml.error import YAMLError

    stream = StringIO()
    try:
        _yaml(text).dump(tree, stream)
    except (YAMLError, ValueError, RecursionError):
        return None
    return stream.getvalue()
