"""``reconciler run``: the daemon that keeps the fleet in sync with git until it is stopped."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.wiring.imitation import Imitation
    from reconciler.cli.wiring.standby import Standby
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier

_AGAIN_S: Final = 5.0
"""How long a daemon waits before it starts again after trouble with its state or its folder."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The fleet to keep, how often it is reconciled, and how the daemon behaves.

    ``waits`` is whether it waits for the lease where another process holds it. ``acts_on_files``
    is whether uncommitted changes count. ``heartbeat`` is a file, None for none.
    """

    fleet: FleetRequest
    interval: timedelta
    waits: bool = True
    acts_on_files: bool = False
    heartbeat: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet, and how often it is reconciled."""
    from reconciler.cli.commands import health

    inputs.add_path(parser)
    health.add_heartbeat(parser)
    parser.add_argument(
        "--interval", default="30s", metavar="DURATION",
        help="time between two reconcile passes (default: 30s)",
    )  # fmt: skip
    parser.add_argument(
        "--no-wait", action="store_true",
        help="exit 1 if another process acts for this fleet (default: wait, and take over)",
    )  # fmt: skip
    parser.add_argument(
        "--dirty", action="store_true",
        help="act on uncommitted changes of the working tree (default: on its commits only)",
    )  # fmt: skip
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return what the arguments ask for."""
    return RunRequest(
        inputs.fleet_request(args, args.path),
        inputs.read_duration(args.interval, "--interval"),
        waits=not args.no_wait,
        acts_on_files=args.dirty,
        heartbeat=args.heartbeat,
    )


def run(request: RunRequest) -> int:
    """Run until SIGTERM or SIGINT; the pass in hand is finished first."""
    from reconciler.cli.commands.health import beating
    from reconciler.cli.output.progress import TerminalNotifier
    from reconciler.cli.shared import stopping
    from reconciler.cli.shared.exitcode import DONE

    notifier = TerminalNotifier(sys.stdout, colour=sys.stdout.isatty())
    with stopping.on_signal() as stop:
        keep(request, notifier, beating(request.heartbeat, stop))
    return DONE


def keep(
    request: RunRequest,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None = None,
) -> None:
    """Keep the fleet in sync with git until ``stop``, which is called between passes, is true.

    Where another process holds the lease, it waits or ends, as requested. Once it has acted or
    waited, no trouble with the lease, the state or the clock ends it: it starts again, as after
    a crash.

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
    from reconciler.ports.progress import Progress

    clock = imitation.clock if imitation is not None else clock_of(request.fleet)
    standby = Standby(notifier, stop) if request.waits else None
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    while not stop():
        try:
            _act(request, notifier, stop, imitation, standby, begin)
        except LeaseLostError as error:
            notifier.notify(Progress(clock.now(), "LeaseLost", f"stopped acting: {error.message}"))
        except ClockSetBackError as error:
            notifier.notify(Progress(clock.now(), "ClockSetBack", str(error)))
        except LeaseHeldError:
            if stop():
                return
            raise
        except ReconcilerError as error:
            if not has_begun and not (standby is not None and standby.has_waited):
                raise
            notifier.notify(Progress(clock.now(), "Retrying", str(error)))
            clock.wait(_AGAIN_S, stop)


def _act(
    request: RunRequest,
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

    fleet = request.fleet if request.acts_on_files else follow_commits(request.fleet)
    world = assembled(fleet, notifier, imitation, sleeps=True, standby=standby)
    with world as assembly, assembly.source.watched():
        begin()
        keep_passing(
            assembly.world,
            assembly.source,
            mandate_of(assembly.settings),
            pulse=Pulse(quiet=request.interval.total_seconds()),
            stop=stop,
            next_change=next_change,
        )


def next_change(plan: Plan) -> datetime | None:
    """Return the next moment at which a schedule or a deadline of the plan changes something."""
    moments = [d.not_before for d in plan.deferred] + [b.next_change for b in plan.budgets]
    return min((m for m in moments if m is not None and m > plan.at), default=None)
