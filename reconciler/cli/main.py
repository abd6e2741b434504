"""The entry point: selects the command and prints errors.

A command is a module of ``cli/commands`` with three functions:

    def add_arguments(parser: argparse.ArgumentParser) -> None
        declares its arguments;
    def request_of(args: argparse.Namespace) -> Request
        reads them into a frozen request, the only function that sees the arguments;
    def run(request: Request) -> int
        carries the request out, and returns an exit code of ``exitcode``.

One with subcommands has ``SUBCOMMANDS`` and ``add_subcommand`` instead of the first. To add a
command, write the module and name it in ``COMMANDS``. Only the module of the command that runs is
imported, and it imports what is heavy inside ``run``: starting fast is a promise (``--version``
takes at most three times as long as an empty Python).

An expected error is a ``ReconcilerError``: it becomes one line on stderr. Any other exception is a
bug: also one line, and a traceback with ``--debug``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from reconciler.cli.parser import commandline
from reconciler.cli.parser.commandline import CommandSpec

if TYPE_CHECKING:
    from reconciler.model.errors import ReconcilerError

COMMANDS: Final[dict[str, CommandSpec]] = {
    name: CommandSpec(f"reconciler.cli.commands.{folder}.{name}", summary, group)
    for group, folder, members in (
        (
            "desired state",
            "desired",
            {
                "validate": "check the desired state and show every problem with its location",
                "plan": "show what would change, why, and what it costs",
                "simulate": "run the engine against a simulated cloud and show the rollout",
                "advise": "find the changes to the desired state that save the most",
                "trace": "export what the daemon recorded, convert traces, and sum them up",
                "lock": "pin images and prices so that plans are repeatable",
                "hash": "compute the drift hashes of NodePools and EC2NodeClasses",
                "config": "show the effective settings and the source of each",
            },
        ),
        (
            "changes",
            "acting",
            {
                "apply": "apply a plan until the fleet matches git",
                "run": "run the daemon that keeps the fleet in sync with git",
                "resume": "resume disruption that was halted after failures",
                "cordon": "let no new pods be scheduled to a node",
                "uncordon": "let pods be scheduled to a node again, and end its drain",
                "drain": "cordon a node and evict its pods as their budgets allow",
                "delete": "drain a node or nodeclaim, then terminate its instance",
                "overlays": "write NodeOverlays for a cluster that keeps Karpenter",
                "uninstall": "remove the finalizer from the nodes of a cluster",
            },
        ),
        (
            "recorded state",
            "recorded",
            {
                "status": "show the recorded state of the fleet",
                "top": "show price, utilization and pods of the nodes, live",
                "get": "list nodeclaims, nodes, nodepools, plans, actions or commands",
                "describe": "show all recorded details of one resource",
                "explain": "explain why a pod is unschedulable or a node is (not) disrupted",
                "history": "list past operations with time, commit and reason",
                "state": "migrate, check, export, import or prune the state; adopt nodes",
            },
        ),
        (
            "environment",
            "environment",
            {
                "init": "make a fleet folder from Karpenter's YAML, a cluster, or nothing",
                "ci": "plan the fleets that a pull request changes, in a CI job",
                "comment": "post plans on a pull request of GitHub or GitLab",
                "check": "check credentials, permissions, quotas, networks and the queue",
                "health": "check whether the daemon is alive",
                "snapshot": "save the cluster objects that `plan --snapshot` reads",
                "demo": "try the full loop on this machine, with nothing to set up",
                "completion": "print the completion script for bash, zsh or fish",
            },
        ),
    )
    for name, summary in members.items()
}
"""Name of a command → its module, line of help and group, in the order of the help."""

_READERS: Final = frozenset({"validate", "plan", "hash", "config"})
"""Commands that only read: they may end without taking the interpreter apart."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the process's) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        from reconciler.build import described

        sys.stdout.write(f"{described()}\n")
        return 0
    from reconciler.cli.output import stream

    with stream.opened():
        return _ended(words, is_process=argv is None)


def _ended(words: list[str], *, is_process: bool) -> int:
    """Run the command line and return its exit code, whatever happens."""
    debug = "--debug" in words
    try:
        code = _run(words)
        sys.stdout.flush()
        if is_process and _named(words) in _READERS:
            _leave(code)
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return _interrupted(debug=debug)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _failed(error, debug=debug)
    return code


def _leave(code: int) -> NoReturn:
    """End the process at once.

    Taking the interpreter apart frees a hundred thousand values one by one, a sixth of the time
    of a small plan, and a command that only reads leaves nothing behind that wants closing.
    """
    sys.stderr.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    invocation = commandline.read(words, COMMANDS)
    return 0 if invocation is None else invocation.run(invocation.request)


def _named(words: list[str]) -> str | None:
    """Return the command that the words name, the first that is not an option."""
    return next((word for word in words if not word.startswith("-")), None)


def _failed(error: Exception, *, debug: bool) -> int:
    """Print the error as one line and return its exit code."""
    from reconciler.cli.shared import exitcode
    from reconciler.model.errors import PolicyError, ReconcilerError, StalePlanError

    if debug:
        import traceback

        from reconciler.model.text.urls import without_secrets

        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    if isinstance(error, ReconcilerError):
        print(_line(error), file=sys.stderr)
        if isinstance(error, StalePlanError):
            return exitcode.STALE
        if isinstance(error, PolicyError):
            return exitcode.REFUSED
        return exitcode.FAILED
    text = " ".join(str(error).split())[:300]
    more = "" if debug else "; run with --debug for the traceback, and please report it"
    print(f"Error: internal error: {type(error).__name__}: {text}{more}", file=sys.stderr)
    return exitcode.FAILED


def _line(error: ReconcilerError) -> str:
    """Return the error on one line; a finding in a file starts with its place instead."""
    from reconciler.model.errors import InvalidFleetError

    text = " ".join(str(error).split())
    return text if isinstance(error, InvalidFleetError) else f"Error: {text}"


def _interrupted(*, debug: bool) -> int:
    from reconciler.cli.shared import exitcode

    if debug:
        import traceback

        traceback.print_exc()
    print("Interrupted", file=sys.stderr)
    return exitcode.INTERRUPTED
