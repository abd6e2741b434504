"""``reconciler completion``: print the completion script of a shell.

The script is complete in itself: a shell that completes a word starts no process of ours.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from reconciler.cli.parser import inputs
from reconciler.cli.parser.arguments import Arguments
from reconciler.cli.parser.commandline import COMMANDS, PROGRAM
from reconciler.exitcode import DONE
from reconciler.model.errors import UsageError
from reconciler.options import add_options, argument

SHELLS: Final = ("bash", "zsh", "fish")

_FILES: Final = frozenset({"FILE", "[PLAN] [PATH]", "PROGRAM"})
_FOLDERS: Final = frozenset({"PATH", "DIR", "DIR|URL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """The shell whose script is printed."""

    shell: str = argument("SHELL", "bash, zsh or fish", choices=SHELLS)


add_arguments = partial(add_options, CompletionRequest)
request_of = partial(inputs.request_from, CompletionRequest)


def run(request: CompletionRequest) -> int:
    """Print the script.

    Raises:
        UsageError: the library that writes it is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise UsageError(
            "completion scripts need the package shtab", remedy="run `pip install shtab`"
        ) from error
    sys.stdout.write(shtab.complete(complete_parser(), shell=request.shell))
    return DONE


def complete_parser() -> argparse.ArgumentParser:
    """Return one parser with every command, subcommand and option."""
    parser = Arguments(prog=PROGRAM, description="EC2 node fleets from git")
    parser.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        module: Any = import_module(command.module)
        sub = commands.add_parser(name, help=command.summary, description=command.summary)
        subcommands = getattr(module, "SUBCOMMANDS", {})
        if not subcommands:
            module.add_arguments(sub)
            _complete_files(sub)
            continue
        inner = sub.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
        for word, text in subcommands.items():
            leaf = inner.add_parser(word, help=text, description=text)
            module.add_subcommand(leaf, word)
            _complete_files(leaf)
    helped = commands.add_parser("help", help="show the help of a command")
    helped.add_argument("topic", choices=tuple(COMMANDS), metavar="COMMAND")
    return parser


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Let the values that are files or folders be completed as such."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - shtab's own interface is an attribute of them
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
