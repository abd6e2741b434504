"""What the rollout of a change does: which nodes it replaces, and how long it takes."""

from __future__ import annotations

from typing import Final

from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.headline import deletes_every_pool
from reconciler.plan.render.wording import format_words, rough_duration
from reconciler.plan.value.costs import AtRest
from reconciler.plan.value.plan import Plan

_DRIFTING_SHOWN: Final = 3

_REMOVAL: Final = (
    "Rollout: a node is removed once its pods are gone or on another node; Karpenter drains all "
    "nodes at once."
)


def drifting_lines(plan: Plan) -> list[str]:
    """Return which nodes a change replaces, where their number is not known."""
    names = [f"{c.kind} {c.name}" for c in plan.changes if c.drifts]
    if not names:
        return []
    which = without_backticks(format_list(names, _DRIFTING_SHOWN))
    return [f"Rollout: replaces the nodes of {which} that have drifted; how many is not known."]


def rollout_lines(plan: Plan, change: AtRest) -> list[str]:
    """Return what the rollout does, and that part of it is unknown."""
    if deletes_every_pool(plan):
        return [_REMOVAL] if change.after.nodes else []
    unknown = [f.message for f in plan.diagnostics if f.code == "selection-unknown"]
    if not unknown:
        return [_rollout_sentence(change, sum(len(row.drifted) for row in plan.changes))]
    known = _rollout_sentence(change) if change.replaced or change.launched else ""
    return [*filter(None, [known]), *(f"Rollout: {without_backticks(m)}." for m in unknown)]


def _rollout_sentence(change: AtRest, drifted: int = 0) -> str:
    """Return which nodes the rollout replaces, adds and removes, and how long it takes.

    It begins from the steady state of the base, which may not have the nodes that have ``drifted``.
    """
    counts = ((change.replaced, "replaces"), (change.launched, "adds"), (change.removed, "removes"))
    steps = [(number, verb) for number, verb in counts if number]
    if not steps and drifted:
        present = "1 present node has" if drifted == 1 else f"{drifted:,} present nodes have"
        verb, them = ("is", "it") if drifted == 1 else ("are", "them")
        return (
            f"Rollout: {present} drifted, and {verb} replaced unless consolidation removes {them} "
            "first; from the steady state, no node is replaced, added or removed."
        )
    if not steps:
        return "Rollout: no node is replaced, added or removed."
    (first, verb), *more = steps
    others = (f"{verb} {number:,}" for number, verb in more)
    done = format_words([f"{verb} {format_count(first, 'node')}", *others])
    evicted = change.evictions
    pods = f"; it evicts {format_count(evicted, 'pod')}" if evicted else ""
    return f"Rollout: {done}{_rollout_time(change)}{pods}."


def _rollout_time(change: AtRest) -> str:
    """Return how long the rollout takes, empty without one."""
    if change.rollout == "PT0S":
        return ""
    if change.rollout is not None:
        return f", in about {rough_duration(change.rollout)}"
    if change.bounds is not None:
        return "; how long this takes is not known"
    return "; it does not end within 30 days"
