"""Why a node is kept, in words: a plan has the messages of Karpenter, which programs look for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from reconciler.disruption.simulation import PODS_WITHOUT_PLACE
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.unplaced import workload_of
from reconciler.render.layout import truncate

REASON_WIDTH: Final = 300
"""The maximum characters of the reason of a pod."""
_NAMED: Final = 3

_WITHOUT_SUBJECT: Final = re.compile(r"(?:^|(?<=; ))(does not|requires)\b")
"""Each reason that is about the pods: there is one for each NodePool."""

_PLURALS: Final = {"does not": "do not", "requires": "require"}

_PLACELESS: Final = re.compile(r"(?:^|, )([a-z0-9.-]+/[a-z0-9.-]+) => ")
"""The beginning of the reason of one pod in Karpenter's message."""

_COUNTS: Final = re.compile(r" \((?:[^\s():,]+: \d+(?:, )?)+\)(?= |;|,|$)")
"""How many pods of a spread each domain has, which differs from pod to pod."""

_OTHERS: Final = re.compile(r" and \d+ other\(s\)$")
"""The end of Karpenter's message if it does not name all pods."""

_Words = Callable[[re.Match[str]], str]
_MESSAGES: Final[tuple[tuple[str, _Words], ...]] = (
    (
        r"Can't remove without creating (\d+) candidates",
        lambda m: f"removing it would take {m[1]} new nodes; one is allowed",
    ),
    (r"Can't replace with a cheaper node", lambda _: "no cheaper node can replace it"),
    (r"Can't replace with cheaper nodes", lambda _: "no cheaper nodes can replace it"),
    (
        r"SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node",
        lambda _: (
            "a spot node does not replace a spot node while the feature gate "
            "SpotToSpotConsolidation is off"
        ),
    ),
    (
        r"pdb prevents pod evictions \(PodDisruptionBudget=\[(\S+)\]\)",
        lambda m: f"PodDisruptionBudget {m[1]} allows no eviction",
    ),
    (
        rf'pod has "{re.escape(DO_NOT_DISRUPT)}" annotation \(Pod=(\S+)\)',
        lambda m: f"pod {m[1]} is annotated {DO_NOT_DISRUPT}",
    ),
    (
        r'NodePool "([^"]+)" has consolidation policy WhenEmpty, but node is not empty',
        lambda m: f"consolidationPolicy of NodePool {m[1]} is WhenEmpty, and the node has pods",
    ),
    (
        r'NodePool "([^"]+)" has consolidation disabled',
        lambda m: f"consolidateAfter of NodePool {m[1]} is Never",
    ),
    (r"nodepool not found \(NodePool=(\S+)\)", lambda m: f"NodePool {m[1]} does not exist"),
)


def refusal_in_words(message: str) -> str:
    """Return a message of Karpenter about a node as a phrase, any other message as it is."""
    if message.startswith(PODS_WITHOUT_PLACE):
        reasons = pods_without_place([message])
        return f"not all of its pods can be scheduled: {'; '.join(reasons)}" if reasons else message
    for pattern, words in _MESSAGES:
        found = re.fullmatch(pattern, message)
        if found is not None:
            return words(found)
    return message


def pods_without_place(messages: Iterable[str]) -> list[str]:
    """Return the pods that keep nodes because no other node can take them, by reason.

    Reasons beyond the first few are counted.
    """
    pods: dict[str, dict[str, None]] = {}
    for message in messages:
        reasons = _PLACELESS.split(message.removeprefix(PODS_WITHOUT_PLACE))[1:]
        for pod, why in zip(reasons[::2], reasons[1::2], strict=True):
            pods.setdefault(_COUNTS.sub("", _OTHERS.sub("", why)), {})[pod] = None
    found = []
    shown = len(pods) if len(pods) == _NAMED + 1 else _NAMED  # "and 1 more" takes as much space
    for why, names in list(pods.items())[:shown]:
        which = format_list(map(without_backticks, _workloads_of(names)), _NAMED)
        found.append(f"{which}{_as_predicate(without_backticks(why), is_plural=len(names) > 1)}")
    more = len(pods) - len(found)
    return [*found, f"{more:,} more reasons for other pods"] if more > 0 else found


def _as_predicate(why: str, *, is_plural: bool) -> str:
    """Return a reason with the pods before it as its subject, if it has none of its own."""
    shown = truncate(why, REASON_WIDTH)
    begin = " " if _WITHOUT_SUBJECT.match(shown) else ": "
    if is_plural:
        shown = _WITHOUT_SUBJECT.sub(lambda verb: _PLURALS[verb[1]], shown)
    return f"{begin}{shown}"


def _workloads_of(pods: Iterable[str]) -> Sequence[str]:
    """Return ``web/api-*`` for each workload that the names of pods suggest."""
    stems = dict.fromkeys(map(workload_of, pods))
    return [
        f"{stem}-*" for stem in stems if (head := stem.rpartition("-")[0]) not in stems or not head
    ]
