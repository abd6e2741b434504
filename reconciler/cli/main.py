"""The entry point: selects the command and prints errors.

A command is a module of this package with two functions:

    def add_arguments(parser: argparse.ArgumentParser) -> None
        declares its arguments;
    def run(args: argparse.Namespace) -> int
        does it, and returns an exit code of ``exitcode``.

To add one, write the module and name it in ``COMMANDS`` with its line of help. Only the module of
the command that runs is imported, and it imports what is heavy inside ``run``: starting fast is a
promise (``--version`` takes at most three times as long as an empty Python).

An expected error is a ``ReconcilerError``: it becomes one line on stderr. Any other exception is a
bug: also one line, and a traceback with ``--debug``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import argparse

    from reconciler.model.errors import ReconcilerError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "validate": (
        "reconciler.cli.commands.validate",
        "check the desired state and show every problem with its location",
    ),
    "plan": ("reconciler.cli.commands.plan", "show what would change, why, and what it costs"),
    "apply": ("reconciler.cli.commands.apply", "apply a plan until the fleet matches git"),
    "run": ("reconciler.cli.commands.run", "run the daemon that keeps the fleet in sync with git"),
    "simulate": (
        "reconciler.cli.commands.simulate",
        "run the engine against a simulated cloud in virtual time and show the rollout",
    ),
    "status": ("reconciler.cli.commands.status", "show the recorded state of the fleet"),
    "get": (
        "reconciler.cli.commands.get",
        "list nodeclaims, nodes, nodepools, plans, actions or commands",
    ),
    "describe": ("reconciler.cli.commands.describe", "show all recorded details of one resource"),
    "explain": (
        "reconciler.cli.commands.explain",
        "explain why a pod is unschedulable or a node is (not) disrupted",
    ),
    "resume": (
        "reconciler.cli.commands.resume",
        "resume disruption that was halted after failures",
    ),
    "history": (
        "reconciler.cli.commands.history",
        "list past operations with time, commit and reason",
    ),
    "lock": ("reconciler.cli.commands.lock", "pin images and prices so that plans are repeatable"),
    "check": (
        "reconciler.cli.commands.check",
        "check credentials, permissions, quotas, networks and the queue; changes nothing",
    ),
    "health": ("reconciler.cli.commands.health", "check whether the daemon is alive"),
    "hash": (
        "reconciler.cli.commands.hash",
        ("compute the drift hashes of NodePools and EC2NodeClasses, as Karpenter does"),
    ),
    "config": (
        "reconciler.cli.commands.config",
        "show the effective settings and the source of each",
    ),
    "demo": (
        "reconciler.cli.commands.demo",
        "try the full loop on this machine, with nothing to set up",
    ),
    "snapshot": (
        "reconciler.cli.commands.snapshot",
        ("save the cluster objects that `plan --snapshot` reads, using kubectl"),
    ),
    "state": (
        "reconciler.cli.commands.state",
        "migrate, check, export, import or prune the recorded state; adopt nodes",
    ),
}
"""Name of a command → (module, line of help), in the order in which help lists them."""

_READERS: Final = frozenset({"validate", "plan", "hash", "config"})
"""Commands that only read: they may end without taking the interpreter apart."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the process's) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        from reconciler import __version__

        sys.stdout.write(f"reconciler {__version__}\n")
        return 0
    from reconciler.cli.output import door

    with door.opened():
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
    parser, command = _parser(words)
    try:
        args = parser.parse_args(words)
    except SystemExit as stop:  # argparse has printed help
        return int(stop.code or 0)
    if command is None:
        if not words:
            parser.print_help()
            return 0
        parser.error("no command given")
    code: int = command.run(args)
    return code


def _named(words: list[str]) -> str | None:
    """Return the command that the words name, the first that is no option."""
    return next((word for word in words if not word.startswith("-")), None)


def _parser(words: list[str]) -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser for these words, and the module of the command they name, if any.

    Only that command's arguments are declared: help on the others needs no more than their line.
    """
    from importlib import import_module

    from reconciler import __version__
    from reconciler.cli.arguments import SUPPRESS, Arguments, formatter

    name = _named(words)
    parser = Arguments(
        prog="reconciler",
        formatter_class=formatter,
        description="Plan and run EC2 node fleets from NodePools in a git repository.",
    )
    parser.add_argument("--version", "-V", action="version", version=f"reconciler {__version__}")
    parser.add_argument("--debug", action="store_true", help="print tracebacks")
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        title="commands",
        prog="reconciler",  # said here, or argparse loads shutil to find it out
    )
    module: Any = None
    # Declaring a dozen commands takes milliseconds: the one that is named is enough, if it exists.
    for command in (name,) if name in COMMANDS else COMMANDS:
        path, summary = COMMANDS[command]
        sub = commands.add_parser(
            command,
            help=summary,
            description=f"{summary[:1].upper()}{summary[1:]}.",
            formatter_class=formatter,
        )
        sub.add_argument("--debug", action="store_true", default=SUPPRESS, help="print tracebacks")
        if command == name:
            module = import_module(path)
            module.add_arguments(sub)
    return parser, module


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
