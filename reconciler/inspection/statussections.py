"""The sections of a status, and when the facts in it were read."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reconciler.assembly.inputs import records
from reconciler.assembly.inputs.files import read_checkout_file
from reconciler.desired.lock import Lock, read_lock
from reconciler.inspection.status import PHASES
from reconciler.model.errors import UnreadableError
from reconciler.model.grouping import group_by
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.identifiers import name_revision
from reconciler.model.text.money import format_cost, format_forgone_savings
from reconciler.model.text.times import format_time, timestamp
from reconciler.plan.render.wording import format_age
from reconciler.render.cells import Column, Section, SectionRow, Text
from reconciler.render.listing import age, verb_tone
from reconciler.render.reply import is_numeric
from reconciler.source.resource import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.inspection.status import PlanTotals, Status
    from reconciler.ports.state import Unavailable

_ACTIONS_MAX: Final = 20
_BLOCKERS_MAX: Final = 12
_TYPES_MAX: Final = 4

_NAMES: Final = {"types": "instanceTypes", "on-demand": "onDemandPrices", "spot": "spotPrices"}
_TITLES: Final = {
    "lock": "locked",
    "instanceTypes": "instance types",
    "onDemandPrices": "on-demand prices",
    "spotPrices": "spot prices",
}


def status_sections(status: Status, now: datetime) -> tuple[Section, ...]:
    """Return what people see of a status: the facts, then tables of what it has."""
    sections = (
        _table("fleet", (), list(_facts(status, now))),
        _node_pools(status),
        _unfinished(status),
        _commands(status, now),
        _rollouts(status),
        _blockers(status),
        _requests(status),
        _ownership(status),
        *(_table("removals", (), [(f"{text}.",)]) for text in status.removals),
        _in_doubt(status),
        _unavailable(status),
    )
    return tuple(section for section in sections if section.rows)


def _table(
    key: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    title: str = "",
    end: str = "",
) -> Section:
    """Return a section of texts; ``end`` is the line below its rows."""
    heads = titles or [""] * max(map(len, rows), default=0)
    texts = [[cell.text if isinstance(cell, Text) else cell for cell in row] for row in rows]
    columns = (
        Column(head, numeric=bool(head) and is_numeric([row[n] for row in texts]))
        for n, head in enumerate(heads)
    )
    return Section(
        key=key,
        title=title,
        columns=tuple(columns),
        rows=tuple(
            SectionRow(cells=tuple(Text(c) if isinstance(c, str) else c for c in row))
            for row in rows
        ),
        end=end,
        table=True,
    )


def _facts(status: Status, now: datetime) -> Iterator[tuple[str, str]]:
    head, problem = status.revision, status.revision_problem
    yield "Fleet:", status.fleet
    synced = f"synced to {name_revision(head.head)} since " if head else "none yet"
    yield "Revision:", synced + (format_time(head.since) if head else "")
    if problem is not None:
        since = format_time(problem.since)
        yield "Problem:", f"a newer revision cannot be planned since {since}: {problem.message}"
    yield "State:", f"{status.state} at serial {status.serial}"
    yield "Engine:", status.held_by or "not running"
    if status.known:
        yield "Catalog:", _format_ages(status, now)
    yield from _plan_facts(status.plan)
    if status.progress is not None:
        states = ", ".join(f"{number} {state}" for state, number in status.progress.states.items())
        yield "Actions:", f"{states} (plan {status.progress.plan})"


def _plan_facts(plan: PlanTotals | None) -> Iterator[tuple[str, str]]:
    if plan is None:
        yield "Plan:", "none yet"
        return
    count = format_count(plan.actions, "action")
    yield "Plan:", f"{plan.digest} of {format_time(plan.at)}, {count}"
    counts = (
        (plan.unschedulable, "unschedulable pod"),
        (plan.blocked, "blocked node"),
        (plan.deferred, "deferred node"),
    )
    left = [format_count(number, noun) for number, noun in counts if number]
    if left:
        yield "Remaining:", ", ".join(left)
    yield "Projected cost:", format_cost(plan.cost.after)


def _node_pools(status: Status) -> Section:
    rows = [
        (pool or "(none)", str(sum(counts.values())), *map(str, counts.values()))
        for pool, counts in status.node_pools.items()
    ]
    return _table("nodepools", ("NodePool", "nodes", *map(str.lower, PHASES)), rows, "NodePools")


def _unfinished(status: Status) -> Section:
    """Return the first actions that are not finished, each with what it waits for."""
    actions = status.progress.unfinished if status.progress is not None else ()
    rows = [
        (Text(a.action, verb_tone(a.action.partition("/")[0])), a.state, a.why)
        for a in actions[:_ACTIONS_MAX]
    ]
    left = len(actions) - len(rows)
    more = f"and {left} more; `reconciler get actions` lists all" if left else ""
    return _table("actions", ("action", "state", "why"), rows, "Unfinished actions", more)


def _commands(status: Status, now: datetime) -> Section:
    columns = ["command", "reason", "decision", "NodeClaims", "phase", "age", "by"]
    shown = 7 if any(c.message for c in status.commands) else 6
    rows = [
        (
            c.id,
            c.reason,
            c.decision,
            format_list(c.node_claims),
            c.phase,
            age(c.started_at, now),
            c.message,
        )[:shown]
        for c in status.commands
    ]
    return _table("commands", columns[:shown], rows)


def _rollouts(status: Status) -> Section:
    rows = []
    for r in status.rollouts:
        state = r.waits_for or "in progress" if r.nodes else "between waves"
        if r.stopped_at is not None:
            state = f"halted at {format_time(r.stopped_at)}: {r.stopped_why}"
        size = f"{r.nodes} of {r.size}" if r.size else str(r.nodes)
        rows.append((r.node_pool, str(r.wave), size, str(r.failures), state))
    stopped = any(r.stopped_at is not None for r in status.rollouts)
    advice = "Run `reconciler resume` to continue halted rollouts." if stopped else ""
    return _table("rollouts", ("NodePool", "wave", "nodes", "failures", "state"), rows, end=advice)


def _blockers(status: Status) -> Section:
    rows = [
        (
            f"{b.kind} {b.name}",
            str(len(b.nodes)),
            format_time(b.since) if b.since is not None else "",
            format_forgone_savings(b.forgone, b.unpriced),
        )
        for b in status.blockers[:_BLOCKERS_MAX]
    ]
    rest = len(status.blockers) - len(rows)
    more = f"and {rest} more (-o json lists all)" if rest else ""
    columns = ("blocker", "nodes", "since", "potential savings")
    return _table("blockers", columns, rows, "Blockers", more)


def _requests(status: Status) -> Section:
    rows = [(f"{r.verb} {r.target}, since {timestamp(r.at)}",) for r in status.requests]
    return _table("requests", (), rows, "Requested and not executed yet")


def _ownership(status: Status) -> Section:
    title = "No node is launched or disrupted until it is clear who owns the nodes of this fleet"
    return _table("ownership", (), [(f.message,) for f in status.ownership], title)


def _in_doubt(status: Status) -> Section:
    rows = [(Text(o.verb, verb_tone(o.verb)), o.target, o.id) for o in status.in_doubt]
    title = "Operations with unknown outcome (checked first in the next pass)"
    return _table("indoubt", (), rows, title)


def _unavailable(status: Status) -> Section:
    """Return the unavailable offerings; a zone without capacity is one row."""
    rows: list[tuple[str, str, str, str, str]] = []
    for group in group_by(status.unavailable, lambda u: (u.zone, _capacity(u), u.code)).values():
        if len(group) > _TYPES_MAX:
            rows.append((f"{len(group):,} instance types", *_unavailable_cells(group)))
        else:
            rows += ((u.instance_type, *_unavailable_cells([u])) for u in group)
    return _table("unavailable", ("unavailable", "zone", "capacity", "until", "code"), rows)


def _unavailable_cells(group: Sequence[Unavailable]) -> tuple[str, str, str, str]:
    """Return what the offerings of one zone share, and when they are tried again."""
    first, last = (format_time(pick(u.until for u in group)) for pick in (min, max))
    until = first if first == last else f"{first} to {last}"
    return group[0].zone, _capacity(group[0]), until, group[0].code


def _capacity(offering: Unavailable) -> str:
    return f"{offering.capacity_type} {offering.reservation_id}".strip()


def _format_ages(status: Status, now: datetime) -> str:
    return ", ".join(f"{_TITLES[name]} {format_age(at, now)}" for name, at in status.known.items())


def fact_times(request: StateRequest) -> dict[str, datetime]:
    """Return when each fact was read, without the data bundled with the release."""
    from reconciler.adapters.aws.facts.latest import cache_folder, cache_times

    resolved = records.settings_of(request)
    locked = _lock_time(request.path)
    found = {"lock": locked} if locked is not None else {}
    folder = cache_folder(resolved.settings, records.response_cache_folder(request.path, resolved))
    for name, at in cache_times(folder).items():
        found[_NAMES[name]] = at
    return found


def _lock_time(path: str | None) -> datetime | None:
    try:
        folder = Path(path or ".")
        content = read_checkout_file(folder / LOCK_FILE, folder)
    except (OSError, UnreadableError):
        return None
    lock = read_lock(content)
    return lock.locked_at if isinstance(lock, Lock) else None
