"""``reconciler state prune``: remove old completed entries from the recorded state."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from reconciler.adapters.database.pruning import Tally
    from reconciler.cli.shared.request import StateRequest

_KINDS: Final = {
    "plans": "plans",
    "commands": "finished commands",
    "effects": "settled operations",
    "nodeClaims": "terminated NodeClaims",
    "reasons": "recorded reasons",
    "revisions": "revisions",
    "refusals": "unavailable offerings",
}


@dataclass(frozen=True, slots=True)
class PruningRequest:
    """Which records are removed: those older than ``keep``, by default than ``history.keep``.

    With ``is_dry_run`` nothing is removed.
    """

    fleet: StateRequest
    output: str
    keep: str | None
    is_dry_run: bool


def run(request: PruningRequest) -> int:
    """Remove old records, and print how many were removed and kept."""
    from reconciler.cli.output.listing import clock_time, columns, format_document, stamp

    keep = _keep(request)
    with records.recorded(request.fleet) as recorded:
        if not request.is_dry_run:
            recorded.state.lease.acquire()
        tallies = recorded.state.history.prune(
            recorded.now, keep, carries_out=not request.is_dry_run
        )
        before = recorded.now - keep
    if request.output != "text":
        document = _document(tallies, stamp(before), dry_run=request.is_dry_run)
        sys.stdout.write(format_document(document, request.output))
        return exitcode.DONE
    went = "REMOVABLE" if request.is_dry_run else "REMOVED"
    rows = [(_KINDS[t.kind], str(t.gone), str(t.kept)) for t in tallies]
    sys.stdout.write(columns([("OLD AND SETTLED", went, "KEPT"), *rows]))
    total = sum(tally.gone for tally in tallies)
    what = "would be removed" if request.is_dry_run else "were removed"
    print(f"{total} records of fleet {recorded.fleet} from before {clock_time(before)} {what}.")
    return exitcode.DONE


def _keep(request: PruningRequest) -> timedelta:
    """Return the retention period.

    Raises:
        UsageError: it is none, too short, or nothing says how long it is.
    """
    from datetime import timedelta

    from reconciler.model.duration import NEVER, Duration
    from reconciler.model.errors import UsageError

    resolved = records.settings_of(request.fleet)
    keep = resolved.settings.history_keep
    if request.keep:
        try:
            keep = None if request.keep == NEVER else Duration(request.keep)
        except ValueError as error:
            raise UsageError(
                f"invalid duration {request.keep[:60]!r}",
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
