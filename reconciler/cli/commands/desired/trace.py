"""``reconciler trace``: export what the daemon recorded, convert other traces, sum them up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler.cli.parser import inputs
from reconciler.cli.shared import exitcode
from reconciler.cli.shared.moment import read_time

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

    from reconciler.cli.backtest.trace import Trace
    from reconciler.cli.shared.request import StateRequest


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A trace, and what becomes of it; ``out`` is a file or ``-`` for stdout.

    It is read from ``file``; or made of what the daemon ``recorded`` since a time, which may be a
    duration before ``until``: None for now.
    """

    subcommand: str
    file: str = ""
    recorded: StateRequest | None = None
    since: str = ""
    until: datetime | None = None
    out: str = "-"
    anonymize: bool = False
    output: str = "text"


SUBCOMMANDS: Final = {
    "export": "write how the workload of a fleet changed, as the daemon has recorded it",
    "import": "convert a trace, such as an openb CSV, to our own form",
    "summary": "show how many pods a trace has, what they request, and for how long",
}
"""Name of a subcommand → its line of help."""


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    add = parser.add_argument
    if name == "export":
        inputs.add_path(parser)
        add(
            "--since", metavar="TIME|SPAN", default="7d",
            help="when the trace begins: a time, or a span before its end (default: 7d)",
        )  # fmt: skip
        add("--until", metavar="TIME", help="when the trace ends (default: now)")
    else:
        add(
            "file",
            metavar="FILE",
            help="trace of reconciler or openb CSV, plain or gzipped (- for stdin)",
        )
    if name == "summary":
        inputs.add_output(parser)
        return
    add(
        "--out", default="-", metavar="FILE",
        help="where to write the trace, gzipped if it ends in .gz (default: stdout)",
    )  # fmt: skip
    add(
        "--anonymize", action="store_true",
        help="replace names, namespaces and pod labels; keep what decisions depend on",
    )  # fmt: skip
    if name == "export":
        inputs.add_flags(parser, inputs.RECORDED)


def request_of(args: argparse.Namespace) -> TraceRequest:
    """Return what the arguments ask for."""
    match args.subcommand:
        case "export":
            return TraceRequest(
                "export",
                recorded=inputs.state_request(args, args.path),
                since=args.since,
                until=None if args.until is None else read_time(args.until, "--until"),
                out=args.out,
                anonymize=args.anonymize,
            )
        case "import":
            return TraceRequest("import", args.file, out=args.out, anonymize=args.anonymize)
    return TraceRequest("summary", args.file, output=args.output)


def run(request: TraceRequest) -> int:
    """Export, convert or sum up.

    Raises:
        StateError: there is no record of that time, or the state cannot be read.
        UnreadableError: the trace cannot be read, or the file cannot be written.
    """
    trace = _read(request)
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


def _read(request: TraceRequest) -> Trace:
    if request.recorded is None:
        from reconciler.cli.backtest.trace import read_trace
        from reconciler.cli.shared.sources import read_bytes

        return read_trace(read_bytes(request.file), request.file)
    from reconciler.cli.backtest.recorded import recorded_trace
    from reconciler.cli.shared import records

    with records.recorded(request.recorded) as found:
        until = found.now if request.until is None else request.until
        since = _since(request.since, until)
        return recorded_trace(found.state.trace.batches(since), since, until)


def _since(text: str, until: datetime) -> datetime:
    """Return the time that a time or a span before ``until`` means.

    Raises:
        UsageError: it is neither.
    """
    from reconciler.model.duration import Duration
    from reconciler.model.errors import UsageError

    if "T" in text:
        return read_time(text, "--since")
    try:
        return until - Duration(text)
    except ValueError as error:
        raise UsageError(str(error), where="--since") from error
    except OverflowError as error:
        why = f"{text[:60]!r} is before the year 1"
        raise UsageError(why, where="--since", remedy="pass a shorter span") from error


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
