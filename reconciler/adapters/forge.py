"""Comments and checks on pull requests through the REST API of a forge (GitHub, GitLab).

There is one comment for each marker. Our own comment is edited; anybody else's is left alone. A
check is attached to a commit, as a check run of GitHub or a commit status of GitLab. The token goes
to one host only, and waiting is bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from reconciler.adapters.http import HttpClient, HttpError, Reply, ReplyLimits, Retries, url_problem
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.model.text.identifiers import commit_or_empty, number_or_empty
from reconciler.source.schema import value_at

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
PAGE: Final = 100

_PAGES_MAX: Final = 100
_LIMITS: Final = ReplyLimits(32 * 2**20, connect_s=30, read_s=30, total_s=120)
_RETRIES: Final = Retries(
    4, statuses=range(500, 600), pause_max_s=float("inf"), limited_s=60, total_s=120
)
_CREATION_RETRIES: Final = replace(_RETRIES, statuses=(), repeats_unanswered=False)
_REPEAT: Final = "run the command again; it edits what it posted"

GITHUB_MAX: Final = 65_536
GITLAB_MAX: Final = 1_000_000
"""How many characters a comment may have."""

ACTIONS_BOT: Final = "github-actions[bot]"

TITLE_MAX: Final = 255
"""How many characters the title of a check may have, on GitHub and on GitLab."""
_UNREADABLE: Final = "check --repository and --pull-request, and that the token may read them"
GITHUB_REMEDIES: Final = {
    401: "the token is not valid; pass a new one",
    403: "give the job `permissions: pull-requests: write`, and `checks: write` for --check; a "
    "pull request from a fork needs the two workflows of docs/pull-requests.md",
    404: _UNREADABLE,
}
"""What to do about a refusal of GitHub, by its status."""
GITLAB_REMEDIES: Final = {
    401: "the token is not valid, or is a job token, which may not comment",
    403: "use a project access token with the scope api and the role Reporter, or Developer for "
    "--check",
    404: _UNREADABLE,
}
"""What to do about a refusal of GitLab, by its status."""


class ForgeError(ReconcilerError):
    """The API refused a call or did not answer; ``status`` is that of HTTP, 0 without one."""

    def __init__(self, message: str, status: int, *, where: str, remedy: str = "") -> None:
        self.status = status
        super().__init__(message, where=where, remedy=remedy)


@dataclass
class ForgeApi:
    """One API below ``url``. ``headers`` carry the token.

    ``remedies`` are what a user can do about a status; ``wait`` passes seconds between attempts.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    remedies: Mapping[int, str]
    wait: Callable[[float], None] = time.sleep
    _client: HttpClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problem = url_problem(self.url, is_secret=True)
        if problem:
            raise UsageError(problem, where="--api-url", remedy="write https://HOST/PATH")
        headers = {**self.headers, "Content-Type": "application/json"}
        self._client = HttpClient(self.url, _LIMITS, headers)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> object:
        """Return the answer to a GET.

        Raises:
            ForgeError: the API refused, or did not answer in time.
        """
        return self._call("GET", path, query=query)

    def pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[JsonDict]:
        """Yield the items of a list, page after page.

        Raises:
            ForgeError: a page is refused, or the list does not end.
        """
        for number in range(1, _PAGES_MAX + 1):
            page = {**(query or {}), "per_page": str(PAGE), "page": str(number)}
            items = self.get(path, page)
            if not isinstance(items, list):
                raise ForgeError("the answer is not a list", 0, where=f"GET {path}")
            yield from (item for item in items if isinstance(item, dict))
            if len(items) < PAGE:
                return
        raise ForgeError(f"more than {_PAGES_MAX * PAGE} items", 0, where=f"GET {path}")

    def send(self, method: str, path: str, body: Mapping[str, object]) -> object:
        """Return the answer to a call that writes. A creation is not repeated without an answer.

        Raises:
            ForgeError: the API refused, or did not answer in time.
        """
        return self._call(method, path, body=body)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> object:
        where = f"{method} {path}"
        content = None if body is None else json.dumps(body).encode()
        retries = _CREATION_RETRIES if method == "POST" else _RETRIES
        try:
            reply = retries.run(
                lambda: self._client.send(method, path, query=query, body=content), self.wait
            )
        except HttpError as error:
            raise ForgeError(str(error), 0, where=where, remedy=_REPEAT) from error
        if not reply.is_success:
            raise self._response_error(reply, where)
        return _parse_content(reply.body, reply.status, where)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._client.close()

    def _response_error(self, reply: Reply, where: str) -> ForgeError:
        remedy = self.remedies.get(reply.status, "")
        pause = reply.requested_pause()
        if pause is not None and reply.is_rate_limit():
            remedy = f"the rate limit ends in {pause:.0f} s; run the command again then"
        message = f"HTTP {reply.status}: {self._error_message(reply)}"
        return ForgeError(message, reply.status, where=where, remedy=remedy)

    def _error_message(self, reply: Reply) -> str:
        """Return the error message of the API, in one line."""
        try:
            data: object = json.loads(reply.body)
        except (ValueError, RecursionError):
            data = reply.body.decode("utf-8", "replace")
        message = data.get("message") or data.get("error") if isinstance(data, dict) else data
        return self._client.quote(" ".join(str(message or reply.reason).split()))


def _parse_content(content: bytes, status: int, where: str) -> object:
    if not content:
        return None
    try:
        data: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ForgeError("the answer is not JSON", status, where=where) from error
    return data


class PostOutcome(StrEnum):
    """The outcome of a comment."""

    CREATED = "created"
    EDITED = "edited"
    UNCHANGED = "unchanged"


class PostedComment(NamedTuple):
    """The outcome of a comment, and its address in a browser, empty if unknown."""

    outcome: PostOutcome
    url: str


class Comment(NamedTuple):
    """A comment of the pull request; ``id`` is empty if it is not a number."""

    id: str
    author: str
    body: str
    url: str


class CheckOutcome(StrEnum):
    """The outcome of a check. A neutral one neither recommends nor forbids the change."""

    SUCCESS = "success"
    NEUTRAL = "neutral"
    FAILURE = "failure"


class CommitCheck(NamedTuple):
    """A check on a commit. ``title`` has at most ``TITLE_MAX`` characters, ``summary`` is Markdown.

    ``url`` is the address of the details, empty if unknown.
    """

    name: str
    title: str
    outcome: CheckOutcome
    summary: str
    url: str = ""


class Forge(Protocol):
    """The comments of one pull request, and the checks of its head."""

    characters_max: int

    def author(self) -> str:
        """Return the name under which comments are posted."""
        ...

    def comments(self) -> list[Comment]:
        """Return all comments, the oldest first."""
        ...

    def create(self, body: str) -> Comment:
        """Post a comment."""
        ...

    def edit(self, comment: Comment, body: str) -> Comment:
        """Replace the text of a comment."""
        ...

    def head(self) -> str:
        """Return the newest commit of the pull request, empty if the API does not name it."""
        ...

    def report(self, check: CommitCheck, commit: str) -> None:
        """Attach a check to a commit; it replaces the one of the same name."""
        ...


def post_comment(forge: Forge, marker: str, body: Callable[[str], str]) -> PostedComment:
    """Create or edit the comment that begins with ``marker``; ``body`` begins with it as well.

    ``body`` is called with the comment that is replaced, empty for a new one.

    Only comments of our own author count: a comment of somebody else that copies the marker is
    neither overwritten nor mistaken for ours.

    Raises:
        ForgeError: the API refused.
    """
    author = forge.author()
    if not author:
        remedy = "pass the name of the account that posts with --author"
        raise ForgeError("the API does not name the account", 0, where="GET /user", remedy=remedy)
    own_comments = [
        c
        for c in forge.comments()
        if c.id and c.author == author and c.body.lstrip().partition("\n")[0].strip() == marker
    ]
    if not own_comments:
        return PostedComment(PostOutcome.CREATED, forge.create(body("")).url)
    before = own_comments[0]
    text = body(before.body)
    if before.body.replace("\r\n", "\n").strip() == text.strip():
        return PostedComment(PostOutcome.UNCHANGED, before.url)
    try:
        return PostedComment(PostOutcome.EDITED, forge.edit(before, text).url)
    except ForgeError as error:
        if error.status != NOT_FOUND:
            raise
        return PostedComment(
            PostOutcome.CREATED, forge.create(text).url
        )  # it was deleted in between


@dataclass
class GitHub:
    """The comments of a pull request on GitHub. ``repository`` is ``OWNER/NAME``.

    ``own`` is the login of the token's owner, empty to ask the API for it.
    """

    api: ForgeApi
    repository: str
    number: int
    own: str = ""
    characters_max: int = GITHUB_MAX

    @property
    def _issues(self) -> str:
        return f"/repos/{quote(self.repository)}/issues"

    def author(self) -> str:
        """Return the login; a token of GitHub Actions may not ask who it is."""
        if self.own:
            return self.own
        try:
            user = self.api.get("/user")
        except ForgeError as error:
            if error.status != FORBIDDEN:
                raise
            return ACTIONS_BOT
        return as_text(as_mapping(user).get("login"))

    def comments(self) -> list[Comment]:
        return [self._comment(c) for c in self.api.pages(f"{self._issues}/{self.number}/comments")]

    def create(self, body: str) -> Comment:
        path = f"{self._issues}/{self.number}/comments"
        return self._comment(self.api.send("POST", path, {"body": body}))

    def edit(self, comment: Comment, body: str) -> Comment:
        path = f"{self._issues}/comments/{quote(comment.id)}"
        return self._comment(self.api.send("PATCH", path, {"body": body}))

    def head(self) -> str:
        found = self.api.get(f"/repos/{quote(self.repository)}/pulls/{self.number}")
        return commit_or_empty(value_at(found, ("head", "sha")))

    def report(self, check: CommitCheck, commit: str) -> None:
        run: dict[str, object] = {
            "name": check.name,
            "head_sha": commit,
            "status": "completed",
            "conclusion": check.outcome,
            "output": {"title": check.title, "summary": check.summary},
        }
        if check.url:
            run["details_url"] = check.url
        self.api.send("POST", f"/repos/{quote(self.repository)}/check-runs", run)

    @staticmethod
    def _comment(data: object) -> Comment:
        found = as_mapping(data)
        login = as_mapping(found.get("user")).get("login")
        return Comment(
            number_or_empty(found.get("id")),
            as_text(login),
            as_text(found.get("body")),
            as_text(found.get("html_url")),
        )


@dataclass
class GitLab:
    """The notes of a merge request on GitLab. ``project`` is its id or path.

    ``pipeline`` is the id of the pipeline that shows the checks, empty for the newest one.
    """

    api: ForgeApi
    project: str
    number: int
    own: str = ""
    pipeline: str = ""
    characters_max: int = GITLAB_MAX

    @property
    def _project(self) -> str:
        return f"/projects/{quote(self.project, safe='')}"

    @property
    def _notes(self) -> str:
        return f"{self._project}/merge_requests/{self.number}/notes"

    def author(self) -> str:
        if self.own:
            return self.own
        user = self.api.get("/user")
        return as_text(as_mapping(user).get("username"))

    def comments(self) -> list[Comment]:
        order = {"sort": "asc", "order_by": "created_at"}
        notes = self.api.pages(self._notes, order)
        return [self._comment(n) for n in notes if not n.get("system")]

    def create(self, body: str) -> Comment:
        return self._comment(self.api.send("POST", self._notes, {"body": body}))

    def edit(self, comment: Comment, body: str) -> Comment:
        path = f"{self._notes}/{quote(comment.id)}"
        return self._comment(self.api.send("PUT", path, {"body": body}))

    def head(self) -> str:
        found = self.api.get(f"{self._project}/merge_requests/{self.number}")
        return commit_or_empty(value_at(found, ("sha",)))

    def report(self, check: CommitCheck, commit: str) -> None:
        """Attach a commit status; GitLab has none that is neutral."""
        failed = check.outcome is CheckOutcome.FAILURE
        status: dict[str, object] = {
            "name": check.name,
            "state": "failed" if failed else "success",
            "description": check.title,
        }
        if check.url:
            status["target_url"] = check.url
        if self.pipeline:
            status["pipeline_id"] = int(self.pipeline)
        self.api.send("POST", f"{self._project}/statuses/{commit}", status)

    @staticmethod
    def _comment(data: object) -> Comment:
        found = as_mapping(data)
        name = as_mapping(found.get("author")).get("username")
        return Comment(
            number_or_empty(found.get("id")),
            as_text(name),
            as_text(found.get("body")),
            "",
        )


def find_pull_request(api: ForgeApi, repository: str, head: JsonDict) -> int | None:
    """Return the open pull request whose head is the commit that a workflow ran for.

    ``head`` is the ``workflow_run`` of GitHub's event, which the runner wrote. None if no open
    pull request has that head any more: a newer commit was pushed, or it was closed.
    """
    owner = as_mapping(as_mapping(head.get("head_repository")).get("owner"))
    login = as_text(owner.get("login"))
    branch, sha = (as_text(head.get(name)) for name in ("head_branch", "head_sha"))
    if not (login and branch and sha):
        return None  # the fork was deleted meanwhile, or the event is not about a branch
    query = {"state": "open", "head": f"{login}:{branch}"}
    for found in api.pages(f"/repos/{quote(repository)}/pulls", query):
        if as_mapping(found.get("head")).get("sha") == sha:
            number = number_or_empty(found.get("number"))
            return int(number) if number else None
    return None
