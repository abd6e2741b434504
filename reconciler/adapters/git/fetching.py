"""Clones and fetches with GitPython, in a process of its own.

GitPython gives its own environment to git. So the process that runs this module has the variables
that are written for git (``processes.start``), starts in an empty folder, and imports nothing from
a checkout. It works only on clones whose configuration is written here, never on a repository of
somebody else (decision 12).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

from git import Git, Repo
from git.cmd import handle_process_output
from git.exc import GitCommandError, GitError
from git.util import RemoteProgress

from reconciler.adapters.git.command import SETTINGS
from reconciler.adapters.git.fetchmessages import FetchReport, FetchRequest
from reconciler.model.text.identifiers import short_commit

REPORTED_AFTER: Final = timedelta(seconds=10)
"""How long a fetch runs before its progress is reported, and between two reports."""
COMMITS_MAX: Final = 100
"""How many new commits are counted."""
_FORMS: Final = ("sha1", "sha256")
_STAGES: Final = {
    RemoteProgress.COUNTING: "counting objects",
    RemoteProgress.COMPRESSING: "compressing objects",
    RemoteProgress.RECEIVING: "receiving objects",
    RemoteProgress.RESOLVING: "resolving deltas",
    RemoteProgress.FINDING_SOURCES: "finding sources",
    RemoteProgress.CHECKING_OUT: "checking out files",
}


def main() -> int:
    """Carry out the request that is the only argument, and print reports as lines of JSON.

    A failure is explained on standard error, in the words of git.
    """
    request = FetchRequest(**json.loads(sys.argv[1]))
    try:
        _fetch_or_create(request)
    except GitCommandError as error:
        sys.stderr.write(_message_of(error))
        return 1
    except (GitError, OSError) as error:
        sys.stderr.write(f"fatal: {error}")
        return 1
    return 0


def _message_of(error: GitCommandError) -> str:
    """Return what git itself printed."""
    text = error.stderr.strip()
    return text.removeprefix("stderr:").strip().strip("'") or f"fatal: {error}"


def _fetch_or_create(request: FetchRequest) -> None:
    if Path(request.place).is_dir():
        _fetch(request, is_new=False)
        return
    for form in _FORMS:
        _git(request).init("--quiet", "--bare", "--template=", f"--object-format={form}")
        try:
            _fetch(request, is_new=True)
        except GitCommandError as error:
            if form == _FORMS[-1] or "mismatched algorithms" not in _message_of(error):
                raise
            shutil.rmtree(request.place)
        else:
            return


def _git(request: FetchRequest) -> Git:
    git = Git()
    git.set_persistent_git_options(git_dir=request.place, c=list(SETTINGS))
    return git


def _fetch(request: FetchRequest, *, is_new: bool) -> None:
    Git.check_unsafe_protocols(request.target)
    git, progress = _git(request), FetchProgress(_print_report)
    before = "" if is_new or not request.ref else _commit_named(request, request.ref)
    process = git.fetch(
        *("--progress", "--prune", "--no-tags", "--no-recurse-submodules", "--force"),
        *("--no-write-fetch-head", "--", request.target, *request.refspecs),
        as_process=True,
        with_stdout=False,
        universal_newlines=True,
    )
    handle_process_output(process, None, progress.new_message_handler(), decode_streams=False)
    process.wait(stderr="\n".join((*progress.error_lines, *progress.other_lines)))
    if before:
        _report_commits(request, before)


class FetchProgress(RemoteProgress):
    """Reports each stage of a fetch, and how far it is, every ten seconds."""

    def __init__(
        self, report: Callable[[FetchReport], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._report = report
        self._clock = clock
        self._reported_at = clock()

    def update(
        self,
        op_code: int,
        cur_count: str | float,
        max_count: str | float | None = None,
        message: str = "",
    ) -> None:
        """Report the stage, unless a report was made less than ten seconds ago."""
        del message
        now = self._clock()
        if now - self._reported_at < REPORTED_AFTER.total_seconds():
            return
        self._reported_at = now
        stage = _STAGES.get(op_code & self.OP_MASK, "")
        self._report(FetchReport(stage, int(float(cur_count)), int(float(max_count or 0))))


def _report_commits(request: FetchRequest, before: str) -> None:
    """Report the commits of the wanted ref that are new, the newest first."""
    after = _commit_named(request, request.ref)
    if not after or after == before:
        return
    repository = Repo(request.place)
    found = list(repository.iter_commits(f"{before}..{after}", max_count=COMMITS_MAX))
    subjects = [f"{short_commit(c.hexsha)} {c.author.name}: {c.summary!s}" for c in found[:3]]
    _print_report(FetchReport(commits=len(found), subjects=subjects))


def _commit_named(request: FetchRequest, name: str) -> str:
    """Return the id of a commit of the clone, empty if the clone has none of that name."""
    try:
        return Repo(request.place).commit(name).hexsha
    except (GitError, ValueError, OSError):
        return ""  # the first fetch, a forced push, or a repository with SHA-256


def _print_report(report: FetchReport) -> None:
    sys.stdout.write(f"{json.dumps(report._asdict())}\n")
    sys.stdout.flush()
