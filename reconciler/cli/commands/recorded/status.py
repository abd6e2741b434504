"""``reconciler status``: the recorded state of the fleet at a glance."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.assembly.inputs import records, watching
from reconciler.cli.parser import inputs
from reconciler.model.text.visible import Painted, one_line

if TYPE_CHECKING:
    import argparse

    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.model.json import JsonDict
    from reconciler.plan.value.plan import Plan

_PHASES: Final = ("Pending", "Launched", "Registered", "Ready", "Terminating")
_ACTIONS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """The fleet whose status is shown, and the output format."""

    fleet: StateRequest
    output: str
    watches: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet and the output format."""
    inputs.add_path(parser)
    inputs.add_output(parser)
    inputs.add_watch(parser)
    inputs.add_flags(parser, inputs.RECORDED)


def request_of(args: argparse.Namespace) -> StatusRequest:
    """Return the request in the arguments."""
    return StatusRequest(inputs.state_request(args, args.path), args.output, args.watch)


def run(request: StatusRequest) -> int:
    """Print the status, once or whenever it changes."""
    if request.watches:
        watching.watch_until_stopped(lambda: _view(request), sys.stdout)
    else:
        _view(request).show(sys.stdout)
    return exitcode.DONE


def _view(request: StatusRequest) -> watching.View:
    """Return the status in the output format."""
    from reconciler.cli.output import statuslines

    with records.open_recorded(request.fleet) as recorded:
        known = statuslines.fact_times(request.fleet)
        facts = {**facts_of(recorded), "known": statuslines.document(known)}
        if request.output == "text":
            text = _render_text(recorded, facts, statuslines.format_ages(known, recorded.now))
            return watching.View(text, facts)
    from reconciler.render.listing import format_document

    return watching.View(format_document(facts, request.output), facts)


def facts_of(recorded: RecordedFleet) -> JsonDict:
    """Return the status as an object; money is USD an hour."""
    from reconciler.cli.output import statuslines
    from reconciler.ports.journal import REQUESTED
    from reconciler.render.listing import stamp

    store = recorded.state.store
    open_intents = recorded.state.journal.in_doubt()
    revision = recorded.state.history.revision()
    return {
        "apiVersion": "reconciler/v1",
        "kind": "Status",
        "fleet": recorded.fleet,
        "state": recorded.where,
        "serial": store.serial(),
        "revision": {"head": revision[0], "since": stamp(revision[1])} if revision else None,
        "revisionProblem": _revision_problem(recorded),
        "heldBy": recorded.state.lease.holder(),
        "nodePools": _pool_counts(recorded),
        "commands": [
            {
                "id": c.id,
                "reason": c.reason,
                "decision": c.decision,
                "nodeClaims": list(c.node_claims),
                "replacements": list(c.replacements),
                "phase": c.phase.value,
                "startedAt": stamp(c.started_at),
                "message": c.message,
            }
            for c in store.commands()
        ],
        "inDoubt": [
            {"id": e.intent.id, "verb": e.intent.verb.value, "target": e.intent.target}
            for e in open_intents
            if e.intent.verb not in REQUESTED
        ],
        "requests": [
            {
                "verb": e.intent.verb.value,
                "target": e.intent.target,
                "at": stamp(e.intent.at),
                "reason": e.intent.reason,
            }
            for e in open_intents
            if e.intent.verb in REQUESTED
        ],
        "unavailable": [
            {
                "instanceType": u.instance_type,
                "zone": u.zone,
                "capacityType": u.capacity_type,
                "until": stamp(u.until),
                "code": u.code,
            }
            | ({"reservationId": u.reservation_id} if u.reservation_id else {})
            for u in store.unavailable(recorded.now)
        ],
        "rollouts": statuslines.rollouts(store.rollouts()),
        "blockers": statuslines.blockers(_newest_plan(recorded)),
        "ownership": _ownership(_newest_plan(recorded)),
        "removals": _removals(_newest_plan(recorded)),
        "plan": _plan_facts(recorded),
        "progress": _progress_facts(recorded),
    }


def _pool_counts(recorded: RecordedFleet) -> dict[str, dict[str, int]]:
    """Return the number of claims of each pool in each stage of their life cycle."""
    from reconciler.cli.output.views import phase_of

    counts: dict[str, Counter[str]] = {
        o.name: Counter() for o in recorded.state.store.objects() if o.kind == "NodePool"
    }
    for claim in recorded.state.store.node_claims():
        counts.setdefault(claim.node_pool, Counter())[phase_of(claim)] += 1
    return {
        pool: {phase.lower(): counts[pool][phase] for phase in _PHASES} for pool in sorted(counts)
    }


def _newest_plan(recorded: RecordedFleet) -> Plan | None:
    """Return the newest plan, None before the first."""
    from reconciler.plan.value.plan import from_json

    found = next(iter(recorded.state.store.plans(limit=1)), None)
    return None if found is None else from_json(found.body, f"plan {found.digest}")


def _ownership(plan: Plan | None) -> list[dict[str, str]]:
    """Return the findings of the newest plan on nodes without exactly one known owner."""
    from reconciler.engine.ownership import OWNERSHIP_CODES

    found = plan.diagnostics if plan is not None else ()
    return [{"code": f.code, "message": f.message} for f in found if f.code in OWNERSHIP_CODES]


def _removals(plan: Plan | None) -> list[str]:
    """Return which nodes stay although git no longer has their NodePool."""
    from reconciler.plan.render.wording import removal_texts

    return removal_texts(plan.deferred) if plan is not None else []


def _plan_facts(recorded: RecordedFleet) -> JsonDict | None:
    """Return the totals of the newest plan."""
    from reconciler.plan.value.plan import from_json
    from reconciler.render.listing import stamp

    newest = next(iter(recorded.state.store.plans(limit=1)), None)
    if newest is None:
        return None
    plan = from_json(newest.body, f"plan {newest.digest}")
    return {
        "digest": newest.digest,
        "at": stamp(newest.at),
        "carriedOutAt": stamp(newest.carried_out_at) or None,
        "actions": len(plan.actions),
        "unschedulable": len(plan.unschedulable),
        "blocked": len(plan.blocked),
        "deferred": len(plan.deferred),
        "cost": {"before": plan.cost.before, "after": plan.cost.after},
    }


def _revision_problem(recorded: RecordedFleet) -> JsonDict | None:
    """Return why the newest revision is not in effect, None if it is."""
    import msgspec

    from reconciler.ports.state import REVISION_PROBLEM_RECORD, RevisionProblem
    from reconciler.render.listing import stamp

    content = recorded.state.shelf.read(REVISION_PROBLEM_RECORD)
    if content is None:
        return None
    try:
        problem = msgspec.json.decode(content, type=RevisionProblem | None)
    except msgspec.MsgspecError:
        return None  # of another release; the daemon writes it again
    if problem is None:
        return None
    return {"message": problem.message, "since": stamp(problem.since)}


def _progress_facts(recorded: RecordedFleet) -> JsonDict | None:
    """Return the progress of the last applied plan."""
    from reconciler.assembly.inputs.records import newest_run

    found = newest_run(recorded.state)
    if found is None:
        return None
    plan, run = found
    return {
        "plan": plan.digest,
        "finished": run.is_finished,
        "states": {state.value: number for state, number in run.counts().items()},
        "unfinished": [
            {"action": a.id, "state": run.states[a.id].value, "why": run.status_message(a.id)}
            for a in run.unfinished()
        ],
    }


def _render_text(recorded: RecordedFleet, facts: JsonDict, known: str) -> str:
    from reconciler.plan.render.wording import short_commit
    from reconciler.render.listing import columns, format_stamp

    revision = facts["revision"]
    head = (
        f"synced to commit {short_commit(revision['head'])} since {format_stamp(revision['since'])}"
        if revision
        else "none yet"
    )
    rows = [
        ("Fleet:", facts["fleet"]),
        ("Revision:", head),
        *_problem_rows(facts["revisionProblem"]),
        ("State:", f"{facts['state']} at serial {facts['serial']}"),
        ("Engine:", facts["heldBy"] or "not running"),
        *([("Catalog:", known)] if known else []),
        *_plan_rows(facts["plan"]),
        *_progress_rows(facts["progress"]),
    ]
    text = columns(rows)
    if facts["nodePools"]:
        pools = [
            (pool or "(none)", str(sum(counts.values())), *map(str, counts.values()))
            for pool, counts in facts["nodePools"].items()
        ]
        header = ("NODEPOOL", "NODES", *(phase.upper() for phase in _PHASES))
        text += "\n" + columns([header, *pools])
    from reconciler.cli.output import statuslines

    text += (
        _unfinished_section(facts["progress"])
        + _command_section(recorded)
        + statuslines.render_status_lines(facts)
    )
    text += (
        _request_section(facts)
        + _ownership_section(facts)
        + "".join(f"\n{one_line(text)}.\n" for text in facts["removals"])
        + _in_doubt_section(facts)
        + _unavailable_section(facts)
    )
    return Painted(text)


def _request_section(facts: JsonDict) -> str:
    """Return the users' requests that are still open."""
    if not facts["requests"]:
        return ""
    rows = (f"  {row['verb']} {row['target']}, since {row['at']}\n" for row in facts["requests"])
    return f"\nRequested and not executed yet:\n{''.join(rows)}"


def _ownership_section(facts: JsonDict) -> str:
    """Return what prevents changes of the fleet."""
    if not facts["ownership"]:
        return ""
    lines = "".join(f"  {one_line(row['message'])}\n" for row in facts["ownership"])
    return (
        "\nNo node is launched or disrupted until it is clear who owns the nodes of this fleet:\n"
        f"{lines}"
    )


def _plan_rows(plan: JsonDict | None) -> list[tuple[str, str]]:
    from reconciler.model.text.counting import format_count
    from reconciler.model.text.money import format_dollars
    from reconciler.render.listing import format_stamp

    if plan is None:
        return [("Plan:", "none yet")]
    left = [
        format_count(plan[part], *words)
        for part, words in (
            ("unschedulable", ("unschedulable pod", "unschedulable pods")),
            ("blocked", ("blocked node", "blocked nodes")),
            ("deferred", ("deferred node", "deferred nodes")),
        )
        if plan[part]
    ]
    count = format_count(plan["actions"], "action")
    rows = [("Plan:", f"{plan['digest']} of {format_stamp(plan['at'])}, {count}")]
    if left:
        rows.append(("Remaining:", ", ".join(left)))
    return [*rows, ("Projected cost:", f"{format_dollars(plan['cost']['after'])}/hour")]


def _problem_rows(problem: JsonDict | None) -> list[tuple[str, str]]:
    from reconciler.render.listing import format_stamp

    if problem is None:
        return []
    since = format_stamp(problem["since"])
    return [("Problem:", f"a newer revision cannot be planned since {since}: {problem['message']}")]


def _progress_rows(progress: JsonDict | None) -> list[tuple[str, str]]:
    if progress is None:
        return []
    states = ", ".join(f"{number} {state}" for state, number in progress["states"].items())
    return [("Actions:", f"{states} (plan {progress['plan']})")]


def _unfinished_section(progress: JsonDict | None) -> str:
    """Return the first actions that are not finished, each with what it waits for."""
    from reconciler.notifications.stream import has_colour
    from reconciler.render.listing import columns

    rows = progress["unfinished"] if progress is not None else []
    if not rows:
        return ""
    shown = [(row["action"], row["state"], row["why"]) for row in rows[:_ACTIONS_MAX]]
    verbs = ["", *(row["action"].partition("/")[0] for row in rows[:_ACTIONS_MAX])]
    verbs = verbs if has_colour(sys.stdout) else []
    table = columns([("ACTION", "STATE", "WHY"), *shown], verbs=verbs)
    left = len(rows) - len(shown)
    more = f"and {left} more; `reconciler get actions` lists all\n" if left else ""
    return f"\n{table}{more}"


def _command_section(recorded: RecordedFleet) -> str:
    from reconciler.model.text.counting import format_list
    from reconciler.render.listing import age, columns

    running = recorded.state.store.commands()
    if not running:
        return ""
    rows: list[tuple[str, ...]] = [
        (
            c.id,
            c.reason,
            c.decision,
            format_list(c.node_claims),
            c.phase.value,
            age(c.started_at, recorded.now),
            c.message,
        )
        for c in running
    ]
    header: tuple[str, ...] = ("COMMAND", "REASON", "DECISION", "NODECLAIMS", "PHASE", "AGE", "BY")
    if not any(c.message for c in running):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return "\n" + columns([header, *rows])


def _in_doubt_section(facts: JsonDict) -> str:
    from reconciler.notifications.stream import has_colour
    from reconciler.render.listing import columns

    if not facts["inDoubt"]:
        return ""
    rows = [(d["verb"], d["target"], d["id"]) for d in facts["inDoubt"]]
    return "\nOperations with unknown outcome (checked first in the next pass):\n" + columns(
        rows,
        indent=2,
        verbs=[d["verb"] for d in facts["inDoubt"]] if has_colour(sys.stdout) else (),
    )


def _unavailable_section(facts: JsonDict) -> str:
    from reconciler.render.listing import columns, format_stamp

    if not facts["unavailable"]:
        return ""
    rows = [
        ("UNAVAILABLE", "ZONE", "CAPACITY", "UNTIL", "CODE"),
        *(
            (
                u["instanceType"],
                u["zone"],
                " ".join(filter(None, (u["capacityType"], u.get("reservationId")))),
                format_stamp(u["until"]),
                u["code"],
            )
            for u in facts["unavailable"]
        ),
    ]
    return "\n" + columns(rows)
