"""``reconciler check``: check everything that a plan or a daemon needs.

Nothing is written anywhere. Calls that change something are tried with ``DryRun`` where AWS has
it. What cannot be tried is reported as unknown, and does not fail the check.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from reconciler.cli.shared.request import FleetRequest
    from reconciler.model.check import Check


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The fleet, for which use it is checked, and what is printed instead of checks."""

    fleet: FleetRequest
    need: str
    prints_policy: bool
    prints_commitments: bool
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fleet, the use it is checked for, and the output format."""
    inputs.add_path(parser)
    parser.add_argument(
        "--for", choices=["plan", "run"], default="run", dest="need", metavar="WHAT",
        help="plan: check only what `plan` needs; run: also check what `apply` and `run` need "
        "(default)",
    )  # fmt: skip
    parser.add_argument(
        "--policy", action="store_true",
        help="print the IAM policy for this fleet instead of checking",
    )  # fmt: skip
    parser.add_argument(
        "--commitments", action="store_true",
        help="print the account's savings plans and reserved instances as `commitments` for "
        "the config",
    )  # fmt: skip
    inputs.add_output(parser)
    inputs.add_flags(parser, [name for name in inputs.PLANNING if name != "base"])


def request_of(args: argparse.Namespace) -> CheckRequest:
    """Return the request in the arguments."""
    fleet = inputs.fleet_request(args, args.path)
    return CheckRequest(fleet, args.need, args.policy, args.commitments, args.output)


def run(request: CheckRequest) -> int:
    """Print one line for each check; exit 1 where one failed."""
    from reconciler.adapters.aws.permissions import Need
    from reconciler.cli.account import checks
    from reconciler.cli.output.listing import format_document
    from reconciler.cli.output.progressline import progress
    from reconciler.cli.shared.exitcode import DONE, FAILED
    from reconciler.model.check import Verdict

    need, is_text = Need(request.need), request.output == "text"
    if request.prints_policy:
        form = "json" if is_text else request.output
        sys.stdout.write(format_document(checks.policy(request.fleet, need), form))
        return DONE
    if request.prints_commitments:
        sys.stdout.write(checks.format_commitments(request.fleet, request.output))
        return DONE
    with progress("Checking the account and the cluster"):
        rows = checks.checks(request.fleet, need)
    sys.stdout.write(as_table(rows) if is_text else format_document(as_value(rows), request.output))
    return FAILED if any(row.verdict is Verdict.FAILED for row in rows) else DONE


def as_value(rows: Sequence[Check]) -> dict[str, object]:
    """Return the checks as data (``schemas/check.v1.json``)."""
    from reconciler.model.check import Verdict

    return {
        "passed": not any(row.verdict is Verdict.FAILED for row in rows),
        "checks": [
            {
                "kind": row.kind,
                "name": row.name,
                "verdict": str(row.verdict),
                "message": row.message,
                "remedy": row.remedy,
            }
            for row in rows
        ],
    }


def as_table(rows: Sequence[Check]) -> str:
    """Return the checks as a table: a mark, what was checked, and the result."""
    from reconciler.model.check import Verdict

    marks = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.UNKNOWN: "–"}
    heads = [f"{row.kind} {row.name}".rstrip() for row in rows]
    width = max(map(len, heads), default=0)
    lines = []
    for head, row in zip(heads, rows, strict=True):
        lines.append(f"{marks[row.verdict]} {head:<{width}}  {row.message}".rstrip())
        if row.remedy:
            lines.append(f"  {'':<{width}}  {row.remedy}")
    counts = Counter(row.verdict for row in rows)
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    return "\n".join([*lines, f"{total}."]) + "\n"
