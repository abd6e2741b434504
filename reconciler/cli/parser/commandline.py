"""From the words of a command line to a command and its request.

Wrong usage becomes one line of error, like any other error.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from reconciler.model.errors import UsageError

__all__ = ("SUPPRESS", "Arguments", "formatter")

_CHOICE: Final = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class Arguments(argparse.ArgumentParser):
    """Parses the words of one command; options may stand anywhere between the arguments."""

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments.

        Raises:
            UsageError: they are wrong.
            SystemExit: they ask for help, which was printed.
        """
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        """Refuse the words.

        Raises:
            UsageError: always.
        """
        from reconciler.model.errors import UsageError

        remedy = f"run `{self.prog} --help`"
        raise UsageError(_rewritten(message), where=self.prog.partition(" ")[2], remedy=remedy)


def formatter(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter that keeps the lines of the examples.

    With the width given, argparse does not load shutil.
    """
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=max(min(columns, 100), 40) - 2)


def _rewritten(message: str) -> str:
    """Return argparse's message, with the nearest choice instead of a long list of them."""
    found = _CHOICE.search(message)
    if found is None:
        return message
    from reconciler.model.text.nearest import did_you_mean

    known = [word.strip(" '") for word in found["known"].split(",")]
    what = message[: found.start()].removeprefix("argument ").removesuffix(": ")
    advice = did_you_mean(found["word"], known, f"use one of {', '.join(known)}")
    return f'{what}: invalid value "{found["word"]}" ({advice})'


PROGRAM: Final = "reconciler"

_HELP: Final = ("-h", "--help")
_DEBUG: Final = "--debug"


class CommandSpec(NamedTuple):
    """A command: the module that declares and runs it, its line of help, its group."""

    module: str
    summary: str
    group: str


class Invocation(NamedTuple):
    """What a command line asks for: the function of a command, and its request."""

    run: Callable[[Any], int]
    request: Any


def read(words: Sequence[str], commands: Mapping[str, CommandSpec]) -> Invocation | None:
    """Return the command and the request that the words name; None where help was printed.

    Raises:
        UsageError: the words are wrong.
    """
    rest = [word for word in words if word != _DEBUG]
    if not rest:
        if words:
            raise _usage("no command given")
        sys.stdout.write(overview(commands))
        return None
    if rest[0] in _HELP:
        sys.stdout.write(overview(commands))
        return None
    if rest[0] == "help":
        rest = [*rest[1:], "--help"]
        if rest == ["--help"]:
            sys.stdout.write(overview(commands))
            return None
    return _command(rest, commands)


def _command(words: Sequence[str], commands: Mapping[str, CommandSpec]) -> Invocation | None:
    name, *rest = words
    if name in ("--version", "-V"):
        raise _usage("--version takes no arguments")
    if name.startswith("-"):
        raise _usage(f'option "{name}" must be written after the command')
    if name not in commands:
        raise _unknown("command", name, [*commands, "help"], PROGRAM)
    module = import_module(commands[name].module)
    subcommands: Mapping[str, str] = getattr(module, "SUBCOMMANDS", {})
    subcommand = None
    if subcommands:
        subcommand = _subcommand(name, rest, subcommands)
        if subcommand is None:
            sys.stdout.write(_subcommand_overview(name, commands[name].summary, subcommands))
            return None
        rest.remove(subcommand)
    parser = parser_of(module, name, commands[name].summary, subcommand)
    if _asks_for_help(rest):
        parser.epilog = _examples(name if subcommand is None else f"{name} {subcommand}")
    try:
        args = parser.read(rest)
    except SystemExit:  # argparse has printed the help
        return None
    if subcommand is not None:
        args.subcommand = subcommand
    return Invocation(module.run, module.request_of(args))


def _subcommand(name: str, words: Sequence[str], known: Mapping[str, str]) -> str | None:
    """Return the subcommand that the words name; None where they ask for the help on all.

    Raises:
        UsageError: they name none, or an unknown one.
    """
    plain = [word for word in words if not word.startswith("-")]
    found = next((word for word in plain if word in known), None)
    if found is not None:
        return found
    if plain:
        raise _unknown("subcommand", plain[0], list(known), f"{PROGRAM} {name}")
    if _asks_for_help(words):
        return None
    raise _usage("no subcommand given", name)


def _asks_for_help(words: Sequence[str]) -> bool:
    return any(word in _HELP for word in words)


def parser_of(module: Any, name: str, summary: str, subcommand: str | None = None) -> Arguments:
    """Return the parser of a command, or of one of its subcommands."""
    words = name if subcommand is None else f"{name} {subcommand}"
    text = summary if subcommand is None else module.SUBCOMMANDS[subcommand]
    parser = Arguments(
        prog=f"{PROGRAM} {words}",
        formatter_class=formatter,
        description=f"{text[:1].upper()}{text[1:]}.",
    )
    if subcommand is None:
        module.add_arguments(parser)
    else:
        module.add_subcommand(parser, subcommand)
    parser.add_argument(_DEBUG, action="store_true", help="print tracebacks")
    return parser


def _examples(words: str) -> str | None:
    from reconciler.cli.parser.examples import EXAMPLES

    examples = EXAMPLES.get(words, ())
    if not examples:
        return None
    lines = [f"  # {why}\n  {PROGRAM} {example}" for example, why in examples]
    return "examples:\n" + "\n\n".join(lines)


def overview(commands: Mapping[str, CommandSpec]) -> str:
    """Return the help of the program: its commands by group."""
    lines = [
        f"usage: {PROGRAM} COMMAND [ARGUMENT ...]",
        "",
        "Plan and run EC2 node fleets from NodePools in a git repository.",
    ]
    width = max(len(name) for name in commands) + 2
    for group in dict.fromkeys(command.group for command in commands.values()):
        lines += ["", f"{group}:"]
        members = {name: c for name, c in commands.items() if c.group == group}
        lines += [f"  {name:<{width}}{c.summary}" for name, c in members.items()]
    lines += [
        "",
        "options:",
        f"  {'-h, --help':<{width}} show this help; `help COMMAND` shows that of a command",
        f"  {'-V, --version':<{width}} show the version",
        f"  {'--debug':<{width}} print tracebacks",
        "",
        f"Try `{PROGRAM} demo`, or `{PROGRAM} plan` in the folder of a fleet.",
    ]
    return "\n".join(lines) + "\n"


def _subcommand_overview(name: str, summary: str, subcommands: Mapping[str, str]) -> str:
    width = max(map(len, subcommands)) + 2
    rows = "".join(f"  {word:<{width}}{text}\n" for word, text in subcommands.items())
    return (
        f"usage: {PROGRAM} {name} SUBCOMMAND [ARGUMENT ...]\n\n"
        f"{summary[:1].upper()}{summary[1:]}.\n\nsubcommands:\n{rows}\n"
        f"`{PROGRAM} help {name} SUBCOMMAND` shows the arguments of a subcommand.\n"
    )


def _usage(message: str, where: str = "") -> UsageError:
    from reconciler.model.errors import UsageError

    program = f"{PROGRAM} {where}" if where else PROGRAM
    return UsageError(message, where=where, remedy=f"run `{program} --help`")


def _unknown(what: str, word: str, known: Sequence[str], program: str) -> UsageError:
    from reconciler.model.errors import UsageError
    from reconciler.model.text.nearest import did_you_mean

    advice = did_you_mean(word, known)
    return UsageError(
        f'unknown {what} "{word}"' + (f" ({advice})" if advice else ""),
        where=program.partition(" ")[2],
        remedy=f"run `{program} --help`",
    )
