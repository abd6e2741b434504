"""The parser of the command line: wrong usage is an error like any other, said in one line."""

from __future__ import annotations

import argparse
import os
import re
from argparse import SUPPRESS
from typing import Final, NoReturn

__all__ = ("SUPPRESS", "Arguments", "formatter")

_CHOICE: Final = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class Arguments(argparse.ArgumentParser):
    """Parses the words of one command."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words.

        Raises:
            UsageError: always.
        """
        from reconciler.model.errors import UsageError

        remedy = f"see `{self.prog} --help`"
        raise UsageError(_told(message), where=self.prog.partition(" ")[2], remedy=remedy)


def formatter(prog: str) -> argparse.HelpFormatter:
    """Return argparse's formatter of help; told the width, it does not load shutil to find it."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 80
    return argparse.HelpFormatter(prog, width=min(columns, 100) - 2)


def _told(message: str) -> str:
    """Return what argparse says, with the nearest choice instead of a long list of them."""
    found = _CHOICE.search(message)
    if found is None:
        return message
    from reconciler.model.nearest import did_you_mean

    known = [word.strip(" '") for word in found["known"].split(",")]
    advice = did_you_mean(found["word"], known, f"one of {', '.join(known)}")
    what = message[: found.start()].removeprefix("argument ")
    return f"{what}{found['word']!r} is no choice ({advice})"
