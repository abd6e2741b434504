"""The lease of a fleet: only its holder may act.

In a state directory it is a lock on a file, which ends with its process. On a server it is a row
with a lifetime by the server's clock: it outlives a cut connection, and it ends without its holder.
Either way, acquiring it raises the epoch of the fleet, by which every write is fenced
(``fence.py``). The lease decides who should act; the fence decides which writes are accepted.

Nothing here depends on a session of the server, so that a proxy may pool its connections.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import RLock
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select, text, update
from sqlalchemy.exc import DBAPIError

from reconciler.adapters.database import tables
from reconciler.adapters.database.connection import (
    Database,
    begin_writing,
    insert,
    translate_errors,
)
from reconciler.adapters.database.leases.fence import (
    IDLE_MAX,
    LIMIT_IDLE,
    end_stalled_write,
    was_locked,
)
from reconciler.adapters.database.leases.lock import REMEDY, FileLock, command_name, file_identity
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.location import FILE
from reconciler.model.errors import (
    FleetConflictError,
    FleetMovedError,
    LeaseHeldError,
    LeaseLostError,
    ReconcilerError,
    StateError,
    format_claim_count,
)
from reconciler.model.json import JsonDict
from reconciler.model.ownership import NO_CLUSTER, ClusterId
from reconciler.model.text.times import timestamp

LOCK: Final = "lock"

LIFETIME: Final = timedelta(seconds=10)
"""How long a lease on a server is valid after it was renewed."""

_RENEWED_AFTER: Final = 0.25
_DEADLINE: Final = 0.7
"""Shares of the lifetime: when it is renewed, and when its holder stops without a renewal.

The deadline counts from before the renewal is sent, by a clock that continues while the process is
frozen. So the holder stops before the server accepts another one.
"""

_ACQUIRING: Final = 0x7265636F6F
"""The advisory lock under which one process at a time acquires any lease of a database."""

NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def is_held(renewed_ms: int, lifetime_ms: int, now_ms: int) -> bool:
    """Return whether a lease that was renewed at one time of the server is valid at another.

    A renewal in the future means that the clock was set back. It counts no longer than one in the
    past would, so that a standby never waits for the old time.
    """
    return abs(now_ms - renewed_ms) < lifetime_ms


def _monotonic_seconds() -> float:
    """Return the seconds of a clock that continues while the machine sleeps, if there is one."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(slots=True)
class FileLease:
    """The lock on ``<state>/lock``, and on the cluster among the processes of this user.

    ``locks`` is the folder of the latter; without it two state directories can act for a cluster.
    """

    database: Database
    folder: Path
    locks: Path | None = None
    _lock: FileLock = field(init=False)
    _of_cluster: FileLock | None = field(default=None, init=False)
    _opened: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        self._lock = FileLock(self.folder / LOCK)
        self._opened = file_identity(self.folder / FILE)

    def acquire(self, cluster: ClusterId = NO_CLUSTER) -> None:
        """Take the lease; see ``ports.state.Lease``."""
        if self.database.fence.epoch is not None:
            return
        self._check_file()
        try:
            self._lock.acquire()
            self._lock_cluster(cluster)
            with (
                translate_errors(self.database.place),
                begin_writing(self.database.engine) as connection,
            ):
                _add_rows(connection, self.database.fleet)
                _expect_own_nodes(connection, self.database, cluster)
                _expect_no_other_fleet(connection, self.database, cluster, 0)
                epoch = _raise_epoch(connection, self.database.fleet, cluster)
        except BaseException:
            self._unlock()
            raise
        self.database.fence.enter(epoch)

    def confirm(self) -> None:
        """Raise LeaseLostError unless the lease is held: the lock ends only with the process.

        It is lost with the file of the database: what is recorded in a file without a name is lost
        when the process ends, and the instances with it.
        """
        if self.database.fence.epoch is None:
            raise self.database.fence.lease_lost_error(self.database.fleet, self.database.place)
        self._check_file()

    def release(self) -> None:
        """Release the lease."""
        self.database.fence.leave()
        self._unlock()

    def holder(self) -> str | None:
        """Return the holder of the lease, or None, without taking it."""
        return self._lock.holder()

    def _check_file(self) -> None:
        """Raise LeaseLostError unless the file that was opened is still in its place."""
        if file_identity(self.folder / FILE) != self._opened:
            raise LeaseLostError(
                f"the database of fleet {self.database.fleet} was removed or replaced while it was "
                "in use",
                where=self.database.place,
            )

    def _unlock(self) -> None:
        if self._of_cluster is not None:
            self._of_cluster.release()
            self._of_cluster = None
        self._lock.release()

    def _lock_cluster(self, cluster: ClusterId) -> None:
        """Lock the cluster on this machine: another checkout has another state directory."""
        if self.locks is None or not cluster:
            return
        try:
            self.locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return  # a read-only home is a container's, which has no other user
        lock = _cluster_lock(self.locks, cluster, self.database.fleet)
        lock.acquire()
        self._of_cluster = lock


def expect_free(locks: Path, cluster: ClusterId, fleet: str) -> None:
    """Refuse a cluster that another process of this user acts for; nothing is created.

    Raises:
        LeaseHeldError: another process acts for it.
    """
    lock = _cluster_lock(locks, cluster, fleet)
    if not cluster or not lock.path.exists():
        return
    lock.acquire()
    lock.release()


def _cluster_lock(locks: Path, cluster: ClusterId, fleet: str) -> FileLock:
    name = hashlib.sha256(cluster.key.encode()).hexdigest()[:32]
    return FileLock(locks / f"{name}.lock", f"cluster {cluster}", f"fleet {fleet}")


@dataclass(slots=True)
class ServerLease:
    """A row on the server, renewed by a thread and on a connection that only renew.

    ``clock`` returns elapsed seconds; it decides only about the deadline of this process.
    ``renewals`` are shared by the leases of a process; without them, the lease has its own.
    """

    database: Database
    lifetime: timedelta = LIFETIME
    clock: Callable[[], float] = _monotonic_seconds
    renewals: LeaseRenewals | None = None
    _own: LeaseRenewals = field(init=False)
    _mutex: RLock = field(default_factory=RLock, init=False)
    _renewed_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Use separate renewals if no connection is shared."""
        self._own = self.renewals or LeaseRenewals(self.database.engine, self.database.place)

    def acquire(self, cluster: ClusterId = NO_CLUSTER) -> None:
        """Take the lease; see ``ports.state.Lease``."""
        with self._mutex:
            if self.database.fence.epoch is not None:
                return
            started = self.clock()
            epoch = self._acquire_epoch(cluster)
            self._renewed_at = started
            self.database.fence.enter(epoch)
        self._own.add(self, self._share_s(_RENEWED_AFTER) / 2)

    def confirm(self) -> None:
        """Return if the lease is held, after renewing it if that is due.

        Raises:
            LeaseLostError: another process acquired it, or it could not be renewed in time.
        """
        database = self.database
        with self._mutex:
            if database.fence.epoch is None:
                raise database.fence.lease_lost_error(database.fleet, database.place)
            if self._age_s() < self._share_s(_RENEWED_AFTER):
                return
            try:
                self._renew()
            except LeaseLostError:
                raise
            except ReconcilerError as error:
                if self._age_s() < self._share_s(_DEADLINE):
                    return  # the lease is still held, and the next call retries
                database.fence.leave(f"it could not be renewed for {self._age_s():.0f} s ({error})")
                raise database.fence.lease_lost_error(database.fleet, database.place) from error

    def release(self) -> None:
        """Release the lease; if the server does not answer, it expires."""
        with self._mutex:
            epoch = self.database.fence.epoch
            self.database.fence.leave()
            with suppress(ReconcilerError):
                if epoch is not None:
                    self._own.execute(
                        update(tables.lease)
                        .where(
                            tables.lease.c.fleet == self.database.fleet,
                            tables.lease.c.epoch == epoch,
                        )
                        .values(lifetime_ms=0)
                    )
        self._own.remove(self)

    def holder(self) -> str | None:
        """Return the holder of the lease, or None, without taking it."""
        with self.database.read_transaction() as connection:
            now = _now_ms(connection)
            row = connection.execute(
                select(tables.lease).where(tables.lease.c.fleet == self.database.fleet)
            ).one_or_none()
            if row is not None and is_held(row.renewed_ms, row.lifetime_ms, now):
                return str(row.holder)
            return _session_lock_holder(connection, self.database.fleet) or None

    def _acquire_epoch(self, cluster: ClusterId) -> int:
        """Acquire the lease in one transaction and return its epoch."""
        database = self.database
        try:
            with begin_writing(database.engine) as connection:
                return self._acquire_row(connection, cluster)
        except DBAPIError as error:
            if was_locked(error):
                # The holder is writing, or was frozen while writing: the server ends that soon.
                raise self._held_error(self.holder() or "another process") from error
            with translate_errors(database.place):
                raise

    def _acquire_row(self, connection: Connection, cluster: ClusterId) -> int:
        database = self.database
        connection.execute(
            text(
                "SELECT set_config('lock_timeout', '2s', true),"
                f" {LIMIT_IDLE}, set_config('synchronous_commit', 'on', true)"
            ),
            IDLE_MAX,
        )
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ACQUIRING})
        end_stalled_write(connection, database.fleet)
        _add_rows(connection, database.fleet)
        connection.execute(
            insert(connection, tables.lease)
            .values(fleet=database.fleet, epoch=0, holder="", renewed_ms=0, lifetime_ms=0)
            .on_conflict_do_nothing()
        )
        row: Row[Any] = connection.execute(
            select(tables.lease).where(tables.lease.c.fleet == database.fleet).with_for_update()
        ).one()
        now = _now_ms(connection)
        if is_held(row.renewed_ms, row.lifetime_ms, now):
            raise self._held_error(row.holder)
        key = _session_lock_key(database.fleet)
        if not connection.execute(
            text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": key}
        ).scalar():
            raise self._held_error(
                _session_lock_holder(connection, database.fleet) or "an older release"
            )
        _expect_own_nodes(connection, database, cluster)
        _expect_no_other_fleet(connection, database, cluster, now)
        epoch = _raise_epoch(connection, database.fleet, cluster)
        since = connection.execute(
            text("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
        ).scalar()
        holder = (
            f"process {os.getpid()} on {socket.gethostname()} (`{command_name()}`, since {since})"
        )
        connection.execute(
            update(tables.lease)
            .where(tables.lease.c.fleet == database.fleet)
            .values(
                epoch=epoch,
                holder=holder,
                renewed_ms=_now_ms(connection),
                lifetime_ms=int(self.lifetime.total_seconds() * 1000),
            )
        )
        return epoch

    def _held_error(self, holder: str) -> LeaseHeldError:
        return LeaseHeldError(
            f"{holder} is running for fleet {self.database.fleet}",
            where=self.database.place,
            remedy=REMEDY,
        )

    def _renew(self) -> None:
        """Renew the row of this epoch.

        It does not wait for a row that another process has locked for a moment, because other
        leases are renewed on the same connection.

        Raises:
            LeaseLostError: the row has another epoch.
            StateError: the server does not answer, or the row is locked.
        """
        database, started = self.database, self.clock()
        row = tables.lease.c
        is_ours = (row.fleet == database.fleet) & (row.epoch == database.fence.epoch)
        unlocked = select(row.fleet).where(is_ours).with_for_update(skip_locked=True)
        renewal = (
            update(tables.lease)
            .where(is_ours, row.fleet.in_(unlocked))
            .values(renewed_ms=text(NOW_MS))
        )
        if self._own.execute(renewal):
            self._renewed_at = started
            return
        if self._own.execute(select(row.fleet).where(is_ours)):
            raise StateError("another process has locked the row", where=database.place)
        database.fence.leave("another process acquired it")
        raise database.fence.lease_lost_error(database.fleet, database.place)

    def _age_s(self) -> float:
        return self.clock() - self._renewed_at

    def _share_s(self, share: float) -> float:
        return self.lifetime.total_seconds() * share


def _add_rows(connection: Connection, fleet: str) -> None:
    connection.execute(
        insert(connection, tables.fleet)
        .values(name=fleet, serial=0, epoch=0, cluster="")
        .on_conflict_do_nothing()
    )


def _raise_epoch(connection: Connection, fleet: str, cluster: ClusterId) -> int:
    """Increase the epoch of a fleet and return it; record its cluster, if any."""
    row = tables.fleet.c
    values: JsonDict = {"epoch": row.epoch + 1}
    if cluster:
        values["cluster"] = cluster.key
    connection.execute(update(tables.fleet).where(row.name == fleet).values(values))
    return int(connection.execute(select(row.epoch).where(row.name == fleet)).scalar_one())


def _expect_no_other_fleet(
    connection: Connection, database: Database, cluster: ClusterId, now_ms: int
) -> None:
    """Refuse a cluster that another fleet of this database acts for or has nodes in.

    Raises:
        LeaseHeldError: a process acts for the other fleet.
        FleetConflictError: the other fleet has NodeClaims.
    """
    if not cluster:
        return
    fleet, lease = tables.fleet, tables.lease
    others = connection.execute(
        select(fleet.c.name, fleet.c.cluster, lease)
        .outerjoin(lease, lease.c.fleet == fleet.c.name)
        .where(fleet.c.name != database.fleet, fleet.c.cluster != "")
        .order_by(fleet.c.name)
    ).all()
    for other in others:
        if not cluster.may_equal(ClusterId.from_key(other.cluster)):
            continue
        if other.holder and is_held(other.renewed_ms, other.lifetime_ms, now_ms):
            raise LeaseHeldError(
                f"{other.holder} is running for fleet {other.name}, which has cluster {cluster}",
                where=database.place,
                remedy="stop it, or run this fleet under that name with --set fleet=NAME",
            )
        count = _count_claims(connection, other.name)
        if count:
            raise FleetConflictError(
                f"fleet {other.name} has {format_claim_count(count)} in cluster {cluster}",
                where=database.place,
                remedy=(
                    f"act under that name with --set fleet={other.name}, or remove its nodes first"
                ),
            )
        connection.execute(update(fleet).where(fleet.c.name == other.name).values(cluster=""))


def _expect_own_nodes(connection: Connection, database: Database, cluster: ClusterId) -> None:
    """Refuse an account or region other than the one in which the fleet has its nodes.

    There EC2 lists none of them. They would count as gone and be forgotten, and their instances
    would run on without an owner.

    Raises:
        FleetMovedError: the fleet has NodeClaims elsewhere.
    """
    before = recorded_cluster(connection, database.fleet)
    count = _count_claims(connection, database.fleet) if before.is_out_of_reach(cluster) else 0
    if count:
        raise FleetMovedError(database.fleet, count, before, cluster, database.place)


def recorded_cluster(connection: Connection, fleet: str) -> ClusterId:
    """Return the cluster that the last holder of the lease acted for, none if EC2 was simulated."""
    row = tables.fleet.c
    key = connection.execute(select(row.cluster).where(row.name == fleet)).scalar_one_or_none()
    return ClusterId.from_key(key or "")


def _count_claims(connection: Connection, fleet: str) -> int:
    claim = tables.node_claim.c
    query = select(func.count()).where(claim.fleet == fleet, claim.gone_at.is_(None))
    return int(connection.execute(query).scalar_one())


def _now_ms(connection: Connection) -> int:
    """Return the time of the server's clock."""
    return int(connection.execute(text(f"SELECT {NOW_MS}")).scalar_one())


def _session_lock_key(fleet: str) -> int:
    """Return the key of the session lock with which releases up to 0.4 held a fleet."""
    digest = hashlib.sha256(f"reconciler lease {fleet}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _session_lock_holder(connection: Connection, fleet: str) -> str:
    """Return the session of an older release that holds a fleet, or an empty text."""
    key = _session_lock_key(fleet)
    row = connection.execute(
        text(
            "SELECT a.application_name, a.backend_start FROM pg_locks l"
            " JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND l.classid::bigint = :high AND l.objid::bigint = :low"
            " AND l.pid <> pg_backend_pid()"
        ),
        {"high": key >> 32, "low": key & 0xFFFFFFFF},
    ).first()
    if row is None:
        return ""
    return f"`{row.application_name}` (since {timestamp(row.backend_start)})"
