"""Command lines as the program reads them, without its printing of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reconciler.cli.parser import commandline
from reconciler.cli.parser.commandline import COMMANDS


def request_of(words: Sequence[str]) -> Any:
    """Return the frozen request of a command line."""
    invocation = commandline.read(words, COMMANDS)
    assert invocation is not None
    return invocation.request


def run(*words: str) -> int:
    """Run a command line; its errors are raised."""
    invocation = commandline.read(words, COMMANDS)
    assert invocation is not None
    return invocation.run(invocation.request)
