"""The recorded past, in the form that the rate limits of disruption need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from reconciler.model.history import DAY, History, Taken
from reconciler.model.settings import Settings
from reconciler.ports.state import CommandPhase, RunningCommand, StateStore


def history_of(store: StateStore, settings: Settings, now: datetime) -> History:
    """Return the recorded past; commands are counted only where a daily maximum is set."""
    taken: tuple[Taken, ...] = ()
    if counts_days(settings):
        taken = tuple(row for c in store.commands_since(now - DAY) for row in _taken(c))
    return History(taken, tuple(store.rollouts()), tuple(store.obstacles()), is_kept=True)


def counts_days(settings: Settings) -> bool:
    """Return whether a daily maximum is set anywhere."""
    pools = (options.maximum_per_day for options in settings.node_pools.values())
    return bool(settings.fleet_maximum_per_day or settings.maximum_per_day or any(pools))


def _taken(command: RunningCommand) -> Iterator[Taken]:
    """Yield the number of nodes that a command disrupted in each NodePool.

    A command that was rolled back disrupted none.
    """
    if not command.voluntary or command.phase is CommandPhase.ROLLED_BACK:
        return
    for pool, nodes in sorted(Counter(command.node_pools).items()):
        yield Taken(command.started_at, pool, nodes)
