"""``reconciler advise``: find the changes to a fleet's files that save the most."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.advise.result import (
    BACKTESTED,
    CANDIDATES,
    COMPUTE_PLAN_PERCENT,
    EVICTIONS_PER_POD_DAY,
    INSTANCE_PLAN_PERCENT,
    SPOT_PERCENT,
    WAITING_SECONDS,
    AdviceRequest,
)
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.commands.desired.plan import write_output
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.model.errors import UsageError
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.visible import one_line
from reconciler.render.reply import render_reply

if TYPE_CHECKING:
    import argparse

    from reconciler.advise.advising import AdviceResult
    from reconciler.advise.result import AdviceReport

CANDIDATES_MAX: Final = 10_000
TOP: Final = 5


@dataclass(frozen=True, slots=True)
class AdviseRequest:
    """The request for advice, the output format, and the action on a proposal.

    ``pick`` is the id of the proposal to write or commit, None for the best. ``branch`` is the
    branch for the commit, None not to commit.
    """

    advice: AdviceRequest
    output: str
    top: int = TOP
    is_written: bool = False
    branch: str | None = None
    pick: str | None = None
    is_approved: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    inputs.add_path(parser)
    inputs.add_output(parser)
    add = parser.add_argument
    add("--top", type=int, default=TOP, metavar="N", help=f"show N proposals (default: {TOP})")
    search = parser.add_argument_group("search")
    add = search.add_argument
    add(
        "--candidates", dest="most", type=int, default=CANDIDATES, metavar="N",
        help=f"evaluate at most N candidates (default: {CANDIDATES})",
    )  # fmt: skip
    add(
        "--seed", type=int, default=0, metavar="N",
        help="random seed: selects the candidates if there are more (default: 0)",
    )  # fmt: skip
    inputs.add_sweep(add, "evaluate candidates")
    add(
        "--new-nodes", dest="has_new_nodes", action="store_true",
        help="compare fleets of new nodes (default: continue from the present nodes)",
    )  # fmt: skip
    add(
        "--trace", metavar="FILE",
        help="replay this workload against the best proposals as well (see `simulate`)",
    )  # fmt: skip
    add(
        "--backtests", dest="backtested", type=int, default=BACKTESTED, metavar="N",
        help="with --trace: replay it against N proposals, the combination, and N changes that "
        f"show only over time (default: {BACKTESTED})",
    )  # fmt: skip
    add(
        "--policy", dest="policies", action="append", default=[], metavar="FILE",
        help="propose nothing that the policies in this file forbid (repeatable)",
    )  # fmt: skip
    _add_limits(parser)
    _add_discounts(parser)
    doing = parser.add_argument_group("proposals")
    add = doing.add_argument
    add(
        "--write", dest="is_written", action="store_true",
        help="write the best proposal to the fleet's files",
    )  # fmt: skip
    add(
        "--commit", dest="branch", metavar="BRANCH",
        help="commit the best proposal to a new branch",
    )  # fmt: skip
    add("--pick", metavar="ID", help="write or commit this proposal instead of the best one")
    add(
        "--auto-approve", dest="is_approved", action="store_true",
        help="with --write: do not ask if files have uncommitted changes",
    )  # fmt: skip
    inputs.add_flags(parser, [name for name in inputs.PLANNING if name != "base"])


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add(
        "--spot-max", dest="spot_percent", type=float, default=SPOT_PERCENT, metavar="PERCENT",
        help="maximum share of pods on spot nodes "
        f"(default: {SPOT_PERCENT:g}, or the present share if larger)",
    )  # fmt: skip
    add(
        "--zones-min", dest="zones", type=int, default=None, metavar="N",
        help="minimum number of zones with pods (default: as many as at present)",
    )  # fmt: skip
    add(
        "--wait-max", default=f"{WAITING_SECONDS:g}s", metavar="DURATION",
        help="with --trace: 99 of 100 pods wait at most this long "
        f"(default: {WAITING_SECONDS:g}s, or the present time if longer)",
    )  # fmt: skip
    add(
        "--evictions-max", dest="evictions_per_pod_day", metavar="N",
        type=float, default=EVICTIONS_PER_POD_DAY,
        help="with --trace: maximum evictions for each pod and day "
        f"(default: {EVICTIONS_PER_POD_DAY:g}, or the present number if larger)",
    )  # fmt: skip


def _add_discounts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("commitments").add_argument
    for flag, name, percent, what in (
        (
            "--compute-plan-discount",
            "compute_plan_percent",
            COMPUTE_PLAN_PERCENT,
            "compute savings plans",
        ),
        (
            "--instance-plan-discount",
            "instance_plan_percent",
            INSTANCE_PLAN_PERCENT,
            "EC2 instance savings plans and reserved instances",
        ),
    ):
        add(
            flag, dest=name, type=float, default=percent, metavar="PERCENT",
            help=f"what {what} take off on-demand prices (default: {percent:g})",
        )  # fmt: skip


def request_of(args: argparse.Namespace) -> AdviseRequest:
    """Return the request in the arguments.

    Raises:
        UsageError: an argument is wrong.
    """
    for flag, value, low, high in (
        ("--candidates", args.most, 1, CANDIDATES_MAX),
        ("--backtests", args.backtested, 0, CANDIDATES_MAX),
        ("--evictions-max", args.evictions_per_pod_day, 0, 1e6),
        ("--top", args.top, 0, CANDIDATES_MAX),
        ("--spot-max", args.spot_percent, 0, 100),
        ("--compute-plan-discount", args.compute_plan_percent, 0, 99),
        ("--instance-plan-discount", args.instance_plan_percent, 0, 99),
        ("--zones-min", args.zones or 0, 0, 100),
    ):
        _expect_within(flag, value, low, high)
    waiting = inputs.read_duration(args.wait_max, "--wait-max").total_seconds()
    advice = inputs.request_from(AdviceRequest, args, waiting_seconds=waiting)
    return inputs.request_from(AdviseRequest, args, advice=advice)


def _expect_within(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        remedy = f"use {least:,} to {most:,}"
        raise UsageError(f"{value:g} is not allowed", where=flag, remedy=remedy)


def run(request: AdviseRequest) -> int:
    """Print the advice, and write or commit the requested proposal."""
    gc.set_threshold(200_000, 20, 20)
    from reconciler.advise.advising import make_advice

    if not _may_change(request):
        print("Cancelled. Nothing was changed.", file=sys.stderr)
        return exitcode.DONE
    with show_progress("Searching") as line:
        result = make_advice(request.advice, Timings(line.enter), line.enter)
    write_output(render(result.report, request))
    _carry_out(request, result)
    return exitcode.DONE


def _may_change(request: AdviseRequest) -> bool:
    """Return whether the requested action on a proposal is allowed; True without an action.

    Raises:
        UsageError: it may not, or the flags do not go together.
    """
    if not request.is_written and request.branch is None:
        if request.pick is not None:
            remedy = "add --write or --commit BRANCH"
            raise UsageError("is only used to write or commit", where="--pick", remedy=remedy)
        return True
    fleet = request.advice.fleet
    flag = "--write" if request.is_written else "--commit"
    for given, name in ((fleet.repo, "--repo"), (fleet.ref, "--ref")):
        if given is not None:
            remedy = "check it out and pass the folder"
            raise UsageError(f"cannot be used with {name}", where=flag, remedy=remedy)
    from reconciler.advise.applying import (
        confirm_overwrite,
        expect_new_branch,
        has_uncommitted_changes,
    )

    folder = _folder(request)
    if request.branch is not None:
        expect_new_branch(folder, request.branch)
    if request.is_written and not request.is_approved and has_uncommitted_changes(folder):
        return confirm_overwrite(folder)
    return True


def _folder(request: AdviseRequest) -> str:
    fleet = request.advice.fleet
    return os.path.join(fleet.path or ".", fleet.below or "")


def _carry_out(request: AdviseRequest, result: AdviceResult) -> None:
    """Write or commit the requested proposal, and report that on stderr."""
    if not request.is_written and request.branch is None:
        return
    from reconciler.advise.applying import changes_of, commit_changes, pick_proposal, write_changes

    proposal = pick_proposal(result.report, request.pick)
    if proposal is None:
        print("No proposal: nothing was changed.", file=sys.stderr)
        return
    folder, changes = _folder(request), changes_of(result, proposal)
    if request.branch is not None:
        commit = commit_changes(folder, request.branch, changes, result.report, proposal)
        what = f"Committed {proposal.id} to branch {request.branch} as {short_commit(commit)}"
        print(one_line(what), file=sys.stderr)
    if request.is_written:
        write_changes(folder, changes)
        print(one_line(f"Wrote {proposal.id} to {', '.join(proposal.files)}"), file=sys.stderr)


def render(report: AdviceReport, request: AdviseRequest) -> str:
    """Return the report in the output format of the request."""
    from reconciler.advise.report import render_text, sections_of

    title, text = f"Advice for {report.fleet}", render_text(report, request.top)
    sections = list(sections_of(report, request.top))
    return render_reply(report, sections, request.output, title=title, text=text, compact=True)
