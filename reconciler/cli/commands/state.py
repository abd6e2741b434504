"""``reconciler state``: maintenance of the recorded state."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from reconciler.cli.shared import exitcode, records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    subcommands = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    for name, summary in (
        ("migrate", "upgrade the state to this release's format (makes a backup)"),
        ("check", "check the integrity of the state and list operations with unknown outcome"),
        ("export", "export the fleet's state as JSON lines"),
        ("import", "import an export into a state without records of this fleet"),
        ("prune", "remove old, settled records; keeps operations in progress"),
        ("adopt", "adopt nodes that the state does not know, or that Karpenter launched"),
    ):
        sub = subcommands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == "adopt":
            _add_adoption(sub)
            continue
        if name in ("export", "import"):
            sub.add_argument("file", metavar="FILE", help="export file (- for stdin or stdout)")
        records.add_path(sub)
        sub.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="print tracebacks"
        )
        if name == "prune":
            from reconciler.cli.maintenance import pruning

            pruning.add_arguments(sub)
        if name in ("check", "prune"):
            sub.add_argument(
                "-o", "--output", choices=("text", "json"), default="text", help="output format"
            )
        records.add_arguments(sub)


def _add_adoption(sub: argparse.ArgumentParser) -> None:
    from reconciler.cli.maintenance import adoption

    adoption.add_arguments(sub)
    sub.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="print tracebacks"
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; ``check`` returns 1 if it finds an error."""
    match args.subcommand:
        case "adopt":
            from reconciler.cli.maintenance import adoption

            return adoption.run(args)
        case "migrate":
            return _migrate(args)
        case "check":
            return _check(args)
        case "export":
            return _export(args)
        case "prune":
            from reconciler.cli.maintenance import pruning

            return pruning.run(args)
    return _import(args)


def _migrate(args: argparse.Namespace) -> int:
    with records.recorded(args, create=True) as recorded:
        from reconciler.adapters.database.migration import HEAD

        print(f"{recorded.where} is at migration {HEAD}.")
    return exitcode.DONE


def _check(args: argparse.Namespace) -> int:
    from reconciler.adapters.database.check import Gravity, check
    from reconciler.cli.output.listing import as_json

    with records.recorded(args) as recorded:
        faults = check(recorded.state.database)
    wrong = sum(fault.gravity is Gravity.ERROR for fault in faults)
    if args.output == "json":
        found = [{"severity": f.gravity, "code": f.code, "message": f.message} for f in faults]
        sys.stdout.write(as_json({"sound": not wrong, "findings": found}))
    else:
        for fault in faults:
            print(f"{fault.gravity}: {fault.message} [{fault.code}]")
        verdict = f"{wrong} errors" if wrong else "sound"
        print(f"The state of fleet {recorded.fleet} in {recorded.where}: {verdict}.")
    return exitcode.FAILED if wrong else exitcode.DONE


def _export(args: argparse.Namespace) -> int:
    from reconciler.adapters.database.transfer import export_lines
    from reconciler.model.errors import UnreadableError

    with records.recorded(args) as recorded:
        lines = export_lines(recorded.state.database)
        if args.file == "-":
            sys.stdout.writelines(lines)
            return exitcode.DONE
        draft = Path(f"{args.file}.{os.getpid()}.tmp")
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as file:
                count = sum(1 for line in lines if file.write(line))
            draft.replace(args.file)
        except OSError as error:
            raise UnreadableError(
                f"cannot be written: {error.strerror}",
                where=args.file,
                remedy="pass a file in an existing folder",
            ) from error
        finally:
            draft.unlink(missing_ok=True)
    print(f"Exported {count - 2} rows of fleet {recorded.fleet} to {args.file}.", file=sys.stderr)
    return exitcode.DONE


def _import(args: argparse.Namespace) -> int:
    from reconciler.adapters.database.transfer import import_lines
    from reconciler.cli.shared.request import read_bytes

    content = read_bytes(args.file)
    source = "stdin" if args.file == "-" else args.file
    # Not splitlines(), which would also break at rarer separators within a text.
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    with records.recorded(args, create=True) as recorded:
        recorded.state.lease.acquire()
        count = import_lines(recorded.state.database, lines, source)
    print(f"Imported {count} rows of fleet {recorded.fleet} into {recorded.where}.")
    return exitcode.DONE
