"""The journal of intended effects, written before they are tried.

Rows are only added. A repeated intent keeps its first row. An outcome is a separate row, and the
last outcome of an intent counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    func,
    select,
    update,
)

from reconciler.adapters.database.connection import (
    Database,
    decode_body,
    encode_body,
    format_time,
    parse_member,
    parse_time,
    storable_text,
)
from reconciler.adapters.database.tables import intent as intents_table
from reconciler.adapters.database.tables import outcome as outcomes_table
from reconciler.ports.journal import Intent, IntentOutcome, JournalEntry, Outcome

_IDS_OF_A_QUERY: Final = 500


@dataclass(frozen=True, slots=True)
class DatabaseJournal:
    """The Journal of a fleet; sequences count from 1."""

    database: Database

    def begin(self, intents: Sequence[Intent]) -> None:
        with self.database.write_transaction() as connection:
            known = self._recorded_ids(connection, [intent.id for intent in intents])
            fresh = _unique_intents(i for i in intents if i.id not in known)
            last = self._last_sequence(connection, intents_table)
            rows = [
                {
                    "fleet": self.database.fleet,
                    "sequence": number,
                    "id": intent.id,
                    "verb": intent.verb.value,
                    "target": intent.target,
                    "at": format_time(intent.at),
                    "body": encode_body(intent),
                }
                for number, intent in enumerate(fresh, start=last + 1)
            ]
            if rows:
                connection.execute(intents_table.insert(), rows)

    def finish(self, ended: Sequence[IntentOutcome], at: datetime) -> None:
        if not ended:
            return
        with self.database.write_transaction() as connection:
            unknown = {e.intent for e in ended} - self._recorded_ids(
                connection, [e.intent for e in ended]
            )
            assert not unknown, f"outcome without an intent: {min(unknown)}"
            last = self._last_sequence(connection, outcomes_table)
            rows = [
                {
                    "fleet": self.database.fleet,
                    "sequence": number,
                    "intent": intent,
                    "outcome": outcome.value,
                    "at": format_time(at),
                    "message": storable_text(message),
                }
                for number, (intent, outcome, message) in enumerate(ended, start=last + 1)
            ]
            connection.execute(outcomes_table.insert(), rows)
            last_outcome = (
                update(intents_table)
                .where(self._matches_intent(bindparam("ended")))
                .values(last_outcome=bindparam("number"))
            )
            numbers = [{"ended": row["intent"], "number": row["sequence"]} for row in rows]
            connection.execute(last_outcome, numbers)

    def find_entries(self, intents: Collection[str]) -> Mapping[str, JournalEntry]:
        ids, found = sorted(set(intents)), dict[str, JournalEntry]()
        for start in range(0, len(ids), _IDS_OF_A_QUERY):
            batch = ids[start : start + _IDS_OF_A_QUERY]
            for entry in self._read_entries(
                self._entries_query().where(intents_table.c.id.in_(batch))
            ):
                found[entry.intent.id] = entry
        return found

    def in_doubt(self) -> Sequence[JournalEntry]:
        query = self._entries_query().where(intents_table.c.last_outcome.is_(None))
        return self._read_entries(query.order_by(intents_table.c.sequence))

    def entries(self, *, limit: int = 100, target: str | None = None) -> Sequence[JournalEntry]:
        query = self._entries_query()
        if target is not None:
            query = query.where(intents_table.c.target == target)
        return self._read_entries(query.order_by(intents_table.c.sequence.desc()).limit(limit))

    def _matches_intent(self, intent: str | BindParameter[str]) -> ColumnElement[bool]:
        return and_(intents_table.c.fleet == self.database.fleet, intents_table.c.id == intent)

    def _entries_query(self) -> Select[object]:
        """Return the query for intents with their last outcome."""
        return (
            select(
                intents_table.c.sequence,
                intents_table.c.id,
                intents_table.c.body,
                outcomes_table.c.outcome,
                outcomes_table.c.at,
                outcomes_table.c.message,
            )
            .select_from(intents_table)
            .outerjoin(
                outcomes_table,
                (outcomes_table.c.fleet == intents_table.c.fleet)
                & (outcomes_table.c.sequence == intents_table.c.last_outcome),
            )
            .where(intents_table.c.fleet == self.database.fleet)
        )

    def _read_entries(self, query: Select[object]) -> list[JournalEntry]:
        with self.database.read_transaction() as connection:
            return [self._entry(row) for row in connection.execute(query)]

    def _entry(self, row: Row[object]) -> JournalEntry:
        place = self.database.place
        return JournalEntry(
            sequence=row.sequence,
            intent=decode_body(row.body, Intent, name=f"intent {row.id}", place=place),
            outcome=None if row.outcome is None else parse_member(row.outcome, Outcome),
            finished_at=None if row.at is None else parse_time(row.at),
            message=row.message or "",
        )

    def _recorded_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        column = intents_table.c.id
        return set(
            connection.execute(
                select(column).where(intents_table.c.fleet == self.database.fleet, column.in_(ids))
            ).scalars()
        )

    def _last_sequence(self, connection: Connection, table: Table) -> int:
        found = connection.execute(
            select(func.max(table.c.sequence)).where(table.c.fleet == self.database.fleet)
        ).scalar()
        return int(found or 0)


def _unique_intents(intents: Iterable[Intent]) -> Collection[Intent]:
    first: dict[str, Intent] = {}
    for intent in intents:
        first.setdefault(intent.id, intent)
    return first.values()
