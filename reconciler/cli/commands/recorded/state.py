"""``reconciler state``: maintenance of the recorded state."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Final, TextIO

from reconciler import exitcode
from reconciler.adapters.writing import PRIVATE, write_file
from reconciler.assembly.inputs import records
from reconciler.cli.parser import inputs
from reconciler.inspection.replies import (
    ExportReply,
    ImportReply,
    MigrationReply,
    PrunedRecords,
    PruningReply,
    SoundnessReply,
    StateFinding,
)
from reconciler.model.duration import NEVER, Duration
from reconciler.model.errors import UsageError
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import quote_value
from reconciler.options import add_options, option, switch
from reconciler.render.listing import clock_time, columns

if TYPE_CHECKING:
    from msgspec import Struct

    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.cli.maintenance.adoption import AdoptionRequest
    from reconciler.render.cells import Section

SUBCOMMANDS: Final = {
    "migrate": "upgrade the state to this release's format (makes a backup)",
    "check": "check the integrity of the state and list operations with unknown outcome",
    "export": "export the fleet's state as JSON lines",
    "import": "import an export into a state without records of this fleet",
    "prune": "remove old, settled records; keeps operations in progress",
    "adopt": "adopt nodes that the state does not know, or that Karpenter launched",
}
"""Name of a subcommand → its line of help."""

_KINDS: Final = {
    "plans": "plans",
    "commands": "finished commands",
    "effects": "settled operations",
    "nodeClaims": "terminated NodeClaims",
    "reasons": "recorded reasons",
    "revisions": "revisions",
    "refusals": "unavailable offerings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningRequest:
    """Which records are removed; with ``is_dry_run`` none is."""

    keep: str | None = option(
        "--keep",
        "SPAN",
        "remove settled records older than this, such as 30d; at least 24h (default: history.keep)",
    )
    is_dry_run: bool = switch("--dry-run", "show what would be removed; remove nothing")
    fleet: StateRequest
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """A subcommand on the state of a fleet; ``file`` is the export to write or to read."""

    fleet: StateRequest
    subcommand: str
    output: str
    file: str = ""


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    if name in ("export", "import"):
        parser.add_argument("file", metavar="FILE", help="export file (- for stdin or stdout)")
    inputs.add_path(parser)
    if name == "adopt":
        _add_adoption(parser)
        return
    if name == "prune":
        add_options(PruningRequest, parser)
    inputs.add_output(parser)
    inputs.add_flags(parser, inputs.RECORDED)


def _add_adoption(parser: argparse.ArgumentParser) -> None:
    from reconciler.cli.maintenance.adoption import AdoptionRequest

    add_options(AdoptionRequest, parser)
    inputs.add_output(parser)
    inputs.add_flags(parser, [name for name in inputs.PLANNING if name != "base"])


def request_of(args: argparse.Namespace) -> MaintenanceRequest | PruningRequest | AdoptionRequest:
    """Return the request in the arguments."""
    if args.subcommand == "adopt":
        from reconciler.cli.maintenance.adoption import AdoptionRequest

        return inputs.request_from(AdoptionRequest, args)
    if args.subcommand == "prune":
        return inputs.request_from(PruningRequest, args)
    return inputs.request_from(MaintenanceRequest, args)


def run(request: MaintenanceRequest | PruningRequest | AdoptionRequest) -> int:
    """Run the subcommand; ``check`` returns 1 if it finds an error."""
    if not isinstance(request, MaintenanceRequest):
        from reconciler.cli.maintenance import adoption

        if isinstance(request, adoption.AdoptionRequest):
            return adoption.run(request)
        return prune_records(request)
    match request.subcommand:
        case "migrate":
            return _migrate(request)
        case "check":
            return _check(request)
        case "export":
            return _export(request)
    return _import(request)


def _print_reply(
    output: str,
    reply: Struct,
    text: str,
    file: TextIO | None = None,
    sections: Sequence[Section] | None = None,
) -> None:
    """Print the reply: as text, by default to stdout, or as a document to stdout."""
    from reconciler.render.reply import render_reply, sections_of

    shown = sections_of(reply) if sections is None else sections
    page = render_reply(reply, shown, output, title="Recorded state", text=text)
    out = file if output == "text" and file is not None else sys.stdout
    out.write(page)


def _migrate(request: MaintenanceRequest) -> int:
    with records.open_recorded(request.fleet, create=True) as recorded:
        from reconciler.adapters.database.migration import HEAD

        text = f"{recorded.where} is at migration {HEAD}.\n"
        reply = MigrationReply(state=recorded.where, migration=HEAD)
        _print_reply(request.output, reply, text)
    return exitcode.DONE


def _check(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.maintenance import ProblemSeverity, check
    from reconciler.render.reply import list_section, text_section

    with records.open_recorded(request.fleet) as recorded:
        faults = check(recorded.state.database)
    errors = sum(fault.gravity is ProblemSeverity.ERROR for fault in faults)
    found = [StateFinding(severity=f.gravity, code=f.code, message=f.message) for f in faults]
    verdict = format_count(errors, "error") if errors else "no errors"
    lines = [f"{fault.severity}: {fault.message} [{fault.code}]\n" for fault in found]
    verdict = f"State of fleet {recorded.fleet} in {recorded.where}: {verdict}."
    lines.append(f"{verdict}\n")
    reply = SoundnessReply(sound=not errors, findings=tuple(found))
    sections = [text_section("verdict", "", [verdict])]
    sections += [list_section("findings", found, title="Findings")] if found else []
    _print_reply(request.output, reply, "".join(lines), sections=sections)
    return exitcode.FAILED if errors else exitcode.DONE


def _export(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.maintenance import export_lines

    with records.open_recorded(request.fleet) as recorded:
        lines = export_lines(recorded.state.database)
        if request.file == "-":
            sys.stdout.writelines(lines)
            return exitcode.DONE
        count = itertools.count()
        encoded = (line.encode() for line, _ in zip(lines, count, strict=False))
        write_file(request.file, encoded, mode=PRIVATE)
        rows = next(count) - 2
    text = f"Exported {rows} rows of fleet {recorded.fleet} to {request.file}.\n"
    reply = ExportReply(fleet=recorded.fleet, file=request.file, rows=rows)
    _print_reply(request.output, reply, text, file=sys.stderr)
    return exitcode.DONE


def _import(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.maintenance import import_lines
    from reconciler.assembly.inputs.files import read_bytes

    content = read_bytes(request.file)
    source = "stdin" if request.file == "-" else request.file
    # Not splitlines(), which would also break at rarer separators within a text; nor a list, which
    # takes a multiple of the memory of a file of blank lines.
    lines = StringIO(content.decode("utf-8", "replace"), newline="\n")
    with records.open_recorded(request.fleet, create=True) as recorded:
        recorded.state.lease.acquire()
        count = import_lines(recorded.state.database, lines, source)
    text = f"Imported {count} rows of fleet {recorded.fleet} into {recorded.where}.\n"
    reply = ImportReply(fleet=recorded.fleet, state=recorded.where, rows=count)
    _print_reply(request.output, reply, text)
    return exitcode.DONE


def prune_records(request: PruningRequest) -> int:
    """Remove old records, and print how many were removed and kept."""
    keep = _retention(request)
    with records.open_recorded(request.fleet) as recorded:
        if not request.is_dry_run:
            recorded.state.lease.acquire()
        tallies = recorded.state.history.prune(recorded.now, keep, is_dry_run=request.is_dry_run)
        before = recorded.now - keep
    heading = "REMOVABLE" if request.is_dry_run else "REMOVED"
    rows = [(_KINDS[t.kind], str(t.gone), str(t.kept)) for t in tallies]
    total = sum(tally.gone for tally in tallies)
    what = "would be removed" if request.is_dry_run else "were removed"
    text = (
        f"{columns([('OLD AND SETTLED', heading, 'KEPT'), *rows])}"
        f"{total} records of fleet {recorded.fleet} from before {clock_time(before)} {what}.\n"
    )
    counts = {t.kind: PrunedRecords(gone=t.gone, kept=t.kept) for t in tallies}
    reply = PruningReply(before=before, dry_run=request.is_dry_run, records=counts)
    _print_reply(request.output, reply, text)
    return exitcode.DONE


def _retention(request: PruningRequest) -> timedelta:
    """Return how long records are kept.

    Raises:
        UsageError: it is invalid or too short, or it is not set.
    """
    resolved = records.settings_of(request.fleet)
    keep = resolved.settings.history_keep
    if request.keep:
        try:
            keep = None if request.keep == NEVER else Duration(request.keep)
        except ValueError as error:
            raise UsageError(
                f"invalid duration {quote_value(request.keep)}",
                where="--keep",
                remedy="write it as 30d or 36h",
            ) from error
    if keep is None:
        raise UsageError(
            "history.keep is Never, and --keep is not set",
            where="--keep",
            remedy="set how long to keep records, such as --keep 90d",
        )
    if keep < timedelta(days=1):
        raise UsageError(
            f"{keep} is shorter than a day, which the daily disruption limit needs",
            where="--keep",
            remedy="keep at least 24h",
        )
    return keep
