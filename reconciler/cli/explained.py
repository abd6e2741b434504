"""An explanation for people and for programs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import UnsetType

from reconciler.cli.listing import age, columns, stamp
from reconciler.model.visible import one_line, visible
from reconciler.plan.wording import counted, dollars, listed, moment, price_said

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reconciler.adapters.database.history import GivenReason
    from reconciler.plan.answer import Answer, ConstraintCost, FilterCount, NodesAnswer, PoolAnswer
    from reconciler.plan.plan import LaunchOffering, Plan


def text_of(
    answer: Answer, plan: Plan, digest: str, earlier: Sequence[GivenReason], now: datetime
) -> str:
    """Return the answer for a person: the verdict, what will be done, what stands against it."""
    lines = [one_line(f"{answer.kind} {answer.name}: {answer.verdict}.")]
    lines += [f"  {visible(fact)}" for fact in answer.facts]
    text = "\n".join(lines) + "\n"
    if answer.reasons:
        rows = [(reason.code, reason.message) for reason in answer.reasons]
        title = "Holes and contradictions" if answer.kind == "NodePool" else "Why not"
        text += f"\n{title}:\n" + columns(rows, indent=2)
    if earlier:
        past = [(stamp(g.at), g.decision.code, g.decision.message) for g in earlier]
        text += "\nSaid earlier:\n" + columns(past, indent=2)
    if answer.pools or answer.nodes is not None:
        text += "\nWere it alone:\n" + _places(answer)
    if answer.filters:
        text += f"\nIts instance types: {_funnel(answer.filters)}\n"
    if len(answer.offerings) > 1:
        offers = [_offering(o, plan.at) for o in answer.offerings]
        text += "\nThe cheapest of them:\n" + columns(offers, indent=2)
    if answer.constraints:
        text += "\nWithout a constraint, the same pods placed again:\n"
        text += columns([(_saved(c), c.constraint) for c in answer.constraints], indent=2)
    ago = f", {age(plan.at, now)} ago" if now > plan.at else ""
    return f"{text}\nFrom plan {digest} of {moment(plan.at)}{ago}.\n"


def _places(answer: Answer) -> str:
    lines = [f"  {_nodes(answer.nodes)}"] if answer.nodes is not None else []
    for pool in answer.pools:
        lines.append(f"  NodePool {pool.node_pool}: {_pool(pool)}")
        lines.append(f"    instance types: {_funnel(pool.filters)}")
    return "".join(f"{visible(line)}\n" for line in lines)


def _nodes(nodes: NodesAnswer) -> str:
    if not nodes.total:
        return "no node is there"
    there = f"of {counted(nodes.total, 'node')} that could be used, {nodes.suited} suit it"
    if not nodes.takers:
        return f"{there} and none would take it now"
    return f"{there}; it could go to {listed(nodes.takers)}"


def _pool(pool: PoolAnswer) -> str:
    if pool.launch is not None:
        offering = pool.launch
        return (
            f"would launch {offering.instance_type} {offering.capacity_type} in {offering.zone}"
            f" for {_price(offering)}"
        )
    message = pool.message.removeprefix(f"NodePool {pool.node_pool}: ")
    nearest = ""
    if pool.nearest_type and "nearest" not in message:
        nearest = f"; the nearest type, {pool.nearest_type}, lacks {pool.lacks}"
    return f"{message}{nearest}"


def _funnel(filters: Iterable[FilterCount]) -> str:
    return " → ".join(f"{f.types:,} {f.filter}" for f in filters)


def _offering(offering: LaunchOffering, now: datetime) -> tuple[str, ...]:
    """Return an offering with its price, whence that comes and how old it is."""
    source = offering.price_source
    whence = () if isinstance(source, UnsetType) else (price_said(source, now),)
    what = (offering.instance_type, offering.capacity_type, offering.zone)
    return (*what, _price(offering), *whence)


def _price(offering: LaunchOffering) -> str:
    return f"{dollars(offering.price)} an hour"


def _saved(cost: ConstraintCost) -> str:
    said = []
    if cost.placed:
        said.append(f"places {counted(cost.placed, 'more pod')}")
    if cost.saves > 0:
        said.append(f"saves {dollars(cost.saves)} an hour")
    elif cost.saves < 0:
        said.append(f"costs {dollars(-cost.saves)} an hour")
    if cost.nodes > 0:
        said.append(f"{counted(cost.nodes, 'node')} fewer")
    return ", ".join(said) or "saves nothing"


def document(
    answer: Answer, plan: Plan, digest: str, earlier: Sequence[GivenReason]
) -> dict[str, Any]:
    """Return the answer as an object; what was not asked for is left out."""
    import msgspec

    more = {
        name: msgspec.to_builtins(value)
        for name in ("nodes", "pools", "filters", "offerings", "constraints")
        if (value := getattr(answer, name))
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
