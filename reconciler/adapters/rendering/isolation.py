"""Runs one program in an empty environment, without a network, within limits of time and size.

The program sees a private folder and nothing else of this process: no variable, no home, no
credentials, no search path, no standard input. Where the machine allows it (Linux with user
namespaces), it has no network interface either. Where it does not, what needs the network was
refused before, from the files.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from reconciler.adapters.processes import Process, answer_of, end, private_folder, start
from reconciler.ports.rendering import RenderError

_SHELL: Final = "/bin/sh"
_UNSHARE: Final = ("/usr/bin/unshare", "/bin/unshare")
_NO_NETWORK: Final = ("--user", "--map-current-user", "--net", "--")
_PROBE_S: Final = 5.0
_CHUNK: Final = 65536
_STDERR_MAX: Final = 64 * 1024


class RunLimits(NamedTuple):
    """What one run may use; a template bomb ends at the first that it exceeds.

    No further run starts once all together have taken ``total_seconds``.
    """

    seconds: float = 60.0
    total_seconds: float = 600.0
    output_max: int = 32 * 2**20
    memory_kib: int = 4 * 2**20
    file_blocks: int = 128 * 1024
    open_files: int = 512


LIMITS: Final = RunLimits()


class Finished(NamedTuple):
    """The end of a run: its exit code, and what it printed."""

    code: int
    output: bytes
    errors: str


def run_isolated(
    line: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str],
    limits: RunLimits = LIMITS,
) -> Finished:
    """Run a program in ``folder``, and return what it printed.

    Raises:
        RenderError: it cannot be started, or exceeded the limits of time or output.
    """
    errors_path = os.path.join(folder, "stderr")
    with open(errors_path, "w+b") as errors:
        try:
            process = start(
                [*_isolation(), *_limited(limits), *line],
                cwd=folder,
                variables=environment,
                stderr=errors,
            )
        except (OSError, ValueError) as error:  # a NUL in an argument is a ValueError
            why = getattr(error, "strerror", None) or error
            raise RenderError(f"{line[0]} cannot be started: {why}") from error
        try:
            output = _read_output(process, limits, os.path.basename(line[0]))
            code = process.wait()
        finally:
            end(process)
        errors.seek(0)
        return Finished(code, output, errors.read(_STDERR_MAX).decode("utf-8", "replace"))


def _read_output(process: Process, limits: RunLimits, name: str) -> bytes:
    assert process.stdout is not None
    number = process.stdout.fileno()
    deadline = time.monotonic() + limits.seconds
    parts: list[bytes] = []
    size = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([number], [], [], left)[0]:
            raise RenderError(f"{name} took longer than {limits.seconds:.0f} s")
        part = os.read(number, _CHUNK)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > limits.output_max:
            raise RenderError(f"{name} printed more than {limits.output_max >> 20} MiB")


def _limited(limits: RunLimits) -> list[str]:
    """Return the words that set the limits of the kernel before the program starts."""
    if not os.access(_SHELL, os.X_OK):
        return []
    script = (
        f"ulimit -t {int(limits.seconds)}; ulimit -f {limits.file_blocks}; "
        f"ulimit -n {limits.open_files}; ulimit -v {limits.memory_kib}; ulimit -c 0; "
        'exec "$0" "$@"'
    )
    return [_SHELL, "-c", script]


@cache
def _isolation() -> tuple[str, ...]:
    """Return the words that take the network away, empty where this machine does not allow it."""
    for program in _UNSHARE:
        if not os.access(program, os.X_OK):
            continue
        command = [program, *_NO_NETWORK, _SHELL, "-c", ":"]
        with suppress(OSError), private_folder() as folder:
            code, _ = answer_of(command, b"", cwd=folder, variables={}, timeout_s=_PROBE_S)
            if code == 0:
                return (program, *_NO_NETWORK)
    return ()
