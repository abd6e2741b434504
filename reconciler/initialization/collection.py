"""Sorts the objects that were read: those that a fleet takes over, migrated, and those left out.

Each object is kept as data, and with its comments if it came from a file.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final

from reconciler.desired.migration import automode, controller
from reconciler.desired.migration.nodeclass import migrate_node_class, node_class_of_provider
from reconciler.desired.migration.nodepool import (
    MigrationResult,
    migrate_node_pool,
    migrate_provisioner,
)
from reconciler.desired.migration.objects import Note, remove_live_fields
from reconciler.desired.migration.release import settings_of_release
from reconciler.desired.workloads.entries import select_entries
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.initialization.duplicates import without_duplicates
from reconciler.initialization.objects import SourceObject
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.grouping import group_by, group_pairs
from reconciler.model.json import JsonDict
from reconciler.model.text.counting import format_list
from reconciler.model.text.paths import is_below
from reconciler.source.document import Pointer
from reconciler.source.finding import field_path
from reconciler.source.resource import AUTO_MODE, VALIDATED_KINDS, group_of, is_ours
from reconciler.source.schema import value_at

_NAME_MAX: Final = 63
_AWS: Final = "karpenter.k8s.aws"

POOLS: Final = ("NodePool", "Provisioner")
CLASSES: Final = ("EC2NodeClass", "AWSNodeTemplate")
_OTHERS: Final = ("NodeOverlay", "CapacityBuffer")
_READABLE: Final = ("old-version", "wrong-version")
_OWNED: Final = ("NodeClaim", "Machine")
_NO_OBJECT: Final = ("missing-kind", "no-object", "not-an-object")
_ONE_INSTALLATION: Final = "write it in reconciler.yaml, or name the file with --prefer"
_ADOPT: Final = "describes a running node; `reconciler state adopt` takes nodes over"
_ORDER: Final = ("EC2NodeClass", "NodePool", "NodeOverlay", "CapacityBuffer")


@dataclass
class Collection:
    """The result: objects to take over in order, settings, and notes on everything else.

    ``other_kinds`` counts the objects that no plan depends on, and ``other_files`` are the files
    without an object that a plan depends on.
    """

    items: list[SourceObject] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    left_out: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    other_kinds: Counter[str] = field(default_factory=Counter)
    other_files: set[str] = field(default_factory=set)

    def of_kind(self, *kinds: str) -> list[SourceObject]:
        """Return the objects of some kinds, in order of their names."""
        return sorted((i for i in self.items if i.kind in kinds), key=lambda i: i.name)

    def note(self, item: SourceObject, note: Note) -> None:
        """Record a remark on an object."""
        path = field_path(note.pointer)
        self.notes.append(
            Diagnostic(
                note.severity,
                "migrated",
                f"{item.kind} {item.name}: {note.message}",
                item.place_of(note.pointer),
                path,
                note.hint,
            )
        )

    def leave_out(self, place: Place | None, message: str, hint: str = "") -> None:
        """Record that an object is not taken over, and why."""
        self.left_out.append(Diagnostic(Severity.WARNING, "left-out", message, place, hint=hint))


def collect(
    items: Iterable[SourceObject], prefer: Sequence[str] = (), *, any_provider: bool = False
) -> Collection:
    """Return the objects that a fleet takes over, migrated to the current API.

    Of two different objects with one name, that below one of the paths ``prefer`` is taken over.
    With ``any_provider``, NodePools of other clouds are taken over too.

    Raises:
        UsageError: two different objects have one name, and no path says which counts.
    """
    found = Collection()
    taken_over: list[SourceObject] = []
    stated: list[tuple[SourceObject, controller.ControllerSettings]] = []
    profile = ""
    every = list(items)
    made = {id(e) for e in select_entries((i.entry for i in every), BUILT_IN).left_out}
    for item in every:
        if id(item.entry) in made:
            found.leave_out(item.place, f"{_describe_object(item)} has ended, or has an owner here")
            continue
        settings = _controller_settings(item)
        if settings is not None:
            stated.append((item, settings))
            profile = settings.default_profile or profile
        elif _belongs_to_fleet(item, found, any_provider=any_provider):
            item.change(remove_live_fields)
            taken_over.append(item)
    _take_settings(stated, prefer, found)
    kept, errors = without_duplicates(taken_over, prefer, found.leave_out)
    found.notes += errors
    _migrate(kept, found, profile)
    return found


def _controller_settings(item: SourceObject) -> controller.ControllerSettings | None:
    if item.finding is None and controller.is_controller(item.data):
        return controller.settings_of_deployment(item.data)
    if item.kind == "ConfigMap" and item.name == controller.CONFIG_MAP:
        return controller.settings_of_config_map(item.data)
    return settings_of_release(item.data)


def _take_settings(
    stated: Sequence[tuple[SourceObject, controller.ControllerSettings]],
    prefer: Sequence[str],
    found: Collection,
) -> None:
    """Take over the settings of Karpenter; one with several values is left to the user."""
    preferred = [one for one in stated if any(is_below(one[0].place.file, p) for p in prefer)]
    every = preferred or stated
    for item, settings in every:
        found.leave_out(
            item.place, f"{_describe_object(item)} runs Karpenter; its settings are read"
        )
        for name, why in settings.left_out.items():
            found.leave_out(item.place, f"setting {name[:80]} {why}")
    _merge_settings([settings for _, settings in every], found)


def _merge_settings(every: Iterable[controller.ControllerSettings], found: Collection) -> None:
    values = group_pairs(pair for settings in every for pair in settings.values.items())
    for key, given in values.items():
        if all(value == given[0] for value in given):
            found.settings[key] = given[0]
        else:
            shown = format_list(dict.fromkeys(str(value) for value in given))
            found.leave_out(None, f"setting {key} has several values: {shown}", _ONE_INSTALLATION)


def _describe_object(item: SourceObject) -> str:
    return f"{item.kind[:80]} {item.name[:80]}".strip() or "an object without a kind"


def _belongs_to_fleet(item: SourceObject, found: Collection, *, any_provider: bool) -> bool:
    """Return whether an object belongs in a fleet; if not, the reason is recorded."""
    kind, finding = item.kind, item.finding
    others = _kind_of_others(item)
    if others:
        found.other_kinds[others] += 1
        return False
    if kind in _OWNED:
        found.leave_out(item.place, f"{_describe_object(item)} {_ADOPT}")
        return False
    if kind in (*POOLS, *CLASSES) and (finding is None or finding.code in _READABLE):
        return _makes_nodes(item, found, any_provider=any_provider)
    if finding is None:
        return automode.is_auto_mode_class(item.data) or _is_read(item, found)
    if finding.code in _NO_OBJECT:
        found.other_files.add(item.place.file)
    else:
        what = f"{item.kind}: " if item.kind else ""
        found.leave_out(item.place, f"{what}{finding.message}", finding.hint)
    return False


def _is_read(item: SourceObject, found: Collection) -> bool:
    """Return whether an object is a workload, or another that plans read, with a name."""
    kind = item.kind
    if kind not in _OTHERS and not BUILT_IN.reads(item.entry.api_version, kind):
        found.other_kinds[kind] += 1
        return False
    if _has_malformed_name(item):
        message = f"the name of this {kind} is no text"
        found.leave_out(item.place, message, "write it in quotes, or render the template first")
        return False
    if not _is_named(item):
        message = f"the {kind} has no name, so no cluster has it"
        found.leave_out(item.place, message, "set metadata.name if it is no template of pods")
        return False
    return True


def _kind_of_others(item: SourceObject) -> str:
    """Return the kind of an object of another product with its name, empty for every other one."""
    kind, version = item.kind, item.entry.api_version
    if kind in VALIDATED_KINDS and not is_ours(version, kind):
        return f"{kind} of {group_of(version)[:80]}"
    if group_of(version) != AUTO_MODE:
        return ""
    is_class = item.finding is None and automode.is_auto_mode_class(item.data)
    return "" if is_class else f"{kind} of EKS Auto Mode"


def _makes_nodes(item: SourceObject, found: Collection, *, any_provider: bool) -> bool:
    """Return whether a NodePool or a class is one of AWS with a name; if not, say which it is."""
    if (other := other_provider(item)) and not any_provider:
        found.leave_out(item.place, f"{_describe_object(item)} makes nodes of {other}, not of EC2")
        return False
    if not item.name:
        found.leave_out(item.place, f"the {item.kind} has no name", "set metadata.name")
    return bool(item.name)


def _is_named(item: SourceObject) -> bool:
    metadata = item.data.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("name") or metadata.get("generateName"))


def _has_malformed_name(item: SourceObject) -> bool:
    """Return whether a name is a mapping or a list, as YAML reads a placeholder in braces."""
    metadata = item.data.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), dict | list)


def other_provider(item: SourceObject) -> str:
    """Return the kind of the node class of another provider, empty for one of AWS."""
    reference = value_at(item.data, ("spec", "template", "spec", "nodeClassRef"))
    if item.kind != "NodePool" or not isinstance(reference, dict):
        return ""
    group = str(reference.get("group") or reference.get("apiVersion") or _AWS).partition("/")[0]
    is_aws = group in (_AWS, AUTO_MODE) or reference.get("kind") in CLASSES
    return "" if is_aws else str(reference.get("kind", group))


def _migrate(items: list[SourceObject], found: Collection, profile: str) -> None:
    kubelets: dict[str, JsonDict | None] = {}
    inline: list[tuple[SourceObject, JsonDict]] = []
    for item in items:
        if automode.is_auto_mode_class(item.data):
            notes = item.change(automode.convert_class)
        elif item.kind in POOLS:
            edit = migrate_provisioner if item.kind == "Provisioner" else migrate_node_pool
            migrated: MigrationResult = item.change(edit)
            kubelets[item.name] = migrated.kubelet
            if migrated.provider is not None:
                inline.append((item, migrated.provider))
            notes = [*migrated.notes, *item.change(automode.convert_pool)]
        elif item.kind in CLASSES:
            notes = item.change(partial(migrate_node_class, default_profile=profile))
        else:
            notes = []
        found.items.append(item)
        for note in notes:
            found.note(item, note)
    for pool, provider in inline:
        _add_inline_class(found, pool, provider, profile)
    _move_kubelets(found, kubelets)


def _add_inline_class(
    found: Collection, pool: SourceObject, provider: JsonDict, profile: str
) -> None:
    """Add the class of a Provisioner's ``spec.provider``, under a name that no other class has."""
    used = {item.name for item in found.of_kind("EC2NodeClass")}
    name = pool.name
    if name in used:
        name = _distinct_name(f"{name}-provider", used)
        pool.change(partial(_set_class_reference, name=name))
        message = f"gets EC2NodeClass {name}: another class has the name {pool.name}"
        found.note(pool, Note(Severity.INFO, ("spec", "provider"), message))
    data = node_class_of_provider(name, provider, profile)
    found.items.append(SourceObject(pool.entry, None, data, is_made=True))


def _move_kubelets(found: Collection, kubelets: dict[str, JsonDict | None]) -> None:
    """Copy to each EC2NodeClass the kubelet settings of its NodePools.

    NodePools that share a class but not their settings get a copy of the class each.
    """
    classes = {item.name: item for item in found.items if item.kind == "EC2NodeClass"}
    users = group_by(found.of_kind("NodePool"), class_of)
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


def class_of(pool: SourceObject) -> str:
    """Return the name of the class that a NodePool refers to, empty if it has none."""
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


def sorted_objects(found: Collection) -> Iterator[SourceObject]:
    """Yield the objects in the order of a report: classes, pools, then the rest by name."""
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    yield from sorted(
        found.items,
        key=lambda i: (rank.get(i.kind, len(rank)), i.kind, i.entry.namespace, i.name),
    )
