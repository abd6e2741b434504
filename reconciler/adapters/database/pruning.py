"""Pruning: removal of settled, old records that neither decisions nor people need.

It is one transaction, so a process that dies in between has removed nothing. Kept at any age:

- every intent in doubt, the newest ones, and all that belong to the last applied plan;
- the launch of every existing NodeClaim: it proves that an instance without a claim is ours. The
  age of a launch counts back from the last effect and not from now, since a daemon that was stopped
  for long may still find such an instance;
- running commands, those that a wave waits for, and those whose NodeClaims were removed recently;
- the newest plan, the current revision, and the last reason of every subject.

Pruning does not change the serial.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select

from reconciler.adapters.database.connection import Database, insert, time_of, time_text
from reconciler.adapters.database.tables import (
    command,
    decision,
    intent,
    node_claim,
    outcome,
    plan,
    revision,
    rollout,
    shelf,
    unavailable,
)
from reconciler.model.history import DAY, Rollout
from reconciler.ports.journal import Verb
from reconciler.ports.state import CommandPhase

LEAST: Final = DAY
"""The minimum that is kept: the daily maximum counts the commands of a day."""

MARK: Final = "pruned-before"
"""The name on the shelf of the time before which history may be missing."""

_OVER: Final = (CommandPhase.DONE.value, CommandPhase.ROLLED_BACK.value)
_A_STATEMENT: Final = 500
"""The number of rows in one statement: SQLite limits the number of values."""


class Tally(NamedTuple):
    """The number of removed and kept rows of one kind of record."""

    kind: str
    gone: int
    kept: int


class _Command(msgspec.Struct, frozen=True, rename="camel"):
    """The facts that decide whether a command can be removed."""

    id: str
    phase: CommandPhase
    started_at: datetime
    node_claims: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    plan: str = ""


class _Intent(msgspec.Struct, frozen=True, rename="camel"):
    """The facts that decide whether an intent can be removed."""

    id: str
    target: str
    plan: str = ""
    parameters: dict[str, str] = {}


@dataclass
class _Survey:
    """The existing rows, and those to be removed.

    Rows not older than the time text ``recent`` are kept, launches not older than ``launched``.
    ``needed`` intents are kept, and the rows of the claims in ``held``.
    """

    connection: Connection
    fleet: str
    recent: str
    launched: str
    needed: frozenset[str]
    last_plan: str = ""
    held: set[str] = field(default_factory=set)
    claims: dict[str, str | None] = field(default_factory=dict)
    goes: dict[str, list[object]] = field(default_factory=dict)

    def rows(self, table: Table, *columns: ColumnElement[Any]) -> Sequence[Any]:
        query = select(*columns).where(table.c.fleet == self.fleet)
        return self.connection.execute(query).all()

    def is_gone(self, claim: str, before: str) -> bool:
        """Return whether a claim was removed before that time, or has no record."""
        at = self.claims.get(claim, "")
        return at is not None and at < before


def prune(
    database: Database,
    now: datetime,
    keep: timedelta,
    needed: Collection[str] = (),
    *,
    carries_out: bool = True,
) -> tuple[Tally, ...]:
    """Remove settled records older than ``keep``; return the numbers by kind.

    ``needed`` are intents whose instances EC2 shows. Unless it ``carries_out``, nothing is removed.

    Raises:
        StateError: the database cannot be used; nothing was removed.
        ValueError: ``keep`` is shorter than a day.
    """
    if keep < LEAST:
        raise ValueError("at least one day is kept, because the daily disruption limit needs it")
    opened = database.writing() if carries_out else database.reading()
    with opened as connection:
        newest = connection.execute(
            select(func.max(intent.c.at)).where(intent.c.fleet == database.fleet)
        ).scalar()
        acted = min(now, time_of(newest)) if newest else now
        texts = time_text(now - keep), time_text(acted - keep)
        survey = _Survey(connection, database.fleet, *texts, frozenset(needed))
        tallies = tuple(_surveyed(survey))
        if carries_out and any(tally.gone for tally in tallies):
            _remove(survey)
            _mark(survey)
    return tallies


def pruned_before(database: Database) -> datetime | None:
    """Return the time before which history may be missing, None if nothing was removed."""
    query = select(shelf.c.content).where(shelf.c.fleet == database.fleet, shelf.c.name == MARK)
    with database.reading() as connection:
        content = connection.execute(query).scalar()
    return None if content is None else time_of(bytes(content).decode())


def _surveyed(survey: _Survey) -> Iterator[Tally]:
    """Decide about each kind in order: the kept rows of one kind decide about the next."""
    claims = survey.rows(node_claim, node_claim.c.name, node_claim.c.gone_at)
    survey.claims = {row.name: row.gone_at for row in claims}
    for kind, judge in _KINDS:
        goes, total = judge(survey)
        survey.goes[kind] = goes
        yield Tally(kind, len(goes), total - len(goes))


_Judged = tuple[list[Any], int]


def _plans(survey: _Survey) -> _Judged:
    c = plan.c
    rows = survey.rows(plan, c.digest, c.sequence, c.at, c.carried_out_at)
    carried = [(row.carried_out_at, row.sequence, row.digest) for row in rows if row.carried_out_at]
    survey.last_plan = max(carried, default=("", 0, ""))[2]
    stays = {survey.last_plan}
    if rows:
        stays.add(max(rows, key=lambda row: row.sequence).digest)
        stays.add(max(rows, key=lambda row: (row.at, row.sequence)).digest)
    goes = [
        row.digest
        for row in rows
        if row.digest not in stays and max(row.at, row.carried_out_at or "") < survey.recent
    ]
    return goes, len(rows)


def _commands(survey: _Survey) -> _Judged:
    c = command.c
    rows = survey.rows(command, c.id, c.phase, c.started_at, c.body)
    bodies = (row.body for row in survey.rows(rollout, rollout.c.body))
    rollouts = [msgspec.json.decode(body, type=Rollout) for body in bodies]
    followed = {move.command for known in rollouts for move in known.moves}
    goes = []
    for row in rows:
        value = msgspec.json.decode(row.body, type=_Command)
        is_settled = row.phase in _OVER and row.started_at < survey.recent
        is_needed = row.id in followed or (survey.last_plan and value.plan == survey.last_plan)
        if is_settled and not is_needed and _has_ended(value, survey):
            goes.append(row.id)
        else:
            survey.held.update(value.node_claims, value.replacements)
    return goes, len(rows)


def _has_ended(value: _Command, survey: _Survey) -> bool:
    """Return whether a command ended before the limit."""
    if value.phase is CommandPhase.ROLLED_BACK:
        return True
    return all(survey.is_gone(name, survey.recent) for name in value.node_claims)


def _intents(survey: _Survey) -> _Judged:
    """Decide about effects, reading only the bodies of old ones, in batches."""
    c, o = intent.c, outcome.c
    ours = c.fleet == survey.fleet
    total, newest, newest_end = survey.connection.execute(
        select(func.count(), func.max(c.sequence), func.max(c.last_outcome)).where(ours)
    ).one()
    query = (
        select(c.id, c.verb, c.body, o.at.label("ended_at"))
        .join_from(intent, outcome, and_(o.fleet == c.fleet, o.sequence == c.last_outcome))
        .where(ours, o.at < survey.recent)
        .where(
            c.sequence != newest, c.last_outcome != newest_end
        )  # new rows continue their numbering
        .order_by(c.sequence)
        .execution_options(yield_per=_A_STATEMENT)
    )
    goes = []
    for row in survey.connection.execute(query):
        value = msgspec.json.decode(row.body, type=_Intent)
        if survey.last_plan and value.plan == survey.last_plan:
            survey.held.add(value.target)
        elif row.id not in survey.needed and not _may_have_instances(row, value, survey):
            goes.append(row.id)
    return goes, total


def _may_have_instances(row: Any, value: _Intent, survey: _Survey) -> bool:
    """Return whether an instance of a launch may still appear."""
    if row.verb == Verb.LAUNCH.value:
        claims = [value.target]
    elif row.verb == Verb.LAUNCH_BATCH.value:
        claims = value.parameters.get("claims", "").split()
    else:
        return False
    if row.ended_at >= survey.launched:
        return True
    return not all(survey.is_gone(name, survey.launched) for name in claims)


def _claims(survey: _Survey) -> _Judged:
    goes = [
        name
        for name, gone_at in survey.claims.items()
        if gone_at is not None and gone_at < survey.recent and name not in survey.held
    ]
    return goes, len(survey.claims)


def _decisions(survey: _Survey) -> _Judged:
    c = decision.c
    rows = survey.rows(decision, c.sequence, c.at, c.plan, c.kind, c.name)
    ordered = sorted(rows, key=lambda row: (row.kind, row.name, row.at, row.plan))
    last = max((row.sequence for row in rows), default=0)
    goes = []
    for _, of_subject in groupby(ordered, key=lambda row: (row.kind, row.name)):
        said = list(of_subject)
        stands = (said[-1].at, said[-1].plan)
        goes += [
            row.sequence
            for row in said
            if row.at < survey.recent and (row.at, row.plan) != stands and row.sequence != last
        ]
    return goes, len(rows)


def _revisions(survey: _Survey) -> _Judged:
    rows = survey.rows(revision, revision.c.sequence, revision.c.at)
    last = max((row.sequence for row in rows), default=0)
    goes = [row.sequence for row in rows if row.at < survey.recent and row.sequence != last]
    return goes, len(rows)


def _refusals(survey: _Survey) -> _Judged:
    c = unavailable.c
    rows = survey.rows(unavailable, c.instance_type, c.zone, c.capacity_type, c.until)
    return [tuple(row[:3]) for row in rows if row.until < survey.recent], len(rows)


_KINDS: Final[tuple[tuple[str, Callable[[_Survey], _Judged]], ...]] = (
    ("plans", _plans),
    ("commands", _commands),
    ("effects", _intents),
    ("nodeClaims", _claims),
    ("reasons", _decisions),
    ("revisions", _revisions),
    ("refusals", _refusals),
)
"""The kinds of records, in the order in which they are decided."""


def _remove(survey: _Survey) -> None:
    """Delete the rows; those with references before those that they refer to."""
    goes = survey.goes
    for table, column, keys in (
        (outcome, outcome.c.intent, goes["effects"]),
        (intent, intent.c.id, goes["effects"]),
        (plan, plan.c.digest, goes["plans"]),
        (command, command.c.id, goes["commands"]),
        (node_claim, node_claim.c.name, goes["nodeClaims"]),
        (decision, decision.c.sequence, goes["reasons"]),
        (revision, revision.c.sequence, goes["revisions"]),
    ):
        for some in _lots(keys):
            chosen = and_(table.c.fleet == survey.fleet, column.in_(some))
            survey.connection.execute(delete(table).where(chosen))
    c = unavailable.c
    for some in _lots(goes["refusals"]):
        named = or_(
            *(
                and_(c.instance_type == kind, c.zone == zone, c.capacity_type == capacity)
                for kind, zone, capacity in some
            )
        )
        survey.connection.execute(delete(unavailable).where(c.fleet == survey.fleet, named))


def _lots(keys: Sequence[object]) -> Iterable[Sequence[Any]]:
    return (keys[start : start + _A_STATEMENT] for start in range(0, len(keys), _A_STATEMENT))


def _mark(survey: _Survey) -> None:
    """Record the time before which history is missing."""
    known = survey.connection.execute(
        select(shelf.c.content).where(shelf.c.fleet == survey.fleet, shelf.c.name == MARK)
    ).scalar()
    content = max(survey.recent.encode(), b"" if known is None else bytes(known))
    statement = insert(survey.connection, shelf).values(
        fleet=survey.fleet, name=MARK, content=content
    )
    survey.connection.execute(
        statement.on_conflict_do_update(
            index_elements=["fleet", "name"], set_={"content": statement.excluded.content}
        )
    )
