"""The processes that share the fleets of a server, and their heartbeats.

Each replica writes a row every second: which fleets it can act for, and which leases it holds. The
rows only decide which replica asks for a lease, and which releases one. The lease itself decides
which one acts, so a wrong or old row at most causes a delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import Connection, delete, select, text
from sqlalchemy.exc import DBAPIError

from reconciler.adapters.database import tables
from reconciler.adapters.database.connection import (
    begin_writing,
    insert,
    storable_text,
    translate_errors,
)
from reconciler.adapters.database.leases.fence import IDLE_MAX, LIMIT_IDLE
from reconciler.adapters.database.leases.lease import NOW_MS, is_held
from reconciler.adapters.database.state import Server
from reconciler.model.decode import decode_json

SEEN_FOR: Final = timedelta(seconds=5)
"""How long a replica counts after it was last seen: less than the lifetime of a lease.

So a dead replica no longer counts when its leases expire, and other replicas take them over."""

_FORGOTTEN_AFTER: Final = timedelta(minutes=1)
_BEGUN: Final = text(f"SELECT {NOW_MS}, {LIMIT_IDLE}")


class Replica(msgspec.Struct, frozen=True):
    """The fleets that a process can act for, and those whose lease it holds.

    It ``keeps`` released ones that no other replica acquired.
    """

    serves: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    keeps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas that are alive, by their ids, and the fleets whose lease is held."""

    alive: Mapping[str, Replica]
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The row of this process on a server; ``id`` is unique among all replicas."""

    server: Server
    id: str

    def beat(self, replica: Replica) -> Replicas:
        """Announce this replica, and return all that are alive.

        Raises:
            StateError: the server does not answer.
        """
        with translate_errors(self.server.place), begin_writing(self.server.engine) as connection:
            # A replica that freezes here keeps its row locked; the others drop it eventually.
            now = int(connection.execute(_BEGUN, IDLE_MAX).scalar_one())
            body = msgspec.json.encode(replica, order="deterministic").decode()
            row = insert(connection, tables.replica).values(
                id=storable_text(self.id), seen_ms=now, body=storable_text(body)
            )
            connection.execute(
                row.on_conflict_do_update(
                    index_elements=["id"],
                    set_={"seen_ms": row.excluded.seen_ms, "body": row.excluded.body},
                )
            )
            alive = _live_replicas(connection, now)
            leases = connection.execute(select(tables.lease)).all()
        held_fleets = {row.fleet for row in leases if is_held(row.renewed_ms, row.lifetime_ms, now)}
        return Replicas(alive, frozenset(held_fleets))

    def end(self) -> None:
        """Remove the row; if the server does not answer, it expires."""
        try:
            with begin_writing(self.server.engine) as connection:
                row = tables.replica.c
                connection.execute(delete(tables.replica).where(row.id == storable_text(self.id)))
        except DBAPIError:
            return


def _live_replicas(connection: Connection, now: int) -> dict[str, Replica]:
    """Return the live replicas, and remove those without a heartbeat for a minute."""
    alive, forgotten = {}, []
    for row in connection.execute(select(tables.replica).order_by(tables.replica.c.id)):
        age = abs(now - row.seen_ms)
        if age < SEEN_FOR.total_seconds() * 1000:
            try:
                alive[row.id] = decode_json(row.body, Replica)
            except msgspec.MsgspecError:
                continue  # of another release
        elif age > _FORGOTTEN_AFTER.total_seconds() * 1000:
            forgotten.append(row.id)
    if forgotten:
        connection.execute(delete(tables.replica).where(tables.replica.c.id.in_(forgotten)))
    return alive
