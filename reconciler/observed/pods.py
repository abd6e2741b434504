"""The pods of an observation, with an index that depends on them alone.

A pass evaluates the same properties of a hundred thousand pods several times, and every pass does
so again. Properties of an immutable value are computed on first use and kept with the value.
``SnapshotReader`` returns the same object while the pods are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import fingerprint, pod_facts


class Pods(tuple[Pod, ...]):  # noqa: SLOT001 - computed values are kept in its dictionary
    """A tuple of pods that is indexed once. Equal to any other tuple of the same pods."""

    @classmethod
    def of(cls, pods: tuple[Pod, ...]) -> Pods:
        """Return the pods with their index; pods that have one are returned unchanged."""
        return pods if isinstance(pods, Pods) else cls(pods)

    @cached_property
    def by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """The pods that are bound to each node, by its name, in their order here."""
        found: dict[str, list[Pod]] = {}
        for pod in self:
            name = pod.spec.node_name
            if name:
                on_node = found.get(name)
                if on_node is None:
                    on_node = found[name] = []
                on_node.append(pod)
        return {name: tuple(on_node) for name, on_node in found.items()}

    @cached_property
    def holding(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the pods that block each node, without daemons and completed pods."""
        return {
            name: tuple([p.key for p in pods if not p.is_terminal and not p.is_daemon])
            for name, pods in self.by_node.items()
        }

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each pod that has not completed; completed pods have no effect."""
        return {f"Pod {p.key}": fingerprint(pod_facts(p)) for p in self if not p.is_terminal}
