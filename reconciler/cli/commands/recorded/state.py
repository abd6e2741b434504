"""``reconciler state``: maintenance of the recorded state."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from reconciler.cli.parser import inputs
from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.maintenance.adoption import AdoptionRequest
    from reconciler.cli.maintenance.pruning import PruningRequest
    from reconciler.cli.shared.request import StateRequest


@dataclass(frozen=True, slots=True)
class MaintenanceRequest:
    """A subcommand on the state of a fleet; ``file`` is the export to write or to read."""

    fleet: StateRequest
    subcommand: str
    file: str
    output: str


SUBCOMMANDS: Final = {
    "migrate": "upgrade the state to this release's format (makes a backup)",
    "check": "check the integrity of the state and list operations with unknown outcome",
    "export": "export the fleet's state as JSON lines",
    "import": "import an export into a state without records of this fleet",
    "prune": "remove old, settled records; keeps operations in progress",
    "adopt": "adopt nodes that the state does not know, or that Karpenter launched",
}
"""Name of a subcommand → its line of help."""


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    if name in ("export", "import"):
        parser.add_argument("file", metavar="FILE", help="export file (- for stdin or stdout)")
    inputs.add_path(parser)
    if name == "adopt":
        _add_adoption(parser)
        return
    if name == "prune":
        parser.add_argument(
            "--keep", metavar="SPAN",
            help="remove settled records older than this, such as 30d; at least 24h (default: "
            "history.keep)",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true",
            help="show what would be removed, but remove nothing",
        )  # fmt: skip
    inputs.add_output(parser)
    inputs.add_flags(parser, inputs.RECORDED)


def _add_adoption(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true",
        help="apply the changes: record the NodeClaims and tag the instances",
    )  # fmt: skip
    parser.add_argument(
        "--karpenter-is-gone", action="store_true",
        help="confirm that Karpenter is scaled to zero (needed without --snapshot)",
    )  # fmt: skip
    inputs.add_output(parser)
    inputs.add_flags(parser, [name for name in inputs.PLANNING if name != "base"])


def request_of(
    args: argparse.Namespace,
) -> MaintenanceRequest | PruningRequest | AdoptionRequest:
    """Return the request in the arguments."""
    if args.subcommand == "adopt":
        from reconciler.cli.maintenance.adoption import AdoptionRequest

        fleet = inputs.fleet_request(args, args.path)
        return AdoptionRequest(fleet, args.output, args.yes, args.karpenter_is_gone)
    recorded = inputs.state_request(args, args.path)
    if args.subcommand == "prune":
        from reconciler.cli.maintenance.pruning import PruningRequest

        return PruningRequest(recorded, args.output, args.keep, args.dry_run)
    return MaintenanceRequest(recorded, args.subcommand, getattr(args, "file", ""), args.output)


def run(request: MaintenanceRequest | PruningRequest | AdoptionRequest) -> int:
    """Run the subcommand; ``check`` returns 1 if it finds an error."""
    if not isinstance(request, MaintenanceRequest):
        from reconciler.cli.maintenance import adoption, pruning

        if isinstance(request, adoption.AdoptionRequest):
            return adoption.run(request)
        return pruning.run(request)
    match request.subcommand:
        case "migrate":
            return _migrate(request)
        case "check":
            return _check(request)
        case "export":
            return _export(request)
    return _import(request)


def _report(
    request: MaintenanceRequest, text: str, document: dict[str, object], file: TextIO | None = None
) -> None:
    """Print the result: a line of text, by default to stdout, or a document to stdout."""
    if request.output == "text":
        print(text, file=file)
        return
    from reconciler.cli.output.listing import format_document

    sys.stdout.write(format_document(document, request.output))


def _migrate(request: MaintenanceRequest) -> int:
    with records.recorded(request.fleet, create=True) as recorded:
        from reconciler.adapters.database.migration import HEAD

        text = f"{recorded.where} is at migration {HEAD}."
        _report(request, text, {"state": recorded.where, "migration": HEAD})
    return exitcode.DONE


def _check(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.check import Gravity, check
    from reconciler.cli.output.listing import format_document

    with records.recorded(request.fleet) as recorded:
        faults = check(recorded.state.database)
    wrong = sum(fault.gravity is Gravity.ERROR for fault in faults)
    if request.output != "text":
        found = [{"severity": f.gravity, "code": f.code, "message": f.message} for f in faults]
        document = {"sound": not wrong, "findings": found}
        sys.stdout.write(format_document(document, request.output))
    else:
        for fault in faults:
            print(f"{fault.gravity}: {fault.message} [{fault.code}]")
        verdict = f"{wrong} errors" if wrong else "sound"
        print(f"The state of fleet {recorded.fleet} in {recorded.where}: {verdict}.")
    return exitcode.FAILED if wrong else exitcode.DONE


def _export(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.transfer import export_lines
    from reconciler.model.errors import UnreadableError

    with records.recorded(request.fleet) as recorded:
        lines = export_lines(recorded.state.database)
        if request.file == "-":
            sys.stdout.writelines(lines)
            return exitcode.DONE
        draft = Path(f"{request.file}.{os.getpid()}.tmp")
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as file:
                count = sum(1 for line in lines if file.write(line))
            draft.replace(request.file)
        except OSError as error:
            raise UnreadableError(
                f"cannot be written: {error.strerror}",
                where=request.file,
                remedy="pass a file in an existing folder",
            ) from error
        finally:
            draft.unlink(missing_ok=True)
    text = f"Exported {count - 2} rows of fleet {recorded.fleet} to {request.file}."
    document = {"fleet": recorded.fleet, "file": request.file, "rows": count - 2}
    _report(request, text, document, file=sys.stderr)
    return exitcode.DONE


def _import(request: MaintenanceRequest) -> int:
    from reconciler.adapters.database.transfer import import_lines
    from reconciler.cli.shared.sources import read_bytes

    content = read_bytes(request.file)
    source = "stdin" if request.file == "-" else request.file
    # Not splitlines(), which would also break at rarer separators within a text.
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    with records.recorded(request.fleet, create=True) as recorded:
        recorded.state.lease.acquire()
        count = import_lines(recorded.state.database, lines, source)
    text = f"Imported {count} rows of fleet {recorded.fleet} into {recorded.where}."
    _report(request, text, {"fleet": recorded.fleet, "state": recorded.where, "rows": count})
    return exitcode.DONE
