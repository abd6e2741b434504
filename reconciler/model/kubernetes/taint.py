"""Taints and tolerations, and which taints a starting node loses by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import DISRUPTED_TAINT, REBOOTING_TAINT, UNREGISTERED_TAINT

_EPHEMERAL: Final = frozenset(
    {
        ("node.kubernetes.io/not-ready", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
        (UNREGISTERED_TAINT, "NoExecute"),
    }
)
_READINESS_PREFIX: Final = "readiness.k8s.io/"
_REPELLING: Final = ("NoSchedule", "NoExecute")


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node repels pods that do not tolerate it."""

    key: str
    effect: str = ""
    value: str = ""

    def matches(self, other: Taint) -> bool:
        """Return whether both are the same taint: key and effect, whatever the value."""
        return self.key == other.key and self.effect == other.effect

    @property
    def is_ephemeral(self) -> bool:
        """Whether a starting node loses it automatically."""
        return (self.key, self.effect) in _EPHEMERAL or self.key.startswith(_READINESS_PREFIX)

    @property
    def repels(self) -> bool:
        """Whether it keeps a pod off a node that does not tolerate it."""
        return self.effect in _REPELLING

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


UNREGISTERED: Final = Taint(UNREGISTERED_TAINT, "NoExecute")
"""On a node until it is registered."""
DISRUPTED: Final = Taint(DISRUPTED_TAINT, "NoSchedule")
"""On a node that a command removes."""
REBOOTING: Final = Taint(REBOOTING_TAINT, "NoSchedule")
"""On a node until its reboot is over."""


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The taints that a pod tolerates; an empty key with ``Exists`` tolerates everything."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers ``taint`` (Kubernetes ``ToleratesTaint``)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return bool(self.key) and self.value == taint.value
            case "Exists":
                return True
            case "Gt" | "Lt":
                return self._matches_integer(taint.value)
        return False

    def _matches_integer(self, value: str) -> bool:
        try:
            left, right = int(value), int(self.value)
        except ValueError:
            return False
        return left > right if self.operator == "Gt" else left < right


def untolerated_taints(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> list[Taint]:
    """Return the taints, of any effect, that are not tolerated."""
    known = tuple(tolerations)
    return [t for t in taints if not any(toleration.tolerates(t) for toleration in known)]


def repelling_taints(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> list[Taint]:
    """Return the taints for which kube-scheduler keeps a pod off a node.

    ``PreferNoSchedule`` only makes a node less suitable; Karpenter avoids it like the others until
    it relaxes the pod.
    """
    return untolerated_taints((taint for taint in taints if taint.repels), tolerations)


def merge_taints(existing: Iterable[Taint], more: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return ``existing`` and those of ``more`` whose key and effect it does not have."""
    taints = list(existing)
    taints += [t for t in more if not any(t.matches(known) for known in taints)]
    return tuple(taints)
