"""The guards in ``status``: rollout waves and halts, and what blocks disruption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reconciler.model.history import Rollout
    from reconciler.model.json import JsonDict
    from reconciler.plan.value.plan import Plan

_SHOWN: Final = 12


def rollouts(found: Iterable[Rollout]) -> list[JsonDict]:
    """Return the rollouts that are in progress or have failures, as objects."""
    from reconciler.cli.output.listing import stamp

    return [
        {
            "nodePool": r.node_pool,
            "wave": r.wave,
            "nodes": r.taken,
            "size": r.size,
            "failures": r.failed,
            "waitsFor": next((m.waits_for for m in r.moves if m.waits_for), ""),
            "stoppedAt": stamp(r.stopped_at) or None,
            "stoppedWhy": r.stopped_why if r.stopped_at else "",
        }
        for r in found
        if r.moves or r.failed or r.stopped_at
    ]


def blockers(plan: Plan | None) -> list[JsonDict]:
    """Return what blocks disruption in the newest plan; money is USD an hour."""
    from reconciler.cli.output.listing import stamp

    return [
        {
            "kind": b.kind,
            "name": b.name,
            "owner": b.owner,
            "message": b.message,
            "nodes": list(b.nodes),
            "since": stamp(b.since) or None,
            "until": stamp(b.until) or None,
            "forgone": b.forgone,
            "unpriced": b.unpriced,
        }
        for b in (plan.blockers if plan is not None else ())
    ]


def text(facts: JsonDict) -> str:
    """Return both as text for a terminal, empty if there are none."""
    return _rollouts(facts["rollouts"]) + _blockers(facts["blockers"])


def _rollouts(rows: list[JsonDict]) -> str:
    from reconciler.cli.output.listing import columns, shown

    if not rows:
        return ""
    table = [("NODEPOOL", "WAVE", "NODES", "FAILURES", "STATE")]
    for row in rows:
        state = row["waitsFor"] or "in progress" if row["nodes"] else "between waves"
        if row["stoppedAt"]:
            state = f"halted at {shown(row['stoppedAt'])}: {row['stoppedWhy']}"
        size = f"{row['nodes']} of {row['size']}" if row["size"] else str(row["nodes"])
        table.append((row["nodePool"], str(row["wave"]), size, str(row["failures"]), state))
    stopped = any(row["stoppedAt"] for row in rows)
    advice = "Run `reconciler resume` to continue halted rollouts.\n" if stopped else ""
    return "\n" + columns(table) + advice


def _blockers(rows: list[JsonDict]) -> str:
    from reconciler.cli.output.listing import columns, shown
    from reconciler.plan.render.wording import format_forgone_savings

    if not rows:
        return ""
    table = [("BLOCKER", "NODES", "SINCE", "POTENTIAL SAVINGS")]
    table += [
        (
            f"{row['kind']} {row['name']}",
            str(len(row["nodes"])),
            shown(row["since"] or ""),
            format_forgone_savings(row["forgone"], row["unpriced"]),
        )
        for row in rows[:_SHOWN]
    ]
    rest = len(rows) - _SHOWN
    return "\n" + columns(table) + (f"and {rest} more (-o json lists all)\n" if rest > 0 else "")
