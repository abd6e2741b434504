"""Plans the fleets that a pull request changes: annotations, and plans in every form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.assembly.inputs.request import SNAPSHOT_MAX_AGE
from reconciler.cli.pullrequest.fleets import FleetChange, file_stems
from reconciler.model.errors import InvalidFleetError, PolicyError, ReconcilerError

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import FleetRequest


@dataclass(frozen=True, slots=True)
class Review:
    """The outcome for one fleet.

    ``annotations`` are printed as they are; ``markdown`` goes into the summary of the job.
    ``file`` is the plan in JSON, empty if there is none. ``per_month`` is None without a base to
    compare with.
    """

    fleet: str
    code: int
    annotations: tuple[str, ...]
    markdown: str
    error: str = ""
    file: str = ""
    per_month: float | None = None
    unschedulable: int = 0


@dataclass(frozen=True, slots=True)
class ReviewOptions:
    """What all fleets of a run share; ``out`` is the folder for the files of the plans.

    ``trace`` is a file with a workload that is replayed with and without the change of each fleet
    that the base has.
    """

    out: str
    snapshot: str | None
    settings: tuple[str, ...]
    policies: tuple[str, ...]
    fail_on: frozenset[str]
    is_github: bool
    snapshot_max_age: timedelta = SNAPSHOT_MAX_AGE
    trace: str | None = None


def review(change: FleetChange, stem: str, options: ReviewOptions) -> Review:
    """Validate and plan one fleet; a problem of the fleet is in the result, not an exception.

    ``stem`` is the name of its files, without the ending.
    """
    found = _review(change, stem, options)
    if not change.problem:
        return found
    code = found.code if found.code == exitcode.FAILED else exitcode.REFUSED
    error = "; ".join(filter(None, (change.problem, found.error)))
    return replace(found, code=code, error=error)


def _review(change: FleetChange, stem: str, options: ReviewOptions) -> Review:
    request = _request_of(change, options)
    findings, is_valid = ("", True) if change.is_removed else _validate(request, options)
    if not is_valid:
        heading = f"### {_markdown_code(change.folder)}"
        text = f"{heading}\n\nThe fleet is not valid; the annotations show why.\n"
        return Review(change.folder, exitcode.REFUSED, (findings,), text)
    try:
        return _plan_fleet(request, stem, options, findings)
    except ReconcilerError as error:
        is_refused = isinstance(error, InvalidFleetError | PolicyError)
        code = exitcode.REFUSED if is_refused else exitcode.FAILED
        words = " ".join(str(error).split())
        text = f"### {_markdown_code(change.folder)}\n\nNo plan: {_markdown_code(words)}\n"
        return Review(change.folder, code, (findings,), text, error=words)


def _request_of(change: FleetChange, options: ReviewOptions) -> FleetRequest:
    """Return the request for the plan of a fleet; the nodes of deleted NodePools may go."""
    from reconciler.assembly.comparison import deleted_pools, emptied_request
    from reconciler.assembly.inputs.request import FleetRequest

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
        return replace(request, allow_removal=deleted_pools(request))
    try:
        return emptied_request(request) or request
    except ReconcilerError:
        return request  # what is wrong with the folder is reported where it is validated


def _validate(fleet: FleetRequest, options: ReviewOptions) -> tuple[str, bool]:
    from reconciler.cli.validation import ValidateRequest, validate_fleet

    request = ValidateRequest(
        path=fleet.path or ".",
        output="github" if options.is_github else "text",
        settings=options.settings,
        allow_empty=fleet.is_emptied,
    )
    return validate_fleet(request)


def _plan_fleet(request: FleetRequest, stem: str, options: ReviewOptions, findings: str) -> Review:
    import msgspec

    from reconciler.assembly.inputs import planfile, policies
    from reconciler.assembly.inputs.timings import Timings, current_time
    from reconciler.backtest.change import with_backtest
    from reconciler.cli.output.findings import render_github
    from reconciler.plan.planning import plan_of
    from reconciler.plan.render.html import render_html
    from reconciler.plan.render.markdown import render_markdown
    from reconciler.plan.render.summary import summary_of
    from reconciler.plan.render.unplaced import pods_at_fault
    from reconciler.simulate.planinputs import read_inputs

    timings = Timings(lambda _: None)
    operator = policies.operator_policies(request, options.policies)
    inputs = read_inputs(request, timings)
    rules = policies.policies_of(operator, inputs)
    plan = plan_of(msgspec.structs.replace(inputs, finds_steady_state=True), timings)
    if options.trace is not None and request.base is not None:
        plan = with_backtest(plan, request, options.trace, timings)
    plan = policies.judge(plan, rules, current_time(request.now))
    refused = policies.blocking_policies(plan, options.fail_on)
    pods = pods_at_fault(plan)
    is_refused = bool(refused) or bool(pods and policies.UNSCHEDULABLE in options.fail_on)
    markdown = render_markdown(plan)
    annotations = (findings,)
    if request.removes_nodes and not options.is_github:
        annotations = (f"{inputs.diagnostics[0]}\n",)
    if options.is_github:
        folder = "" if plan.revision.path in (None, ".") else plan.revision.path or ""
        annotations = (render_github(policies.diagnostics_of(plan), folder),)
    place = os.path.join(options.out, stem)
    planfile.save(plan, f"{place}.json")
    _write(f"{place}.html", render_html(plan))
    _write(f"{place}.md", markdown)
    return Review(
        request.path or ".",
        exitcode.REFUSED if is_refused else exitcode.DONE,
        annotations,
        markdown,
        error="; ".join(f"policy {p.name} forbids this plan" for p in refused),
        file=f"{place}.json",
        per_month=summary_of(plan).per_month,
        unschedulable=len(pods),
    )


def _write(path: str, text: str) -> None:
    from reconciler.adapters.writing import write_file

    write_file(path, text.encode(), remedy="pass another folder with --out")


def _markdown_code(text: str) -> str:
    from reconciler.model.text.visible import markdown_code

    return markdown_code(text[:500])


@dataclass(frozen=True, slots=True)
class _Reviews:
    """The reviews of a run (``sweeps.evaluation.Evaluations``)."""

    options: ReviewOptions
    result = Review

    def evaluate(self, key: tuple[FleetChange, str]) -> Review:
        """Return the review of one fleet."""
        return review(*key, self.options)

    def address(self, key: tuple[FleetChange, str]) -> None:
        """Return None: a review is not cached."""


def review_all(changes: Sequence[FleetChange], options: ReviewOptions, jobs: int) -> list[Review]:
    """Review the fleets in this order, several at a time if there are several processors."""
    from reconciler.sweep.processes import InThisProcess, Processes

    stems = file_stems([f"{c.folder}-removed" if c.is_removed else c.folder for c in changes])
    executor = Processes(jobs) if jobs > 1 else InThisProcess()
    keys = list(zip(changes, stems, strict=True))
    outcomes = dict(executor.outcomes(_Reviews(options), keys))
    return [outcomes[position].result() for position in range(len(changes))]
