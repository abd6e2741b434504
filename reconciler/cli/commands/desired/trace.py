"""``reconciler trace``: export the recorded workload, convert other traces, summarize them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.adapters.writing import PRIVATE, write_file
from reconciler.assembly.inputs.timings import current_time, read_time, read_time_or_span
from reconciler.cli.commands.desired.plan import write_output
from reconciler.cli.parser import inputs
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.backtest.trace import Trace

SUBCOMMANDS: Final = {
    "export": "write how the workload of a fleet changed, as the daemon has recorded it",
    "import": "convert a trace or an audit log, or create a trace from Prometheus",
    "summary": "show how many pods a trace has, what they request, and for how long",
}
"""Name of a subcommand → its line of help."""


@dataclass(frozen=True, slots=True)
class PrometheusRequest:
    """The server with the series of kube-state-metrics, and the selected ones."""

    url: str
    match: str
    step: str


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A trace, and its destination; ``out`` is a file or ``-`` for stdout.

    It is read from ``file``, or made from the data of the daemon (``recorded``) or of
    ``prometheus`` since a time, which may be a duration before ``until``: None for now.
    """

    subcommand: str
    file: str = ""
    recorded: StateRequest | None = None
    prometheus: PrometheusRequest | None = None
    since: str = ""
    until: datetime | None = None
    out: str = "-"
    anonymize: bool = False
    output: str = "text"


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    add = parser.add_argument
    if name == "export":
        inputs.add_path(parser)
        add(
            "--since",
            metavar="DURATION|TIME",
            default="7d",
            help="when the trace begins: a time, or a duration before its end (default: 7d)",
        )
        add("--until", metavar="TIME", help="when the trace ends (default: now)")
    else:
        add(
            "file",
            metavar="FILE",
            nargs="?" if name == "import" else None,
            help="trace of reconciler or openb CSV, plain or gzipped (- for stdin)"
            + ("; also an audit log of EKS or a capture of kubereplay" if name == "import" else ""),
        )
    if name == "import":
        _add_prometheus(parser)
    if name == "summary":
        inputs.add_output(parser)
        return
    add(
        "--out",
        default="-",
        metavar="FILE",
        help="where to write the trace, gzipped if it ends in .gz (default: stdout)",
    )
    add(
        "--anonymize",
        action="store_true",
        help="replace names, namespaces and pod labels; keep what decisions depend on",
    )
    if name == "export":
        inputs.add_flags(parser, inputs.RECORDED)


def _add_prometheus(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prometheus",
        metavar="URL",
        help=(
            "instead of FILE: read kube-state-metrics in this Prometheus; "
            "PROMETHEUS_TOKEN can contain a bearer token"
        ),
    )
    add(
        "--since",
        metavar="DURATION|TIME",
        help="with --prometheus, when the trace begins: a time, or a duration before its end "
        "(default: 7d)",
    )
    add("--until", metavar="TIME", help="with --prometheus, when the trace ends (default: now)")
    add(
        "--match",
        metavar="MATCHERS",
        help="with --prometheus, label matchers of the series, such as "
        """'cluster="prod",namespace!~"kube-.*"'""",
    )
    add(
        "--step",
        metavar="DURATION",
        help=(
            "with --prometheus, the resolution of the end times of pods; at least the scrape "
            "interval (default: 60s)"
        ),
    )


def request_of(args: argparse.Namespace) -> TraceRequest:
    """Return the request in the arguments."""
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
            only = {"--since": args.since, "--until": args.until, "--match": args.match}
            _expect_one_source(args.file, args.prometheus, {**only, "--step": args.step})
            return TraceRequest(
                "import",
                args.file or "",
                prometheus=None
                if args.prometheus is None
                else PrometheusRequest(args.prometheus, args.match or "", args.step or "60s"),
                since=args.since or "7d",
                until=None if args.until is None else read_time(args.until, "--until"),
                out=args.out,
                anonymize=args.anonymize,
            )
    return TraceRequest("summary", args.file, output=args.output)


def _expect_one_source(file: str | None, url: str | None, only: Mapping[str, str | None]) -> None:
    """Refuse a trace without exactly one source, and flags that have no effect on a file.

    Raises:
        UsageError: an argument is missing or redundant.
    """
    where = "trace import"
    if file is not None and url is not None:
        why = "FILE and --prometheus exclude each other"
        raise UsageError(why, where=where, remedy="pass one of them")
    if file is None and url is None:
        why = "neither FILE nor --prometheus is given"
        raise UsageError(why, where=where, remedy="pass one of them")
    extra = [flag for flag, value in only.items() if value is not None]
    if url is None and extra:
        raise UsageError("needs --prometheus", where=extra[0], remedy="remove it, or pass a URL")


def run(request: TraceRequest) -> int:
    """Export, convert or summarize.

    Raises:
        StateError: there is no record of that time, or the state cannot be read.
        UnreadableError: the trace cannot be read, or the file cannot be written.
    """
    trace = _read_source(request)
    if request.subcommand == "summary":
        from reconciler.backtest.writing import summary_of

        _print_summary(request.output, summary_of(trace))
        return exitcode.DONE
    from reconciler.backtest.writing import encode_trace

    if request.anonymize:
        from reconciler.backtest.writing import anonymize_trace

        trace = anonymize_trace(trace)
    content = encode_trace(trace, compressed=request.out.endswith(".gz"))
    if request.out == "-":
        sys.stdout.write(content.decode())
    else:
        mode = None if request.anonymize else PRIVATE
        write_file(request.out, content, mode=mode, remedy="pass another file with --out")
    return exitcode.DONE


def _read_source(request: TraceRequest) -> Trace:
    if request.prometheus is not None:
        return _read_series(request, request.prometheus)
    if request.recorded is None:
        from reconciler.assembly.inputs.files import read_bytes
        from reconciler.backtest.trace import read_trace

        content = read_bytes(request.file)
        if request.subcommand == "import":
            from reconciler.backtest.captures.reading import read_capture

            captured = read_capture(content, request.file)
            if captured is not None:
                sys.stderr.write(captured[1])
                return captured[0]
        return read_trace(content, request.file)
    from reconciler.assembly.inputs import records
    from reconciler.backtest.recorded import recorded_trace

    with records.open_recorded(request.recorded) as found:
        until = found.now if request.until is None else request.until
        since = _parse_since(request.since, until)
        return recorded_trace(found.state.trace.batches(since), since, until)


def _read_series(request: TraceRequest, source: PrometheusRequest) -> Trace:
    """Return the trace of the data in Prometheus, and summarize it on stderr."""
    from reconciler.backtest.imported import imported_trace, report_of
    from reconciler.backtest.prometheus import read_matchers, read_period, read_pod_series

    until = current_time(request.until)
    period = read_period(_parse_since(request.since, until), until, source.step)
    matchers = read_matchers(source.match)
    try:
        from reconciler.adapters.prometheus import Prometheus
    except ImportError as error:
        from reconciler.installation import install_remedy

        raise UsageError(
            "the HTTP client is not installed",
            where="--prometheus",
            remedy=install_remedy("aws"),
        ) from error
    server = Prometheus(source.url, os.environ.get("PROMETHEUS_TOKEN", "").strip())
    imported = imported_trace(read_pod_series(server, period, matchers), period)
    for warning in server.warnings:
        print(f"Warning: Prometheus: {warning}", file=sys.stderr)
    sys.stderr.write(report_of(imported))
    return imported.trace


def _parse_since(text: str, until: datetime) -> datetime:
    """Return a time, given as a time or as a duration before ``until``.

    Raises:
        UsageError: it is neither.
    """
    since = read_time_or_span(text, "--since")
    try:
        return since if isinstance(since, datetime) else until - since
    except OverflowError as error:
        why = f"{quote_value(text)} is before the year 1"
        raise UsageError(why, where="--since", remedy="pass a shorter duration") from error


def _print_summary(output: str, summary: object) -> None:
    from reconciler.backtest.writing import TraceSummary, render_summary
    from reconciler.render.reply import render_reply, sections_of

    assert isinstance(summary, TraceSummary), "a summary is shown"
    title, text = "Trace of a workload", render_summary(summary)
    sections = sections_of(summary)
    write_output(render_reply(summary, sections, output, title=title, text=text, compact=True))
