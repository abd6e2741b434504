"""``reconciler health``: whether the daemon of this machine or container still goes round its loop.

``run --heartbeat FILE`` touches a file between passes and while it waits. A pass that hangs leaves
the file to grow old, which a container's health check then sees.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

VARIABLE: Final = "RECONCILER_HEARTBEAT"
_EVERY_S: Final = 5.0


def add_heartbeat(parser: argparse.ArgumentParser) -> None:
    """Declare the file that shows that the daemon is alive."""
    parser.add_argument(
        "--heartbeat",
        metavar="FILE",
        default=os.environ.get(VARIABLE) or None,
        help=f"file whose time shows that the daemon is alive (default: {VARIABLE})",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file, and how old it may be."""
    add_heartbeat(parser)
    parser.add_argument(
        "--max-age", default="5m", metavar="DURATION", help="how old it may be (default: 5m)"
    )


def run(args: argparse.Namespace) -> int:
    """Exit 0 if the daemon is alive and 1 if it is not, with one line either way."""
    from reconciler.cli.shared.exitcode import DONE, FAILED
    from reconciler.model.duration import parse_duration
    from reconciler.model.errors import UsageError

    if args.heartbeat is None:
        raise UsageError(
            "no heartbeat file is named",
            where="--heartbeat",
            remedy=f"name the file of `run --heartbeat FILE`, or set {VARIABLE}",
        )
    try:
        allowed = parse_duration(args.max_age)
    except ValueError as error:
        raise UsageError(str(error), where="--max-age") from error
    try:
        age_s = time.time() - os.stat(args.heartbeat).st_mtime  # noqa: PTH116 - starts fast
    except OSError as error:
        print(f"unhealthy: no heartbeat at {args.heartbeat} ({error.strerror})")
        return FAILED
    healthy = age_s <= allowed.total_seconds()
    print(f"{'healthy' if healthy else 'unhealthy'}: last heartbeat {max(age_s, 0):.0f} s ago")
    return DONE if healthy else FAILED


def beating(file: str | None, stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return ``stop`` in a form that touches ``file`` when it is called, every few seconds at most.

    The loop calls it between passes and while it waits, and never within a pass.

    Raises:
        StateError: a link or something else than a regular file is in its place.
    """
    if file is None:
        return stop
    touched = float("-inf")

    def touch_and_ask() -> bool:
        nonlocal touched
        now = time.monotonic()
        if now - touched >= _EVERY_S:
            touched = now
            _touch(file)
        return stop()

    return touch_and_ask


def _touch(file: str) -> None:
    from reconciler.adapters.nofollow import open_file
    from reconciler.model.errors import StateError

    try:
        descriptor = open_file(file, os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        why = f"the heartbeat cannot be written: {error.strerror}"
        raise StateError(why, where=file, remedy="name a file in a folder that exists") from error
    os.utime(descriptor)
    os.close(descriptor)
