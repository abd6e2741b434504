"""The order in which kube-scheduler takes pending pods.

Pods of a higher priority come first, then those that wait longest: since they were created, or
since they were tried last (``pkg/scheduler/backend/queue``). Backing off does not delay a pod in
virtual time: kube-scheduler takes pods that back off as soon as no other pod waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.chance import Chance
from reconciler.model.kubernetes.pod import Pod

_QPS: Final = 50.0
_BURST: Final = 100.0
"""The requests of kube-scheduler to the API server: in a second, and at once after a pause.

Each attempt needs one: a binding, or the condition of a pod that cannot be scheduled. These are the
defaults of ``clientConnection`` in a KubeSchedulerConfiguration.
"""
_ATTEMPT_S: Final = (0.005, 0.1)
"""How long an attempt takes that does not wait for the limit: on an idle control plane, and on a
busy one, where ten pods were recorded to be bound in a second.
"""


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


class SchedulerPace:
    """How fast kube-scheduler tries one pod after another, in seconds since the first one.

    Pods that fail whenever a node joins use up its requests. So nodes that join within a few
    seconds are there together for most pods, although the first one would have had room for many.
    The ``seed`` decides how busy the control plane is.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self._left = _BURST
        idle, busy = _ATTEMPT_S
        self._attempt_s = idle * (busy / idle) ** Chance(seed).share("busy control plane")

    def take_turn(self) -> None:
        """Advance by one attempt."""
        self.wait_until(self.now + max(self._attempt_s, (1.0 - self._left) / _QPS))
        self._left -= 1.0

    def wait_until(self, moment: float) -> None:
        """Advance to a moment, unless it has passed."""
        if moment > self.now:
            self._left = min(self._left + (moment - self.now) * _QPS, _BURST)
            self.now = moment
