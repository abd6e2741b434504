"""Nodes that cannot be replaced, drained or removed, and why, in a line for each kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from reconciler.disruption.simulation import PODS_WITHOUT_PLACE
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.unplaced import workload_of
from reconciler.plan.render.wording import group_messages, short_node_name
from reconciler.plan.value.costs import DRAINING, NOT_JOINED, StuckNode
from reconciler.plan.value.plan import ObservationSource
from reconciler.render.layout import truncate

_STUCK_NAMED: Final = 3
_STUCK_WIDTH: Final = 300

_CANNOT: Final = {
    DisruptionReason.DRIFTED.value: ("drifted node", "cannot be replaced"),
    DRAINING: ("node", "cannot be drained"),
    NOT_JOINED: ("node", "does not join"),
}
_REMOVED: Final = ("node", "cannot be removed")

_PROTECTED: Final = f'pod has "{DO_NOT_DISRUPT}" annotation (Pod='

_WITHOUT_SUBJECT: Final = re.compile(r"(?:^|(?<=; ))does not\b")
"""Each reason that is about the pods: there is one for each NodePool."""

_PLACELESS: Final = re.compile(r"(?:^|, )([a-z0-9.-]+/[a-z0-9.-]+) => ")
"""The beginning of the reason of one pod in Karpenter's message."""

_COUNTS: Final = re.compile(r" \((?:[^\s():,]+: \d+(?:, )?)+\)(?= |;|,|$)")
"""How many pods of a spread each domain has, which differs from pod to pod."""

_OTHERS: Final = re.compile(r" and \d+ other\(s\)$")
"""The end of Karpenter's message if it does not name all pods."""


def stuck_lines(stuck: Sequence[StuckNode], source: ObservationSource | None) -> list[str]:
    """Return a line for each kind of node that cannot come to an end, with the reasons.

    If the ``source`` of the plan has no nodes, those that are launched meanwhile have no names yet,
    and are described by their NodePool.
    """
    kinds: dict[tuple[str, str], list[StuckNode]] = {}
    for node in stuck:
        kinds.setdefault(_CANNOT.get(node.reason, _REMOVED), []).append(node)
    has_names = source != "workloads"
    return [_stuck_line(nodes, *words, has_names=has_names) for words, nodes in kinds.items()]


def _node_names(stuck: Sequence[StuckNode]) -> str:
    """Return the first names of nodes, and the number of others."""
    names = (short_node_name(without_backticks(s.node or s.node_claim)) for s in stuck)
    return format_list(names, _STUCK_NAMED)


def _future_nodes(stuck: Sequence[StuckNode]) -> str:
    """Return how many nodes that do not exist yet each NodePool has."""
    pools = Counter(without_backticks(node.node_pool) for node in stuck)
    return format_list((f"{n:,} of NodePool {name}" for name, n in pools.items()), _STUCK_NAMED)


def _stuck_line(stuck: Sequence[StuckNode], noun: str, what: str, *, has_names: bool) -> str:
    if what == "does not join" and len(stuck) > 1:
        what = "do not join"
    placeless = [node for node in stuck if node.message.startswith(PODS_WITHOUT_PLACE)]
    others = [node for node in stuck if not node.message.startswith(PODS_WITHOUT_PLACE)]
    shown = _first_messages(others)
    pools = {node.node_pool for node in stuck}
    subject = format_count(len(stuck), noun)
    reasons = _pods_without_place(placeless)
    if not has_names and not placeless and len(shown) == len(pools) == 1:
        ((message, _),) = shown
        subject = f"{subject} of NodePool {without_backticks(pools.pop())}"
        reasons = [truncate(message, _STUCK_WIDTH)]
    else:
        format_names = _node_names if has_names else _future_nodes
        reasons += [
            f"{format_names(nodes)} ({truncate(message, _STUCK_WIDTH)})" for message, nodes in shown
        ]
    more = len(others) - sum(len(nodes) for _, nodes in shown)
    rest = f"; and {more:,} more" if more else ""
    line = f"{subject} {what}: {'; '.join(reasons)}{rest}"
    line = line if line.endswith("…") else f"{line}."
    is_cut = more or any(
        (has_names and len(nodes) > _STUCK_NAMED + 1) or len(message) > _STUCK_WIDTH
        for message, nodes in shown
    )
    return f"{line} `-o json` lists everything." if is_cut else line


def _first_messages(stuck: Sequence[StuckNode]) -> list[tuple[str, Sequence[StuckNode]]]:
    """Return the first different messages about nodes, each with its nodes."""
    by_claim = {node.node_claim: node for node in stuck}
    alike = group_messages(((), s.message, s.node_claim) for s in stuck)
    return [
        (_in_words(group.message), [by_claim[name] for name in group.names])
        for group in alike[:_STUCK_NAMED]
    ]


def _in_words(message: str) -> str:
    """Return Karpenter's message about a protected pod as a sentence, any other as it is."""
    pod = message.removeprefix(_PROTECTED).removesuffix(")")
    return f"pod {pod} is annotated {DO_NOT_DISRUPT}" if message.startswith(_PROTECTED) else message


def _pods_without_place(stuck: Sequence[StuckNode]) -> list[str]:
    """Return the pods that keep nodes because no other node can take them, by reason."""
    pods: dict[str, dict[str, None]] = {}
    for node in stuck:
        reasons = _PLACELESS.split(node.message.removeprefix(PODS_WITHOUT_PLACE))[1:]
        for pod, why in zip(reasons[::2], reasons[1::2], strict=True):
            pods.setdefault(_COUNTS.sub("", _OTHERS.sub("", why)), {})[pod] = None
    found = []
    for why, names in list(pods.items())[:_STUCK_NAMED]:
        which = format_list(map(without_backticks, _workloads_of(names)), _STUCK_NAMED)
        found.append(f"{which}{_as_predicate(without_backticks(why), is_plural=len(names) > 1)}")
    return found


def _as_predicate(why: str, *, is_plural: bool) -> str:
    """Return a reason with the pods before it as its subject, if it has none of its own."""
    shown = truncate(why, _STUCK_WIDTH)
    if is_plural:
        shown = _WITHOUT_SUBJECT.sub("do not", shown)
    return f" {shown}" if shown.startswith(("does not", "do not")) else f": {shown}"


def _workloads_of(pods: Iterable[str]) -> list[str]:
    """Return ``web/api-*`` for each workload that the names of pods suggest."""
    stems = dict.fromkeys(map(workload_of, pods))
    return [
        f"{stem}-*" for stem in stems if (head := stem.rpartition("-")[0]) not in stems or not head
    ]
