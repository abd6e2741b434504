"""Desired state, read repeatedly from the source that a request names."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from reconciler.adapters.git.repository import find_repository
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.sources import digests_of, source_of
from reconciler.desired.lock import with_locked_resources
from reconciler.desired.settings.keys import KEYS
from reconciler.desired.settings.layers import DEFAULT
from reconciler.model.errors import SettingsChangedError, UsageError
from reconciler.ports.progress import CommitName
from reconciler.ports.state import REVISION_PROBLEM_RECORD

if TYPE_CHECKING:
    from reconciler.adapters.git.revision import GitRevision
    from reconciler.assembly.inputs.catalogs import CurrentCatalog
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.assembly.inputs.sources import SourceFiles
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.fleet import Fleet
    from reconciler.desired.settings.layers import Resolved
    from reconciler.desired.workloads.pods import Workloads
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.records import Discovery
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.value.plan import Revision
    from reconciler.ports.cloud import Compute
    from reconciler.ports.state import RevisionProblem, Shelf


POLL_S = 15.0
"""How often a remote is polled for its head."""

IDENTITY: Final = ("fleet", "state", "cluster", "cluster_name", "region")
"""The settings that name what a process acts for: its state, its lease and its instances."""

PROCESS_SETTINGS: Final = frozenset(
    {
        "batch_idle_duration",
        "batch_launches_from",
        "batch_max_duration",
        "cluster_ca_bundle",
        "cluster_cidr",
        "cluster_dns",
        "cluster_endpoint",
        "endpoint_url",
        "external_id",
        "feature_gates",
        "instance_types_from",
        "interruption_queue",
        "ip_family",
        "isolated_vpc",
        "kube_allow_karpenter",
        "kube_context",
        "kube_resync_interval",
        "kube_stale_after",
        "kube_timeout",
        "kube_watch",
        "kubeconfig",
        "min_values_policy",
        "prices_from",
        "rebalance_recommendation",
        "role_arn",
        "session_name",
        "subnet_free_addresses",
    }
)
"""The settings that adapters and their assembly read. All others are read with each revision."""


def planned_fleet(
    fleet: Fleet,
    classes: Iterable[EC2NodeClass],
    head: Revision,
    catalog: Catalog,
    resolved: Resolved,
    *,
    diagnostics: tuple[Diagnostic, ...],
    allow_removal: frozenset[str],
    discovery: Discovery,
    settings: Settings | None = None,
    title: str = "",
) -> PlannedFleet:
    """Return a fleet at a revision as engines and plans use it.

    ``classes`` are its node classes with their resolved status, to which the lock file is applied.
    ``settings`` differ from the ``resolved`` ones where the state of a snapshot states some.
    """
    from reconciler.desired.objects import node_pools
    from reconciler.engine.planning import PlannedFleet

    settings = settings or resolved.settings
    lock = fleet.lock_for(settings.region)
    locked = {
        one.name: one if lock is None else with_locked_resources(one, lock.entry(one.name))
        for one in classes
    }
    digests = digests_of(fleet, b"", catalog, resolved)
    return PlannedFleet(
        fleet=fleet,
        head=head,
        title=title,
        tree=digests.git,
        node_pools=node_pools(fleet),
        classes=locked,
        settings=settings,
        catalog=catalog,
        diagnostics=diagnostics,
        allow_removal=allow_removal,
        digests=digests,
        discovery=discovery,
    )


def changed_process_settings(before: Settings, now: Settings) -> list[str]:
    """Return the keys of settings that a process uses from its start and that differ."""
    changed = {name for name in PROCESS_SETTINGS if getattr(before, name) != getattr(now, name)}
    keys = {key for key, definition in KEYS.items() if definition.attribute in changed}
    keys |= {"subnetFreeAddresses"} if "subnet_free_addresses" in changed else set()
    if "feature_gates" in changed:
        gates = before.feature_gates.keys() | now.feature_gates.keys()
        keys |= {f"featureGates.{g}" for g in gates if before.gate(g) != now.gate(g)}
    return sorted(keys)


def no_workloads() -> Workloads:
    """Return the workloads of a fleet that has not been read yet."""
    from reconciler.desired.workloads.pods import Workloads

    return Workloads()


def follow_commits(request: FleetRequest) -> FleetRequest:
    """Return the request for the commits of a working tree instead of the files in it.

    A file that is being edited is not a decision yet. A folder outside git has no commits, and
    its request is returned unchanged. A note on stderr names uncommitted changes.

    Raises:
        UsageError: the repository has no commit yet.
    """
    tree = _committed_tree(request)
    if tree is None:
        return request
    path, at = tree
    if at.dirty:
        sys.stderr.write(
            f"Note: {path} has uncommitted changes, which are not acted on; "
            "commit them, or pass --dirty\n"
        )
    return replace(request, ref="HEAD", is_watched=True)


def expect_commits(request: FleetRequest) -> None:
    """Raise UsageError if the fleet is in a repository that has no commit yet."""
    _committed_tree(request)


def _committed_tree(request: FleetRequest) -> tuple[str, GitRevision] | None:
    """Return the folder of a working tree with its commit, None if there is no repository.

    Raises:
        UsageError: the repository has no commit yet.
    """
    from reconciler.adapters.git.revision import working_revision
    from reconciler.adapters.git.source import WorkingTree

    source = source_of(request)
    if not isinstance(source, WorkingTree) or find_repository(source.path) is None:
        return None
    at = working_revision(source.path)
    if at.head is None:
        raise UsageError(
            "the repository has no commit yet",
            where=source.path,
            remedy="commit the fleet, or pass --dirty to act on the files as they are",
        )
    return source.path, at


def problem_writer(shelf: Shelf) -> Callable[[RevisionProblem | None], None]:
    """Return a function that keeps why the newest revision is not in effect, for `status`."""
    import msgspec

    return lambda problem: shelf.write(REVISION_PROBLEM_RECORD, msgspec.json.encode(problem))


@dataclass
class FleetSource:
    """Desired state as the request names it (``engine.planning.DesiredSource``).

    ``settings`` are those that the adapters were made with: a revision for another fleet, cluster
    or region is refused. If the process ``acts`` and follows revisions, one that changes what the
    adapters use ends it. ``first`` is what was already read: the first read returns it, so that one
    command sees one revision. ``workloads`` and ``classes`` are those of the last read: a
    simulated cluster runs them.
    """

    request: FleetRequest
    compute: Compute
    catalogs: CurrentCatalog
    settings: Settings
    discovery: Discovery | None = None
    workloads: Workloads = field(default_factory=no_workloads)
    classes: Mapping[str, EC2NodeClass] = field(default_factory=dict)
    first: SourceFiles | None = None
    acts: bool = False
    _changes: int = 0
    _polled_at: float = float("-inf")
    _head: str = ""
    _last_read: CommitName = field(default_factory=CommitName)

    def read(self) -> PlannedFleet:
        """Return desired state with its node classes looked up.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read.
            UsageError: a setting is wrong, or names another fleet, cluster or region.
            SettingsChangedError: the adapters have to be made again for this revision.
        """
        from reconciler.desired.objects import node_classes
        from reconciler.desired.workloads.pods import workloads_of
        from reconciler.engine.records import Discovery

        self._last_read = CommitName()
        source, self.first = self.first or sources.read_source(self.request), None
        if source.revision.head is not None and not source.revision.dirty:
            self._last_read = CommitName(source.revision.head, source.title)
        fleet, findings = sources.read_desired(source, any_class=False)
        sources.expect_complete(findings)
        resolved = sources.settings_of(self.request, fleet)
        self._expect_same_identity(resolved)
        changed = changed_process_settings(self.settings, resolved.settings)
        if changed and self.acts:
            raise SettingsChangedError(changed)
        catalog = self.catalogs.read(resolved, fleet.lock)
        self.workloads, more = workloads_of(fleet)
        planned = planned_fleet(
            fleet,
            [self.compute.resolve(c) for c in node_classes(fleet)],
            source.revision,
            catalog,
            resolved,
            diagnostics=sources.without_errors((*findings, *more)),
            allow_removal=self.request.allow_removal,
            discovery=self.discovery or Discovery({}),
            title=source.title,
        )
        self.classes = dict(planned.classes)
        return planned

    def _expect_same_identity(self, resolved: Resolved) -> None:
        """Refuse a revision for another fleet, cluster or region than this process acts for.

        It would see none of its instances there.

        Raises:
            UsageError: it is for another one.
        """
        for key, definition in KEYS.items():
            name = definition.attribute
            if name not in IDENTITY:
                continue
            before, now = getattr(self.settings, name), getattr(resolved.settings, name)
            if before == now:
                continue
            origin = resolved.origins[key]
            raise UsageError(
                f"{key} is now {now}, but this process acts for {before}",
                where="" if origin == DEFAULT else str(origin),
                remedy=f"set {key} to {before}, or restart it once the fleet has no nodes",
            )

    def fingerprint(self) -> str:
        """Return a value that changes when a file or the commit does.

        A working tree is watched (see ``watched``); a ref or a remote is polled.
        """
        if not self._is_polled:
            return str(self._changes)
        now = time.monotonic()
        if now - self._polled_at >= POLL_S:
            from reconciler.adapters.git.source import head_of

            self._polled_at = now
            self._head = head_of(source_of(self.request)) or ""
        return self._head

    def last_read(self) -> CommitName:
        """Return the commit that the last ``read`` was of, unless its files differ from it."""
        return self._last_read

    @property
    def _is_polled(self) -> bool:
        if self.request.is_watched:
            return False
        return self.request.repo is not None or self.request.ref is not None

    @contextmanager
    def watch_changes(self) -> Iterator[None]:
        """Record the changes of a working tree while the block runs."""
        if self._is_polled:
            yield
            return
        from reconciler.adapters.git.watch import watch

        def note() -> None:
            self._changes += 1

        with watch(self.request.path or ".", note):
            yield
