"""The parser of the command line: wrong usage becomes one line, like any other error."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Final, NoReturn

from reconciler.model.errors import UsageError

_UNRECOGNIZED: Final = "unrecognized arguments: "
_TYPE: Final = re.compile(r"invalid (\w+) value: '([^']*)'")
_CHOICE: Final = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class Arguments(argparse.ArgumentParser):
    """Parses the arguments of one command; options can be anywhere between them."""

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments.

        Raises:
            UsageError: they are wrong.
            SystemExit: they ask for help, which was printed.
        """
        self._reject_empty(words)
        return self.parse_intermixed_args(words)

    def _reject_empty(self, words: Sequence[str]) -> None:
        """Reject empty arguments: of `apply "$FLEET"`, an unset variable leaves another folder."""
        for before, word in zip(("", *words), words, strict=False):
            option, equals, value = word.partition("=")
            if word and not (option.startswith("--") and equals and not value):
                continue
            action = self._option_string_actions.get(option or before)
            takes_value = action is not None and action.nargs != 0
            what = f"argument {option or before}" if takes_value else "an argument"
            self.error(f"{what} is empty; pass a value, or leave it out")

    def error(self, message: str) -> NoReturn:
        """Reject the arguments.

        Raises:
            UsageError: always.
        """
        remedy = f"run `{self.prog} --help`"
        text = _reword_error(message) + self._nearest_option(message)
        raise UsageError(text, where=self.prog.partition(" ")[2], remedy=remedy)

    def _nearest_option(self, message: str) -> str:
        """Return a suggestion for the first misspelt option in argparse's message."""
        words = message.removeprefix(_UNRECOGNIZED).split() if _UNRECOGNIZED in message else []
        option = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        if not option:
            return ""
        from reconciler.model.text.nearest import did_you_mean

        advice = did_you_mean(option, list(self._option_string_actions))
        return f" ({advice})" if advice else ""


def help_formatter(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter that keeps the lines of the examples.

    With the width given, argparse does not load shutil.
    """
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=max(min(columns, 100), 40) - 2)


def _reword_error(message: str) -> str:
    """Return argparse's message, with the nearest choice instead of a long list of them."""
    message = _TYPE.sub(r'invalid \1 value "\2"', message).replace("invalid int", "invalid integer")
    found = _CHOICE.search(message)
    if found is None:
        return message
    from reconciler.model.text.nearest import did_you_mean

    known = [word.strip(" '") for word in found["known"].split(",")]
    what = message[: found.start()].removeprefix("argument ").removesuffix(": ")
    advice = did_you_mean(found["word"], known, f"use one of {', '.join(known)}")
    return f'{what}: invalid value "{found["word"]}" ({advice})'
