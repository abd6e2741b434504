"""``reconciler state prune``: remove what is settled and old from what is recorded."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from reconciler.adapters.database.pruning import Tally

_KINDS: Final = {
    "plans": "plans",
    "commands": "finished commands",
    "effects": "settled operations",
    "nodeClaims": "terminated NodeClaims",
    "reasons": "recorded reasons",
    "revisions": "revisions",
    "refusals": "unavailable offerings",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how much is kept."""
    parser.add_argument(
        "--keep",
        metavar="SPAN",
        help=(
            "remove settled records older than this, such as 30d; at least 24h (default: "
            "history.keep)"
        ),
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed, but remove nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Remove old records, and print how many were removed and kept."""
    from reconciler.cli.output.listing import as_json, clock_time, columns, stamp

    keep = _keep(args)
    with records.recorded(args) as recorded:
        if not args.dry_run:
            recorded.state.lease.acquire()
        tallies = recorded.state.history.prune(recorded.now, keep, carries_out=not args.dry_run)
        before = recorded.now - keep
    if args.output == "json":
        sys.stdout.write(as_json(_document(tallies, stamp(before), dry_run=args.dry_run)))
        return exitcode.DONE
    went = "REMOVABLE" if args.dry_run else "REMOVED"
    rows = [(_KINDS[t.kind], str(t.gone), str(t.kept)) for t in tallies]
    sys.stdout.write(columns([("OLD AND SETTLED", went, "KEPT"), *rows]))
    total = sum(tally.gone for tally in tallies)
    what = "would be removed" if args.dry_run else "were removed"
    print(f"{total} records of fleet {recorded.fleet} from before {clock_time(before)} {what}.")
    return exitcode.DONE


def _keep(args: argparse.Namespace) -> timedelta:
    """Return the span that is kept.

    Raises:
        UsageError: it is none, too short, or nothing says how long it is.
    """
    from datetime import timedelta

    from reconciler.model.duration import NEVER, Duration
    from reconciler.model.errors import UsageError

    resolved = records.settings_of(args.path, args.state, args.settings, args.config)
    keep = resolved.settings.history_keep
    if args.keep:
        try:
            keep = None if args.keep == NEVER else Duration(args.keep)
        except ValueError as error:
            raise UsageError(
                f"invalid duration {args.keep[:60]!r}",
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


def _document(tallies: Sequence[Tally], before: str, *, dry_run: bool) -> dict[str, Any]:
    return {
        "before": before,
        "dryRun": dry_run,
        "records": {t.kind: {"gone": t.gone, "kept": t.kept} for t in tallies},
    }
