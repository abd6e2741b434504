"""``reconciler state``: what is to be done with the records themselves."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from reconciler.cli import exitcode, opening


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be done with the state."""
    deeds = parser.add_subparsers(dest="deed", metavar="DEED", required=True)
    for name, summary in (
        ("migrate", "bring the state to the form of this release; copies it before"),
        ("check", "say what is wrong with the state, and what is in doubt"),
        ("export", "write the fleet's state as lines of JSON"),
        ("import", "read an export into a state that has nothing of the fleet"),
        ("prune", "remove what is settled and old; nothing in doubt, nothing that is needed"),
        ("adopt", "take over nodes that the state does not know, or that Karpenter launched"),
    ):
        deed = deeds.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == "adopt":
            _add_adoption(deed)
            continue
        if name in ("export", "import"):
            deed.add_argument("file", metavar="FILE", help="the export (- for stdin or stdout)")
        opening.add_path(deed)
        deed.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="print tracebacks"
        )
        if name == "prune":
            from reconciler.cli import pruning

            pruning.add_arguments(deed)
        if name in ("check", "prune"):
            deed.add_argument(
                "-o", "--output", choices=("text", "json"), default="text", help="form of the list"
            )
        opening.add_arguments(deed)


def _add_adoption(deed: argparse.ArgumentParser) -> None:
    from reconciler.cli import adopting

    adopting.add_arguments(deed)
    deed.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="print tracebacks"
    )


def run(args: argparse.Namespace) -> int:
    """Do it; ``check`` returns 1 where something is wrong."""
    match args.deed:
        case "adopt":
            from reconciler.cli import adopting

            return adopting.run(args)
        case "migrate":
            return _migrate(args)
        case "check":
            return _check(args)
        case "export":
            return _export(args)
        case "prune":
            from reconciler.cli import pruning

            return pruning.run(args)
    return _import(args)


def _migrate(args: argparse.Namespace) -> int:
    with opening.recorded(args, create=True) as recorded:
        from reconciler.adapters.database.migration import HEAD

        print(f"{recorded.where} is at migration {HEAD}.")
    return exitcode.DONE


def _check(args: argparse.Namespace) -> int:
    from reconciler.adapters.database.check import Gravity, check
    from reconciler.cli.listing import as_json

    with opening.recorded(args) as recorded:
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

    with opening.recorded(args) as recorded:
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
                remedy="name a file in a folder that exists",
            ) from error
        finally:
            draft.unlink(missing_ok=True)
    print(f"{count - 2} rows of fleet {recorded.fleet} are in {args.file}.", file=sys.stderr)
    return exitcode.DONE


def _import(args: argparse.Namespace) -> int:
    from reconciler.adapters.database.transfer import import_lines
    from reconciler.cli.inputs import read_bytes

    content = read_bytes(args.file)
    source = "stdin" if args.file == "-" else args.file
    # Not splitlines(), which would also break at rarer separators within a text.
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    with opening.recorded(args, create=True) as recorded:
        recorded.state.lease.acquire()
        count = import_lines(recorded.state.database, lines, source)
    print(f"{count} rows are recorded for fleet {recorded.fleet} in {recorded.where}.")
    return exitcode.DONE
