"""The arguments of a command, declared as the fields of its request.

A field states its flag, its help and its default, so that an option stands in one place. Its name
is where argparse keeps the value, and ``inputs.request_from`` reads it according to its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reconciler.model.json import JsonDict

if TYPE_CHECKING:
    import argparse

_Declare = Callable[["argparse.ArgumentParser"], None]
RequestField = Any
"""A field of a dataclass, of whatever type the class states: what ``dataclasses.field`` returns."""
Groups = dict[str, Any]
"""The groups of a parser by name; argparse does not name their types."""

_ARGUMENT: Final = "argument"
_NOTHING: Final[Mapping[str, _Declare]] = {}


class _Argument(NamedTuple):
    """What ``add_argument`` is given; without words it is positional.

    Of the options with one name in ``exclusive``, one can be given. ``group`` is a title.
    """

    words: tuple[str, ...]
    declared: JsonDict
    group: str
    exclusive: str


class _Part(NamedTuple):
    """What declares the arguments of a request within a request, and those at the end."""

    first: _Declare
    last: _Declare | None


def option(
    flag: str, metavar: str | None, text: str, *, default: object = None, **declared: object
) -> RequestField:
    """Return a field that an option sets; ``text`` is its help.

    ``declared`` is as for ``add_argument``, and ``short`` is the flag in one letter, ``group`` the
    title of its group in the help, and ``exclusive`` a name that options share of which one can be
    given.
    """
    return _field(default, flag, {"help": text, "metavar": metavar, **declared})


def switch(flag: str, text: str, *, default: bool = False, **declared: object) -> RequestField:
    """Return a field that an option without a value sets to the opposite of its default."""
    action = "store_false" if default else "store_true"
    return _field(default, flag, {"help": text, "action": action, **declared})


def repeated(
    flag: str, metavar: str, text: str, *, default: object = (), **declared: object
) -> RequestField:
    """Return a field with all values of an option that can be repeated."""
    return _field(default, flag, {"help": text, "metavar": metavar, "action": "append", **declared})


def argument(metavar: str, text: str, **declared: object) -> RequestField:
    """Return a field that a positional argument sets."""
    return _field(MISSING, "", {"help": text, "metavar": metavar, **declared})


def part(
    first: _Declare, last: _Declare | None = None, *, default: object = MISSING
) -> RequestField:
    """Return a field with a request of its own, whose arguments ``first`` declares.

    ``last`` declares those that follow the arguments of all fields.
    """
    return field(default=default, metadata={_ARGUMENT: _Part(first, last)})


def _field(default: object, flag: str, declared: JsonDict) -> RequestField:
    short, group, exclusive = (declared.pop(key, "") for key in ("short", "group", "exclusive"))
    words = tuple(filter(None, (short, flag)))
    return field(
        default=default, metadata={_ARGUMENT: _Argument(words, declared, group, exclusive)}
    )


def flag_of(one: Field[object]) -> str:
    """Return the flag of a field; a field that declares none is set by the one of its name."""
    declared = one.metadata.get(_ARGUMENT)
    if isinstance(declared, _Argument) and declared.words:
        return declared.words[-1]
    return f"--{one.name.replace('_', '-')}"


def add_options(
    kind: type, parser: argparse.ArgumentParser, then: Mapping[str, _Declare] = _NOTHING
) -> None:
    """Declare the arguments of a request, in the order of its fields.

    ``then`` declares more arguments after that of a field: those of its fleet that only some
    commands have.
    """
    groups: Groups = {}
    last: list[_Declare] = []
    for one in fields(kind):
        declared = one.metadata.get(_ARGUMENT)
        if isinstance(declared, _Part):
            declared.first(parser)
            last += filter(None, [declared.last])
        elif declared is not None:
            declare(parser, one, groups)
        if one.name in then:
            then[one.name](parser)
    for add in last:
        add(parser)


def declare(parser: argparse.ArgumentParser, one: Field[object], groups: Groups) -> None:
    """Declare the argument of one field; ``groups`` are those of the parser so far, by name."""
    declared: _Argument = one.metadata[_ARGUMENT]
    title = declared.exclusive or declared.group
    if title and title not in groups:
        groups[title] = (
            parser.add_mutually_exclusive_group()
            if declared.exclusive
            else parser.add_argument_group(title)
        )
    to = groups.get(title, parser)
    if declared.words:
        unset: list[str] | None = [] if declared.declared.get("action") == "append" else None
        to.add_argument(*declared.words, dest=one.name, default=unset, **declared.declared)
    else:
        to.add_argument(one.name, **declared.declared)
