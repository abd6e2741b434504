"""Pods: those that cannot be scheduled, reserved capacity, and the placement of each pod."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from reconciler.model.grouping import group_by
from reconciler.model.text.counting import format_count
from reconciler.plan.render.unplaced import LASTING, has_nodes, pods_placed_later, stranded_pods
from reconciler.plan.render.wording import format_pods
from reconciler.plan.value.nodes import PlannedHeadroom, Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import (
    ROWS_UNGROUPED_MAX,
    Column,
    Line,
    Name,
    NameList,
    Section,
    SectionRow,
    Text,
    Tone,
    group_similar,
    name_cell,
    rows_of,
    summarize_texts,
    without_pool,
)

_EARLY: Final = (*LASTING, "OtherNodePool")
"""Reasons of NodePools that are not meant for these pods, the most informative first.

Any other reason comes from a NodePool that is meant for the pod, and matters more.
"""


def unschedulable_pods(plan: Plan) -> Section | None:
    """Return the pods that cannot be scheduled, with the most important reason first."""
    if not plan.unschedulable:
        return None

    def codes(pod: UnschedulablePod) -> object:
        return tuple(sorted({reason.code for reason in pod.reasons}))

    clusters = group_similar(_named_as_stranded(plan), lambda pod: pod.reasons, codes)
    from_nothing = plan.at_rest is not None and not has_nodes(plan)
    delayed = from_nothing and bool(pods_placed_later(plan))
    return Section(
        key="unschedulable",
        title="First pass from an empty cluster:" if delayed else "Unschedulable:",
        note=_unschedulable_note(plan),
        columns=(Column("pods"),),
        rows=rows_of(clusters, _pods_row, "pod"),
        lines_title="reasons",
        tone="" if delayed else "bad",
        folded=delayed,
    )


def _named_as_stranded(plan: Plan) -> Sequence[UnschedulablePod]:
    """Return the pods with the names of those that only lose their place with their nodes.

    A first pass from an empty cluster leaves another replica of the same workload, with the same
    reason, and the headline names the one that runs.
    """
    pods, names = sorted(plan.unschedulable, key=lambda pod: pod.pod), sorted(stranded_pods(plan))
    workloads = [pod.pod.rpartition("-")[0] for pod in pods]
    if not all(workloads) or workloads != [name.rpartition("-")[0] for name in names]:
        return plan.unschedulable
    return [replace(pod, pod=name) for pod, name in zip(pods, names, strict=True)]


def _unschedulable_note(plan: Plan) -> str:
    """Return how many pods this plan leaves, and how many of them later plans place."""
    count, later = len(plan.unschedulable), len(pods_placed_later(plan))
    stranded = len(stranded_pods(plan))
    if stranded and not later:
        lost = count - stranded
        whose = "its node is" if stranded == 1 else "their nodes are"
        if lost > 0:
            pods = f"{format_count(lost, 'pod')} cannot be scheduled"
            return f"{pods}, and {stranded:,} more once {whose} gone"
        return f"{format_count(count, 'pod')} once {whose} gone"
    if stranded:
        return (
            f"{format_count(count, 'pod')} not placed yet; later passes place {later:,}, and "
            f"{stranded:,} only while the present nodes last"
        )
    if not later:
        return f"{format_count(count, 'pod')} cannot be scheduled"
    if later == count:
        return f"{format_count(count, 'pod')} not placed yet; a later pass places {_pronoun(count)}"
    return (
        f"{format_count(count - later, 'pod')} cannot be scheduled, "
        f"{later:,} more not yet: a later pass places {_pronoun(later)}"
    )


def _pronoun(count: int) -> str:
    return "it" if count == 1 else "them"


def _pods_row(group: Sequence[UnschedulablePod]) -> SectionRow:
    pods = tuple(item.pod for item in group)
    cell = Name(pods[0]) if len(pods) == 1 else Text(format_pods(pods))
    more = tuple(SectionRow(cells=(Name(pod),)) for pod in pods) if len(pods) > 1 else ()
    different = dict.fromkeys(item.reasons for item in group)
    reasons = dict.fromkeys(reason for reasons in different for reason in reasons)
    return SectionRow(cells=(cell,), lines=reason_lines(reasons), more=more)


def reason_lines(reasons: Iterable[Reason]) -> tuple[Line, ...]:
    """Return a line for each reason with its NodePools, the most important first."""
    every = list(reasons)
    groups = group_by(every, lambda r: (r.code, without_pool(r.message, r.node_pool or "")))
    if len(groups) > ROWS_UNGROUPED_MAX:
        groups = group_by(every, lambda r: (r.code or r.message, ""))
    ranked = sorted(groups.values(), key=lambda group: (_reason_rank(group[0]), len(group)))
    return tuple(map(_reason_line, ranked))


def leading_reasons(reasons: Iterable[Reason]) -> list[str]:
    """Return the reasons as sentences, the most important first."""
    found = [
        reason.message
        if reason.node_pool is None or reason.node_pool in reason.message
        else f"NodePool {reason.node_pool}: {reason.message}"
        for reason in sorted(reasons, key=_reason_rank)
    ]
    return list(dict.fromkeys(found))


def _reason_rank(reason: Reason) -> int:
    return _EARLY.index(reason.code) + 1 if reason.code in _EARLY else 0


def _reason_line(group: Sequence[Reason]) -> Line:
    group = sorted(group, key=lambda reason: reason.node_pool or "")
    pools = tuple(dict.fromkeys(reason.node_pool for reason in group if reason.node_pool))
    if len(pools) < 2:
        return Line(
            (Text(summarize_texts(r.message for r in group)),), Name(pools[0]) if pools else None
        )
    message = summarize_texts(
        without_pool(reason.message, reason.node_pool or "") for reason in group
    )
    return Line((Text(message),), NameList(pools, "NodePool", most=2))


def headroom(plan: Plan) -> Section | None:
    """Return the capacity that CapacityBuffers reserve."""
    if not plan.headroom:
        return None
    clusters = group_similar(plan.headroom, lambda room: room.buffer, lambda room: room.code)
    return Section(
        key="headroom",
        title="Headroom",
        note=f"({format_count(len(plan.headroom), 'CapacityBuffer')})",
        columns=(Column("buffer"),),
        rows=rows_of(clusters, _headroom_row, "buffer"),
        lines_title="capacity",
        folded=not any(room.unschedulable for room in plan.headroom),
    )


def _headroom_row(group: Sequence[PlannedHeadroom]) -> SectionRow:
    buffers = tuple(dict.fromkeys(room.buffer for room in group))
    reasons = dict.fromkeys(reason for room in group for reason in room.reasons)
    tone: Tone = "" if any(room.replicas for room in group) else "soft"
    capacity = Line((Text(summarize_texts(room.message for room in group), tone),))
    return SectionRow(
        cells=(name_cell(buffers, "buffer"),), lines=(capacity, *reason_lines(reasons))
    )


def placements(plan: Plan) -> Section | None:
    """Return the placement of each pod."""
    if not plan.placements:
        return None
    rows = tuple(
        SectionRow(
            cells=(
                Name(placed.pod),
                Name(placed.node or placed.node_claim or ""),
                Text("new" if placed.node_claim else ""),
                Text("; ".join(placed.relaxed)),
            )
        )
        for placed in plan.placements
    )
    columns = ("pod", "node", "", "dropped preferences")
    return Section(
        key="placements",
        title="Placement",
        note=f"of {format_count(len(rows), 'pod')}",
        columns=tuple(map(Column, columns)),
        rows=rows,
        table=True,
        folded=True,
    )
