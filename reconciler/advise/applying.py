"""Applies a proposal: to the files of the fleet, or as a commit on a new branch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from reconciler.adapters.writing import refuse_links
from reconciler.advise.advising import AdviceResult
from reconciler.advise.changes import changed_files
from reconciler.advise.result import Advice, AdviceReport
from reconciler.assembly.inputs.fixing import replace_file
from reconciler.desired.fleet import SourceFile
from reconciler.initialization.writing import NewFile, write_new_files
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.text.money import format_percent_change, format_whole_dollars
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.times import format_time
from reconciler.model.text.visible import one_line

Change = tuple[SourceFile | None, SourceFile]


def pick_proposal(report: AdviceReport, pick: str | None) -> Advice | None:
    """Return the proposal to apply; None if there is none and none is named.

    Raises:
        UsageError: no proposal has the id ``pick``.
    """
    proposals = list(report.advice)
    if report.together is not None:
        proposals.insert(0, report.together)
    if pick is None:
        return proposals[0] if proposals else None
    found = next((one for one in proposals if one.id == pick), None)
    if found is None:
        known = [one.id for one in proposals]
        remedy = did_you_mean(pick, known, "use the id of a proposal") if known else ""
        raise UsageError(f'no proposal "{pick}" was found', where="--pick", remedy=remedy)
    return found


def changes_of(result: AdviceResult, proposal: Advice) -> tuple[Change, ...]:
    """Return the files that a proposal changes, before and after."""
    return changed_files(result.files, result.proposals[proposal.id].verdict.files)


def has_uncommitted_changes(folder: str) -> bool:
    """Return whether files of the fleet differ from their commit; False outside a repository."""
    from reconciler.adapters.git.revision import working_revision

    return working_revision(folder).dirty


def confirm_overwrite(folder: str) -> bool:
    """Ask whether to overwrite uncommitted changes; only ``yes`` confirms.

    Raises:
        UsageError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "files have uncommitted changes",
            where=folder,
            remedy="commit or stash them, or pass --auto-approve",
        )
    question = f"Files in {folder} have uncommitted changes. Only `yes` writes the proposal"
    sys.stdout.write(f"{question}\non top of them: ")
    sys.stdout.flush()
    return sys.stdin.readline().strip() == "yes"


def write_changes(folder: str, changes: Sequence[Change]) -> None:
    """Write the files, all of them or none.

    Raises:
        UnreadableError: a file has changed since it was read, or cannot be written.
    """
    refuse_links(folder)
    root = os.path.realpath(folder)
    done: list[Change] = []
    try:
        for old, new in changes:
            if old is None:
                write_new_files([NewFile(root, new.path, new.content)])
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


def expect_new_branch(folder: str, branch: str) -> None:
    """Refuse a branch that no proposal can be committed to, before the search for one.

    Raises:
        UsageError: ``folder`` is not in a repository, the branch exists or its name is invalid.
    """
    from reconciler.adapters.git import publishing

    publishing.expect_new_branch(folder, branch)


def commit_changes(
    folder: str, branch: str, changes: Sequence[Change], report: AdviceReport, proposal: Advice
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
    return commit_to_branch(folder, branch, files, commit_message(report, proposal))


def commit_message(report: AdviceReport, proposal: Advice) -> str:
    """Return the commit message, with the reasons for the proposal."""
    titles = {each.id: each.title for each in report.advice}
    before = report.base.per_month
    after = round(before) + round(proposal.per_month)  # which the amounts shown add up to
    percent = format_percent_change(proposal.percent, 1)
    now, then = report.base.exposure, proposal.exposure
    lines = [
        proposal.title
        if len(proposal.parts) == 1
        else f"Save {format_whole_dollars(-proposal.per_month)}/month",
        "",
        f"In steady state the fleet costs {format_whole_dollars(after)}/month",
        f"with this change, {format_whole_dollars(before)}/month without it ({percent}).",
    ]
    if len(proposal.parts) > 1:
        lines += ["", *(f"- {titles.get(part, part)}" for part in proposal.parts)]
    lines += [
        "",
        f"Nodes: {report.base.nodes} before, {proposal.nodes} after, {proposal.replaced} replaced.",
        f"Pods on spot nodes: {now.spot_percent:g}% before, {then.spot_percent:g}% after.",
        f"Zones with pods: {now.zones} before, {then.zones} after.",
    ]
    if proposal.backtest is not None:
        backtest = proposal.backtest
        lines.append(
            f"Backtest: {format_whole_dollars(backtest.per_month, signed=True)}/month; p99 waiting "
            f"{backtest.base.waiting_seconds.p99:g} s before, "
            f"{backtest.head.waiting_seconds.p99:g} s after."
        )
    lines += [f"Risk: {proposal.risk}.", *(f"- {risk}" for risk in proposal.risks)]
    lines += [
        f"Confidence: {proposal.confidence}.",
        *(f"- {reason}" for reason in proposal.reasons),
    ]
    nodes = ", compared on new nodes" if report.new_nodes else ""
    lines += [
        "",
        f"Found by `reconciler advise` as of {format_time(report.at)}, seed {report.seed}{nodes}.",
    ]
    return "\n".join(map(one_line, lines)) + "\n"
