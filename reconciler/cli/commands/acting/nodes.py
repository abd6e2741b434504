"""``reconciler cordon``, ``uncordon``, ``drain`` and ``delete``: requests for a named node.

A request is recorded, and executed by the process that acts. If a daemon holds the lease of the
fleet, it executes it in its next pass. Otherwise the command acquires the lease and runs passes
until the request is done.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.assembly.inputs import records, watching
from reconciler.assembly.mandate import tags_of
from reconciler.cli.parser import inputs
from reconciler.model.errors import LeaseHeldError, UsageError
from reconciler.model.text.nearest import did_you_mean
from reconciler.notifications.log import TerminalNotifier
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, option, switch
from reconciler.ports.journal import Outcome, Verb

if TYPE_CHECKING:
    import argparse

    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import FleetRequest, StateRequest
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.ports.journal import Intent


_VERBS: Final = {
    "cordon": "cordon",
    "uncordon": "uncordon",
    "drain": "drain-node",
    "delete": "delete-nodeclaim",
}
"""The verb of each command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """The operation (a ``Verb``), its node, and how long it may take at once."""

    state: StateRequest
    fleet: FleetRequest
    verb: str
    name: str
    is_dry_run: bool = switch("--dry-run", "show what would be done; change nothing")
    reason: str = option("--reason", "TEXT", "why, for the history", default="")
    timeout: timedelta = option(
        "--timeout",
        "DURATION",
        "without a daemon: give up after this long; the next `apply` or `run` continues it "
        "(default: 30m)",
        default=timedelta(minutes=30),
    )


def add_arguments(parser: argparse.ArgumentParser, what: str = "node") -> None:
    """Declare the node and how the request is made."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {what}")
    inputs.add_path(parser)
    add_options(NodeRequest, parser)
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> NodeRequest:
    """Return the request in the arguments."""
    return inputs.request_from(
        NodeRequest,
        args,
        state=inputs.state_request(args, args.path),
        verb=_VERBS[args.command],
    )


def run(request: NodeRequest) -> int:
    """Record the request, and execute it if no daemon does.

    Raises:
        UsageError: no node of this fleet has that name.
    """
    from reconciler.engine.steps.requests import describe_request, record_request

    verb = Verb(request.verb)
    with records.open_recorded(request.state, needs_lease=False) as recorded:
        claim = _find_claim(recorded, request.name)
        holder = recorded.state.lease.holder()
        who = f"the daemon {holder}" if holder else "this command"
        print(f"{describe_request(verb, claim)}.")
        if request.is_dry_run:
            print(f"Nothing was changed (--dry-run). It would be executed by {who}.")
            return exitcode.DONE
        journal, now = recorded.state.journal, recorded.now
        intent = record_request(journal, now, verb, claim, request.reason)
    if holder is not None:
        print(
            f"Recorded; {who} executes it in its next pass. "
            f"`reconciler history --target {intent.target}` shows the result."
        )
        return exitcode.DONE
    return _carry_out(request, intent)


def _find_claim(recorded: RecordedFleet, name: str) -> NodeClaim:
    """Return the NodeClaim of that name, or of the node of that name.

    Raises:
        UsageError: there is none, so the node does not belong to this fleet.
    """
    from reconciler.engine.steps.requests import find_claim

    claims = recorded.state.store.node_claims()
    found = find_claim(claims, name)
    if found is not None:
        return found
    advice = did_you_mean(name, [n for c in claims for n in (c.name, c.status.node_name) if n])
    raise UsageError(
        f'no node of fleet {recorded.fleet} is named "{name}"' + (f" ({advice})" if advice else ""),
        where=recorded.where,
        remedy="`reconciler get nodes` lists its nodes; use kubectl for nodes of others",
    )


def _carry_out(request: NodeRequest, intent: Intent) -> int:
    """Run passes until the request has an outcome, and print it; return 1 if it failed."""
    from reconciler.assembly.assembly import assemble_world
    from reconciler.engine.loop import PassIntervals, converge
    from reconciler.engine.reconcile import Mandate

    notifier = TerminalNotifier(sys.stdout, colour=has_colour(sys.stdout))
    try:
        with assemble_world(request.fleet, notifier) as assembly, watching.stop_on_signal() as stop:
            journal = assembly.state.journal
            converge(
                assembly.world,
                assembly.source,
                Mandate(tags_of(assembly.settings), decides=False),
                deadline=request.timeout,
                intervals=PassIntervals(),
                stop=stop,
            )
            entry = journal.find_entries([intent.id]).get(intent.id)
    except LeaseHeldError as error:
        print(f"Recorded; another process has begun to act and executes it ({error.message}).")
        return exitcode.DONE
    if entry is None or entry.outcome is None:
        print("Not finished; the next `reconciler apply` or `run` continues it.", file=sys.stderr)
        return exitcode.FAILED
    print(f"{entry.outcome.value}: {entry.message or intent.target}")
    return exitcode.DONE if entry.outcome is Outcome.SUCCEEDED else exitcode.FAILED
