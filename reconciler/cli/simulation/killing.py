"""Kills the daemon at a given step: just after a write to its records, or after an effect.

What was written or done by then stays; the pass is over, and another process continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from reconciler.engine.world import World

P = TypeVar("P")

_STEPS: Final = {
    "store": (
        "put_node_claims",
        "forget_node_claims",
        "put_command",
        "put_objects",
        "put_plan",
        "put_unavailable",
    ),
    "journal": ("begin", "finish"),
    "compute": ("launch", "terminate", "tag"),
    "cluster": ("taint", "untaint", "register", "initialize", "drain", "delete_node"),
}


class KilledError(BaseException):
    """The daemon is killed here; nothing of the engine may catch this."""

    def __init__(self, step: int, what: str, restart: timedelta) -> None:
        self.restart = restart
        super().__init__(f"after step {step}, {what}")


@dataclass
class Steps:
    """Counts the steps of the daemon, over all its lives; ``kills`` says after which it dies."""

    kills: Mapping[int, timedelta]
    taken: int = 0

    def take(self, what: str) -> None:
        """Count a step.

        Raises:
            KilledError: it was the last of this life.
        """
        self.taken += 1
        restart = self.kills.get(self.taken)
        if restart is not None:
            raise KilledError(self.taken, what, restart)


def mortal(world: World, steps: Steps) -> World:
    """Return the environment of a daemon that may be killed at every step."""
    return replace(
        world,
        store=_counted(world.store, "store", steps),
        journal=_counted(world.journal, "journal", steps),
        compute=_counted(world.compute, "compute", steps),
        cluster=_counted(world.cluster, "cluster", steps),
    )


def _counted(port: P, name: str, steps: Steps) -> P:
    return cast("P", _Counted(port, name, steps))


class _Counted:
    """A port whose effects are steps."""

    def __init__(self, port: object, name: str, steps: Steps) -> None:
        self._port, self._name, self._steps = port, name, steps

    def __getattr__(self, method: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._port, method)
        if method not in _STEPS[self._name]:
            return real

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self._steps.take(f"{self._name}.{method}")
            return result

        return counted
