"""What the rules of a pod say about a node, whatever runs there.

The plugins NodeUnschedulable, TaintToleration and NodeAffinity of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.profile import Plugin, Profile
from reconciler.model.kubernetes.taint import Taint, Toleration, repelling_taints
from reconciler.placement.binding.selection import allows, term_matches

if TYPE_CHECKING:
    from reconciler.placement.binding.host import HostNode
    from reconciler.placement.binding.shape import NodeConstraints

_NOT_READY: Final = Taint("node.kubernetes.io/not-ready", "NoSchedule")
_UNREACHABLE: Final = Taint("node.kubernetes.io/unreachable", "NoSchedule")
_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


class NodeVerdict(NamedTuple):
    """What the rules of a pod say about a node, whatever runs there.

    ``is_allowed`` is whether every filter passes, ``matches`` whether selector and affinity do,
    ``is_tolerated`` whether the taints do. ``preference`` is the sum of the weights of the
    preferred terms that match, ``avoided`` the number of ``PreferNoSchedule`` taints not tolerated.
    """

    is_allowed: bool
    matches: bool
    is_tolerated: bool
    preference: int
    avoided: int


def node_verdict(rules: NodeConstraints, host: HostNode, profile: Profile) -> NodeVerdict:
    """Return the verdict on a node, evaluated once for each version of the node."""
    known = rules.known.get(host.number)
    if known is None:
        known = rules.known[host.number] = _verdict(rules, host.node, profile)
    return known


def _verdict(rules: NodeConstraints, node: Node, profile: Profile) -> NodeVerdict:
    labels, added = node.metadata.labels, profile.added_affinity
    matches = all(labels.get(key) == value for key, value in rules.selector.items()) and (
        rules.required is None or allows(rules.required, node)
    )
    is_tolerated = not repelling_taints(_taints(node), rules.tolerations)
    is_allowed = (
        (matches or not profile.filters(Plugin.NODE_AFFINITY))
        and (is_tolerated or not profile.filters(Plugin.TAINT_TOLERATION))
        and (added is None or added.required is None or allows(added.required, node))
        and not (node.spec.unschedulable and _is_cordon_respected(rules, profile))
    )
    preferred = (*rules.preferred, *(added.preferred if added is not None else ()))
    return NodeVerdict(
        is_allowed,
        matches,
        is_tolerated,
        sum(t.weight for t in preferred if term_matches(t.preference, node)),
        sum(_is_avoided(taint, rules.tolerations) for taint in node.spec.taints),
    )


def _taints(node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node, with the one that a node without readiness soon gets."""
    taints = node.spec.taints
    if node.is_ready or any(t.matches(_NOT_READY) or t.matches(_UNREACHABLE) for t in taints):
        return taints
    return (*taints, _NOT_READY)


def _is_cordon_respected(rules: NodeConstraints, profile: Profile) -> bool:
    return profile.filters(Plugin.NODE_UNSCHEDULABLE) and not any(
        toleration.tolerates(_CORDON) for toleration in rules.tolerations
    )


def _is_avoided(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return taint.effect == "PreferNoSchedule" and not any(t.tolerates(taint) for t in tolerations)
