"""The history: ended commands, removed NodeClaims, earlier reasons, and how the workload changed.

Changes of the workload are compressed rows that are only added.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection, ScalarSelect, delete, exists, func, or_, select

from reconciler.adapters.database.connection import (
    RESTORE,
    Database,
    decode_body,
    encode_body,
    format_time,
    parse_time,
    storable_text,
)
from reconciler.adapters.database.pruning import Tally, prune, pruned_before
from reconciler.adapters.database.tables import (
    command,
    decision,
    fleet,
    intent,
    node_claim,
    plan,
    revision,
    shelf,
    trace,
)
from reconciler.model.errors import StateError
from reconciler.model.grouping import group_pairs
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.explain.answer import Decision
from reconciler.ports.state import RunningCommand, TraceBatch

_BODY_MAX: Final = 1 << 28
"""The maximum size of a batch once it is decompressed: a hundred thousand pods are 30 MB."""

DECISIONS_KEPT: Final = 20_000
"""The number of reasons kept for a fleet; the oldest are removed first."""


@dataclass(frozen=True, slots=True)
class DatabaseTrace:
    """The TraceLog of a fleet; writing to it does not change the serial."""

    database: Database

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        ours = trace.c.fleet == self.database.fleet
        with self.database.write_transaction() as connection:
            last = connection.execute(select(func.max(trace.c.sequence)).where(ours)).scalar()
            connection.execute(
                trace.insert().values(
                    fleet=self.database.fleet,
                    sequence=(last or 0) + 1,
                    at=format_time(batch.at),
                    is_whole=int(batch.is_whole),
                    body=zlib.compress(encode_body(batch).encode()),
                )
            )
            if forget_before is not None:
                connection.execute(
                    delete(trace).where(
                        ours, trace.c.sequence < self._first_needed_batch(forget_before)
                    )
                )

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        query = (
            select(trace.c.body)
            .where(
                trace.c.fleet == self.database.fleet,
                trace.c.sequence >= func.coalesce(self._first_needed_batch(since), 0),
            )
            .order_by(trace.c.sequence)
        )
        with self.database.read_transaction() as connection:
            for body in connection.execute(query).scalars():
                yield self._decode_batch(bytes(body))

    def _first_needed_batch(self, since: datetime) -> ScalarSelect[int]:
        """Return the last whole batch at or before a time: NULL if there is none."""
        c = trace.c
        return (
            select(func.max(c.sequence))
            .where(c.fleet == self.database.fleet, c.is_whole == 1, c.at <= format_time(since))
            .scalar_subquery()
        )

    def _decode_batch(self, body: bytes) -> TraceBatch:
        inflate = zlib.decompressobj()
        try:
            content = inflate.decompress(body, _BODY_MAX)
        except zlib.error as error:
            raise self._damaged_error() from error
        if not inflate.eof:
            raise self._damaged_error()
        return decode_body(
            content.decode(errors="replace"), TraceBatch, name="trace", place=self.database.place
        )

    def _damaged_error(self) -> StateError:
        return StateError(
            "a row of the trace is damaged", where=self.database.place, remedy=RESTORE
        )


class GoneClaim(NamedTuple):
    """A removed claim as last recorded, with the time and reason of its removal."""

    claim: NodeClaim
    at: datetime
    reason: str


class GivenReason(NamedTuple):
    """A reason, and the plan that first gave it."""

    decision: Decision
    at: datetime
    plan: str


@dataclass(frozen=True, slots=True)
class DatabaseHistory:
    """The history of a fleet. Its methods raise StateError if the database cannot be used."""

    database: Database

    def fleets(self) -> Sequence[str]:
        """Return the names of all fleets with records in this database.

        A fleet for which only a lease was acquired has none.
        """
        has_records = or_(
            fleet.c.serial > 0,
            *(
                exists().where(table.c.fleet == fleet.c.name)
                for table in (plan, intent, decision, shelf)
            ),
        )
        query = select(fleet.c.name).where(has_records).order_by(fleet.c.name)
        with self.database.read_transaction() as connection:
            return connection.execute(query).scalars().all()

    def commands(self, *, limit: int = 100) -> Sequence[RunningCommand]:
        """Return the newest commands, running or ended, newest first."""
        query = (
            select(command.c.id, command.c.body)
            .where(command.c.fleet == self.database.fleet)
            .order_by(command.c.started_at.desc(), command.c.id)
            .limit(limit)
        )
        with self.database.read_transaction() as connection:
            rows = connection.execute(query).all()
        place = self.database.place
        return [
            decode_body(r.body, RunningCommand, name=f"command {r.id}", place=place) for r in rows
        ]

    def gone_claim(self, name: str) -> GoneClaim | None:
        """Return the removed claim with the name, or None."""
        query = select(node_claim).where(
            node_claim.c.fleet == self.database.fleet,
            node_claim.c.gone_at.is_not(None),
            node_claim.c.name == name,
        )
        with self.database.read_transaction() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        claim = decode_body(
            row.body, NodeClaim, name=f"NodeClaim {name}", place=self.database.place
        )
        return GoneClaim(claim, parse_time(row.gone_at), row.gone_reason)

    def revision(self) -> tuple[str, datetime] | None:
        """Return the revision that was applied last, and since when."""
        query = (
            select(revision.c.revision, revision.c.at)
            .where(revision.c.fleet == self.database.fleet)
            .order_by(revision.c.sequence.desc())
            .limit(1)
        )
        with self.database.read_transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (row.revision, parse_time(row.at))

    def prune(
        self,
        now: datetime,
        keep: timedelta,
        needed: Collection[str] = (),
        *,
        is_dry_run: bool = False,
    ) -> tuple[Tally, ...]:
        """Remove settled records older than ``keep`` (``pruning.prune``)."""
        return prune(self.database, now, keep, needed, is_dry_run=is_dry_run)

    def pruned_before(self) -> datetime | None:
        """Return the time before which history may be missing, None if nothing was removed."""
        return pruned_before(self.database)

    def put_decisions(self, plan: str, at: datetime, decisions: Sequence[Decision]) -> None:
        """Record the reasons in ``plan``.

        A subject with the same reasons as before gets no new row, so the history shows how reasons
        changed and does not grow while a fleet is quiet.
        """
        if not decisions:
            return
        reasons_by_subject = group_pairs(
            ((d.kind, storable_text(d.name)), (d.code, storable_text(d.message))) for d in decisions
        )
        with self.database.write_transaction() as connection:
            before = self._last_reasons(connection)
            last = self._last_sequence(connection)
            fresh = [
                (*subject, *reason)
                for subject, reasons in reasons_by_subject.items()
                if before.get(subject) != reasons
                for reason in reasons
            ]
            rows = [
                {
                    "fleet": self.database.fleet,
                    "sequence": number,
                    "at": format_time(at),
                    "plan": plan,
                    "kind": kind,
                    "name": name,
                    "code": code,
                    "message": message,
                }
                for number, (kind, name, code, message) in enumerate(fresh, start=last + 1)
            ]
            if rows:
                connection.execute(decision.insert(), rows)
                too_old = decision.c.sequence <= last + len(rows) - DECISIONS_KEPT
                connection.execute(
                    delete(decision).where(decision.c.fleet == self.database.fleet, too_old)
                )

    def decisions(self, kind: str, name: str, *, limit: int = 20) -> Sequence[GivenReason]:
        """Return the reasons about one subject, newest first."""
        query = (
            select(decision)
            .where(
                decision.c.fleet == self.database.fleet,
                decision.c.kind == kind,
                decision.c.name == name,
            )
            .order_by(decision.c.sequence.desc())
            .limit(limit)
        )
        with self.database.read_transaction() as connection:
            rows = connection.execute(query).all()
        return [
            GivenReason(
                Decision(kind=r.kind, name=r.name, code=r.code, message=r.message),
                parse_time(r.at),
                r.plan,
            )
            for r in rows
        ]

    def _last_reasons(self, connection: Connection) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return the latest reasons of each subject."""
        recency = func.rank().over(
            partition_by=(decision.c.kind, decision.c.name),
            order_by=(decision.c.at.desc(), decision.c.plan.desc()),
        )
        ranked = (
            select(decision, recency.label("recency"))
            .where(decision.c.fleet == self.database.fleet)
            .subquery()
        )
        query = (
            select(ranked.c.kind, ranked.c.name, ranked.c.code, ranked.c.message)
            .where(ranked.c.recency == 1)
            .order_by(ranked.c.sequence)
        )
        return group_pairs(
            ((row.kind, row.name), (row.code, row.message)) for row in connection.execute(query)
        )

    def _last_sequence(self, connection: Connection) -> int:
        query = select(func.max(decision.c.sequence)).where(decision.c.fleet == self.database.fleet)
        return int(connection.execute(query).scalar() or 0)
