"""The record of predictions of what Karpenter does, and of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Connection, Table, delete, func, select

from reconciler.adapters.database.connection import Database, decode_body, encode_body, format_time
from reconciler.adapters.database.tables import prediction, score
from reconciler.model.karpenter.prediction import Prediction, Score

T = TypeVar("T")

KEPT_MAX: Final = 20_000
"""How many predictions, and how many scores, of a fleet are kept: each change of a pod may make a
new one."""


@dataclass(frozen=True, slots=True)
class DatabasePredictions:
    """The PredictionLog of a fleet; writing to it does not change the serial."""

    database: Database

    def record(self, made: Prediction) -> Prediction:
        with self.database.write_transaction() as connection:
            numbered = msgspec.structs.replace(made, sequence=self._next(connection, prediction))
            self._insert(connection, prediction, numbered.sequence, made.at, numbered)
        return numbered

    def score(self, scores: Sequence[Score]) -> None:
        with self.database.write_transaction() as connection:
            number = self._next(connection, score)
            for offset, one in enumerate(scores):
                self._insert(connection, score, number + offset, one.action.at, one)

    def scores(self, since: datetime) -> Sequence[Score]:
        return self._read(score, since, Score)

    def predictions(self, since: datetime) -> Sequence[Prediction]:
        return self._read(prediction, since, Prediction)

    def forget(self, before: datetime) -> None:
        with self.database.write_transaction() as connection:
            for table in (prediction, score):
                oldest = self._next(connection, table) - KEPT_MAX
                is_old = (table.c.at < format_time(before)) | (table.c.sequence < oldest)
                connection.execute(
                    delete(table).where(table.c.fleet == self.database.fleet, is_old)
                )

    def _next(self, connection: Connection, table: Table) -> int:
        query = select(func.max(table.c.sequence)).where(table.c.fleet == self.database.fleet)
        last: int | None = connection.execute(query).scalar()
        return (last or 0) + 1

    def _insert(
        self, connection: Connection, table: Table, sequence: int, at: datetime, body: Any
    ) -> None:
        connection.execute(
            table.insert().values(
                fleet=self.database.fleet,
                sequence=sequence,
                at=format_time(at),
                body=encode_body(body),
            )
        )

    def _read(self, table: Table, since: datetime, kind: type[T]) -> Sequence[T]:
        query = (
            select(table.c.body)
            .where(table.c.fleet == self.database.fleet, table.c.at >= format_time(since))
            .order_by(table.c.sequence)
        )
        with self.database.read_transaction() as connection:
            bodies = connection.execute(query).scalars().all()
        place = self.database.place
        return [decode_body(body, kind, name=table.name, place=place) for body in bodies]
