"""An explanation for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.model.grouping import group_by
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_dollars, format_hourly, format_rate
from reconciler.plan.render.wording import format_price_source
from reconciler.render.cells import Column, Line, Section, SectionRow, Text
from reconciler.render.listing import age, clock_time
from reconciler.render.reply import table_section, text_section

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


_NOTABLE_AGE: Final = timedelta(seconds=5)
_FILTERS: Final = "Instance types left after each filter"
_OFFERS: Final = ("type", "capacity", "zone", "$/hour", "price source")
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


def explanation_sections(
    answer: Explanation, plan: Plan, digest: str, earlier: Sequence[GivenReason], now: datetime
) -> Iterator[Section]:
    """Yield the answer: the verdict, what prevents a change, and the facts.

    The facts of a NodePool are its calendar, which comes before the gaps in it.
    """
    subject = f"{answer.kind} {answer.name}"
    is_first = answer.kind == "NodePool" or not answer.reasons
    facts = answer.facts if is_first else ()
    yield text_section("verdict", subject, facts, f"{answer.verdict}.")
    for title, reasons in group_by(answer.other_reasons, _title_of).items():
        yield _table_section("reasons", title, [(reason.message,) for reason in reasons])
    if answer.facts and not is_first:
        yield text_section("facts", "Facts", answer.facts)
    if earlier:
        past = [(clock_time(g.at), g.decision.message) for g in earlier]
        yield _table_section("earlier", "Earlier reasons", past)
    yield from _place_sections(answer, plan.at)
    ago = f", {age(plan.at, now)} ago" if now - plan.at >= _NOTABLE_AGE else ""
    yield Section(key="plan", title="", end=f"From plan {digest} of {clock_time(plan.at)}{ago}.")


def _table_section(key: str, title: str, rows: Sequence[Sequence[str]]) -> Section:
    return table_section(key, ("",) * len(rows[0]), rows, title=title)


def _title_of(reason: Decision) -> str:
    """Return the heading under which a reason is shown."""
    if reason.kind != "NodePool":
        return "Why not"
    if reason.code in _NO_LAUNCH:
        return "Why it cannot launch nodes"
    return "Gaps and conflicts in the disruption settings"


def _place_sections(answer: Explanation, at: datetime) -> Iterator[Section]:
    """Yield where the pod could run, and what its constraints leave of the instance types."""
    if answer.pools or answer.nodes is not None:
        title = "If it were the only pending pod"
        rows_of_places = tuple(_place_rows(answer))
        yield Section(key="places", title=title, columns=(Column(""),), rows=rows_of_places)
    if answer.filters:
        yield text_section("filters", _FILTERS, (), _format_filters(answer.filters))
    if len(answer.offerings) > 1:
        offers = [_offering_row(o, at) for o in answer.offerings]
        heads = _OFFERS[: max(map(len, offers))]
        rows = [(*offer, *[""] * (len(heads) - len(offer))) for offer in offers]
        yield table_section("offerings", heads, rows, title="Cheapest instance types")
    if answer.constraints:
        effects = [(_format_effect(c), c.constraint) for c in answer.constraints]
        title = "Effect of removing one constraint"
        yield table_section("constraints", ("effect", "constraint"), effects, title=title)


def _place_rows(answer: Explanation) -> Iterator[SectionRow]:
    if answer.nodes is not None:
        yield SectionRow(cells=(Text(_describe_nodes(answer.nodes)),))
    for pool in answer.pools:
        left = f"{_FILTERS[:1].lower()}{_FILTERS[1:]}: {_format_filters(pool.filters)}"
        text = f"NodePool {pool.node_pool}: {_describe_pool(pool)}"
        yield SectionRow(cells=(Text(text),), lines=(Line((Text(left),)),))


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
    return (*what, format_hourly(offering.price), *origin)


def _format_price(offering: LaunchOffering) -> str:
    return f"{format_dollars(offering.price)}/hour"


def _format_effect(cost: ConstraintCost) -> str:
    parts = []
    if cost.placed:
        parts.append(f"schedules {format_count(cost.placed, 'more pod')}")
    if cost.saves > 0:
        parts.append(f"saves {format_rate(cost.saves)}")
    elif cost.saves < 0:
        parts.append(f"costs {format_rate(-cost.saves)}")
    if cost.nodes > 0:
        parts.append(f"{format_count(cost.nodes, 'node')} fewer")
    return ", ".join(parts) or "no effect"


class ExplainedObject(msgspec.Struct, frozen=True):
    """The object that an explanation is about."""

    kind: str
    name: str


class ExplainingPlan(msgspec.Struct, frozen=True):
    """The plan that an explanation is from."""

    digest: str
    at: datetime


class ReasonReply(msgspec.Struct, frozen=True):
    """A reason of the plan."""

    code: str
    message: str


class EarlierReason(msgspec.Struct, frozen=True):
    """A reason of an earlier plan."""

    at: datetime
    code: str
    message: str
    plan: str


class ExplanationReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply of ``explain`` (``schemas/explanation.v1.json``).

    Its last fields are those of ``Explanation``, without the parts that do not apply.
    """

    api_version: str = "reconciler/v1"
    kind: str = "Explanation"
    about: ExplainedObject
    plan: ExplainingPlan
    verdict: str
    facts: tuple[str, ...]
    reasons: tuple[ReasonReply, ...]
    earlier: tuple[EarlierReason, ...]
    nodes: object = msgspec.UNSET
    pools: object = msgspec.UNSET
    filters: object = msgspec.UNSET
    offerings: object = msgspec.UNSET
    constraints: object = msgspec.UNSET


def explanation_reply(
    answer: Explanation, plan: Plan, digest: str, earlier: Sequence[GivenReason]
) -> ExplanationReply:
    """Return the answer for programs."""
    written = answer.omit_empty()
    names = ("nodes", "pools", "filters", "offerings", "constraints")
    more = {name: value for name in names if (value := getattr(written, name))}
    return ExplanationReply(
        about=ExplainedObject(answer.kind, answer.name),
        plan=ExplainingPlan(digest, plan.at),
        verdict=answer.verdict,
        facts=answer.facts,
        reasons=tuple(ReasonReply(r.code, r.message) for r in answer.reasons),
        earlier=tuple(
            EarlierReason(g.at, g.decision.code, g.decision.message, g.plan) for g in earlier
        ),
        **more,
    )
