"""``reconciler trace``: convert traces of workloads to our own form, and sum them up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler.cli.parser import inputs
from reconciler.cli.shared import exitcode

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A trace, and what becomes of it; ``out`` is a file or ``-`` for stdout."""

    subcommand: str
    file: str
    out: str
    anonymize: bool
    output: str


SUBCOMMANDS: Final = {
    "import": "convert a trace, such as an openb CSV, to our own form",
    "summary": "show how many pods a trace has, what they request, and for how long",
}
"""Name of a subcommand → its line of help."""


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        help="trace of reconciler or openb CSV, plain or gzipped (- for stdin)",
    )
    if name == "import":
        add(
            "--out", default="-", metavar="FILE",
            help="where to write the trace, gzipped if it ends in .gz (default: stdout)",
        )  # fmt: skip
        add(
            "--anonymize", action="store_true",
            help="replace names, namespaces and pod labels; keep what decisions depend on",
        )  # fmt: skip
    else:
        inputs.add_output(parser)


def request_of(args: argparse.Namespace) -> TraceRequest:
    """Return what the arguments ask for."""
    is_import = args.subcommand == "import"
    return TraceRequest(
        args.subcommand,
        args.file,
        args.out if is_import else "-",
        args.anonymize if is_import else False,
        "text" if is_import else args.output,
    )


def run(request: TraceRequest) -> int:
    """Convert or sum up.

    Raises:
        UnreadableError: the trace cannot be read, or the file cannot be written.
    """
    from reconciler.cli.backtest.trace import read_trace
    from reconciler.cli.shared.sources import read_bytes

    trace = read_trace(read_bytes(request.file), request.file)
    if request.subcommand == "summary":
        from reconciler.cli.backtest.writing import summary_of

        _print_summary(request.output, summary_of(trace))
        return exitcode.DONE
    from reconciler.cli.backtest.writing import written

    if request.anonymize:
        from reconciler.cli.backtest.anonymity import anonymized

        trace = anonymized(trace)
    content = written(trace, compressed=request.out.endswith(".gz"))
    if request.out == "-":
        sys.stdout.write(content.decode())
    else:
        _save(request.out, content)
    return exitcode.DONE


def _print_summary(output: str, found: object) -> None:
    import msgspec

    from reconciler.cli.backtest.writing import TraceSummary, summary_text
    from reconciler.cli.commands.desired.plan import write

    assert isinstance(found, TraceSummary), "a summary is shown"
    text = msgspec.json.encode(found, order="sorted").decode() + "\n"
    if output == "yaml":
        from reconciler.cli.output.listing import yaml_of_json

        text = yaml_of_json(text)
    write(summary_text(found) if output == "text" else text)


def _save(path: str, content: bytes) -> None:
    from reconciler.model.errors import UnreadableError

    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise UnreadableError(why, where=path, remedy="pass another file with --out") from error
