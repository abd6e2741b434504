"""The list of the fleet's instances. EC2 may take longer to return it than a pass waits.

A pass begins a list and waits briefly for it. If EC2 is slow, the pass uses the list before, and
a later pass uses the one that runs. Lists run one after another, so none is older than an earlier
one. If a list lacks an instance, that is evidence as of the time at which it was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler.engine.steps import lifecycle
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.cloud import Compute, Instance

if TYPE_CHECKING:
    from reconciler.engine.world import World

_NAME: Final = "list instances"
_WAITS_S: Final = 0.5
"""How long a pass waits for EC2 if it has an earlier list."""
_USED_FOR: Final = timedelta(minutes=1)
"""How long a list is used after it was begun."""


@dataclass(frozen=True, slots=True)
class ListedInstances:
    """The instances that EC2 showed in a list begun at ``at``.

    They include instances of recorded claims that EC2 shows by id only: the list leaves out
    terminated ones, and it may lag behind.
    """

    at: datetime
    instances: tuple[Instance, ...]

    def covers(self, claim: NodeClaim) -> bool:
        """Return whether the list was begun after the claim's launch was recorded."""
        launched = claim.condition(lifecycle.LAUNCHED)
        since = launched.last_transition_time if launched is not None else None
        return since is None or since < self.at


class InstanceLists:
    """The lists of one process, each used until the next one is complete."""

    def __init__(self) -> None:
        self._last: ListedInstances | None = None

    def read(self, world: World, claims: Sequence[NodeClaim]) -> ListedInstances:
        """Return the newest list; ``claims`` are the recorded ones.

        Raises:
            TransientCloudError, CloudError: EC2 did not list the instances.
        """
        now = world.clock.now()
        ids = [lifecycle.instance_id(c) for c in claims if c.status.provider_id]
        begin = partial(_list_instances, world.compute, now, ids)
        found = world.calls.read(_NAME, begin, self._wait_limit(now))
        if found is not None and found.at < now:
            self._last = found  # an earlier pass began it; the next one may be complete in time
            found = world.calls.read(_NAME, begin, self._wait_limit(now))
        self._last = found or self._last
        assert self._last is not None, "without an earlier list, a pass waits for its own"
        return self._last

    def _wait_limit(self, now: datetime) -> float | None:
        """Return how many seconds to wait for a list, None to wait until it is complete."""
        last = self._last
        return _WAITS_S if last is not None and now - last.at < _USED_FOR else None


def _list_instances(compute: Compute, now: datetime, ids: Collection[str]) -> ListedInstances:
    listed = tuple(compute.instances())
    missing = sorted({*ids}.difference(instance.id for instance in listed))
    return ListedInstances(now, (*listed, *(compute.look_up(missing) if missing else ())))
