"""``reconciler check``: would it work here? Looks at everything that a plan or a daemon needs.

Nothing is written anywhere. Calls that change something are tried with ``DryRun`` where AWS has
it; what cannot be tried is said to be unknown, and is no reason to fail.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from reconciler.model.check import Check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare for whom it is checked, and how it is said."""
    from reconciler.cli.shared import request

    request.add_arguments(parser)
    parser.add_argument(
        "--for", choices=["plan", "run"], default="run", dest="need", metavar="WHAT",
        help=(
            "plan: check only what `plan` needs; run: also check what `apply` and `run` need "
            "(default)"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--policy", action="store_true",
        help="print the IAM policy for this fleet instead of checking",
    )  # fmt: skip
    parser.add_argument(
        "--commitments", action="store_true",
        help=(
            "print the account's savings plans and reserved instances as `commitments` for "
            "the config"
        ),
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--output",
        choices=["text", "json"],
        default="text",
        help=("output format (default: text)"),
    )


def run(args: argparse.Namespace) -> int:
    """Print one line for each check; exit 1 where one failed."""
    from reconciler.cli.account import checks
    from reconciler.cli.output.listing import as_json
    from reconciler.cli.shared.exitcode import DONE, FAILED
    from reconciler.model.check import Verdict

    if args.policy:
        sys.stdout.write(as_json(checks.policy(args)))
        return DONE
    if args.commitments:
        from reconciler.cli.account import checks

        sys.stdout.write(checks.printed(args))
        return DONE
    rows = checks.checks(args)
    if args.output == "json":
        sys.stdout.write(as_json(as_value(rows)))
    else:
        sys.stdout.write(as_table(rows))
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
    """Return the checks for a person: a mark, what was looked at, and what was found."""
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
