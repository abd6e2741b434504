"""Parts of ``status``: rollout waves and halts, blocked disruption, and the ages of facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reconciler.assembly.inputs import records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.model.history import Rollout
    from reconciler.model.json import JsonDict
    from reconciler.plan.value.plan import Plan

_SHOWN: Final = 12


def rollouts(found: Iterable[Rollout]) -> list[JsonDict]:
    """Return the rollouts that are in progress or have failures, as objects."""
    from reconciler.render.listing import stamp

    return [
        {
            "nodePool": r.node_pool,
            "wave": r.wave,
            "nodes": r.disrupted_nodes,
            "size": r.size,
            "failures": r.failure_count,
            "waitsFor": next((m.waits_for for m in r.moves if m.waits_for), ""),
            "stoppedAt": stamp(r.stopped_at) or None,
            "stoppedWhy": r.stopped_why if r.stopped_at else "",
        }
        for r in found
        if r.moves or r.failure_count or r.stopped_at
    ]


def blockers(plan: Plan | None) -> list[JsonDict]:
    """Return what blocks disruption in the newest plan; money is USD an hour."""
    from reconciler.render.listing import stamp

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


def render_status_lines(facts: JsonDict) -> str:
    """Return both as text for a terminal, empty if there are none."""
    return _rollout_table(facts["rollouts"]) + _blocker_table(facts["blockers"])


def _rollout_table(rows: list[JsonDict]) -> str:
    from reconciler.render.listing import columns, format_stamp

    if not rows:
        return ""
    table = [("NODEPOOL", "WAVE", "NODES", "FAILURES", "STATE")]
    for row in rows:
        state = row["waitsFor"] or "in progress" if row["nodes"] else "between waves"
        if row["stoppedAt"]:
            state = f"halted at {format_stamp(row['stoppedAt'])}: {row['stoppedWhy']}"
        size = f"{row['nodes']} of {row['size']}" if row["size"] else str(row["nodes"])
        table.append((row["nodePool"], str(row["wave"]), size, str(row["failures"]), state))
    stopped = any(row["stoppedAt"] for row in rows)
    advice = "Run `reconciler resume` to continue halted rollouts.\n" if stopped else ""
    return "\n" + columns(table) + advice


def _blocker_table(rows: list[JsonDict]) -> str:
    from reconciler.model.text.money import format_forgone_savings
    from reconciler.render.listing import columns, format_stamp

    if not rows:
        return ""
    table = [("BLOCKER", "NODES", "SINCE", "POTENTIAL SAVINGS")]
    table += [
        (
            f"{row['kind']} {row['name']}",
            str(len(row["nodes"])),
            format_stamp(row["since"] or ""),
            format_forgone_savings(row["forgone"], row["unpriced"]),
        )
        for row in rows[:_SHOWN]
    ]
    rest = len(rows) - _SHOWN
    return "\n" + columns(table) + (f"and {rest} more (-o json lists all)\n" if rest > 0 else "")


_NAMES: Final = {"types": "instanceTypes", "on-demand": "onDemandPrices", "spot": "spotPrices"}
_TITLES: Final = {
    "lock": "locked",
    "instanceTypes": "instance types",
    "onDemandPrices": "on-demand prices",
    "spotPrices": "spot prices",
}


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
    from reconciler.assembly.inputs.files import read_checkout_file
    from reconciler.desired.lock import Lock, read_lock
    from reconciler.model.errors import UnreadableError
    from reconciler.source.resource import LOCK_FILE

    try:
        content = read_checkout_file(Path(path or ".") / LOCK_FILE)
    except (OSError, UnreadableError):
        return None
    lock = read_lock(content)
    return lock.locked_at if isinstance(lock, Lock) else None


def document(known: dict[str, datetime]) -> dict[str, Any]:
    """Return the times as in JSON."""
    from reconciler.render.listing import stamp

    return {name: stamp(at) for name, at in known.items()}


def format_ages(known: dict[str, datetime], now: datetime) -> str:
    """Return the ages in one line, empty where everything is as bundled."""
    from reconciler.plan.render.wording import format_age

    return ", ".join(f"{_TITLES[name]} {format_age(at, now)}" for name, at in known.items())
