"""``reconciler run``: the daemon. It keeps the fleet as git wants it until it is told to stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import datetime

    from reconciler.cli.wiring.imitation import Imitation
    from reconciler.cli.wiring.standby import Standby
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier

_AGAIN_S: Final = 5.0
"""How long a daemon waits before it starts anew after trouble with its state or its folder."""


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
        "--no-wait",
        action="store_true",
        help="exit 1 if another process acts for this fleet (default: wait, and take over)",
    )
    parser.add_argument(
        "--dirty",
        action="store_true",
        help="act on uncommitted changes of the working tree (default: on its commits only)",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; the pass in hand is finished first."""
    from reconciler.cli.commands.health import beating
    from reconciler.cli.output.progress import TerminalNotifier
    from reconciler.cli.shared import stopping
    from reconciler.cli.shared.exitcode import DONE

    notifier = TerminalNotifier(sys.stdout, colour=sys.stdout.isatty())
    with stopping.on_signal() as stop:
        keep(args, notifier, beating(args.heartbeat, stop), waits=not args.no_wait)
    return DONE


def keep(
    args: argparse.Namespace,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None = None,
    *,
    waits: bool = False,
) -> None:
    """Keep the fleet as git wants it until ``stop`` says so, which is asked between passes.

    Where another process holds the lease, it ``waits`` for it or ends. Once it has acted or
    waited, no trouble with the lease, the state or the clock ends it: it starts anew, as after a
    crash.

    Raises:
        LeaseHeldError: another process holds the lease, and it does not wait.
    """
    from reconciler.cli.wiring.imitation import clock_of
    from reconciler.cli.wiring.standby import Standby
    from reconciler.model.errors import (
        ClockSetBackError,
        LeaseHeldError,
        LeaseLostError,
        ReconcilerError,
    )
    from reconciler.ports.progress import EventKind, Progress

    clock = imitation.clock if imitation is not None else clock_of(args)
    standby = Standby(notifier, stop) if waits else None
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    while not stop():
        try:
            _act(args, notifier, stop, imitation, standby, begin)
        except LeaseLostError as error:
            notifier.notify(
                Progress(clock.now(), EventKind.LEASE_LOST, f"stopped acting: {error.message}")
            )
        except ClockSetBackError as error:
            notifier.notify(Progress(clock.now(), EventKind.CLOCK_SET_BACK, str(error)))
        except LeaseHeldError:
            if stop():
                return
            raise
        except ReconcilerError as error:
            if not has_begun and not (standby is not None and standby.has_waited):
                raise
            notifier.notify(Progress(clock.now(), EventKind.RETRYING, str(error)))
            clock.wait(_AGAIN_S, stop)


def _act(
    args: argparse.Namespace,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None,
    standby: Standby | None,
    begin: Callable[[], None],
) -> None:
    """Hold the lease and run pass after pass; ``begin`` is called once it is held."""
    from reconciler.cli.commands.apply import mandate_of
    from reconciler.cli.wiring.assembly import assembled
    from reconciler.cli.wiring.fleetsource import follow_commits
    from reconciler.engine.loop import Pulse
    from reconciler.engine.loop import run as keep_passing
    from reconciler.model.duration import parse_duration

    if not args.dirty:
        follow_commits(args)
    world = assembled(args, notifier, imitation, sleeps=True, standby=standby)
    with world as assembly, assembly.source.watched():
        begin()
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
