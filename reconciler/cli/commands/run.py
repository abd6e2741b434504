"""``reconciler run``: the daemon. It keeps the fleet as git wants it until it is told to stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import datetime

    from reconciler.cli.wiring.imitation import Imitation
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is kept, and how often to look."""
    from reconciler.cli.commands import health
    from reconciler.cli.shared import request

    request.add_arguments(parser)
    health.add_heartbeat(parser)
    parser.add_argument(
        "--interval", default="30s", metavar="DURATION", help=("time between two reconcile passes")
    )
    parser.add_argument(
        "--dirty", action="store_true",
        help="act on uncommitted changes of the working tree (default: on its commits only)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; the pass in hand is finished first."""
    from reconciler.cli.commands.health import beating
    from reconciler.cli.output.progress import TerminalNotifier
    from reconciler.cli.shared import stopping
    from reconciler.cli.shared.exitcode import DONE

    notifier = TerminalNotifier(sys.stdout, colour=sys.stdout.isatty())
    with stopping.on_signal() as stop:
        keep(args, notifier, beating(args.heartbeat, stop))
    return DONE


def keep(
    args: argparse.Namespace,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None = None,
) -> None:
    """Keep the fleet as git wants it until ``stop`` says so, which is asked between passes."""
    from reconciler.cli.commands.apply import mandate_of
    from reconciler.cli.wiring.assembly import assembled
    from reconciler.cli.wiring.fleetsource import follow_commits
    from reconciler.engine.loop import Pulse
    from reconciler.engine.loop import run as keep_passing
    from reconciler.model.duration import parse_duration

    if not args.dirty:
        follow_commits(args)
    world = assembled(args, notifier, imitation, sleeps=True)
    with world as assembly, assembly.source.watched():
        keep_passing(
            assembly.world,
            assembly.source,
            mandate_of(assembly.settings),
            pulse=Pulse(quiet=parse_duration(args.interval).total_seconds()),
            stop=stop,
            next_change=next_change,
        )


def next_change(plan: Plan) -> datetime | None:
    """Return the next moment at which a schedule or a deadline of the plan changes something."""
    moments = [d.not_before for d in plan.deferred] + [b.next_change for b in plan.budgets]
    return min((m for m in moments if m is not None and m > plan.at), default=None)
