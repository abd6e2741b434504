"""The order in which kube-scheduler takes pending pods.

Pods of a higher priority come first, then those that wait longest: since they were created, or
since they were tried last (``pkg/scheduler/backend/queue``). Backing off does not delay a pod in
virtual time: kube-scheduler takes pods that back off as soon as no other pod waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.model.kubernetes.pod import Pod


class PodQueue:
    """Remembers when each pending pod was created or tried last, by a running number."""

    def __init__(self) -> None:
        self._tried: dict[str, int] = {}
        self._number = 0

    def take(self, pending: Sequence[Pod]) -> list[Pod]:
        """Return the pending pods in the order in which they are tried.

        ``pending`` is in the order of creation; pods that are not in it have left the queue.
        """
        known = self._tried
        self._tried = {pod.key: known[pod.key] for pod in pending if pod.key in known}
        for pod in pending:
            if pod.key not in self._tried:
                self.fail(pod)
        return sorted(pending, key=lambda pod: (-(pod.spec.priority or 0), self._tried[pod.key]))

    def fail(self, pod: Pod) -> None:
        """Put a pod behind the others of its priority."""
        self._number += 1
        self._tried[pod.key] = self._number

    def remove(self, pod: Pod) -> None:
        """Remove a pod that was bound."""
        self._tried.pop(pod.key, None)
