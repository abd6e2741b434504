"""The records of the engine, in the forms that a pass and a snapshot need.

Rate limits count the history. Discovered capacity is the capacity that nodes actually have. With
the records in a snapshot, a plan in CI equals the plan in the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from reconciler.catalog.adjusted.discovered import (
    Discoveries,
    Memory,
    discovered_memory,
    update_discoveries,
)
from reconciler.engine.observation import Observation
from reconciler.engine.ownership import launches_of
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import UnreadableError
from reconciler.model.history import DAY, DisruptionRecord, History, Obstacle, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.model.text.quoting import quote_value
from reconciler.observed.snapshot import RECORDS_KIND, RawRecords
from reconciler.observed.state import StateNode
from reconciler.plan.make.pools import MemoryByType
from reconciler.ports.cloud import Instance
from reconciler.ports.journal import IntentOutcome, Journal, JournalEntry
from reconciler.ports.state import (
    CommandPhase,
    RecordedObject,
    RunningCommand,
    StateStore,
    Unavailable,
)

_STORE_INTERVAL: Final = timedelta(days=1)

API_VERSION: Final = "reconciler/v1"


def history_of(store: StateStore, settings: Settings, now: datetime) -> History:
    """Return the recorded past; commands are counted only where a daily maximum is set."""
    taken: tuple[DisruptionRecord, ...] = ()
    if has_daily_maximum(settings):
        taken = tuple(
            row for c in store.commands_since(now - DAY) for row in _disruptions_by_pool(c)
        )
    return History(taken, tuple(store.rollouts()), tuple(store.obstacles()))


def has_daily_maximum(settings: Settings) -> bool:
    """Return whether a daily maximum is set anywhere."""
    pools = (settings.pool(name).maximum_per_day for name in settings.node_pools)
    return bool(settings.fleet_maximum_per_day or settings.maximum_per_day or any(pools))


def _disruptions_by_pool(command: RunningCommand) -> Iterator[DisruptionRecord]:
    """Yield the number of nodes that a command disrupted in each NodePool.

    A command that was rolled back disrupted none.
    """
    if not command.voluntary or command.phase is CommandPhase.ROLLED_BACK:
        return
    for pool, nodes in sorted(Counter(command.node_pools).items()):
        yield DisruptionRecord(command.started_at, pool, nodes)


def store_nothing(_: Discoveries) -> None:
    """Store nothing: a preview has nowhere to write."""


class Discovery:
    """Discovered capacity; ``store`` saves it when there is something new.

    A confirmed amount is stored once a day: that only extends its lifetime.
    """

    def __init__(
        self, known: Discoveries, store: Callable[[Discoveries], None] = store_nothing
    ) -> None:
        self._known = known
        self._store = store
        self._stored_at: datetime | None = None

    def independent_copy(self) -> Discovery:
        """Return an independent copy."""
        return Discovery(self._known)

    def update(
        self, nodes: Iterable[StateNode], classes: Mapping[str, EC2NodeClass], now: datetime
    ) -> Discoveries:
        """Update the discovered capacity from the observed nodes, and return it."""
        before, self._known = self._known, update_discoveries(nodes, classes, self._known, now)
        is_due = self._stored_at is None or now - self._stored_at >= _STORE_INTERVAL
        if _amounts(before) != _amounts(self._known) or (self._known and is_due):
            self._store(self._known)
            self._stored_at = now
        return self._known

    def memory_by_class(self, classes: Mapping[str, EC2NodeClass]) -> Mapping[str, MemoryByType]:
        """Return what is known about the nodes of each class, by the name of the class."""
        if not self._known:
            return {}
        return {
            name: discovered_memory(node_class, self._known) for name, node_class in classes.items()
        }


def _amounts(known: Discoveries) -> dict[str, dict[str, int]]:
    return {key: {n: m.amount for n, m in types.items()} for key, types in known.items()}


class FleetRecords(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What was recorded for a fleet at ``at``, and the instances that EC2 described then.

    ``commands`` are those in progress and those that started within the day before, which count
    towards daily maxima. ``objects`` are the desired objects as last applied. ``unavailable`` are
    offerings that EC2 refused. ``memory`` is the memory that nodes actually have, by the
    images of a class and by type. ``launches`` are journalled launches, without parameters, of
    instances that have no NodeClaim. ``findings`` are about invalid objects of the cluster.
    ``foreign`` are the names of NodeClaims in the snapshot that belong to others, like Karpenter.
    """

    api_version: str = ""
    kind: str = ""
    fleet: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    serial: int = 0
    instances: tuple[Instance, ...] = ()
    commands: tuple[RunningCommand, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    objects: tuple[RecordedObject, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    memory: dict[str, dict[str, Memory]] = {}
    launches: tuple[JournalEntry, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    foreign: tuple[str, ...] = ()


def fleet_records(
    store: StateStore,
    journal: Journal,
    seen: Observation,
    fleet: str,
    serial: int,
    memory: Mapping[str, Mapping[str, Memory]],
) -> FleetRecords:
    """Return the records of a fleet except its NodeClaims, and its instances."""
    return FleetRecords(
        api_version=API_VERSION,
        kind=RECORDS_KIND,
        fleet=fleet,
        at=seen.at,
        serial=serial,
        instances=tuple(seen.instances),
        commands=_commands(store, seen.at),
        rollouts=tuple(store.rollouts()),
        obstacles=tuple(store.obstacles()),
        objects=tuple(store.objects()),
        unavailable=tuple(store.unavailable(seen.at)),
        memory={key: dict(types) for key, types in memory.items()},
        launches=tuple(_launches(seen, journal)),
        findings=seen.findings,
    )


def _commands(store: StateStore, now: datetime) -> tuple[RunningCommand, ...]:
    known = {c.id: c for c in (*store.commands_since(now - DAY), *store.commands())}
    return tuple(known[name] for name in sorted(known))


def _launches(seen: Observation, journal: Journal) -> Iterable[JournalEntry]:
    """Yield the launches of instances without a NodeClaim, so that a plan knows their owner."""
    claimed = {c.status.provider_id.rpartition("/")[2] for c in seen.claims}
    unclaimed = [instance for instance in seen.instances if instance.id not in claimed]
    for entry in launches_of(unclaimed, journal, seen.owner).values():
        plain = msgspec.structs.replace(entry.intent, parameters={})
        yield msgspec.structs.replace(entry, intent=plain, message="")


def read_records(raw: RawRecords) -> FleetRecords:
    """Return the records that a snapshot carries.

    Raises:
        UnreadableError: they are not records of this release.
    """
    remedy = "capture the snapshot again with `reconciler snapshot` of this release"
    try:
        records = decode_json(raw.content, FleetRecords)
    except msgspec.MsgspecError as error:
        raise UnreadableError(
            f"invalid {RECORDS_KIND}: {describe_mismatch(error)}", where=raw.place, remedy=remedy
        ) from error
    if records.api_version != API_VERSION:
        raise UnreadableError(
            f"unsupported {RECORDS_KIND} of apiVersion {quote_value(records.api_version)}",
            where=raw.place,
            remedy=remedy,
        )
    return records


def restore(
    records: FleetRecords, claims: Sequence[NodeClaim], store: StateStore, journal: Journal
) -> None:
    """Write records and NodeClaims into a store and a journal that are empty."""
    store.put_node_claims(claims)
    restore_records(records, store)
    for entry in records.launches:
        journal.begin([entry.intent])
        if entry.outcome is not None and entry.finished_at is not None:
            journal.finish([IntentOutcome(entry.intent.id, entry.outcome)], entry.finished_at)


def restore_records(records: FleetRecords, store: StateStore) -> None:
    """Write everything except NodeClaims into a store that is empty."""
    for command in records.commands:
        store.put_command(command)
    for rollout in records.rollouts:
        store.put_rollout(rollout)
    store.put_obstacles(records.obstacles)
    store.put_objects(records.objects, "", records.at)
    store.put_unavailable(records.unavailable)
