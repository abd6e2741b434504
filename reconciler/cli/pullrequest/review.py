"""Plans the fleets that a pull request changes: annotations, and plans in every form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from reconciler.cli.shared import exitcode
from reconciler.cli.shared.request import SNAPSHOT_MAX_AGE
from reconciler.model.errors import InvalidFleetError, PolicyError, ReconcilerError, UsageError
from reconciler.source.resource import CONFIG_FILES

FLEETS_MAX: Final = 50
_FOLDERS_MAX: Final = 20_000
_DEPTH_MAX: Final = 12
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor"})


class FleetChange(NamedTuple):
    """A fleet to plan. ``base`` is None if the fleet is new, or without a comparison."""

    folder: str
    base: str | None


def fleets_below(folder: str) -> list[str]:
    """Return the folders with a ``reconciler.yaml``, in order; a fleet contains no other.

    Raises:
        UsageError: there are more than ``FLEETS_MAX``.
    """
    found = sorted(_find_fleets(folder))
    if len(found) > FLEETS_MAX:
        message = f"{len(found)} fleets; at most {FLEETS_MAX} are planned at once"
        raise UsageError(message, where=folder, remedy="name the fleets to plan")
    return found


def _find_fleets(folder: str) -> Iterator[str]:
    seen = 0
    top = folder.rstrip(os.sep).count(os.sep)
    for path, folders, files in os.walk(folder):
        seen += 1
        if seen > _FOLDERS_MAX:
            remedy = "name the fleets to plan"
            raise UsageError(f"more than {_FOLDERS_MAX:,} folders", where=folder, remedy=remedy)
        if any(name in files for name in CONFIG_FILES):
            folders.clear()
            yield os.path.normpath(path)
            continue
        remaining = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        folders[:] = remaining if path.count(os.sep) - top < _DEPTH_MAX else []


def changed_fleets(fleets: Sequence[str], base: str | None) -> list[FleetChange]:
    """Return the fleets whose files differ from those of ``base``; all of them without one.

    A fleet whose folder was removed is left out.

    Raises:
        UsageError: ``base`` is not a commit of the repository, or a folder never existed.
    """
    missing = next((fleet for fleet in fleets if not os.path.isdir(fleet)), None)
    if missing is not None and not (base and _existed_in_base(missing, base)):
        remedy = "pass the folder of a fleet"
        raise UsageError(f'folder "{missing}" does not exist', where="FLEET", remedy=remedy)
    existing = [fleet for fleet in fleets if os.path.isdir(fleet)]
    if base is None:
        return [FleetChange(fleet, None) for fleet in existing]
    from reconciler.adapters.git.repository import find_repository
    from reconciler.adapters.git.revision import changed_files

    if not existing:
        return []
    repository = find_repository(existing[0])
    top = os.path.realpath(repository.top) if repository is not None else os.path.realpath(".")
    below = {fleet: os.path.relpath(os.path.realpath(fleet), top) for fleet in existing}
    folders = tuple(path.replace(os.sep, "/") for path in below.values())
    changes = changed_files(existing[0], base, folders)
    return [
        FleetChange(fleet, changes.base if folder in changes.known else None)
        for fleet, folder in zip(existing, folders, strict=True)
        if any(folder == "." or path.startswith(f"{folder}/") for path in changes.paths)
    ]


def _existed_in_base(fleet: str, base: str) -> bool:
    """Return whether the base has a folder that the head has removed."""
    from reconciler.adapters.git.repository import find_repository
    from reconciler.adapters.git.revision import changed_files

    repository = find_repository(".")
    if repository is None:
        return False
    folder = os.path.relpath(os.path.realpath(fleet), os.path.realpath(repository.top))
    folder = folder.replace(os.sep, "/")
    return folder in changed_files(".", base, (folder,)).known


_SLUG: Final = re.compile(r"[^A-Za-z0-9._-]+")


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


def review(change: FleetChange, options: ReviewOptions) -> Review:
    """Validate and plan one fleet; a problem of the fleet is in the result, not an exception."""
    findings, is_valid = _validate(change.folder, options)
    if not is_valid:
        heading = f"### {_markdown_code(change.folder)}"
        text = f"{heading}\n\nThe fleet is not valid; the annotations show why.\n"
        return Review(change.folder, exitcode.REFUSED, (findings,), text)
    try:
        return _plan_fleet(change, options, findings)
    except ReconcilerError as error:
        is_refused = isinstance(error, InvalidFleetError | PolicyError)
        code = exitcode.REFUSED if is_refused else exitcode.FAILED
        words = " ".join(str(error).split())
        text = f"### {_markdown_code(change.folder)}\n\nNo plan: {_markdown_code(words)}\n"
        return Review(change.folder, code, (findings,), text, error=words)


def _validate(folder: str, options: ReviewOptions) -> tuple[str, bool]:
    from reconciler.cli.validation import ValidateRequest, validate_fleet

    request = ValidateRequest(
        path=folder, output="github" if options.is_github else "text", settings=options.settings
    )
    return validate_fleet(request)


def _plan_fleet(change: FleetChange, options: ReviewOptions, findings: str) -> Review:
    from reconciler.cli.backtest.change import with_backtest
    from reconciler.cli.output.findings import render_github
    from reconciler.cli.planinputs import read_inputs
    from reconciler.cli.shared import planfile, policies
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.shared.timings import Timings
    from reconciler.plan.planning import plan_of
    from reconciler.plan.render.html import render_html
    from reconciler.plan.render.markdown import render_markdown
    from reconciler.plan.render.summary import unschedulable_pods

    request = FleetRequest(
        path=change.folder,
        base=change.base,
        snapshot=options.snapshot,
        snapshot_max_age=options.snapshot_max_age,
        settings=options.settings,
    )
    timings = Timings(lambda _: None)
    operator = policies.operator_policies(request, options.policies)
    inputs = read_inputs(request, timings)
    rules = policies.policies_of(operator, inputs)
    plan = plan_of(inputs, timings)
    if options.trace is not None and change.base is not None:
        plan = with_backtest(plan, request, options.trace, timings)
    plan = policies.judge(plan, rules)
    refused = policies.blocking_policies(plan, options.fail_on)
    pods = unschedulable_pods(plan)
    is_refused = bool(refused) or bool(pods and policies.UNSCHEDULABLE in options.fail_on)
    markdown = render_markdown(plan)
    annotations = (findings,)
    if options.is_github:
        folder = "" if plan.revision.path in (None, ".") else plan.revision.path or ""
        annotations = (render_github(policies.diagnostics_of(plan), folder),)
    stem = os.path.join(options.out, _SLUG.sub("-", change.folder).strip("-.") or "fleet")
    planfile.save(plan, f"{stem}.json")
    _write(f"{stem}.html", render_html(plan))
    _write(f"{stem}.md", markdown)
    return Review(
        change.folder,
        exitcode.REFUSED if is_refused else exitcode.DONE,
        annotations,
        markdown,
        error="; ".join(f"policy {p.name} forbids this plan" for p in refused),
        file=f"{stem}.json",
        per_month=plan.at_rest.per_month if plan.at_rest is not None else None,
        unschedulable=len(pods),
    )


def _write(path: str, text: str) -> None:
    from reconciler.model.errors import UnreadableError

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise UnreadableError(why, where=path, remedy="pass another folder with --out") from error


def _markdown_code(text: str) -> str:
    from reconciler.model.text.visible import markdown_code

    return markdown_code(text[:500])


@dataclass(frozen=True, slots=True)
class _Reviews:
    """The reviews of a run (``sweeps.evaluation.Evaluations``)."""

    options: ReviewOptions
    result = Review

    def evaluate(self, change: FleetChange) -> Review:
        """Return the review of one fleet."""
        return review(change, self.options)

    def address(self, change: FleetChange) -> None:
        """Return None: a review is not cached."""


def review_all(changes: Sequence[FleetChange], options: ReviewOptions, jobs: int) -> list[Review]:
    """Review the fleets in this order, several at a time if there are several processors."""
    from reconciler.cli.sweeps.processes import InThisProcess, Processes

    executor = Processes(jobs) if jobs > 1 else InThisProcess()
    outcomes = dict(executor.outcomes(_Reviews(options), changes))
    return [outcomes[position].result() for position in range(len(changes))]
