"""The entry point: selects the command and prints errors.

A command is a module of ``cli/commands`` with three functions:

    def add_arguments(parser: argparse.ArgumentParser) -> None
        declares its arguments: ``partial(add_options, Request)`` if the fields of the request do;
    def request_of(args: argparse.Namespace) -> Request
        reads them into a frozen request; the only function that uses the arguments. Where each
        field has the name of an argument, it is ``partial(inputs.request_from, Request)``;
    def run(request: Request) -> int
        executes the request, and returns an exit code of ``exitcode``.

One with subcommands has ``SUBCOMMANDS`` and ``add_subcommand`` instead of the first. To add a
command, write the module and name it in ``COMMANDS`` of ``cli/parser/commandline.py``. Only the
module of the command that runs is imported, and it imports heavy modules inside ``run``, so that
commands start fast (``--version`` takes at most three times as long as an empty Python).

An expected error is a ``ReconcilerError``: it becomes one line on stderr. Any other exception is a
bug: also one line, and a traceback with ``--debug``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from reconciler.cli.parser import commandline
from reconciler.cli.parser.commandline import COMMANDS

if TYPE_CHECKING:
    from reconciler.model.errors import ReconcilerError


_READERS: Final = frozenset({"validate", "plan", "hash", "config"})
"""Commands that only read: they may exit without shutting down the interpreter."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the process's) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a credential program that a library starts may be Python, in this folder
        os.environ["PYTHONSAFEPATH"] = "1"
    if words in (["--version"], ["-V"]):
        return _print_version()
    from reconciler.notifications import stream

    with stream.filter_output():
        return _run_and_report(words, is_process=argv is None)


def _print_version() -> int:
    from reconciler.build import describe_build

    try:
        sys.stdout.write(f"{describe_build()}\n")
        sys.stdout.flush()
    except OSError as error:
        print(f"Error: standard output: cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 1
    return 0


def _run_and_report(words: list[str], *, is_process: bool) -> int:
    """Run the command line and return its exit code, also after an unexpected error."""
    debug = "--debug" in words
    try:
        code = _run(words)
        sys.stdout.flush()
        if is_process and _command_name(words) in _READERS:
            _exit_now(code)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`).
        _discard_output()
        return 1
    except KeyboardInterrupt:
        return _report_interrupt(debug=debug)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _report_error(error, debug=debug)
    return code


def _discard_output() -> None:
    """Print nothing more, not even what is buffered at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _exit_now(code: int) -> NoReturn:
    """End the process at once.

    Shutting down the interpreter frees a hundred thousand values one by one, a sixth of the time
    of a small plan, and a command that only reads has nothing that must be closed.
    """
    sys.stderr.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    invocation = commandline.read(words, COMMANDS)
    return 0 if invocation is None else invocation.run(invocation.request)


def _command_name(words: list[str]) -> str | None:
    """Return the name of the command: the first word that is not an option."""
    return next((word for word in words if not word.startswith("-")), None)


def _report_error(error: Exception, *, debug: bool) -> int:
    """Print the error as one line and return its exit code."""
    from reconciler import exitcode
    from reconciler.model.errors import OutputError, PolicyError, ReconcilerError, StalePlanError

    if debug:
        import traceback

        from reconciler.model.text.urls import without_secrets

        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    if isinstance(error, ReconcilerError):
        print(_error_line(error), file=sys.stderr)
        if isinstance(error, StalePlanError):
            return exitcode.STALE
        if isinstance(error, PolicyError):
            return exitcode.REFUSED
        if isinstance(error, OutputError):
            _discard_output()
        return exitcode.FAILED
    if isinstance(error, MemoryError):
        remedy = "raise the memory limit, or pass smaller inputs"
        print(f"Error: not enough memory to read and plan this; {remedy}", file=sys.stderr)
        return exitcode.FAILED
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        from reconciler.installation import extra_remedy

        if remedy := extra_remedy(error.name):
            package = error.name.partition(".")[0]
            print(f"Error: the package {package} is not installed; {remedy}", file=sys.stderr)
            return exitcode.FAILED
    text = " ".join(str(error).split())[:300]
    more = "" if debug else "; run with --debug for the traceback, and please report it"
    print(f"Error: internal error: {type(error).__name__}: {text}{more}", file=sys.stderr)
    return exitcode.FAILED


def _error_line(error: ReconcilerError) -> str:
    """Return the error on one line; a finding in a file starts with its place instead."""
    from reconciler.model.errors import InvalidFleetError

    text = " ".join(str(error).split())
    return text if isinstance(error, InvalidFleetError) else f"Error: {text}"


def _report_interrupt(*, debug: bool) -> int:
    from reconciler import exitcode

    if debug:
        import traceback

        traceback.print_exc()
    print("Interrupted", file=sys.stderr)
    return exitcode.INTERRUPTED
