"""Plans the fleets that a pull request changes: annotations, and plans in every form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

from reconciler import exitcode
from reconciler.adapters.writing import write_file
from reconciler.assembly.inputs.request import SNAPSHOT_MAX_AGE, FleetRequest
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.output.findings import render_github
from reconciler.cli.pullrequest.failure import (
    FailureReason,
    PlanFailure,
    reason_of,
    reasons_of,
    render_failure,
    with_reasons,
)
from reconciler.cli.pullrequest.fleets import FleetChange, file_stems
from reconciler.cli.validation import ValidateRequest, ValidationResult, validate_fleet
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import InvalidFleetError, PolicyError, ReconcilerError, UsageError
from reconciler.model.text.visible import encodable, one_line
from reconciler.options import argument, option, repeated
from reconciler.plan.render.unplaced import pods_at_fault
from reconciler.plan.render.verdicts import full_verdict_of
from reconciler.plan.value.plan import Plan

_OUT: Final = "reconciler-plans"


@dataclass(frozen=True, slots=True)
class Review:
    """The outcome for one fleet.

    ``annotations`` are printed as they are; ``markdown`` goes into the summary of the job.
    ``file`` is the plan in JSON and ``headline`` its first line, empty if there is none.
    ``per_month`` is None without a base to compare with, and includes present nodes that are kept.
    ``policies`` are the names of those that the plan was checked against.
    """

    fleet: str
    code: int
    annotations: tuple[str, ...]
    markdown: str
    error: str = ""
    file: str = ""
    headline: str = ""
    per_month: float | None = None
    unschedulable: int = 0
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """The fleets to plan, none for all of the repository; ``base`` is None for the job's own."""

    fleets: tuple[str, ...] = argument(
        "FLEET", "fleet folder (default: every folder with a reconciler.yaml)", nargs="*"
    )
    base: str | None = option(
        "--base", "REF", "commit to compare with (default: the base of the CI job)"
    )
    snapshot: str | None = option("--snapshot", "PLACE", "objects of the cluster, as for `plan`")
    snapshot_max_age: timedelta = option(
        "--snapshot-max-age",
        "DURATION",
        "warn if the snapshot is older than this (default: 24h)",
        default=SNAPSHOT_MAX_AGE,
    )
    trace: str | None = option(
        "--trace",
        "FILE",
        "replay this workload with and without the change of each fleet, as for `plan`",
    )
    out: str = option("--out", "DIR", f"folder for the plans (default: {_OUT})", default=_OUT)
    policies: tuple[str, ...] = repeated("--policy", "FILE", "policies of the operator")
    fail_on: frozenset[str] = repeated(
        "--fail-on",
        "WHAT",
        "when to exit with 3, as in `plan --fail-on` (repeatable)",
        default=frozenset(),
    )
    settings: tuple[str, ...] = repeated(
        "--set", "KEY=VALUE", "override a setting of reconciler.yaml (repeatable)"
    )
    jobs: int = option(
        "--jobs", "N", "fleets at a time (default: the number of processors)", type=int, default=0
    )
    is_github: bool


def review(change: FleetChange, stem: str, options: ReviewRequest) -> Review:
    """Validate and plan one fleet; a problem of the fleet is in the result, not an exception.

    ``stem`` is the name of its files, without the ending.
    """
    found = _review(change, stem, options)
    if not change.problem:
        return found
    code = found.code if found.code == exitcode.FAILED else exitcode.REFUSED
    error = "; ".join(filter(None, (change.problem, found.error)))
    return replace(found, code=code, error=error)


def _review(change: FleetChange, stem: str, options: ReviewRequest) -> Review:
    request = _request_of(change, options)
    annotations = ""
    if not change.is_removed:
        annotations, is_valid, findings = _validate(request, options)
        if not is_valid:
            text = _report_failure(request, stem, options, reasons_of(findings))
            return Review(change.folder, exitcode.REFUSED, (annotations,), text)
    try:
        return _plan_fleet(request, stem, options, annotations)
    except InvalidFleetError as error:
        text = _report_failure(request, stem, options, reasons_of(error.diagnostics))
        return Review(change.folder, exitcode.REFUSED, (annotations,), text, error=_line(error))
    except ReconcilerError as error:
        code = exitcode.REFUSED if isinstance(error, PolicyError) else exitcode.FAILED
        text = _report_failure(request, stem, options, [reason_of(error)], "inputs")
        return Review(change.folder, code, (annotations,), text, error=_line(error))


def _line(error: ReconcilerError) -> str:
    return " ".join(str(error).split())


def _report_failure(
    request: FleetRequest,
    stem: str,
    options: ReviewRequest,
    reasons: Sequence[FailureReason],
    cause: Literal["files", "inputs"] = "files",
) -> str:
    """Write why a fleet has no plan, for its comment, and return it as Markdown.

    So the comment on an earlier commit does not stay with figures of other files.
    """
    from reconciler.adapters.git.revision import working_revision

    folder = request.path or "."
    revision = working_revision(folder)
    failure = PlanFailure(
        fleet=_fleet_name(request),
        folder=encodable(revision.path or ""),
        head=revision.head or "",
        cause=cause,
    )
    failure = with_reasons(failure, reasons)
    text = render_failure(failure)
    place = os.path.join(options.out, stem)
    _write(f"{place}.json", failure.to_json().decode())
    _write(f"{place}.md", text)
    return text


def _fleet_name(request: FleetRequest) -> str:
    """Return the name of a fleet whose files may be broken: their own, or else that of the base."""
    from reconciler.assembly.inputs import sources
    from reconciler.desired.fleet import Fleet, read_fleet

    fleets: list[Fleet] = []
    with suppress(ReconcilerError):
        files = sources.read_source(replace(request, is_emptied=True)).files
        fleets.append(read_fleet(files, any_class=True, allow_empty=True)[0])
    with suppress(ReconcilerError):
        base = sources.read_base(request)
        fleets += [base.fleet] if base is not None and base.fleet is not None else []
    for fleet in fleets:
        if isinstance(fleet.config.get("fleet"), str):
            return sources.settings_of(request, fleet).settings.fleet
    return sources.fleet_name(request)


def _request_of(change: FleetChange, options: ReviewRequest) -> FleetRequest:
    """Return the request for the plan of a fleet; the nodes of deleted NodePools may go."""
    from reconciler.assembly.comparison import emptied_request, pools_of_base

    request = FleetRequest(
        path=change.folder,
        base=change.base,
        base_path=change.base_path,
        is_removed=change.is_removed,
        snapshot=options.snapshot,
        snapshot_max_age=options.snapshot_max_age,
        settings=options.settings,
        is_in_ci=True,
    )
    if change.is_removed:
        return replace(request, allow_removal=pools_of_base(request))
    try:
        return emptied_request(request) or request
    except ReconcilerError:
        return request  # what is wrong with the folder is reported where it is validated


def _validate(fleet: FleetRequest, options: ReviewRequest) -> ValidationResult:
    request = ValidateRequest(
        path=fleet.path or ".",
        output="github" if options.is_github else "text",
        settings=options.settings,
        allow_empty=fleet.is_emptied,
        leaves_out=True,
    )
    return validate_fleet(request)


def _plan_fleet(request: FleetRequest, stem: str, options: ReviewRequest, findings: str) -> Review:
    from reconciler.assembly.inputs import planfile, policies
    from reconciler.cli.pullrequest.judged import judged_plan
    from reconciler.plan.render.html import render_html
    from reconciler.plan.render.markdown import render_markdown
    from reconciler.plan.render.summary import summary_of

    operator = policies.operator_policies(request, options.policies)
    plan, names, inputs = judged_plan(request, operator, Timings(), trace=options.trace)
    refused = policies.blocking_policies(plan, options.fail_on)
    pods = pods_at_fault(plan)
    is_refused = bool(refused) or bool(pods and policies.UNSCHEDULABLE in options.fail_on)
    markdown = render_markdown(plan)
    if options.is_github:
        findings = _github_annotations(plan)
    elif request.removes_nodes:
        findings = f"{inputs.diagnostics[0]}\n"
    place = os.path.join(options.out, stem)
    planfile.save(plan, f"{place}.json")
    _write(f"{place}.html", render_html(plan))
    _write(f"{place}.md", markdown)
    summary = summary_of(plan)
    return Review(
        request.path or ".",
        exitcode.REFUSED if is_refused else exitcode.DONE,
        (findings,),
        markdown,
        error="; ".join(
            f"policy {p.name} forbids this plan: {one_line(full_verdict_of(p))}" for p in refused
        ),
        file=f"{place}.json",
        headline=summary.text[0],
        per_month=summary.per_month if summary.kept_per_month is None else summary.kept_per_month,
        unschedulable=len(pods),
        policies=names,
    )


def _github_annotations(plan: Plan) -> str:
    """Return the findings at a place of a file or of weight; the comment has the other notes."""
    from reconciler.assembly.inputs import policies

    folder = "" if plan.revision.path in (None, ".") else plan.revision.path or ""
    found = [d for d in policies.diagnostics_of(plan) if d.place or d.severity != Severity.INFO]
    return render_github(found, folder)


def _write(path: str, text: str) -> None:
    write_file(path, text.encode(), remedy="pass another folder with --out")


@dataclass(frozen=True, slots=True)
class _Reviews:
    """The reviews of a run (``sweeps.evaluation.Evaluations``)."""

    options: ReviewRequest
    result = Review

    def evaluate(self, key: tuple[FleetChange, str]) -> Review:
        """Return the review of one fleet."""
        return review(*key, self.options)

    def address(self, key: tuple[FleetChange, str]) -> None:
        """Return None: a review is not cached."""


def review_all(changes: Sequence[FleetChange], options: ReviewRequest) -> list[Review]:
    """Review the fleets in this order, several at a time if there are several processors."""
    from reconciler.sweep.processes import InThisProcess, Processes

    stems = file_stems([f"{c.folder}-removed" if c.is_removed else c.folder for c in changes])
    jobs = options.jobs or os.cpu_count() or 1
    executor = Processes(jobs) if jobs > 1 else InThisProcess()
    keys = list(zip(changes, stems, strict=True))
    outcomes = dict(executor.outcomes(_Reviews(options), keys))
    return [outcomes[position].result() for position in range(len(changes))]


def misspelled(
    reviews: Sequence[Review], fleets: Sequence[str], fail_on: frozenset[str]
) -> UsageError | None:
    """Return the error for a name in ``--fail-on`` that no fleet of the job has a policy of.

    The policies of the fleets that were not planned are read only for a name that the others do not
    have. Nothing is reported if the policies of a fleet are not known.
    """
    from reconciler.assembly.inputs.policies import unknown_policy

    if not reviews or not all(review.file for review in reviews):
        return None
    names = {name for review in reviews for name in review.policies}
    if unknown_policy(fail_on, names) is None:
        return None
    planned = {review.fleet for review in reviews}
    try:
        names.update(*(_policies_of(folder) for folder in fleets if folder not in planned))
    except ReconcilerError:
        return None
    return unknown_policy(fail_on, sorted(names))


def _policies_of(folder: str) -> list[str]:
    """Return the names of the policies in the files of a fleet."""
    from reconciler.assembly.inputs import sources
    from reconciler.desired.fleet import read_fleet

    files = sources.read_source(FleetRequest(path=folder, is_emptied=True)).files
    fleet, _ = read_fleet(files, any_class=True, allow_empty=True)
    return [policy.name for policy in fleet.policies]
