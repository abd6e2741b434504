"""Desired state as the arguments of a command name it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.shared.catalogs import CatalogInForce
    from reconciler.desired.workloads.pods import Workloads
    from reconciler.engine.discovery import Discovery
    from reconciler.engine.planning import PlannedFleet
    from reconciler.ports.cloud import Compute


POLL_S = 15.0
"""How often a remote is polled for its head."""


def no_workloads() -> Workloads:
    """Return what a fleet runs before it was read."""
    from reconciler.desired.workloads.pods import Workloads

    return Workloads()


def follow_commits(args: argparse.Namespace) -> None:
    """Let the arguments mean the commits of a working tree, and not the files that lie in it.

    A file that is being edited is nobody's decision yet. A folder outside git has no commits, and
    is followed as it is. What is not committed is told on stderr.

    Raises:
        UsageError: the repository has no commit yet.
    """
    from reconciler.adapters.git.repository import find
    from reconciler.adapters.git.revision import working_revision
    from reconciler.adapters.git.source import WorkingTree
    from reconciler.cli.shared.request import source_of
    from reconciler.model.errors import UsageError

    source = source_of(args)
    if not isinstance(source, WorkingTree) or find(source.path) is None:
        return
    at = working_revision(source.path)
    if at.head is None:
        raise UsageError(
            "the repository has no commit yet",
            where=source.path,
            remedy="commit the fleet, or pass --dirty to act on the files as they are",
        )
    if at.dirty:
        print(
            f"Note: {source.path} has uncommitted changes, which are not acted on; "
            "commit them, or pass --dirty",
            file=sys.stderr,
        )
    args.ref, args.is_watched = "HEAD", True


@dataclass
class FleetSource:
    """Desired state as the arguments name it (``engine.desired.DesiredSource``).

    ``workloads`` are those of the last read: an imitated cluster runs them.
    """

    args: argparse.Namespace
    compute: Compute
    catalogs: CatalogInForce
    discovery: Discovery | None = None
    workloads: Workloads = field(default_factory=no_workloads)
    _changes: int = 0
    _asked_at: float = float("-inf")
    _head: str = ""

    def read(self) -> PlannedFleet:
        """Return desired state with its node classes looked up.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read.
        """
        from reconciler.cli.shared import request
        from reconciler.desired.objects import node_classes, node_pools
        from reconciler.desired.workloads.pods import expand
        from reconciler.engine.discovery import Discovery
        from reconciler.engine.planning import PlannedFleet

        source = request.read_source(self.args)
        fleet, findings = request.read_desired(source, any_class=False)
        resolved = request.settings_of(self.args, fleet)
        catalog = self.catalogs.read(resolved, fleet.lock)
        self.workloads, more = expand(fleet.workloads)
        classes = {c.name: self.compute.resolve(c) for c in node_classes(fleet)}
        lock = fleet.lock_for(resolved.settings.region)
        if lock is not None:
            from reconciler.desired.lock import pinned

            classes = {name: pinned(c, lock.entry(name)) for name, c in classes.items()}
        digests = request.digests_of(fleet, b"", catalog, resolved)
        return PlannedFleet(
            fleet=fleet,
            head=source.revision,
            tree=digests.git,
            node_pools=node_pools(fleet),
            classes=classes,
            settings=resolved.settings,
            catalog=catalog,
            diagnostics=request.without_errors((*findings, *more)),
            allow_removal=frozenset(self.args.allow_removal),
            digests=digests,
            discovery=self.discovery or Discovery({}),
        )

    def fingerprint(self) -> str:
        """Return what changes when a file or the commit does.

        A working tree is watched (see ``watched``); a ref or a remote is asked now and then.
        """
        if not self._is_polled:
            return str(self._changes)
        now = time.monotonic()
        if now - self._asked_at >= POLL_S:
            from reconciler.adapters.git.source import head_of
            from reconciler.cli.shared.request import source_of

            self._asked_at = now
            self._head = head_of(source_of(self.args)) or ""
        return self._head

    @property
    def _is_polled(self) -> bool:
        if getattr(self.args, "is_watched", False):
            return False
        return self.args.repo is not None or self.args.ref is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the changes of a working tree for as long as the block lasts."""
        if self._is_polled:
            yield
            return
        from reconciler.adapters.git.watch import watch

        def note() -> None:
            self._changes += 1

        with watch(self.args.path or ".", note):
            yield
