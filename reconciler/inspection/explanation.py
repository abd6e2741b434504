"""An explanation for people and for programs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_dollars
from reconciler.model.text.visible import escape_invisible, one_line
from reconciler.plan.render.wording import format_price_source
from reconciler.render.listing import age, clock_time, columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reconciler.adapters.database.history import GivenReason
    from reconciler.plan.explain.answer import (
        ConstraintCost,
        Decision,
        Explanation,
        FilterCount,
        NodesAnswer,
        PoolAnswer,
    )
    from reconciler.plan.value.nodes import LaunchOffering
    from reconciler.plan.value.plan import Plan

_WELL_KNOWN: Final = (
    "karpenter.sh",
    "kubernetes.io",
    "node.kubernetes.io",
    "topology.kubernetes.io",
)
"""Domains of labels that are clear without them."""


_NO_LAUNCH: Final = frozenset(
    {
        "MinValuesUnmet",
        "NoInstanceTypes",
        "missing-nodeclass",
        "nodeclass-not-ready",
        "nodepool-not-ready",
    }
)
"""Codes of reasons why a NodePool can launch no node."""


def render_explanation(
    answer: Explanation, plan: Plan, digest: str, earlier: Sequence[GivenReason], now: datetime
) -> str:
    """Return the answer as text: the verdict, what prevents a change, and the facts.

    The facts of a NodePool are its calendar, which comes before the gaps in it.
    """
    text = one_line(f"{answer.kind} {answer.name}: {answer.verdict}.") + "\n"
    facts = "".join(f"  {escape_invisible(fact)}\n" for fact in answer.facts)
    reasons = _format_reasons(answer.reasons)
    if answer.kind == "NodePool" or not reasons:
        text += facts + reasons
    else:
        text += reasons + (f"\nFacts:\n{facts}" if facts else "")
    if earlier:
        past = [(clock_time(g.at), g.decision.code, g.decision.message) for g in earlier]
        text += "\nEarlier reasons:\n" + columns(past, indent=2)
    if answer.pools or answer.nodes is not None:
        text += "\nIf it were the only pending pod:\n" + _format_places(answer)
    if answer.filters:
        text += f"\nInstance types left after each filter: {_format_filters(answer.filters)}\n"
    if len(answer.offerings) > 1:
        offers = [_offering_row(o, plan.at) for o in answer.offerings]
        text += "\nCheapest instance types:\n" + columns(offers, indent=2)
    if answer.constraints:
        text += "\nEffect of removing one constraint:\n"
        text += columns([(_format_effect(c), c.constraint) for c in answer.constraints], indent=2)
    ago = f", {age(plan.at, now)} ago" if now > plan.at else ""
    return f"{text}\nFrom plan {digest} of {clock_time(plan.at)}{ago}.\n"


def _format_reasons(reasons: Iterable[Decision]) -> str:
    titles: dict[str, list[tuple[str, str]]] = {}
    for reason in reasons:
        titles.setdefault(_title_of(reason), []).append((reason.code, reason.message))
    return "".join(f"\n{t}:\n{columns(rows, indent=2)}" for t, rows in titles.items())


def _title_of(reason: Decision) -> str:
    """Return the heading under which a reason is shown."""
    if reason.kind != "NodePool":
        return "Why not"
    if reason.code in _NO_LAUNCH:
        return "Why it cannot launch nodes"
    return "Gaps and conflicts in the disruption settings"


def _format_places(answer: Explanation) -> str:
    lines = [f"  {_describe_nodes(answer.nodes)}"] if answer.nodes is not None else []
    for pool in answer.pools:
        lines.append(f"  NodePool {pool.node_pool}: {_describe_pool(pool)}")
        lines.append(f"    instance types left after each filter: {_format_filters(pool.filters)}")
    return "".join(f"{escape_invisible(line)}\n" for line in lines)


def _describe_nodes(nodes: NodesAnswer) -> str:
    if not nodes.total:
        return "there are no nodes"
    there = f"{nodes.suited} of {format_count(nodes.total, 'existing node')} match its constraints"
    if not nodes.takers:
        return f"{there}, but none has free capacity now"
    return f"{there}; it fits on {format_list(nodes.takers)}"


def _describe_pool(pool: PoolAnswer) -> str:
    if pool.launch is not None:
        offering = pool.launch
        return (
            f"launch {offering.instance_type} {offering.capacity_type} in {offering.zone} for "
            f"{_format_price(offering)}"
        )
    message = pool.message.removeprefix(f"NodePool {pool.node_pool}: ")
    nearest = ""
    if pool.nearest_type and "nearest" not in message:
        nearest = f"; the closest instance type, {pool.nearest_type}, lacks {pool.lacks}"
    return f"{message}{nearest}"


def _format_filters(filters: Iterable[FilterCount]) -> str:
    return " · ".join(f"{_filter_name(f.filter)} {f.types:,}" for f in filters)


def _filter_name(name: str) -> str:
    """Return a filter in words: ``capacity type`` for a label of Karpenter or Kubernetes."""
    domain, _, label = name.rpartition("/")
    return label.replace("-", " ") if domain in _WELL_KNOWN else name


def _offering_row(offering: LaunchOffering, now: datetime) -> tuple[str, ...]:
    """Return an offering with its price, and the source and age of that price."""
    source = offering.price_source
    origin = () if source is None else (format_price_source(source, now),)
    what = (offering.instance_type, offering.capacity_type, offering.zone)
    return (*what, _format_price(offering), *origin)


def _format_price(offering: LaunchOffering) -> str:
    return f"{format_dollars(offering.price)}/hour"


def _format_effect(cost: ConstraintCost) -> str:
    parts = []
    if cost.placed:
        parts.append(f"schedules {format_count(cost.placed, 'more pod')}")
    if cost.saves > 0:
        parts.append(f"saves {format_dollars(cost.saves)}/hour")
    elif cost.saves < 0:
        parts.append(f"costs {format_dollars(-cost.saves)}/hour")
    if cost.nodes > 0:
        parts.append(f"{format_count(cost.nodes, 'node')} fewer")
    return ", ".join(parts) or "no effect"


def document(
    answer: Explanation, plan: Plan, digest: str, earlier: Sequence[GivenReason]
) -> dict[str, Any]:
    """Return the answer as an object, without the parts that do not apply."""
    import msgspec

    written = answer.omit_empty()
    more = {
        name: msgspec.to_builtins(value)
        for name in ("nodes", "pools", "filters", "offerings", "constraints")
        if (value := getattr(written, name))
    }
    return {
        "apiVersion": "reconciler/v1",
        "kind": "Explanation",
        "about": {"kind": answer.kind, "name": answer.name},
        "plan": {"digest": digest, "at": msgspec.to_builtins(plan.at)},
        "verdict": answer.verdict,
        "facts": list(answer.facts),
        "reasons": [{"code": r.code, "message": r.message} for r in answer.reasons],
        "earlier": [
            {
                "at": msgspec.to_builtins(g.at),
                "code": g.decision.code,
                "message": g.decision.message,
                "plan": g.plan,
            }
            for g in earlier
        ],
        **more,
    }
