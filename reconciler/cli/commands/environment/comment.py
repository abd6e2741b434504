"""``reconciler comment``: post plans on a pull request, one comment and one check for each fleet.

A comment is recognized by a hidden marker and edited, but only if the posting account has written
it. A plan from a job without secrets is rendered here from its JSON, so that only a plan can be
posted with it.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.cli.parser import inputs
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.options import add_options, argument, option, switch
from reconciler.render.layout import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.adapters.forge import CheckOutcome, Forge, ForgeApi
    from reconciler.cli.pullrequest.draft import Draft
    from reconciler.cli.pullrequest.event import CiEvent


SUBCOMMANDS: Final = {
    "github": "comment on a pull request of GitHub",
    "gitlab": "comment on a merge request of GitLab",
}

_TOKENS: Final = {
    "github": ("GITHUB_TOKEN", "GH_TOKEN"),
    "gitlab": ("GITLAB_TOKEN",),
}
_URLS: Final = {"github": "https://api.github.com", "gitlab": "https://gitlab.com/api/v4"}
_FILES_MAX: Final = 50
_MARKDOWN_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentRequest:
    """The plans to post, and the pull request; what is None is taken from the CI service."""

    forge: str
    files: tuple[str, ...] = argument(
        "PLAN",
        "file from `plan -o json` or `plan --out`, of Markdown, or a folder from `ci` (- for "
        "stdin)",
        nargs="+",
    )
    repository: str | None = option(
        "--repository", "NAME", "OWNER/NAME (default: that of the CI job)"
    )
    number: int | None = option(
        "--pull-request", "N", "its number (default: that of the CI job)", type=int
    )
    token_variable: str | None = None
    api_url: str | None = option(
        "--api-url", "URL", "API of the service (default: that of the CI job)"
    )
    artifact_url: str | None = option(
        "--artifact-url", "URL", "where the complete plan is (default: the CI job)"
    )
    author: str = option(
        "--author", "LOGIN", "account that posts (default: ask the API)", default=""
    )
    fleet: str | None = option(
        "--fleet", "NAME", "fleet of a Markdown file (default: the file's name)"
    )
    with_check: bool = switch(
        "--check", "also report the first line of each plan as a check of the newest commit"
    )
    with_summary: bool = switch("--summary", "also write to the summary of the GitHub job")


def add_subcommand(parser: argparse.ArgumentParser, subcommand: str) -> None:
    """Declare the plans to post, and the pull request."""
    add_options(CommentRequest, parser, then={"token_variable": partial(_add_token, subcommand)})


def _add_token(subcommand: str, parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-env",
        dest="token_variable",
        metavar="VARIABLE",
        help=f"variable with the token (default: {_TOKENS[subcommand][0]})",
    )


def request_of(args: argparse.Namespace) -> CommentRequest:
    """Return the request in the arguments."""
    return inputs.request_from(CommentRequest, args, forge=args.subcommand)


def run(request: CommentRequest) -> int:
    """Post or edit the comments; nothing is posted if one of the plans cannot be read.

    Raises:
        UsageError: the repository, the pull request or the token is unknown, or a
            check has no title.
        ForgeError: the API refused.
    """
    from reconciler.cli.pullrequest.event import github_event, gitlab_event

    event = (github_event if request.forge == "github" else gitlab_event)(os.environ)
    files = [file for path in request.files for file in _plan_files(path)]
    _expect_within_limit(len(files))
    if not files:
        print("No plans; nothing was posted.")
        return exitcode.DONE
    drafts = [_read_draft(path, request, event) for path in files]
    if request.with_check:
        _expect_titles(drafts)
    with closing(_api(request, event)) as api:
        forge = _forge(request, event, api)
        if forge is None:
            print("No open pull request has this head any more; nothing was posted.")
        else:
            _post_comments(drafts, forge, request, event)
    return exitcode.DONE


def _plan_files(path: str) -> list[str]:
    """Return the plans in a folder, or the path itself; a folder may have none or be missing.

    Symbolic links in a folder are ignored: an artifact is not trusted.
    """
    if not path.endswith("/") and not os.path.isdir(path):
        return [path]
    try:
        with os.scandir(path) as found:
            plans = [e for e in found if e.name.endswith(".json")]
            return sorted(e.path for e in plans if e.is_file(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _expect_within_limit(count: int) -> None:
    if count > _FILES_MAX:
        message = f"{count} plans; at most {_FILES_MAX} are posted on one pull request"
        raise UsageError(message, where="PLAN", remedy="post the plans of fewer fleets")


def _expect_titles(drafts: Sequence[Draft]) -> None:
    if not all(draft.title for draft in drafts):
        remedy = "pass plans in JSON, or leave out --check"
        raise UsageError("a plan in Markdown has no title", where="--check", remedy=remedy)


def _post_comments(
    drafts: Sequence[Draft], forge: Forge, request: CommentRequest, event: CiEvent
) -> None:
    """Post the comments and checks, and report each to the user and to the job."""
    from reconciler.adapters.forge import post_comment
    from reconciler.cli.pullrequest.draft import total_sentence
    from reconciler.cli.pullrequest.event import append_to_file, set_output

    artifact, total = request.artifact_url or event.run_url, total_sentence(drafts)
    urls = []
    for draft in drafts:

        def body(previous: str, draft: Draft = draft) -> str:
            return draft.body(forge.characters_max, artifact, previous, total)

        posted = post_comment(forge, draft.marker, body)
        urls.append(posted.url)
        print(f"Comment {posted.outcome}{f': {posted.url}' if posted.url else ''}")
        if request.with_summary:
            append_to_file("GITHUB_STEP_SUMMARY", draft.text + "\n")
    set_output("comment-urls", " ".join(urls))
    if request.with_check:
        _report_checks(drafts, forge, request, event)


def _report_checks(
    drafts: Sequence[Draft], forge: Forge, request: CommentRequest, event: CiEvent
) -> None:
    """Report each plan as a check of the head; the comments are posted already.

    Raises:
        UsageError: the head is not known.
        ForgeError: the API refused.
    """
    from reconciler.adapters.forge import TITLE_MAX, CommitCheck
    from reconciler.cli.pullrequest.draft import check_name_of, shorten

    commit = (event.commit if _is_of_event(request, event) else "") or forge.head()
    if not commit:
        raise UsageError("the head of the pull request is not known", where="--check")
    url = request.artifact_url or event.run_url
    for draft in drafts:
        check = CommitCheck(
            check_name_of(draft, drafts),
            truncate(draft.title, TITLE_MAX),
            _check_outcome(draft, event),
            shorten(draft.text, forge.characters_max - 1, ""),
            url,
        )
        forge.report(check, commit)
        print(f"Check {check.outcome}: {check.title}")


def _check_outcome(draft: Draft, event: CiEvent) -> CheckOutcome:
    """Return the outcome of a check: that of the run which planned."""
    from reconciler.adapters.forge import CheckOutcome
    from reconciler.cli.pullrequest.draft import PlanVerdict

    if event.head is not None and event.head.get("conclusion", "success") != "success":
        return CheckOutcome.FAILURE
    match draft.verdict:
        case PlanVerdict.ALLOWED:
            return CheckOutcome.SUCCESS
        case PlanVerdict.NEUTRAL:
            return CheckOutcome.NEUTRAL
        case PlanVerdict.FORBIDDEN:
            return CheckOutcome.FAILURE


def _read_draft(path: str, request: CommentRequest, event: CiEvent) -> Draft:
    """Return the comment of a file.

    Raises:
        UnreadableError: it cannot be read, or is not a plan.
        UsageError: it is Markdown of an untrusted job.
    """
    from reconciler.assembly.inputs.files import read_start
    from reconciler.cli.pullrequest.draft import Draft, draft_of_plan, marker_of
    from reconciler.cli.pullrequest.failure import draft_of_failure, is_failure, read_failure
    from reconciler.plan.approval import SIZE_MAX, read_saved_plan

    content = read_start(path, SIZE_MAX)
    if content.lstrip()[:1] == b"{":
        if is_failure(content):
            return draft_of_failure(read_failure(content, "stdin" if path == "-" else path))
        return draft_of_plan(read_saved_plan(content, "stdin" if path == "-" else path))
    if event.head is not None:
        raise UsageError(
            "is not a plan in JSON; Markdown of a job without secrets could contain anything",
            where=path,
            remedy="pass what `plan -o json` printed",
        )
    if len(content) > _MARKDOWN_MAX:
        message = f"has more than {_MARKDOWN_MAX // 2**20} MiB of Markdown"
        raise UnreadableError(message, where=path, remedy="pass what `plan -o markdown` printed")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError("is not UTF-8", where=path, remedy="pass Markdown or JSON") from error
    if not text.strip():
        raise UnreadableError("is empty", where=path, remedy="pass what `plan -o json` printed")
    name = request.fleet or os.path.splitext(os.path.basename(path))[0]
    return Draft(marker_of(name), text)


def _api(request: CommentRequest, event: CiEvent) -> ForgeApi:
    """Return the API of the service; nothing connects before the first request.

    Raises:
        UsageError: there is no token, or the client is not installed.
    """
    try:
        from reconciler.adapters import forge
    except ImportError as error:
        from reconciler.installation import install_remedy

        raise UsageError(
            "the HTTP client is not installed",
            where="comment",
            remedy=install_remedy("comment"),
        ) from error
    is_github = request.forge == "github"
    return forge.ForgeApi(
        request.api_url or event.api_url or _URLS[request.forge],
        _headers(_token(request), is_github=is_github),
        forge.GITHUB_REMEDIES if is_github else forge.GITLAB_REMEDIES,
    )


def _forge(request: CommentRequest, event: CiEvent, api: ForgeApi) -> Forge | None:
    """Return the pull request; None if its head is no longer that of the run.

    Raises:
        UsageError: it is not known.
    """
    from reconciler.adapters import forge

    repository = request.repository or event.repository
    if not repository:
        raise UsageError("the repository is not known", where="--repository", remedy="pass it")
    number = request.number if request.number is not None else event.number
    if number is None and event.head is not None:
        number = forge.find_pull_request(api, repository, event.head)
        if number is None:
            return None
    if number is None or number < 1:
        remedy = "pass its number, or run the command in a job of a pull request"
        raise UsageError("the pull request is not known", where="--pull-request", remedy=remedy)
    if request.forge == "github":
        return forge.GitHub(api, repository, number, request.author)
    pipeline = event.pipeline if _is_of_event(request, event) else ""
    return forge.GitLab(api, repository, number, request.author, pipeline)


def _is_of_event(request: CommentRequest, event: CiEvent) -> bool:
    """Return whether the pull request is the one that the job runs for."""
    same_repository = request.repository in (None, event.repository)
    return same_repository and request.number in (None, event.number)


def _token(request: CommentRequest) -> str:
    names = (request.token_variable,) if request.token_variable else _TOKENS[request.forge]
    for name in names:
        value = os.environ.get(name, "").strip()
        if value:
            return value
    what = f"no token: {' and '.join(names)} {'is' if len(names) == 1 else 'are'} not set"
    remedy = "set it in the environment of the job, or name another variable with --token-env"
    raise UsageError(what, where="--token-env", remedy=remedy)


def _headers(token: str, *, is_github: bool) -> dict[str, str]:
    if is_github:
        return {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "reconciler",
        }
    return {"PRIVATE-TOKEN": token, "User-Agent": "reconciler"}
