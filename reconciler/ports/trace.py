"""The record of how the workload of a fleet changed: batches of changes, one for each pass.

A whole batch lists everything that is there. The batches after it only say what changed, so a
reader begins at a whole one, and everything before it can be removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import PodSpec


class PodClass(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What decisions read of pods that are alike; the ``spec`` names no node.

    ``owner`` is their controller, None if they have none.
    """

    spec: PodSpec
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None


class PodArrival(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod, by ``namespace/name``, and the id of its class; ``bound`` is None while it waits."""

    pod: str
    pod_class: str = msgspec.field(name="class")
    created: datetime
    bound: datetime | None = None


class NodeArrival(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node of the fleet; ``price`` is in USD an hour, None if unknown."""

    node: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    created: datetime
    price: float | None = None


class OfferingRefusal(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An offering that EC2 has refused, and until when it counts as unavailable."""

    instance_type: str
    zone: str
    capacity_type: str
    until: datetime
    code: str = ""


SpotChanges = dict[str, dict[str, float | None]]
"""Spot prices by instance type and zone, USD an hour; None where one is no longer known."""


def spot_changes(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float | None]]
) -> SpotChanges:
    """Return the prices of ``after`` that differ, and None for those that it does not have."""
    found: SpotChanges = {}
    for kind in sorted(before.keys() | after.keys()):
        old, new = before.get(kind, {}), after.get(kind, {})
        if old != new:
            zones = sorted(old.keys() | new.keys())
            changed = {zone: new.get(zone) for zone in zones if old.get(zone) != new.get(zone)}
            if changed:
                found[kind] = changed
    return found


class TraceBatch(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What changed up to ``at``. What is gone left before anything in the batch arrived.

    ``classes`` are the classes by id that no batch has named since the last whole one. ``daemons``
    are the DaemonSets by ``namespace/name``, None where they are as before. ``spot`` are the spot
    prices that changed, all of them in a whole batch; it is None where they are as before, and in
    batches of releases that did not record them. ``refused`` are refusals that no batch has named.
    """

    at: datetime
    is_whole: bool = False
    gone: tuple[str, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    classes: dict[str, PodClass] = {}
    pods: tuple[PodArrival, ...] = ()
    bound: dict[str, datetime] = {}
    nodes: tuple[NodeArrival, ...] = ()
    daemons: dict[str, PodClass] | None = None
    spot: SpotChanges | None = None
    refused: tuple[OfferingRefusal, ...] = ()


class TraceLog(Protocol):
    """The recorded batches of a fleet."""

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        """Add a batch; with a time, remove what no trace from that time on needs.

        Raises:
            StateError: it cannot be written.
            LeaseLostError: another process acts for the fleet.
        """

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        """Yield the batches from the last whole one at or before ``since``, or from the first.

        Raises:
            StateError: they cannot be read.
        """
