"""Read the desired fleet from its files, and collect every finding.

The order of the files, of their documents and of the keys in these does not matter: objects are
kept in a total order by kind, namespace and name, findings by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.desired import automode, placeholders, policies, sizes, snapshots, spellings
from reconciler.desired.findings import (
    diagnostic_of,
    duplicate_finding,
    findings_to_report,
    missing_pools,
    skipped_objects,
    unknown_workload,
)
from reconciler.desired.rules.versions import check_settings_version, check_version
from reconciler.desired.settings import checks
from reconciler.desired.sources import chart, listed
from reconciler.desired.sources.unread import LeftOutObjects
from reconciler.desired.workloads.entries import pods_in, select_entries
from reconciler.desired.workloads.kinds import kind_table
from reconciler.model.decision.policy import Policy, PolicySource
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.settings import OLDEST, KarpenterVersion
from reconciler.source import schema
from reconciler.source.document import Document, parse_documents
from reconciler.source.finding import Finding, without_reported
from reconciler.source.objects import Entry, entries, foreign_file, lines_of_document
from reconciler.source.resource import (
    AUTO_MODE,
    CONFIG_FILES,
    LOCK_FILE,
    VALIDATED_KINDS,
    Resource,
    group_of,
    is_other_class,
    is_ours,
    schema_name,
)

if TYPE_CHECKING:
    from reconciler.desired.lock import Lock


RENAMED: Final = "name-reference"
"""The finding on a class that kustomize has renamed, in place of one that it was not found."""
UNREADABLE_CODES: Final = frozenset({"bad-key", "bad-number", "bad-tag", "unsupported-tag"})
"""Codes of values that could not be parsed: findings about their shape add nothing."""


class SourceFile(NamedTuple):
    """One file of the fleet folder; ``path`` is relative to it, with forward slashes."""

    path: str
    content: bytes

    def documents(self) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents of the file, and what cannot be read of it."""
        documents, findings = parse_documents(self.path, self.content)
        foreign = foreign_file(self.content, findings)
        if foreign is not None:
            return [], [foreign]
        if findings and b"{{" in self.content:
            from reconciler.desired.templated import has_control_flow, templated_documents

            if not has_control_flow(self.content):
                filled, left = templated_documents(self.path, self.content)
                return (documents, findings) if left else (filled, [])
        return documents, findings


class FolderEntries(NamedTuple):
    """The ``objects`` of a folder and its configuration file, valid or not.

    ``config`` is the data of that file if it is valid, else empty.
    """

    config: JsonDict
    objects: Sequence[Entry]
    config_file: Entry | None


Advice = Callable[[FolderEntries], Iterable[tuple[Entry, Finding]]]
"""Returns findings on entries of a folder."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The desired objects, each tuple in a total order, the engine's own config, and its lock.

    Of the lock, only the entries that still match the objects are included. ``config_lines`` and
    ``lock_lines`` are the lines of their fields by dotted path. ``policies`` are in the config.
    ``auto_mode`` are the classes of EKS Auto Mode, which a plan only compares.
    """

    node_pools: tuple[Resource, ...] = ()
    node_claims: tuple[Resource, ...] = ()
    node_overlays: tuple[Resource, ...] = ()
    node_classes: tuple[Resource, ...] = ()
    capacity_buffers: tuple[Resource, ...] = ()
    workloads: tuple[Resource, ...] = ()
    config: JsonDict = field(default_factory=dict)
    lock: Lock | None = None
    config_file: str = ""
    config_lines: Mapping[str, int] = field(default_factory=dict)
    lock_lines: Mapping[str, int] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    auto_mode: Mapping[str, JsonDict] = field(default_factory=dict)

    @property
    def resources(self) -> tuple[Resource, ...]:
        """All objects but the config."""
        return (
            *self.node_pools,
            *self.node_claims,
            *self.node_overlays,
            *self.node_classes,
            *self.capacity_buffers,
            *self.workloads,
        )

    def lock_for(self, region: str) -> Lock | None:
        """Return the lock if it is for the region, otherwise None."""
        return self.lock if self.lock is not None and self.lock.region == region else None


def read_fleet(
    files: Iterable[SourceFile],
    *,
    unread: Iterable[Diagnostic] = (),
    any_class: bool = False,
    allow_empty: bool = False,
    advise: Advice | None = None,
    karpenter: KarpenterVersion | None = None,
    known: Mapping[str, str] | None = None,
    is_complete: bool = False,
    leaving: LeftOutObjects | None = None,
) -> tuple[Fleet, tuple[Diagnostic, ...]]:
    """Return the fleet that ``files`` describe, and every finding, in order of place.

    An object with an error is left out of the fleet: use the fleet only where no finding is an
    error. ``unread`` are the findings about files that were not read at all; they are included,
    and objects that such a file may contain are not reported as missing. ``any_class`` treats every
    node class as known, as with a custom catalog; with ``allow_empty``, a folder without any
    NodePool is only a warning. ``advise`` returns more findings at the end. ``karpenter`` is the
    release that the files follow, in place of the one that they name themselves, and ``known`` are
    the values of placeholders that the operator's settings give (see ``placeholders``). If the
    folder ``is_complete``, a NodePool without its node class is an error. ``leaving`` collects the
    files and objects with errors that are left out, for each of which there is a warning.
    """
    reader = _FleetReader(karpenter, any_class=any_class, leaving=leaving)
    files, observed = snapshots.without_snapshots(files)
    reader.diagnostics += (*unread, *observed)
    reader.broken = reader.has_errors()
    reader.operators = known or {}
    reader.known = placeholders.known_values({}, reader.operators)
    # The configuration first: it names the release of Karpenter, values of placeholders, and kinds.
    for file in sorted(files, key=lambda f: (f.path not in CONFIG_FILES, f.path)):
        if file.path == LOCK_FILE:
            reader.read_lock(file.content)
            continue
        documents = reader.documents_of(file)
        if file.path in CONFIG_FILES:
            reader.read_config(documents)
        else:
            for document in documents:
                reader.read_document(document)
    reader.finish(allow_empty=allow_empty, is_complete=is_complete)
    if advise is not None:
        reader.add_advice(advise)
    found = automode.without_selected_labels(reader.diagnostics)
    return reader.fleet(), findings_to_report(found)


class _FleetReader:
    """Reads the files of a fleet; ``broken`` is whether objects may be missing."""

    def __init__(
        self,
        karpenter: KarpenterVersion | None,
        *,
        any_class: bool,
        leaving: LeftOutObjects | None,
    ) -> None:
        self.karpenter = karpenter
        self.any_class = any_class
        self.leaving = leaving
        self.diagnostics: list[Diagnostic] = []
        self.resources: dict[tuple[str, str, str], tuple[Resource, Entry]] = {}
        self.seen: dict[tuple[str, str, str], Entry] = {}
        self.skipped: dict[str, int] = {}
        self.workloads: list[Entry] = []
        self.kinds = kind_table({})
        self.config: JsonDict = {}
        self.config_entry: Entry | None = None
        self.unread: dict[tuple[str, int], int] = {}
        self.config_file = ""
        self.policies: tuple[Policy, ...] = ()
        self.config_lines: dict[str, int] = {}
        self.lock: Lock | None = None
        self.lock_lines: dict[str, int] = {}
        self.broken = False
        self.operators: Mapping[str, str] = {}
        self.known: Mapping[str, str] = {}
        self.left: list[tuple[Entry, Finding]] = []
        self.auto_mode: list[Entry] = []

    def read_config(self, documents: list[Document]) -> None:
        """Check the engine's own settings; the first document counts."""
        for number, document in enumerate(documents):
            entry = Entry(document, (), document.data)
            if number:
                self._add(entry, Finding("extra-document", (), "only the first document is read"))
            else:
                self.config_entry = entry
                faults = schema.check_schema("reconciler.v1", entry.pruned_data)
                if isinstance(entry.pruned_data, dict):
                    faults += self._read_policies(entry, faults)
                    faults += checks.misplaced_settings(entry.pruned_data)
                    faults += listed.check_sources(entry.pruned_data)
                    if not faults:
                        faults += checks.unusable_settings(entry.pruned_data)
                for finding in faults:
                    self._add(entry, finding)
                if not faults:
                    self.config = entry.pruned_data
                    for finding in (
                        *check_settings_version(self.config, self._followed_release()),
                        *checks.schedules_without_time_zone(self.config),
                    ):
                        self._add(entry, finding)
                    self.kinds = kind_table(self.config)
                    self.config_file = document.file
                    self.known = placeholders.known_values(self.config, self.operators)
                    self.config_lines = lines_of_document(document)

    def _read_policies(self, entry: Entry, faults: Iterable[Finding]) -> list[Finding]:
        """Read the policies, unless one of the ``faults`` is theirs; return their own findings.

        An error elsewhere in the file does not hide the errors in their expressions.
        """
        if any(fault.pointer[:1] == ("policies",) for fault in faults):
            return []
        found = list(policies.check_policies(entry.pruned_data))
        if not found:
            self.policies = policies.policies_of(entry, PolicySource.HEAD)
        return found

    def read_lock(self, content: bytes) -> None:
        """Read the lock file; an error in it is one finding."""
        from reconciler.desired import lock

        found = lock.read_lock(content)
        if isinstance(found, Diagnostic):
            self.diagnostics.append(found)
        else:
            self.lock = found
            self.lock_lines = lock.lines_of_lock(content)

    def read_document(self, document: Document) -> None:
        for entry, finding in entries(document):
            is_known = is_ours(entry.api_version, entry.kind)
            if is_known and (finding is None or finding.code == "old-version"):
                self._read_known_kind(entry, finding)
            elif finding is not None:
                if not self._leaves_out(entry, [finding]):
                    self.broken = self.broken or finding.severity is Severity.ERROR
                    self._add(entry, finding)
            elif self.kinds.reads(entry.api_version, entry.kind):
                self.workloads.append(entry)
            elif group_of(entry.api_version) == AUTO_MODE:
                self.auto_mode.append(entry)
            elif not is_other_class(entry.api_version, entry.kind):
                self._skip(entry)

    def _skip(self, entry: Entry) -> None:
        """Count an object that has no effect on nodes; one with a pod template is a warning."""
        if (ignored := policies.ignored_policies(entry)) is not None:
            self._add(entry, ignored)
            return
        shown = pods_in(entry.api_version, entry.data)
        if not shown:
            self.skipped[entry.kind] = self.skipped.get(entry.kind, 0) + 1
            return
        self._add(entry, unknown_workload(entry, shown))

    def _read_workloads(self) -> None:
        """Check the workloads that are planned; others are counted with their owners."""
        found = select_entries(self.workloads, self.kinds)
        for entry in found.planned:
            self._read_workload(entry)
        if found.left_out:
            count = len(found.left_out)
            what = "1 object is" if count == 1 else f"{count} objects are"
            message = f"{what} counted with an owner or ended: {found.left_out_kinds}"
            self.diagnostics.append(Diagnostic(Severity.INFO, "owned-objects", message))

    def _read_known_kind(self, entry: Entry, old_version: Finding | None = None) -> None:
        """Check an object of a known kind; an old version is also checked as a current one."""
        from reconciler.desired.rules import crd

        entry, left = placeholders.fill_entry(entry, self.known, is_workload=False)
        name = schema_name(entry.kind)
        version = [] if old_version is None else [old_version]
        old = [*version, *spellings.check_spellings(entry.kind, entry.data)]
        data = spellings.modernize(entry.kind, entry.pruned_data)
        nulls = schema.unknown_nulls(name, entry.data)
        shape = without_reported([*schema.check_schema(name, data), *nulls], old)
        semantics = crd.check_rules(name, data, [*old, *shape])
        followed, admitted = self._followed_release(), not self.any_class
        accepted = check_version(entry.kind, data, followed, self.config, admitted=admitted)
        of_version = without_reported(list(accepted), old)
        every = [*old, *shape, *semantics, *of_version]
        self._record_object(entry, placeholders.without_placeholders(every, left), data)

    def _followed_release(self) -> KarpenterVersion:
        """Return the release of Karpenter that the fleet follows."""
        return self.karpenter or KarpenterVersion(self.config.get("karpenter", OLDEST))

    def _read_workload(self, entry: Entry) -> None:
        from reconciler.desired.workloads.shape import check_workload

        entry, left = placeholders.fill_entry(entry, self.known, is_workload=True)
        row = self.kinds.workload(entry.api_version, entry.kind)
        data = entry.pruned_data
        shape = check_workload(entry.kind, data, row)
        self._record_object(entry, placeholders.without_placeholders(shape, left), data)

    def documents_of(self, file: SourceFile) -> list[Document]:
        """Return the documents of a file, and keep the findings about it."""
        documents, findings = file.documents()
        if self.leaving is not None:
            documents, findings = self.leaving.without_broken(file, documents, findings)
        self.diagnostics += findings
        self.broken |= any(found.severity is Severity.ERROR for found in findings)
        self.note_unread(d.place for d in findings if d.place and d.code in UNREADABLE_CODES)
        return documents

    def _record_findings(self, entry: Entry, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.code == placeholders.CODE and finding.severity is Severity.WARNING:
                self.left.append((entry, finding))
            elif not self._is_covered(entry, finding):
                self._add(entry, finding)

    def _record_object(self, entry: Entry, findings: list[Finding], data: JsonDict) -> None:
        """Record the object as ``data``, unless its name is taken or it has an error."""
        if self._leaves_out(entry, findings):
            return
        self._record_findings(entry, findings)
        if not entry.name:
            return
        version, kind = entry.api_version, entry.kind
        namespace = entry.namespace if self.kinds.is_namespaced(version, kind) else ""
        key = (self.kinds.object_kind(version, kind), namespace, entry.name)
        first = self.seen.setdefault(key, entry)
        if first is not entry:
            is_left_out = self.leaving is not None and self.leaving.takes(entry)
            self._add(entry, duplicate_finding(entry, first, is_left_out=is_left_out))
        elif not any(f.severity is Severity.ERROR for f in findings):
            line = entry.place(()).line
            resource = Resource(
                entry.kind,
                entry.api_version,
                entry.name,
                namespace,
                data,
                entry.document.file,
                line,
            )
            self.resources[key] = (resource, entry)

    def note_unread(self, places: Iterable[Place]) -> None:
        """Note where values could not be read: for each line, the last column."""
        for place in places:
            at = (place.file, place.line)
            self.unread[at] = max(place.column, self.unread.get(at, 0))

    def _is_covered(self, entry: Entry, finding: Finding) -> bool:
        """Return whether a finding already reports that the value could not be read."""
        place = entry.place(finding.pointer)
        return place.column <= self.unread.get((place.file, place.line), 0)

    def _leaves_out(self, entry: Entry, findings: Iterable[Finding]) -> bool:
        """Return whether an object with these findings is left out with a warning."""
        errors = [f for f in findings if f.severity is Severity.ERROR]
        if not errors or self.leaving is None or not self.leaving.takes(entry, errors):
            return False
        self.leaving.add_object(entry, [diagnostic_of(entry, error) for error in errors])
        return True

    def _add(self, entry: Entry, finding: Finding) -> None:
        self.diagnostics.append(diagnostic_of(entry, finding))

    def finish(self, *, allow_empty: bool, is_complete: bool) -> None:
        """Read the workloads, and run the checks that need all objects."""
        self._read_workloads()
        pools = list(self._resources_of_kinds("NodePool"))
        if not self.broken:
            self._check_references(pools, allow_empty=allow_empty, is_complete=is_complete)
        self.diagnostics += placeholders.summary(self.left)
        workloads = list(self._workload_resources()) if self.workloads else []
        for entry, finding in sizes.beyond_limits(pools, workloads, self.kinds):
            self._add(entry, finding)
        if self.skipped:
            self.diagnostics.append(skipped_objects(self.skipped))
        if self.leaving is not None:
            self.diagnostics += self.leaving.warnings()

    def _check_references(
        self, pools: list[tuple[Resource, Entry]], *, allow_empty: bool, is_complete: bool
    ) -> None:
        """Check what refers to other objects, which a file that cannot be read might contain."""
        names = [name for kind, _, name in self.seen if kind == "NodePool"]
        if names:
            for finding in missing_pools(self.config, names):
                if self.config_entry is not None:
                    self._add(self.config_entry, finding)
        elif not self.has_errors():
            severity = Severity.WARNING if allow_empty else Severity.ERROR
            self.diagnostics.append(chart.empty_fleet(self.diagnostics, severity))
        if not self.any_class:
            for resource, entry in pools:
                self._check_class(resource, entry, is_complete=is_complete)
            self.diagnostics += automode.unsupported_classes(self.auto_mode, pools)
        if self.lock is not None:
            self._drop_stale_lock_entries(self.lock)

    def add_advice(self, advise: Advice) -> None:
        """Add the findings of ``advise``."""
        objects = [self.seen[key] for key in sorted(self.seen)]
        reported = {d.place for d in self.diagnostics if d.code == placeholders.CODE}
        for entry, finding in advise(FolderEntries(self.config, objects, self.config_entry)):
            is_placeholder = entry.place(finding.pointer) in reported
            if not is_placeholder and not self._is_covered(entry, finding):
                self._add(entry, finding)

    def _drop_stale_lock_entries(self, lock: Lock) -> None:
        from reconciler.desired.lock import drop_stale_entries

        classes = [resource for resource, _ in self._resources_of_kinds("EC2NodeClass")]
        pools = [resource for resource, _ in self._resources_of_kinds("NodePool")]
        self.lock, findings = drop_stale_entries(lock, classes, pools)
        self.diagnostics += findings

    def has_errors(self) -> bool:
        """Return whether any finding so far is an error."""
        return any(d.severity is Severity.ERROR for d in self.diagnostics)

    def _check_class(self, resource: Resource, entry: Entry, *, is_complete: bool) -> None:
        from reconciler.desired.rules.crd import class_reference_findings

        known = [(kind, name) for kind, _, name in sorted(self.seen)]
        is_needed = is_complete and self.config.get("cluster", "none") == "none"
        renamed = {d.place for d in self.diagnostics if d.code == RENAMED}
        for finding in class_reference_findings(resource, known, is_needed=is_needed):
            if entry.place(finding.pointer) not in renamed:  # else it is reported with its cause
                self._add(entry, finding)

    def _resources_of_kinds(self, *kinds: str) -> Iterator[tuple[Resource, Entry]]:
        for key in sorted(self.resources):
            if key[0] in kinds:
                yield self.resources[key]

    def _workload_resources(self) -> Iterator[tuple[Resource, Entry]]:
        for key in sorted(self.resources):
            if key[0] not in VALIDATED_KINDS:
                yield self.resources[key]

    def fleet(self) -> Fleet:
        """Return what has been read, each kind in its total order."""

        def of(*kinds: str) -> tuple[Resource, ...]:
            return tuple(resource for resource, _ in self._resources_of_kinds(*kinds))

        return Fleet(
            node_pools=of("NodePool"),
            node_claims=of("NodeClaim"),
            node_overlays=of("NodeOverlay"),
            node_classes=of("EC2NodeClass"),
            capacity_buffers=of("CapacityBuffer"),
            workloads=tuple(resource for resource, _ in self._workload_resources()),
            config=self.config,
            lock=self.lock,
            config_file=self.config_file,
            config_lines=self.config_lines,
            lock_lines=self.lock_lines,
            policies=self.policies,
            auto_mode={f"{e.kind} {e.name}": e.pruned_data for e in self.auto_mode},
        )
