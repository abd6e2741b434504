"""``reconciler ci``: plan the fleets that a pull request changes, in a job of any CI service.

It compares the checkout with the base of the pull request, prints findings as annotations, and
writes the plan of each fleet as JSON, HTML and Markdown. In a job of GitHub Actions it also writes
the summary and sets outputs. It needs no secrets; `reconciler comment` posts the result.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from reconciler import exitcode
from reconciler.adapters.writing import make_folder
from reconciler.cli.parser import inputs
from reconciler.cli.pullrequest.fleets import changed_fleets, fleets_below
from reconciler.cli.pullrequest.review import Review, ReviewRequest, misspelled, review_all
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.visible import one_line
from reconciler.options import add_options

SUMMARY_BYTES_MAX: Final = 1_000_000
"""The largest summary of a job; GitHub allows 1 MiB."""
_REMOTES: Final = "refs/remotes/"

_NO_FLEET: Final = "no folder here has a reconciler.yaml; pass the fleet folders as FLEET"


add_arguments = partial(add_options, ReviewRequest)


def request_of(args: argparse.Namespace) -> ReviewRequest:
    """Return the request in the arguments."""
    return inputs.request_from(
        ReviewRequest,
        args,
        fleets=tuple(map(os.path.normpath, args.fleets)),
        is_github=os.environ.get("GITHUB_ACTIONS") == "true",
    )


def run(request: ReviewRequest) -> int:
    """Plan and report; 3 if a fleet is invalid or a policy forbids its plan, 1 on any error.

    Raises:
        ReconcilerError: the changed fleets cannot be determined.
        UsageError: ``--fail-on`` names no policy of a fleet; what was planned is written.
    """
    from reconciler.backtest.change import expect_base

    base = request.base or base_of(os.environ)
    expect_base(request.trace, base)
    fleets = list(request.fleets) or fleets_below(".")
    changes = changed_fleets(fleets, base, are_named=bool(request.fleets))
    make_folder(request.out, remedy="pass another folder with --out")
    reviews = review_all(changes, request)
    for review in reviews:
        for text in review.annotations:
            sys.stdout.write(text)
    code = max((one.code for one in reviews), key=_rank, default=exitcode.DONE)
    error = misspelled(reviews, fleets, request.fail_on)
    _print_reviews(reviews, fleets, base)
    _set_outputs(reviews, exitcode.FAILED if error else code)
    if error:
        raise error
    return code


def base_of(environment: Mapping[str, str]) -> str | None:
    """Return the base of the pull request that a job runs for, None outside of one."""
    branch = environment.get("GITHUB_BASE_REF", "")
    if branch:
        return f"{_REMOTES}origin/{branch}"  # a tag could have the short name
    return environment.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or None


def _rank(code: int) -> int:
    """Return the order of exit codes: an error takes precedence over a refusal."""
    return {exitcode.DONE: 0, exitcode.REFUSED: 1}.get(code, 2)


def _print_review(review: Review) -> None:
    code = "" if review.code == exitcode.DONE else f"exit code {review.code}"
    place = ", ".join(filter(None, (code, review.file)))
    facts = f"{review.headline} ({place})" if review.headline else place
    print(f"  {one_line(f'{review.fleet}: {facts}')}")
    if review.error:
        print(f"Error: {one_line(f'{review.fleet}: {review.error}')}", file=sys.stderr)


def _planned_line(reviews: Sequence[Review], fleets: Sequence[str], base: str | None) -> str:
    planned = sum(bool(one.file) for one in reviews)
    total = format_count(max(len(fleets), len(reviews)), "fleet")
    compared = f", compared with {base.removeprefix(_REMOTES)}" if base else ""
    why = ": no commit changes a fleet" if fleets and base and not reviews else ""
    return f"{planned} of {total} planned{compared}{why}"


def _print_reviews(reviews: Sequence[Review], fleets: Sequence[str], base: str | None) -> None:
    """Print one line for each fleet, and write the summary of a job of GitHub Actions."""
    from reconciler.cli.pullrequest.event import append_to_file

    if not fleets and not reviews:
        print(f"Warning: {_NO_FLEET}", file=sys.stderr)
    print(_planned_line(reviews, fleets, base))
    if base:
        _note_uncommitted(set(fleets) - {one.fleet for one in reviews}, base)
    for review in reviews:
        _print_review(review)
    nothing = "No fleet changed." if fleets else f"No fleet found: {_NO_FLEET}."
    append_to_file("GITHUB_STEP_SUMMARY", _summary(reviews) or f"{nothing}\n")


def _note_uncommitted(fleets: Iterable[str], base: str) -> None:
    """Name the fleets whose files differ from the commit of the head: only commits are compared."""
    from reconciler.adapters.git.revision import working_revision

    changed = [one for one in sorted(fleets) if os.path.isdir(one) and working_revision(one).dirty]
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        what = f"{format_list(changed)} {verb} uncommitted changes, and `ci` compares commits"
        remedy = f"commit them, or run `reconciler plan --base {base.removeprefix(_REMOTES)}` there"
        print(one_line(f"Note: {what}; {remedy}"), file=sys.stderr)


def _summary(reviews: Sequence[Review]) -> str:
    """Return the summary of the job; GitHub shows none that is larger than its limit."""
    parts: list[str] = []
    size = 0
    for number, review in enumerate(reviews):
        size += len(review.markdown.encode("utf-8", "replace")) + 1
        if size > SUMMARY_BYTES_MAX:
            rest = format_count(len(reviews) - number, "more fleet")
            parts.append(f"{rest}: the folder of the plans has all of them.\n")
            break
        parts.append(review.markdown)
    return "\n".join(parts)


def _set_outputs(reviews: Sequence[Review], code: int) -> None:
    from reconciler.cli.pullrequest.event import set_output

    months = [one.per_month for one in reviews if one.per_month is not None]
    set_output("monthly-difference", f"{sum(months):.2f}" if months else "")
    set_output("unschedulable-pods", str(sum(one.unschedulable for one in reviews)))
    set_output("fleets", " ".join(one.fleet for one in reviews))
    set_output("plans", " ".join(one.file for one in reviews if one.file))
    set_output("exit-code", str(code))
