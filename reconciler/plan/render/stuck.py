"""Nodes that cannot be replaced, drained or removed, and why, in a line for each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from reconciler.disruption.simulation import PODS_WITHOUT_PLACE
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.refusals import REASON_WIDTH, pods_without_place, refusal_in_words
from reconciler.plan.render.wording import group_messages, short_node_name
from reconciler.plan.value.costs import DRAINING, NOT_JOINED, StuckNode
from reconciler.plan.value.plan import ObservationSource
from reconciler.render.layout import truncate

_STUCK_NAMED: Final = 3

_CANNOT: Final = {
    DisruptionReason.DRIFTED.value: ("drifted node", "cannot be replaced"),
    DRAINING: ("node", "cannot be drained"),
    NOT_JOINED: ("node", "does not join"),
}
_REMOVED: Final = ("node", "cannot be removed")


def stuck_lines(stuck: Sequence[StuckNode], source: ObservationSource | None) -> list[str]:
    """Return a line for each kind of node that cannot come to an end, with the reasons.

    If the ``source`` of the plan has no nodes, those that are launched meanwhile have no names yet,
    and are described by their NodePool.
    """
    kinds = group_by(stuck, lambda node: _CANNOT.get(node.reason, _REMOVED))
    has_names = source != "workloads"
    return [_stuck_line(nodes, *words, has_names=has_names) for words, nodes in kinds.items()]


def _node_names(stuck: Sequence[StuckNode]) -> str:
    """Return the first names of nodes, the number of others, and of those that do not exist yet."""
    present = [node for node in stuck if not node.is_new]
    new = len(stuck) - len(present)
    names = (short_node_name(without_backticks(s.node or s.node_claim)) for s in present)
    shown = format_list(names, _STUCK_NAMED)
    later = f"{format_count(new, 'node')} launched until then" if new else ""
    return " and ".join(filter(None, (shown, later)))


def _future_nodes(stuck: Sequence[StuckNode]) -> str:
    """Return how many nodes that do not exist yet each NodePool has."""
    pools = Counter(without_backticks(node.node_pool) for node in stuck)
    return format_list((f"{n:,} of NodePool {name}" for name, n in pools.items()), _STUCK_NAMED)


def _stuck_line(stuck: Sequence[StuckNode], noun: str, what: str, *, has_names: bool) -> str:
    if what == "does not join" and len(stuck) > 1:
        what = "do not join"
    by_kind = group_by(stuck, lambda node: node.message.startswith(PODS_WITHOUT_PLACE))
    placeless, others = by_kind.get(True, []), by_kind.get(False, [])
    shown = _first_messages(others)
    subject = format_count(len(stuck), noun)
    pools = {node.node_pool for node in stuck}
    if not (has_names or placeless) and len(shown) == len(pools) == 1:
        ((message, _),) = shown
        subject = f"{subject} of NodePool {without_backticks(pools.pop())}"
        reasons = [truncate(message, REASON_WIDTH)]
    else:
        reasons = pods_without_place(node.message for node in placeless)
        reasons += _reasons_with_nodes(shown, has_names=has_names)
    more = len(others) - sum(len(nodes) for _, nodes in shown)
    if more:
        reasons.append(f"and {more:,} more")
    line = f"{subject} {what}: {'; '.join(reasons)}"
    line = line if line.endswith("…") else f"{line}."
    is_cut = more or any(_is_cut(*reason, has_names=has_names) for reason in shown)
    return f"{line} `-o json` lists everything." if is_cut else line


def _reasons_with_nodes(
    shown: Sequence[tuple[str, Sequence[StuckNode]]], *, has_names: bool
) -> list[str]:
    """Return the nodes of each message, and the message in parentheses."""
    format_names = _node_names if has_names else _future_nodes
    return [
        f"{format_names(nodes)} ({truncate(message, REASON_WIDTH)})" for message, nodes in shown
    ]


def _is_cut(message: str, nodes: Sequence[StuckNode], *, has_names: bool) -> bool:
    """Return whether a message or the names of its nodes are not shown completely."""
    return len(message) > REASON_WIDTH or (has_names and len(nodes) > _STUCK_NAMED + 1)


def _first_messages(stuck: Sequence[StuckNode]) -> list[tuple[str, Sequence[StuckNode]]]:
    """Return the first different messages about nodes, each with its nodes."""
    by_claim = {node.node_claim: node for node in stuck}
    alike = group_messages(((), s.message, s.node_claim) for s in stuck)
    return [
        (refusal_in_words(group.message), [by_claim[name] for name in group.names])
        for group in alike[:_STUCK_NAMED]
    ]
