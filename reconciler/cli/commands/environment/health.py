"""``reconciler health``: whether the daemon of this machine or container is alive.

``run --heartbeat FILE`` touches a file between passes, at each step of a pass, during placements,
and while it waits. If a pass hangs, the file is not touched, which a container's health check
detects.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE, FAILED
from reconciler.model.errors import UsageError
from reconciler.options import add_options, option, part

VARIABLE: Final = "RECONCILER_HEARTBEAT"


def add_heartbeat(parser: argparse.ArgumentParser) -> None:
    """Declare the file that shows that the daemon is alive."""
    parser.add_argument(
        "--heartbeat",
        metavar="FILE",
        default=os.environ.get(VARIABLE) or None,
        help=f"file whose time shows that the daemon is alive (default: {VARIABLE})",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRequest:
    """The daemon's heartbeat file, how old it may be, and the output format."""

    heartbeat: str = part(add_heartbeat, default="")
    max_age: timedelta = option(
        "--max-age", "DURATION", "how old it may be (default: 5m)", default=timedelta(minutes=5)
    )
    output: str = part(inputs.add_output)

    def __post_init__(self) -> None:
        """Refuse to check nothing.

        Raises:
            UsageError: no heartbeat file is named.
        """
        if not self.heartbeat:
            raise UsageError(
                "no heartbeat file is named",
                where="--heartbeat",
                remedy=f"name the file of `run --heartbeat FILE`, or set {VARIABLE}",
            )


add_arguments = partial(add_options, HealthRequest)
request_of = partial(inputs.request_from, HealthRequest)


def run(request: HealthRequest) -> int:
    """Exit 0 if the daemon is alive and 1 if it is not, with one line either way."""
    age_s: float | None = None
    try:
        age_s = max(time.time() - os.stat(request.heartbeat).st_mtime, 0)
        message = f"last heartbeat {age_s:.0f} s ago"
    except OSError as error:
        message = f"no heartbeat at {request.heartbeat} ({error.strerror})"
    is_healthy = age_s is not None and age_s <= request.max_age.total_seconds()
    if request.output == "text":
        print(f"{'healthy' if is_healthy else 'unhealthy'}: {message}")
    else:
        from reconciler.inspection.replies import HealthReply
        from reconciler.render.reply import render_reply, sections_of

        reply = HealthReply(healthy=is_healthy, heartbeat_age_seconds=age_s, message=message)
        page = render_reply(reply, sections_of(reply), request.output, title="Daemon")
        sys.stdout.write(page)
    return DONE if is_healthy else FAILED
