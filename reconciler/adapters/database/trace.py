"""The recorded changes of the workload, as compressed rows that are only added."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ScalarSelect, delete, func, select

from reconciler.adapters.database.connection import (
    RESTORE,
    Database,
    body_of,
    time_text,
    value_of,
)
from reconciler.adapters.database.tables import trace
from reconciler.model.errors import StateError
from reconciler.ports.trace import TraceBatch

_BODY_MAX: Final = 1 << 28
"""The maximum size of a batch once it is decompressed: a hundred thousand pods are 30 MB."""


@dataclass(frozen=True, slots=True)
class DatabaseTrace:
    """The TraceLog of a fleet; writing to it does not change the serial."""

    database: Database

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        ours = trace.c.fleet == self.database.fleet
        with self.database.writing() as connection:
            last = connection.execute(select(func.max(trace.c.sequence)).where(ours)).scalar()
            connection.execute(
                trace.insert().values(
                    fleet=self.database.fleet,
                    sequence=(last or 0) + 1,
                    at=time_text(batch.at),
                    is_whole=int(batch.is_whole),
                    body=zlib.compress(body_of(batch).encode()),
                )
            )
            if forget_before is not None:
                connection.execute(
                    delete(trace).where(ours, trace.c.sequence < self._first(forget_before))
                )

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        query = (
            select(trace.c.body)
            .where(
                trace.c.fleet == self.database.fleet,
                trace.c.sequence >= func.coalesce(self._first(since), 0),
            )
            .order_by(trace.c.sequence)
        )
        with self.database.reading() as connection:
            for body in connection.execute(query).scalars():
                yield self._decoded(bytes(body))

    def _first(self, since: datetime) -> ScalarSelect[int]:
        """Return the last whole batch at or before a time: NULL if there is none."""
        c = trace.c
        return (
            select(func.max(c.sequence))
            .where(c.fleet == self.database.fleet, c.is_whole == 1, c.at <= time_text(since))
            .scalar_subquery()
        )

    def _decoded(self, body: bytes) -> TraceBatch:
        inflate = zlib.decompressobj()
        try:
            content = inflate.decompress(body, _BODY_MAX)
        except zlib.error as error:
            raise self._damaged() from error
        if not inflate.eof:
            raise self._damaged()
        return value_of(
            content.decode(errors="replace"), TraceBatch, name="trace", place=self.database.place
        )

    def _damaged(self) -> StateError:
        return StateError(
            "a row of the trace is damaged", where=self.database.place, remedy=RESTORE
        )
