"""``reconciler run``: the daemon that keeps the fleet in sync with git until it is stopped."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from reconciler.cli.fleets.roster import FleetRoster
    from reconciler.cli.fleets.sharing import FleetSharing
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.wiring.imitation import Imitation
    from reconciler.cli.wiring.monitoring import DaemonObserver
    from reconciler.cli.wiring.standby import Standby
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier

LISTEN_VARIABLE: Final = "RECONCILER_LISTEN"
TOKEN_VARIABLE: Final = "RECONCILER_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_AGAIN_S: Final = 5.0
"""How long a daemon waits before it starts again after trouble with its state or its folder."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The fleet to keep, how often it is reconciled, and how the daemon behaves.

    ``others`` are the fleets, or folders of fleets, that were named after the first. ``waits`` is
    whether it waits for the lease where another process holds it. ``acts_on_files`` is whether
    uncommitted changes count. ``heartbeat`` is a file, None for none. ``listen`` is the address
    for metrics, health checks and the dashboard, empty for none; ``token`` and ``header`` let
    users see the dashboard from other machines.
    """

    fleet: FleetRequest
    interval: timedelta
    waits: bool = True
    acts_on_files: bool = False
    heartbeat: str | None = None
    log_format: str = "text"
    listen: str = ""
    token: str = ""
    header: str = ""
    others: tuple[FleetRequest, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet, and how often it is reconciled."""
    from reconciler.cli.commands.environment import health

    inputs.add_paths(parser)
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
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text",
        help="format of the log (default: text)",
    )  # fmt: skip
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=os.environ.get(LISTEN_VARIABLE, ""),
        help="serve metrics, health checks and a dashboard at this address "
        f"(default: {LISTEN_VARIABLE}; *:8080 listens on all interfaces)",
    )  # fmt: skip
    parser.add_argument(
        "--trusted-header", metavar="NAME", default="",
        help="header in which a proxy names the user it has authenticated; "
        f"{TOKEN_VARIABLE} is another way to protect the dashboard",
    )  # fmt: skip
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return what the arguments ask for."""
    first, *others = args.paths or [None]
    return RunRequest(
        inputs.fleet_request(args, first),
        inputs.read_duration(args.interval, "--interval"),
        waits=not args.no_wait,
        acts_on_files=args.dirty,
        heartbeat=args.heartbeat,
        log_format=args.log_format,
        listen=args.listen,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        header=args.trusted_header,
        others=tuple(inputs.fleet_request(args, path) for path in others),
    )


def run(request: RunRequest) -> int:
    """Run until SIGTERM or SIGINT; the pass in hand is finished first."""
    from reconciler.adapters.clock import SystemClock
    from reconciler.cli.commands.environment.health import with_heartbeat
    from reconciler.cli.output.log import FORMATS, LogNotifier, libraries_logged
    from reconciler.cli.output.stream import has_colour
    from reconciler.cli.shared import watching
    from reconciler.cli.shared.exitcode import DONE
    from reconciler.cli.wiring.monitoring import monitored

    roster = several(request)
    if roster is not None:
        from reconciler.cli.fleets.service import serve

        return serve(request, roster)
    form = next(known for known in FORMATS if known == request.log_format)
    log = LogNotifier(sys.stdout, SystemClock(), form, colour=has_colour(sys.stdout))
    with watching.on_signal() as stop, libraries_logged(log), ExitStack() as stack:
        monitoring = stack.enter_context(
            monitored(request, log, with_heartbeat(request.heartbeat, stop))
        )
        keep(request, monitoring.notifier, monitoring.stop, observer=monitoring.observer)
    return DONE


def several(request: RunRequest) -> FleetRoster | None:
    """Return the fleets where the request names several or a folder of them; None for one fleet."""
    from reconciler.cli.fleets.roster import FleetRoster, has_fleets_below

    if not request.others and not has_fleets_below(request.fleet):
        return None
    return FleetRoster((request.fleet, *request.others), follows_files=request.acts_on_files)


def keep(
    request: RunRequest,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None = None,
    observer: DaemonObserver | None = None,
    sharing: FleetSharing | None = None,
) -> None:
    """Keep the fleet in sync with git until ``stop``, which is called between passes, is true.

    Where another process holds the lease, it waits or ends, as requested. Once it has acted or
    waited, no trouble with the lease, the state or the clock ends it: it starts again, as after
    a crash. Where replicas share fleets, ``sharing`` has the connections, and decides when a
    lease is asked for and given up.

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

    clock = imitation.clock if imitation is not None else clock_of(request.fleet)
    standby = Standby(notifier, stop, sharing) if request.waits else None
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    while not stop():
        try:
            _act(request, notifier, stop, imitation, standby, begin, observer)
            if sharing is not None and not stop():
                why = "gave up the lease: another replica has fewer fleets"
                notifier.notify(Progress(clock.now(), EventKind.STANDBY, why))
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
    request: RunRequest,
    notifier: Notifier,
    stop: Callable[[], bool],
    imitation: Imitation | None,
    standby: Standby | None,
    begin: Callable[[], None],
    observer: DaemonObserver | None,
) -> None:
    """Hold the lease and run pass after pass; ``begin`` is called once it is held."""
    from reconciler.adapters.threads import listening
    from reconciler.cli.commands.acting.apply import mandate_of
    from reconciler.cli.wiring.assembly import assembled
    from reconciler.cli.wiring.fleetsource import follow_commits
    from reconciler.engine.loop import Pulse
    from reconciler.engine.loop import run as keep_passing
    from reconciler.engine.steps.urgent import FirstResponse

    fleet = request.fleet if request.acts_on_files else follow_commits(request.fleet)
    world = assembled(fleet, notifier, imitation, sleeps=True, standby=standby)
    with world as assembly, assembly.source.watched():
        begin()
        sharing = standby.sharing if standby is not None else None

        def ends() -> bool:
            return stop() or (sharing is not None and sharing.gives_up(assembly.state))

        watched = observer.watching(assembly) if observer is not None else assembly.world
        response = FirstResponse(watched)
        aside = listening("reclaims", response.listen) if assembly.has_threads else nullcontext()
        with aside:
            keep_passing(
                watched,
                assembly.source,
                mandate_of(assembly.settings),
                pulse=Pulse(quiet=request.interval.total_seconds()),
                stop=ends,
                next_change=next_change,
                observer=observer,
                observed=response.observed,
            )


def next_change(plan: Plan) -> datetime | None:
    """Return the next moment at which a schedule or a deadline of the plan changes something."""
    moments = [d.not_before for d in plan.deferred] + [b.next_change for b in plan.budgets]
    return min((m for m in moments if m is not None and m > plan.at), default=None)
