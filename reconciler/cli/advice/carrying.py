"""Carries a proposal out: into the files of the fleet, or as a commit on a branch of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from reconciler.cli.advice.advising import Advised
from reconciler.cli.advice.changes import changed
from reconciler.cli.advice.result import Advice, AdviceReport
from reconciler.cli.initialization.writing import NewFile, write_new
from reconciler.cli.shared.fixing import replace_file
from reconciler.desired.fleet import SourceFile
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.text.nearest import did_you_mean
from reconciler.plan.render.wording import dollars, moment

Change = tuple[SourceFile | None, SourceFile]


def picked(report: AdviceReport, pick: str | None) -> Advice | None:
    """Return the proposal to carry out; None where there is none and none is named.

    Raises:
        UsageError: no proposal has the id ``pick``.
    """
    every = list(report.advice)
    if report.together is not None:
        every.insert(0, report.together)
    if pick is None:
        return every[0] if every else None
    found = next((one for one in every if one.id == pick), None)
    if found is None:
        known = [one.id for one in every]
        remedy = did_you_mean(pick, known, "use the id of a proposal") if known else ""
        raise UsageError(f'no proposal "{pick}" was found', where="--pick", remedy=remedy)
    return found


def changes_of(found: Advised, one: Advice) -> tuple[Change, ...]:
    """Return the files that a proposal changes, before and after."""
    return changed(found.files, found.proposals[one.id].verdict.files)


def has_uncommitted_changes(folder: str) -> bool:
    """Return whether files of the fleet differ from their commit; False outside a repository."""
    from reconciler.adapters.git.revision import working_revision

    return working_revision(folder).dirty


def confirms(folder: str) -> bool:
    """Ask whether to write over uncommitted changes; only ``yes`` does.

    Raises:
        UsageError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "files have changes that are not committed",
            where=folder,
            remedy="commit or stash them, or pass --auto-approve",
        )
    print(f"Files in {folder} have changes that are not committed. Only `yes` writes the proposal")
    print("on top of them: ", end="", flush=True)
    return sys.stdin.readline().strip() == "yes"


def write_changes(folder: str, changes: Sequence[Change]) -> None:
    """Write the files, all of them or none.

    Raises:
        UnreadableError: a file has changed since it was read, or cannot be written.
    """
    root = os.path.realpath(folder)
    done: list[Change] = []
    try:
        for old, new in changes:
            if old is None:
                write_new([NewFile(root, new.path, new.content)])
            else:
                replace_file(root, old, new.content)
            done.append((old, new))
    except BaseException:
        for old, new in reversed(done):
            with suppress(ReconcilerError, OSError):
                if old is None:
                    os.unlink(os.path.join(root, new.path))
                else:
                    replace_file(root, new, old.content)
        raise


def commit_changes(
    folder: str, branch: str, changes: Sequence[Change], report: AdviceReport, one: Advice
) -> str:
    """Commit the files on top of HEAD to a new branch, and return the commit's id.

    Raises:
        UsageError: the branch exists, or a file has changes that are not committed.
        UnreadableError: git refuses.
    """
    from reconciler.adapters.git.publishing import FileChange, commit_to_branch

    files = {
        new.path: FileChange(old.content if old is not None else None, new.content)
        for old, new in changes
    }
    return commit_to_branch(folder, branch, files, message_of(report, one))


def message_of(report: AdviceReport, one: Advice) -> str:
    """Return the message of the commit, with what the proposal rests on."""
    titles = {each.id: each.title for each in report.advice}
    before = report.base.per_month
    now, then = report.base.exposure, one.exposure
    lines = [
        one.title if len(one.parts) == 1 else f"Save {dollars(-one.per_month)} a month",
        "",
        f"The fleet at rest costs {dollars(before + one.per_month)} a month with this change,",
        f"{dollars(before)} without it ({one.percent:+.1f}%).",
    ]
    if len(one.parts) > 1:
        lines += ["", *(f"- {titles.get(part, part)}" for part in one.parts)]
    lines += [
        "",
        f"Nodes: {report.base.nodes} before, {one.nodes} after, {one.replaced} replaced.",
        f"Pods on spot nodes: {now.spot_percent:g}% before, {then.spot_percent:g}% after.",
        f"Zones with pods: {now.zones} before, {then.zones} after.",
    ]
    if one.backtest is not None:
        tested = one.backtest
        lines.append(
            f"Backtest: {dollars(tested.per_month, signed=True)} a month; p99 waiting "
            f"{tested.base.waiting_seconds.p99:g} s before, {tested.head.waiting_seconds.p99:g} s "
            "after."
        )
    lines += [f"Risk: {one.risk}.", *(f"- {risk}" for risk in one.risks)]
    lines += [f"Confidence: {one.confidence}.", *(f"- {reason}" for reason in one.reasons)]
    nodes = ", compared on new nodes" if report.new_nodes else ""
    lines += [
        "",
        f"Found by `reconciler advise` as of {moment(report.at)}, seed {report.seed}{nodes}.",
    ]
    return "\n".join(lines) + "\n"
