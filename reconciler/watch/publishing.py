"""Publishes what a watch observes as a snapshot, for plans without access to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from reconciler.desired.migration.captured import without_environments
from reconciler.engine.records import API_VERSION
from reconciler.model.errors import ReconcilerError
from reconciler.observed.snapshot import CAPTURE_KIND

if TYPE_CHECKING:
    from reconciler.model.json import JsonDict
    from reconciler.watch.session import ClusterObservation

Objects = Sequence["JsonDict"]


@dataclass
class SnapshotPublisher:
    """Writes a snapshot of the cluster every ``every``, even if nothing has changed.

    Readers refuse a snapshot that is too old, so its time is that of an observation.
    ``prepare`` may remove names. ``on_problem`` receives why a snapshot could not be written; the
    next one is tried after the same time.
    """

    write: Callable[[bytes], None]
    every: timedelta
    prepare: Callable[[Objects], Objects]
    on_problem: Callable[[ReconcilerError], None]
    _tried_at: datetime | None = None

    def publish(self, observed: ClusterObservation, now: datetime) -> None:
        """Write the observation of ``now``, unless the last one is more recent than ``every``."""
        if self._tried_at is not None and timedelta() <= now - self._tried_at < self.every:
            return
        self._tried_at = now
        capture = {"apiVersion": API_VERSION, "kind": CAPTURE_KIND, "at": now}
        objects = [without_environments(item) for item in observed.objects()]
        try:
            items = self.prepare([*objects, capture])
            whole = {"apiVersion": "v1", "kind": "List", "items": items}
            self.write(msgspec.json.encode(whole) + b"\n")
        except ReconcilerError as error:
            self.on_problem(error)
