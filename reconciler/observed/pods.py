"""The pods of a look, with what follows from them alone and is asked of them again and again.

A pass asks the same of a hundred thousand pods several times, and every pass does. What follows
from a value that cannot change is worked out when it is first asked for and stays with the value;
``SnapshotReader`` gives the very same pods for as long as the cluster says the same of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import fingerprint, pod_facts


class Pods(tuple[Pod, ...]):  # noqa: SLOT001 - what is worked out is kept in its dictionary
    """A tuple of pods that is indexed once. Equal to any other tuple of the same pods."""

    @classmethod
    def of(cls, pods: tuple[Pod, ...]) -> Pods:
        """Return the pods with their index, themselves where they have one."""
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
        """The names of the pods that hold each node: no daemons, none that has ended."""
        return {
            name: tuple([p.key for p in pods if not p.is_terminal and not p.is_daemon])
            for name, pods in self.by_node.items()
        }

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each pod that has not ended: one that has holds nothing any more."""
        return {f"Pod {p.key}": fingerprint(pod_facts(p)) for p in self if not p.is_terminal}
