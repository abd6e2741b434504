"""In which order a drain asks pods to leave, and from when on it does not ask.

The rules are those of Karpenter's terminator (``pkg/controllers/node/termination/terminator``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from reconciler.model.pod import Pod

_CRITICAL: Final = 2_000_000_000
_CRITICAL_CLASSES: Final = ("system-cluster-critical", "system-node-critical")
_GRACE_S: Final = 30


def drain_groups(pods: Iterable[Pod]) -> list[list[Pod]]:
    """Return the pods in the groups that leave one after another.

    Ordinary pods first, then daemons, then critical pods, then critical daemons: what others lean
    on goes last.
    """
    groups: list[list[Pod]] = [[], [], [], []]
    for pod in sorted(pods, key=lambda p: p.key):
        spec = pod.spec
        critical = (
            spec.priority or 0
        ) >= _CRITICAL or spec.priority_class_name in _CRITICAL_CLASSES
        groups[2 * critical + pod.is_daemon].append(pod)
    return [group for group in groups if group]


def must_go(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Return whether a pod is deleted now, whatever protects it, to be gone by the deadline.

    One that was asked to leave already is, where it would take longer than that.
    """
    if deadline is None:
        return False
    leaves_by = pod.metadata.deletion_timestamp
    if leaves_by is not None:
        return leaves_by > deadline
    grace = pod.spec.termination_grace_period_seconds
    return now >= deadline - timedelta(seconds=_GRACE_S if grace is None else grace)


def grace_left(deadline: datetime, now: datetime) -> int:
    """Return the seconds that a pod which must go is given: what is left, and at least one.

    None at all would take it off the books before its kubelet has ended it.
    """
    return max(int((deadline - now).total_seconds()), 1)
