"""Kills a process at any point of its interaction with the world.

Every write to the journal, the store and the shelf, every effect on the cluster and every call to
EC2 is two points: just before, and just after it. Everything written or done by then remains; the
memory of the process is lost.
"""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reconciler_embedded.wire import Request, Response
from tests.engine.world import World

WRITES = {
    "journal": ("begin", "finish"),
    "store": (
        "put_node_claims",
        "forget_node_claims",
        "put_command",
        "put_objects",
        "put_plan",
        "put_unavailable",
    ),
    "shelf": ("write",),
    "cluster": (
        "taint",
        "untaint",
        "fence",
        "unfence",
        "register",
        "initialize",
        "uninitialize",
        "drain",
        "delete_node",
    ),
}


class CutError(BaseException):
    """The process was killed here: nothing may catch this."""


@dataclass
class Points:
    """Counts the points of a run; ``at`` decides at each whether the process ends there."""

    names: list[str] = field(default_factory=list)
    at: Callable[[int], None] = lambda _: None

    def pass_by(self, name: str) -> None:
        self.names.append(name)
        self.at(len(self.names))

    @property
    def is_like_the_last(self) -> bool:
        """Whether the durable state here equals that at the previous point.

        Between two interactions a process only computes: the state just before one equals that just
        after the previous one. The cluster keeps only its shelf.
        """
        return len(self.names) > 1 and self.names[-1].startswith(("before", "after cluster."))

    def wrap(self, world: World) -> World:
        """Observe every interaction of a process of this world."""
        world.around = lambda port, name: _Watched(port, name, self) if name in WRITES else port
        handle = world.cloud.respond

        def watched(request: Request) -> Response:
            self.pass_by(f"before ec2.{request.operation}")
            try:
                return handle(request)
            finally:
                self.pass_by(f"after ec2.{request.operation}")

        world.cloud.respond = watched  # type: ignore[method-assign]
        return world


class _Watched:
    """A port whose writes are points."""

    def __init__(self, port: Any, name: str, points: Points) -> None:
        self._port, self._name, self._points = port, name, points

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if method not in WRITES[self._name]:
            return real

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._points.pass_by(f"before {self._name}.{method}")
            result = real(*args, **kwargs)
            self._points.pass_by(f"after {self._name}.{method}")
            return result

        return watched


def cut(points: Points, number: int) -> None:
    """Kill the process at that point, counted from now on."""
    points.names.clear()

    def at(reached: int) -> None:
        if reached == number:
            points.at = lambda _: None
            raise CutError(points.names[-1])

    points.at = at


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Do ``work`` in a copy of this complete process and return its picklable result."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        gc.freeze()  # none of this is garbage: the copy need not scan it again
        os.close(reader)
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - a copy of a test must not go on
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(content)
