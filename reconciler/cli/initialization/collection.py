"""Sorts the objects that were read: what a fleet takes over, migrated, and what is left out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from reconciler.cli.initialization.items import SourceObject
from reconciler.desired.migration import controller
from reconciler.desired.migration.live import without_live_fields
from reconciler.desired.migration.nodeclass import migrate_node_class, node_class_of_provider
from reconciler.desired.migration.nodepool import (
    Migrated,
    migrate_node_pool,
    migrate_provisioner,
)
from reconciler.desired.migration.note import Note
from reconciler.desired.migration.placeholders import filled, placeholders
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.source.document import Pointer
from reconciler.source.finding import field_path
from reconciler.source.resource import NAMESPACED, WORKLOADS

_POOLS: Final = ("NodePool", "Provisioner")
_CLASSES: Final = ("EC2NodeClass", "AWSNodeTemplate")
_OTHERS: Final = ("NodeOverlay", "CapacityBuffer")
_READABLE: Final = ("old-version", "wrong-version")
_OWNED: Final = ("NodeClaim", "Machine")
_ADOPT: Final = "describes a running node; `reconciler state adopt` takes nodes over"
_ORDER: Final = ("EC2NodeClass", "NodePool", "NodeOverlay", "CapacityBuffer")


@dataclass
class Collection:
    """What was read: objects to take over in order, settings, and remarks on everything else."""

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
        """Record what is not taken over, and why."""
        self.left_out.append(Diagnostic(Severity.WARNING, "left-out", message, place, hint=hint))


def collected(items: Iterable[SourceObject]) -> Collection:
    """Return what a fleet takes over from the objects, in the form of today's API."""
    found = Collection()
    kept: list[SourceObject] = []
    profile = ""
    for item in items:
        item.change(without_live_fields)
        settings = _settings(item)
        if settings is not None:
            found.settings.update(settings.values)
            profile = settings.default_profile or profile
            found.leave_out(item.place, f"{_named(item)} runs Karpenter; its settings are read")
            for name, why in settings.left_out.items():
                found.leave_out(item.place, f"setting {name[:80]} {why}")
        elif _is_taken(item, found):
            kept.append(item)
    _migrate(kept, found, profile)
    return found


def _settings(item: SourceObject) -> controller.ControllerSettings | None:
    if item.finding is None and controller.is_controller(item.data):
        return controller.settings_of_deployment(item.data)
    if item.kind == "ConfigMap" and item.name == controller.CONFIG_MAP:
        return controller.settings_of_config_map(item.data)
    return None


def _named(item: SourceObject) -> str:
    return f"{item.kind[:80]} {item.name[:80]}".strip() or "an object without a kind"


def _is_taken(item: SourceObject, found: Collection) -> bool:
    """Return whether an object belongs in a fleet; if not, the reason is recorded."""
    kind, finding = item.kind, item.finding
    if kind in _OWNED:
        found.leave_out(item.place, f"{_named(item)} {_ADOPT}")
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
    if kind in _OTHERS or WORKLOADS.get(kind) == item.entry.api_version:
        return True
    found.leave_out(item.place, f"{_named(item)}: the planner does not read this kind")
    return False


def _migrate(kept: list[SourceObject], found: Collection, profile: str) -> None:
    kubelets: dict[str, JsonDict | None] = {}
    inline: list[tuple[SourceObject, JsonDict]] = []
    for item in kept:
        if item.kind in _POOLS:
            if not _is_first(item, "NodePool", found):
                continue
            edit = migrate_provisioner if item.kind == "Provisioner" else migrate_node_pool
            migrated: Migrated = item.change(edit)
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
    space = item.entry.namespace if kind in NAMESPACED else ""
    for other in found.items:
        known = other.entry.namespace if kind in NAMESPACED else ""
        if (other.kind, other.name, known) == (kind, item.name, space):
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
        wanted = [kubelets.get(pool.name) for pool in pools]
        if not any(wanted):
            continue
        node_class = classes.get(name)
        if node_class is None:
            for pool in pools:
                if kubelets.get(pool.name):
                    message = f"EC2NodeClass {name} is not here, which kubelet settings belong to"
                    hint = "set spec.kubelet of that class by hand"
                    found.note(pool, Note(Severity.ERROR, ("spec",), message, hint))
            continue
        _share(found, node_class, pools, kubelets)


def _share(
    found: Collection,
    original: SourceObject,
    pools: list[SourceObject],
    kubelets: dict[str, JsonDict | None],
) -> None:
    first = kubelets.get(pools[0].name)
    template = copy.deepcopy(original)
    if first:
        original.change(partial(_set_kubelet, kubelet=first))
    for pool in pools[1:]:
        kubelet = kubelets.get(pool.name)
        if kubelet == first:
            continue
        made = copy.deepcopy(template)
        name = f"{original.name}-{pool.name}"[:63].rstrip("-.")
        made.change(partial(_rename, name=name))
        if kubelet:
            made.change(partial(_set_kubelet, kubelet=kubelet))
        pool.change(partial(_refer, name=name))
        found.items.append(made)
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


def _refer(data: JsonDict, name: str) -> None:
    data["spec"]["template"]["spec"]["nodeClassRef"]["name"] = name


def fill(found: Collection, values: dict[str, str]) -> None:
    """Fill in the placeholders that have a value, and record those that are left."""
    for item in found.items:
        known = [p for p in placeholders(item.data) if p.text[2:-1] in values]
        for pointer in dict.fromkeys(p.pointer for p in known):
            item.change(partial(_fill, pointer=pointer, values=values))
        for text in dict.fromkeys(p.text for p in known):
            message = f"{text} is replaced by {values[text[2:-1]]}"
            found.note(item, Note(Severity.INFO, ("spec",), message))
        for one in placeholders(item.data):
            message = f"contains the placeholder {one.text[:60]}"
            found.note(item, Note(Severity.WARNING, one.pointer, message, "write its value"))


def _fill(data: JsonDict, pointer: Pointer, values: dict[str, str]) -> None:
    *above, last = pointer
    place: object = data
    for step in above:
        place = place[step]  # type: ignore[index] # the pointer was found in this very object
    if isinstance(place, dict | list):
        old = place[last]  # type: ignore[index]
        place[last] = type(old)(filled(str(old), values))  # type: ignore[index]


def ordered(found: Collection) -> Iterator[SourceObject]:
    """Yield the objects in the order of a report: classes, pools, then the rest by name."""
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    yield from sorted(
        found.items,
        key=lambda i: (rank.get(i.kind, len(rank)), i.kind, i.entry.namespace, i.name),
    )
