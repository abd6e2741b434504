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

from reconciler.adapters.database.connection import Database, format_time, insert, parse_time
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
from reconciler.model.decode import decode_json
from reconciler.model.history import DAY, Rollout
from reconciler.ports.journal import Verb
from reconciler.ports.state import CommandPhase, RunningCommand

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
    ``needed`` intents are kept, and the rows of the claims in ``kept_claims``.
    """

    connection: Connection
    fleet: str
    recent: str
    launched: str
    needed: frozenset[str]
    last_plan: str = ""
    kept_claims: set[str] = field(default_factory=set)
    claims: dict[str, str | None] = field(default_factory=dict)
    prunable: dict[str, list[object]] = field(default_factory=dict)

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
    is_dry_run: bool = False,
) -> tuple[Tally, ...]:
    """Remove settled records older than ``keep``; return the numbers by kind.

    ``needed`` are intents whose instances EC2 shows. With ``is_dry_run`` nothing is removed.

    Raises:
        StateError: the database cannot be used; nothing was removed.
        ValueError: ``keep`` is shorter than a day.
    """
    if keep < LEAST:
        raise ValueError("at least one day is kept, because the daily disruption limit needs it")
    transaction = database.read_transaction() if is_dry_run else database.write_transaction()
    with transaction as connection:
        newest = connection.execute(
            select(func.max(intent.c.at)).where(intent.c.fleet == database.fleet)
        ).scalar()
        last_action = min(now, parse_time(newest)) if newest else now
        texts = format_time(now - keep), format_time(last_action - keep)
        survey = _Survey(connection, database.fleet, *texts, frozenset(needed))
        tallies = tuple(_survey_records(survey))
        if not is_dry_run and any(tally.gone for tally in tallies):
            _delete_rows(survey)
            _record_pruned_before(survey)
    return tallies


def pruned_before(database: Database) -> datetime | None:
    """Return the time before which history may be missing, None if nothing was removed."""
    query = select(shelf.c.content).where(shelf.c.fleet == database.fleet, shelf.c.name == MARK)
    with database.read_transaction() as connection:
        content = connection.execute(query).scalar()
    return None if content is None else parse_time(bytes(content).decode(errors="replace"))


def _survey_records(survey: _Survey) -> Iterator[Tally]:
    """Decide about each kind in order: the kept rows of one kind decide about the next."""
    claims = survey.rows(node_claim, node_claim.c.name, node_claim.c.gone_at)
    survey.claims = {row.name: row.gone_at for row in claims}
    for kind, find_prunable in _KINDS:
        prunable, total = find_prunable(survey)
        survey.prunable[kind] = prunable
        yield Tally(kind, len(prunable), total - len(prunable))


_Prunable = tuple[list[Any], int]


def _prunable_plans(survey: _Survey) -> _Prunable:
    c = plan.c
    rows = survey.rows(plan, c.digest, c.sequence, c.at, c.carried_out_at)
    applied = [(row.carried_out_at, row.sequence, row.digest) for row in rows if row.carried_out_at]
    survey.last_plan = max(applied, default=("", 0, ""))[2]
    kept = {survey.last_plan}
    if rows:
        kept.add(max(rows, key=lambda row: row.sequence).digest)
        kept.add(max(rows, key=lambda row: (row.at, row.sequence)).digest)
    prunable = [
        row.digest
        for row in rows
        if row.digest not in kept and max(row.at, row.carried_out_at or "") < survey.recent
    ]
    return prunable, len(rows)


def _followed_commands(survey: _Survey) -> set[str]:
    """Return the commands that rollouts still follow."""
    bodies = (row.body for row in survey.rows(rollout, rollout.c.body))
    rollouts = (decode_json(body, Rollout) for body in bodies)
    return {move.command for known in rollouts for move in known.moves}


def _prunable_commands(survey: _Survey) -> _Prunable:
    c = command.c
    rows = survey.rows(command, c.id, c.phase, c.started_at, c.body)
    followed = _followed_commands(survey)
    prunable = []
    for row in rows:
        value = decode_json(row.body, RunningCommand)
        is_settled = row.phase in _OVER and row.started_at < survey.recent
        is_needed = row.id in followed or (survey.last_plan and value.plan == survey.last_plan)
        if is_settled and not is_needed and _has_ended(value, survey):
            prunable.append(row.id)
        else:
            survey.kept_claims.update(value.node_claims, value.replacements)
    return prunable, len(rows)


def _has_ended(value: RunningCommand, survey: _Survey) -> bool:
    """Return whether a command ended before the limit."""
    if value.phase is CommandPhase.ROLLED_BACK:
        return True
    return all(survey.is_gone(name, survey.recent) for name in value.node_claims)


def _prunable_intents(survey: _Survey) -> _Prunable:
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
    prunable = []
    for row in survey.connection.execute(query):
        value = decode_json(row.body, _Intent)
        if survey.last_plan and value.plan == survey.last_plan:
            survey.kept_claims.add(value.target)
        elif row.id not in survey.needed and not _may_have_instances(row, value, survey):
            prunable.append(row.id)
    return prunable, total


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


def _prunable_claims(survey: _Survey) -> _Prunable:
    prunable = [
        name
        for name, gone_at in survey.claims.items()
        if gone_at is not None and gone_at < survey.recent and name not in survey.kept_claims
    ]
    return prunable, len(survey.claims)


def _prunable_decisions(survey: _Survey) -> _Prunable:
    c = decision.c
    rows = survey.rows(decision, c.sequence, c.at, c.plan, c.kind, c.name)
    ordered = sorted(rows, key=lambda row: (row.kind, row.name, row.at, row.plan))
    last = max((row.sequence for row in rows), default=0)
    prunable = []
    for _, of_subject in groupby(ordered, key=lambda row: (row.kind, row.name)):
        reasons = list(of_subject)
        current = (reasons[-1].at, reasons[-1].plan)
        prunable += [
            row.sequence
            for row in reasons
            if row.at < survey.recent and (row.at, row.plan) != current and row.sequence != last
        ]
    return prunable, len(rows)


def _prunable_revisions(survey: _Survey) -> _Prunable:
    rows = survey.rows(revision, revision.c.sequence, revision.c.at)
    last = max((row.sequence for row in rows), default=0)
    prunable = [row.sequence for row in rows if row.at < survey.recent and row.sequence != last]
    return prunable, len(rows)


def _prunable_refusals(survey: _Survey) -> _Prunable:
    c = unavailable.c
    rows = survey.rows(
        unavailable, c.instance_type, c.zone, c.capacity_type, c.reservation_id, c.until
    )
    return [tuple(row[:4]) for row in rows if row.until < survey.recent], len(rows)


_KINDS: Final[tuple[tuple[str, Callable[[_Survey], _Prunable]], ...]] = (
    ("plans", _prunable_plans),
    ("commands", _prunable_commands),
    ("effects", _prunable_intents),
    ("nodeClaims", _prunable_claims),
    ("reasons", _prunable_decisions),
    ("revisions", _prunable_revisions),
    ("refusals", _prunable_refusals),
)
"""The kinds of records, in the order in which they are decided."""


def _delete_rows(survey: _Survey) -> None:
    """Delete the rows; those with references before those that they refer to."""
    prunable = survey.prunable
    for table, column, keys in (
        (outcome, outcome.c.intent, prunable["effects"]),
        (intent, intent.c.id, prunable["effects"]),
        (plan, plan.c.digest, prunable["plans"]),
        (command, command.c.id, prunable["commands"]),
        (node_claim, node_claim.c.name, prunable["nodeClaims"]),
        (decision, decision.c.sequence, prunable["reasons"]),
        (revision, revision.c.sequence, prunable["revisions"]),
    ):
        for batch in _batches(keys):
            chosen = and_(table.c.fleet == survey.fleet, column.in_(batch))
            survey.connection.execute(delete(table).where(chosen))
    c = unavailable.c
    for batch in _batches(prunable["refusals"]):
        named = or_(
            *(
                and_(
                    c.instance_type == kind,
                    c.zone == zone,
                    c.capacity_type == capacity,
                    c.reservation_id == reservation,
                )
                for kind, zone, capacity, reservation in batch
            )
        )
        survey.connection.execute(delete(unavailable).where(c.fleet == survey.fleet, named))


def _batches(keys: Sequence[object]) -> Iterable[Sequence[Any]]:
    return (keys[start : start + _A_STATEMENT] for start in range(0, len(keys), _A_STATEMENT))


def _record_pruned_before(survey: _Survey) -> None:
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
