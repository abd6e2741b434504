"""A durable map from name to bytes, for an adapter that imitates a part of the world."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from reconciler.adapters.database.connection import Database, insert
from reconciler.adapters.database.tables import shelf


@dataclass(frozen=True, slots=True)
class DatabaseShelf:
    """The Shelf of a fleet; what stands on it is no belief and leaves the serial alone."""

    database: Database

    def read(self, name: str) -> bytes | None:
        with self.database.reading() as connection:
            found: bytes | None = connection.execute(
                select(shelf.c.content).where(
                    shelf.c.fleet == self.database.fleet, shelf.c.name == name
                )
            ).scalar()
        return None if found is None else bytes(found)

    def write(self, name: str, content: bytes) -> None:
        with self.database.writing() as connection:
            statement = insert(connection, shelf).values(
                fleet=self.database.fleet, name=name, content=content
            )
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["fleet", "name"],
                    set_={"content": statement.excluded.content},
                )
            )
