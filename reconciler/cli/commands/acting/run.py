"""``reconciler run``: the daemon that keeps the fleet in sync with git until it is stopped."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace

from reconciler.adapters.clock import SystemClock
from reconciler.assembly.fleetsource import expect_commits
from reconciler.assembly.inputs import watching
from reconciler.assembly.inputs.request import DASHBOARD, RunRequest
from reconciler.assembly.monitoring import serve_monitoring
from reconciler.cli.commands.environment import health
from reconciler.cli.parser import inputs, serving
from reconciler.daemon.daemon import FleetDaemon, with_heartbeat
from reconciler.daemon.roster import FleetRoster, has_fleets_below
from reconciler.exitcode import DONE
from reconciler.model.errors import UsageError
from reconciler.notifications.log import FORMATS, LogNotifier, log_libraries
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet, and how often it is reconciled."""
    inputs.add_paths(parser)
    health.add_heartbeat(parser)
    add_options(RunRequest, parser)
    serving.add_serving(parser)
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return the request in the arguments."""
    first, *others = args.paths or [None]
    if args.is_simulated and not args.listen:
        args.listen = DASHBOARD
    return inputs.request_from(
        RunRequest,
        args,
        fleet=inputs.fleet_request(args, first),
        serving=serving.serving_request(args),
        others=tuple(inputs.fleet_request(args, path) for path in others),
    )


def run(request: RunRequest) -> int:
    """Run until SIGTERM or SIGINT; the current pass is finished first.

    Raises:
        UsageError: several fleets are to be simulated, or a package for it is missing.
    """
    if not request.is_simulated:
        return _run(request)
    from reconciler.assembly.embedded import simulated_account

    if fleet_roster_of(request) is not None:
        raise UsageError(
            "one fleet can be simulated at a time",
            where="--simulated",
            remedy="pass one fleet folder",
        )
    with simulated_account(request.fleet) as fleet:
        return _run(replace(request, fleet=fleet))


def _announce_simulation(request: RunRequest) -> None:
    """Write where the dashboard is, once it can be opened and the fleet can run.

    Raises:
        UsageError: the repository of the fleet has no commit yet.
    """
    if not request.acts_on_files:
        expect_commits(request.fleet)
    if sys.stderr.isatty() or request.log_format == "text":
        sys.stderr.write(
            "Simulated: nothing is launched in AWS.\n"
            f"Dashboard: http://{request.serving.listen}/ (Ctrl-C ends the simulation)\n"
        )
        sys.stderr.flush()


def _run(request: RunRequest) -> int:
    roster = fleet_roster_of(request)
    if roster is not None:
        from reconciler.daemon.service import serve

        return serve(request, roster)
    form = next(known for known in FORMATS if known == request.log_format)
    log = LogNotifier(sys.stdout, SystemClock(), form, colour=has_colour(sys.stdout))
    with watching.stop_on_signal() as stop, log_libraries(log), ExitStack() as stack:
        monitoring = stack.enter_context(
            serve_monitoring(request, log, with_heartbeat(request.heartbeat, stop))
        )
        if request.is_simulated:
            _announce_simulation(request)
        FleetDaemon(
            request,
            monitoring.notifier,
            monitoring.stop,
            observer=monitoring.observer,
            alive=monitoring.stop,
        ).run()
    return DONE


def fleet_roster_of(request: RunRequest) -> FleetRoster | None:
    """Return the fleets if the request names several or a folder of them; None for one fleet."""
    if not request.others and not has_fleets_below(request.fleet):
        return None
    return FleetRoster((request.fleet, *request.others), follows_files=request.acts_on_files)
