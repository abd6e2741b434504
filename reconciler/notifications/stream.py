"""The output of a command: text as wide as the terminal, in colour if it shows colours.

``main`` wraps standard output and standard error, so that no renderer can omit the filter: text
from others is written as text, not as control sequences. Only text that is marked as ``Painted``
can set a colour.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from reconciler.model.errors import OutputError
from reconciler.model.text.visible import neutralize, one_line

if TYPE_CHECKING:
    from reconciler.plan.value.plan import Plan

_LINE_MAX: Final = 64
"""How much of an unfinished line is taken into account: more than the name of a command."""


def has_colour(out: TextIO) -> bool:
    """Return whether ``out`` is a terminal that shows colours, and nothing disables them.

    ``NO_COLOR`` (with any value but an empty one) and ``TERM=dumb`` turn them off.
    """
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class FilteredStream:
    """A stream of text that writes to ``out`` after filtering with ``neutralize``.

    ``title`` names it in the error of a text that cannot be written. Without it, such a text is
    lost: an error about standard error has no other place.
    """

    def __init__(self, out: TextIO, title: str = "") -> None:
        self._out = out
        self._title = title
        self._line = ""

    def write(self, text: str) -> int:
        """Write text; return how many characters were given.

        Raises:
            OutputError: the device is full, or fails.
            BrokenPipeError: the reader has gone.
        """
        with self._reported():
            self._out.write(neutralize(text, self._line))
        _, newline, tail = text.rpartition("\n")
        line = tail if newline else self._line + tail
        if line.isspace():  # equal to an empty line, whatever its length
            line = ""
        self._line = line if len(line) <= _LINE_MAX else f".{line[-_LINE_MAX:]}"
        return len(text)

    def flush(self) -> None:
        """Write what is buffered; errors are those of ``write``."""
        with self._reported():
            self._out.flush()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report an error of the device as one that names the stream."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._title:
                message = f"cannot be written: {error.strerror or error}"
                remedy = "free some space, or write to another place"
                raise OutputError(message, where=self._title, remedy=remedy) from error

    def redraw(self, text: str) -> None:
        """Replace the current line of a terminal with one that fits; an empty text erases it."""
        width = max(_terminal_columns(self._out) - 1, 1)
        self._out.write(f"\r{neutralize(one_line(text))[:width]}\x1b[K")
        self._out.flush()

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def filter_output() -> Iterator[None]:
    """Filter everything that is written to standard output and standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = FilteredStream(before[0], "standard output"), FilteredStream(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def render_for_terminal(plan: Plan, out: TextIO, next_command: str = "") -> str:
    """Return the plan as text, as wide as the terminal and in colour if it shows colours."""
    from reconciler.plan.render.text import render_text

    width = _terminal_columns(out)
    return render_text(plan, width=width, colour=has_colour(out), next_command=next_command)


def _terminal_columns(out: TextIO) -> int:
    """Return the columns of the terminal, 80 without one (``COLUMNS`` overrides)."""
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
