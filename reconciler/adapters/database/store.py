"""The StateStore. Every method is one transaction.

A write that changes nothing does not change the serial, so a quiet pass does not make a saved plan
stale. Recording a plan does not change the serial either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    select,
    update,
)

from reconciler.adapters.database.connection import (
    Database,
    decode_body,
    encode_body,
    format_time,
    insert,
    parse_time,
    storable_text,
)
from reconciler.adapters.database.tables import (
    command,
    fleet,
    node_claim,
    object_,
    obstacle,
    plan,
    revision,
    rollout,
    shelf,
    unavailable,
)
from reconciler.model.history import Obstacle, Rollout
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.state import (
    CommandPhase,
    RecordedObject,
    RecordedPlan,
    RunningCommand,
    Unavailable,
)

T = TypeVar("T")

_PLANS_AT_ONCE: Final = 20
"""How many plans are in memory at once while those of a period are read."""

PLANS_KEPT: Final = 500
"""The number of plans kept that were never applied; applied plans are always kept."""

_OVER: Final = (CommandPhase.DONE.value, CommandPhase.ROLLED_BACK.value)

_OFFERING: Final = ("instance_type", "zone", "capacity_type", "reservation_id")


@dataclass(frozen=True, slots=True)
class DatabaseShelf:
    """The Shelf of a fleet; writing to it does not change the serial."""

    database: Database

    def read(self, name: str) -> bytes | None:
        with self.database.read_transaction() as connection:
            found: bytes | None = connection.execute(
                select(shelf.c.content).where(
                    shelf.c.fleet == self.database.fleet, shelf.c.name == name
                )
            ).scalar()
        return None if found is None else bytes(found)

    def write(self, name: str, content: bytes) -> None:
        with self.database.write_transaction() as connection:
            statement = insert(connection, shelf).values(
                fleet=self.database.fleet, name=name, content=content
            )
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["fleet", "name"],
                    set_={"content": statement.excluded.content},
                )
            )


@dataclass(slots=True)
class _ClaimCache:
    """The NodeClaims that were read last, by name, each with the text that it was decoded from."""

    by_name: Mapping[str, tuple[str, NodeClaim]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DatabaseStateStore:
    """The StateStore of a fleet.

    A pass reads all NodeClaims several times; those whose text is unchanged are decoded once.
    """

    database: Database
    _read: _ClaimCache = field(default_factory=_ClaimCache, repr=False, compare=False)

    def serial(self) -> int:
        query = select(fleet.c.serial).where(fleet.c.name == self.database.fleet)
        with self.database.read_transaction() as connection:
            return connection.execute(query).scalar() or 0

    def node_claims(self) -> Sequence[NodeClaim]:
        query = (
            select(node_claim.c.name, node_claim.c.body)
            .where(self._is_ours(node_claim), node_claim.c.gone_at.is_(None))
            .order_by(node_claim.c.name)
        )
        with self.database.read_transaction() as connection:
            rows = connection.execute(query).all()
        known, place = self._read.by_name, self.database.place
        read: dict[str, tuple[str, NodeClaim]] = {}
        for name, body in rows:
            last = known.get(name)
            if last is None or last[0] != body:
                last = (body, decode_body(body, NodeClaim, name=f"NodeClaim {name}", place=place))
            read[name] = last
        self._read.by_name = read
        return [claim for _, claim in read.values()]

    def put_node_claims(self, claims: Sequence[NodeClaim]) -> None:
        rows = {claim.name: self._claim_row(claim) for claim in claims}
        with self.database.write_transaction() as connection:
            known = {
                row.name: row.body
                for row in connection.execute(
                    select(node_claim.c.name, node_claim.c.body).where(
                        self._is_ours(node_claim),
                        node_claim.c.gone_at.is_(None),
                        node_claim.c.name.in_(rows),
                    )
                )
            }
            changed = [row for name, row in rows.items() if known.get(name) != row["body"]]
            self._put(connection, node_claim, changed, key=("name",))

    def forget_node_claims(self, reasons: Mapping[str, str], at: datetime) -> None:
        here = and_(self._is_ours(node_claim), node_claim.c.gone_at.is_(None))
        with self.database.write_transaction() as connection:
            known = connection.execute(
                select(node_claim.c.name).where(here, node_claim.c.name.in_(reasons))
            ).scalars()
            rows = [{"gone": name, "why": storable_text(reasons[name])} for name in known]
            if rows:
                forget = (
                    update(node_claim)
                    .where(here, node_claim.c.name == bindparam("gone"))
                    .values(gone_at=format_time(at), gone_reason=bindparam("why"))
                )
                connection.execute(forget, rows)
                self.database.increment_serial(connection)

    def commands(self) -> Sequence[RunningCommand]:
        query = (
            _commands_query()
            .where(self._is_ours(command), command.c.phase.not_in(_OVER))
            .order_by(command.c.started_at, command.c.id)
        )
        return self._read_values(query, RunningCommand, "command")

    def put_command(self, command: RunningCommand) -> None:
        self._put_command(command)

    def command(self, name: str) -> RunningCommand | None:
        found = self._read_values(
            _commands_query().where(self._is_ours(command), command.c.id == name),
            RunningCommand,
            "command",
        )
        return found[0] if found else None

    def commands_since(self, at: datetime) -> Sequence[RunningCommand]:
        query = (
            _commands_query()
            .where(self._is_ours(command), command.c.started_at >= format_time(at))
            .order_by(command.c.started_at, command.c.id)
        )
        return self._read_values(query, RunningCommand, "command")

    def rollouts(self) -> Sequence[Rollout]:
        query = select(rollout.c.node_pool.label("name"), rollout.c.body).where(
            self._is_ours(rollout)
        )
        return self._read_values(query.order_by(rollout.c.node_pool), Rollout, "rollout")

    def put_rollout(self, rollout: Rollout) -> None:
        self._put_rollout(rollout)

    def obstacles(self) -> Sequence[Obstacle]:
        query = select(obstacle.c.name, obstacle.c.body).where(self._is_ours(obstacle))
        return self._read_values(
            query.order_by(obstacle.c.kind, obstacle.c.name), Obstacle, "obstacle"
        )

    def put_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        rows = [
            {"fleet": self.database.fleet, "kind": o.kind, "name": o.name, "body": encode_body(o)}
            for o in obstacles
        ]
        with self.database.write_transaction() as connection:
            connection.execute(delete(obstacle).where(self._is_ours(obstacle)))
            if rows:
                connection.execute(obstacle.insert(), rows)

    def objects(self) -> Sequence[RecordedObject]:
        query = (
            select(object_.c.name, object_.c.body)
            .where(self._is_ours(object_))
            .order_by(object_.c.kind, object_.c.name)
        )
        return self._read_values(query, RecordedObject, "object")

    def put_objects(self, objects: Sequence[RecordedObject], revision: str, at: datetime) -> None:
        rows = {(o.kind, o.name): self._object_row(o) for o in objects}
        with self.database.write_transaction() as connection:
            moved = self._record_revision(connection, revision, at)
            known = {
                (row.kind, row.name): row.body
                for row in connection.execute(
                    select(object_.c.kind, object_.c.name, object_.c.body).where(
                        self._is_ours(object_)
                    )
                )
            }
            if known != {key: row["body"] for key, row in rows.items()}:
                connection.execute(delete(object_).where(self._is_ours(object_)))
                if rows:
                    connection.execute(object_.insert(), list(rows.values()))
                moved = True
            if moved:
                self.database.increment_serial(connection)

    def put_plan(self, plan: RecordedPlan) -> None:
        self._put_plan(plan)

    def plan(self, digest: str) -> RecordedPlan | None:
        query = select(plan).where(self._is_ours(plan), plan.c.digest == digest)
        with self.database.read_transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _recorded_plan(row)

    def plans(self, *, limit: int = 20) -> Sequence[RecordedPlan]:
        query = (
            select(plan)
            .where(self._is_ours(plan))
            .order_by(plan.c.at.desc(), plan.c.sequence.desc())
            .limit(limit)
        )
        with self.database.read_transaction() as connection:
            return [_recorded_plan(row) for row in connection.execute(query)]

    def plans_since(self, at: datetime) -> Iterator[RecordedPlan]:
        known = (
            select(func.max(plan.c.at))
            .where(self._is_ours(plan), plan.c.at <= format_time(at))
            .scalar_subquery()
        )
        query = (
            select(plan)
            .where(self._is_ours(plan), plan.c.at >= func.coalesce(known, ""))
            .order_by(plan.c.at, plan.c.sequence)
            .execution_options(yield_per=_PLANS_AT_ONCE)
        )
        with self.database.read_transaction() as connection:
            for row in connection.execute(query):
                yield _recorded_plan(row)

    def unavailable(self, now: datetime) -> Sequence[Unavailable]:
        key = (unavailable.c[name] for name in _OFFERING)
        query = (
            select(unavailable)
            .where(self._is_ours(unavailable), unavailable.c.until > format_time(now))
            .order_by(*key)
        )
        with self.database.read_transaction() as connection:
            return [_unavailable_offering(row) for row in connection.execute(query)]

    def put_unavailable(self, offerings: Sequence[Unavailable]) -> None:
        with self.database.write_transaction() as connection:
            known = {
                found.offering: found
                for found in map(
                    _unavailable_offering,
                    connection.execute(select(unavailable).where(self._is_ours(unavailable))),
                )
            }
            changed: dict[tuple[str, str, str, str], Unavailable] = {}
            for offered in offerings:
                key = offered.offering
                before = changed.get(key) or known.get(key)
                is_later = before is not None and (
                    before.until <= offered.until or before.refusals < offered.refusals
                )
                if before is None or (is_later and before != offered):
                    changed[key] = offered
            rows = [
                {
                    "fleet": self.database.fleet,
                    **dict(zip(_OFFERING, o.offering, strict=True)),
                    "until": format_time(o.until),
                    "refusals": o.refusals,
                    "code": o.code,
                }
                for o in changed.values()
            ]
            self._put(connection, unavailable, rows, key=_OFFERING)

    def _is_ours(self, table: Table) -> ColumnElement[bool]:
        return table.c.fleet == self.database.fleet

    def _read_values(self, query: Executable, kind: type[T], word: str) -> list[T]:
        place = self.database.place
        with self.database.read_transaction() as connection:
            rows = connection.execute(query).all()
        return [decode_body(r.body, kind, name=f"{word} {r.name}", place=place) for r in rows]

    def _put(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[JsonDict],
        *,
        key: Iterable[str],
    ) -> None:
        """Insert or overwrite ``rows`` and increase the serial, unless there are none."""
        if not rows:
            return
        statement = insert(connection, table)
        elements = ("fleet", *key)
        values = {c: statement.excluded[c] for c in rows[0] if c not in elements}
        connection.execute(
            statement.on_conflict_do_update(index_elements=elements, set_=values), rows
        )
        self.database.increment_serial(connection)

    def _put_command(self, value: RunningCommand) -> None:
        row = {
            "fleet": self.database.fleet,
            "id": value.id,
            "phase": value.phase.value,
            "started_at": format_time(value.started_at),
            "body": encode_body(value),
        }
        with self.database.write_transaction() as connection:
            known = connection.execute(
                select(command.c.body).where(self._is_ours(command), command.c.id == value.id)
            ).scalar()
            self._put(connection, command, [row] if known != row["body"] else [], key=("id",))

    def _put_rollout(self, value: Rollout) -> None:
        row = {
            "fleet": self.database.fleet,
            "node_pool": value.node_pool,
            "body": encode_body(value),
        }
        with self.database.write_transaction() as connection:
            known = connection.execute(
                select(rollout.c.body).where(
                    self._is_ours(rollout), rollout.c.node_pool == value.node_pool
                )
            ).scalar()
            changed = [row] if known != row["body"] else []
            self._put(connection, rollout, changed, key=("node_pool",))

    def _put_plan(self, value: RecordedPlan) -> None:
        carried_out_at = None if value.carried_out_at is None else format_time(value.carried_out_at)
        with self.database.write_transaction() as connection:
            last = connection.execute(
                select(func.max(plan.c.sequence)).where(self._is_ours(plan))
            ).scalar()
            statement = insert(connection, plan).values(
                fleet=self.database.fleet,
                digest=value.digest,
                sequence=(last or 0) + 1,
                revision=value.revision,
                at=format_time(value.at),
                serial=value.serial,
                body=value.body,
                carried_out_at=carried_out_at,
            )
            new = statement.excluded
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=("fleet", "digest"),
                    set_={
                        "sequence": new.sequence,
                        "revision": new.revision,
                        "at": new.at,
                        "serial": new.serial,
                        "body": new.body,
                        # A plan that was applied stays marked as applied when it is made again.
                        "carried_out_at": func.coalesce(new.carried_out_at, plan.c.carried_out_at),
                    },
                )
            )
            connection.execute(
                delete(plan).where(
                    self._is_ours(plan),
                    plan.c.carried_out_at.is_(None),
                    plan.c.sequence <= (last or 0) + 1 - PLANS_KEPT,
                )
            )

    def _record_revision(self, connection: Connection, name: str, at: datetime) -> bool:
        """Record that a revision was applied; return whether it differs from the last one."""
        last = connection.execute(
            select(revision.c.sequence, revision.c.revision)
            .where(self._is_ours(revision))
            .order_by(revision.c.sequence.desc())
            .limit(1)
        ).one_or_none()
        if last is not None and last.revision == name:
            return False
        connection.execute(
            revision.insert().values(
                fleet=self.database.fleet,
                sequence=1 if last is None else last.sequence + 1,
                revision=name,
                at=format_time(at),
            )
        )
        return True

    def _claim_row(self, claim: NodeClaim) -> dict[str, object]:
        provider_id = claim.status.provider_id
        return {
            "fleet": self.database.fleet,
            "name": claim.name,
            "node_pool": claim.node_pool,
            "provider_id": provider_id,
            "instance_id": provider_id.rpartition("/")[2],
            "body": encode_body(claim),
            "gone_at": None,
            "gone_reason": "",
        }

    def _object_row(self, recorded: RecordedObject) -> dict[str, object]:
        return {
            "fleet": self.database.fleet,
            "kind": recorded.kind,
            "name": recorded.name,
            "hash": recorded.hash,
            "revision": recorded.revision,
            "body": encode_body(recorded),
        }


def _commands_query() -> Select[object]:
    return select(command.c.id.label("name"), command.c.body)


def _recorded_plan(row: Row[object]) -> RecordedPlan:
    return RecordedPlan(
        digest=row.digest,
        revision=row.revision,
        at=parse_time(row.at),
        serial=row.serial,
        body=bytes(row.body),
        carried_out_at=None if row.carried_out_at is None else parse_time(row.carried_out_at),
    )


def _unavailable_offering(row: Row[object]) -> Unavailable:
    return Unavailable(
        instance_type=row.instance_type,
        zone=row.zone,
        capacity_type=row.capacity_type,
        until=parse_time(row.until),
        refusals=row.refusals,
        code=row.code,
        reservation_id=row.reservation_id,
    )
