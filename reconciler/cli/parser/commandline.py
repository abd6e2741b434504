"""Parses a command line into a command and its request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from reconciler.cli.parser.arguments import Arguments
    from reconciler.model.errors import UsageError


PROGRAM: Final = "reconciler"

_HELP: Final = ("-h", "--help")
_DEBUG: Final = "--debug"

_MODULES: Final = {"cordon": "nodes", "uncordon": "nodes", "drain": "nodes"}
"""The module of a command that shares one."""


class CommandSpec(NamedTuple):
    """A command: the module that declares and runs it, its line of help, its group."""

    module: str
    summary: str
    group: str


class Invocation(NamedTuple):
    """A parsed command line: the function of a command, and its request."""

    run: Callable[[Any], int]
    request: Any


def read(words: Sequence[str], commands: Mapping[str, CommandSpec]) -> Invocation | None:
    """Return the command and the request of a command line; None if help was printed.

    Raises:
        UsageError: the words are wrong.
    """
    rest = [word for word in words if word != _DEBUG]
    if not rest:
        if words:
            raise _usage_error("no command given")
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
    return _parse_command(rest, commands)


def _parse_command(words: Sequence[str], commands: Mapping[str, CommandSpec]) -> Invocation | None:
    name, *rest = words
    if name in ("--version", "-V"):
        raise _usage_error("--version takes no arguments")
    if name.startswith("-"):
        raise _usage_error(f'option "{name}" must be written after the command')
    if name not in commands:
        raise _unknown_name_error("command", name, [*commands, "help"], PROGRAM)
    module = import_module(commands[name].module)
    subcommands: Mapping[str, str] = getattr(module, "SUBCOMMANDS", {})
    subcommand = None
    if subcommands:
        default: str | None = getattr(module, "DEFAULT_SUBCOMMAND", None)
        subcommand = _find_subcommand(name, rest, subcommands, default)
        if subcommand is None:
            sys.stdout.write(_subcommand_overview(name, commands[name].summary, subcommands))
            return None
        if subcommand in rest:
            rest.remove(subcommand)
    parser = parser_of(module, name, commands[name].summary, subcommand)
    if _asks_for_help(rest):
        parser.epilog = _examples(name if subcommand is None else f"{name} {subcommand}")
    try:
        args = parser.read(rest)
    except SystemExit:  # argparse has printed the help
        return None
    args.command, args.subcommand = name, subcommand
    return Invocation(module.run, module.request_of(args))


def _find_subcommand(
    name: str, words: Sequence[str], known: Mapping[str, str], default: str | None
) -> str | None:
    """Return the subcommand in the arguments; None for the help on all of them.

    If they name none, it is the default, where the command has one.

    Raises:
        UsageError: they name none, or an unknown one.
    """
    plain = [word for word in words if not word.startswith("-")]
    found = next((word for word in plain if word in known), None)
    if found is not None:
        return found
    if default is not None:
        return None if _asks_for_help(words) else default
    if plain:
        raise _unknown_name_error("subcommand", plain[0], list(known), f"{PROGRAM} {name}")
    if _asks_for_help(words):
        return None
    raise _usage_error("no subcommand given", name)


def _asks_for_help(words: Sequence[str]) -> bool:
    return any(word in _HELP for word in words)


def parser_of(module: Any, name: str, summary: str, subcommand: str | None = None) -> Arguments:
    """Return the parser of a command, or of one of its subcommands."""
    from reconciler.cli.parser.arguments import Arguments, help_formatter

    words = name if subcommand is None else f"{name} {subcommand}"
    text = summary if subcommand is None else module.SUBCOMMANDS[subcommand]
    parser = Arguments(
        prog=f"{PROGRAM} {words}",
        formatter_class=help_formatter,
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


def _usage_error(message: str, where: str = "") -> UsageError:
    from reconciler.model.errors import UsageError

    program = f"{PROGRAM} {where}" if where else PROGRAM
    return UsageError(message, where=where, remedy=f"run `{program} --help`")


def _unknown_name_error(what: str, word: str, known: Sequence[str], program: str) -> UsageError:
    from reconciler.model.errors import UsageError
    from reconciler.model.text.nearest import did_you_mean

    advice = did_you_mean(word, known)
    return UsageError(
        f'unknown {what} "{word}"' + (f" ({advice})" if advice else ""),
        where=program.partition(" ")[2],
        remedy=f"run `{program} --help`",
    )


COMMANDS: Final[dict[str, CommandSpec]] = {
    name: CommandSpec(
        f"reconciler.cli.commands.{folder}.{_MODULES.get(name, name)}", summary, group
    )
    for group, folder, members in (
        (
            "desired state",
            "desired",
            {
                "validate": "check the desired state and show every problem with its location",
                "plan": "show what would change, why, and what it costs",
                "simulate": "run the engine against a simulated cloud and show the rollout",
                "advise": "find the changes to the desired state that save the most",
                "trace": "export, import and summarize traces of the workload",
                "lock": "pin images and prices so that plans are reproducible",
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
                "cordon": "mark a node as unschedulable",
                "uncordon": "mark a node as schedulable again, and end its drain",
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
                "watch": "predict what a running Karpenter does next, and keep score",
                "history": "list past operations with time, commit and reason",
                "report": "show what was spent, saved and blocked in a period",
                "state": "migrate, check, export, import or prune the state; adopt nodes",
            },
        ),
        (
            "environment",
            "environment",
            {
                "init": "create a fleet folder, also from Karpenter's YAML or a cluster",
                "ci": "plan the fleets that a pull request changes, in a CI job",
                "comment": "post plans on a pull request of GitHub or GitLab",
                "check": "check credentials, permissions, quotas, networks and the queue",
                "health": "check whether the daemon is alive",
                "snapshot": "save the cluster objects that `plan --snapshot` reads",
                "demo": "try the full loop on this machine, with nothing to set up",
                "lsp": "check fleets in an editor, with completion and hover (language server)",
                "completion": "print the completion script for bash, zsh or fish",
            },
        ),
    )
    for name, summary in members.items()
}
"""Name of a command → its module, line of help and group, in the order of the help."""
