"""What controllers do with a pod that is evicted: when its successor exists, and under which name.

Sources: the ReplicaSet, StatefulSet and Job controllers of kube-controller-manager.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from reconciler.model.chance import Chance
from reconciler.model.kubernetes.pod import Pod

DEFAULT_GRACE_S: Final = 30
"""The ``terminationGracePeriodSeconds`` of a pod that states none."""

_GRACE_MAX_S: Final = 100 * 365 * 86400
"""The longest grace period that counts. An API server accepts any number of 64 bits, which can be
neither added to a time nor subtracted from one."""

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of generated names (``k8s.io/apimachinery/pkg/util/rand``)."""
_LENGTH: Final = 5
_GENERATING: Final = ("ReplicaSet", "Job")


def grace_period(pod: Pod) -> timedelta:
    """Return how long a pod may take to terminate; until then it uses its node.

    A negative number counts as one second, as in Kubernetes.
    """
    seconds = pod.spec.termination_grace_period_seconds
    if seconds is None:
        return timedelta(seconds=DEFAULT_GRACE_S)
    return timedelta(seconds=min(seconds, _GRACE_MAX_S) if seconds >= 0 else 1)


def is_replaced_at_once(pod: Pod) -> bool:
    """Return whether its controller creates another pod while this one still terminates.

    A ReplicaSet counts only pods that are not being deleted. A StatefulSet needs the name of the
    pod, and a Job waits until it has failed.
    """
    return pod.metadata.is_owned_by("apps/v1", "ReplicaSet")


def is_completed_when_gone(pod: Pod) -> bool:
    """Return whether a pod that its workload no longer has ended by itself: that of a Job.

    Every other pod is deleted, and takes its grace period to terminate.
    """
    return pod.metadata.is_owned_by("batch/v1", "Job")


def has_generated_name(pod: Pod) -> bool:
    """Return whether the successor of a pod has another name."""
    return is_replaced_at_once(pod) or pod.metadata.is_owned_by("batch/v1", "Job")


def successor_name(pod: Pod, chance: Chance, nth: int) -> str:
    """Return the name of the ``nth`` successor of a pod of a ReplicaSet or a Job."""
    owner = next(o.name for o in pod.metadata.owner_references if o.kind in _GENERATING)
    draws = (chance.share("pod name", pod.key, str(nth), str(place)) for place in range(_LENGTH))
    return f"{owner}-{''.join(_LETTERS[int(share * len(_LETTERS))] for share in draws)}"
