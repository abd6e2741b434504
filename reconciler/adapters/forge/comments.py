"""One comment for each marker on a pull request: ours is edited, anybody else's is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from reconciler.adapters.forge.api import (
    FORBIDDEN,
    NOT_FOUND,
    ForgeApi,
    ForgeError,
)
from reconciler.model.json import JsonDict

GITHUB_MAX: Final = 65_536
GITLAB_MAX: Final = 1_000_000
"""How many characters a comment may have."""

ACTIONS_BOT: Final = "github-actions[bot]"


class PostOutcome(StrEnum):
    """The outcome of a comment."""

    CREATED = "created"
    EDITED = "edited"
    UNCHANGED = "unchanged"


class Posted(NamedTuple):
    """The outcome of a comment, and its address in a browser, empty if unknown."""

    outcome: PostOutcome
    url: str


class Comment(NamedTuple):
    """A comment of the pull request."""

    id: str
    author: str
    body: str
    url: str


class Forge(Protocol):
    """The comments of one pull request."""

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


def post(forge: Forge, marker: str, body: str) -> Posted:
    """Let the comment that begins with ``marker`` have this body, which begins with it too.

    Only a comment of our own author counts: whoever copies the marker into theirs neither has it
    overwritten nor keeps ours from being posted.

    Raises:
        ForgeError: the API refused.
    """
    own = forge.author()
    if not own:
        remedy = "pass the name of the account that posts with --author"
        raise ForgeError("the API does not name the account", 0, where="GET /user", remedy=remedy)
    mine = [c for c in forge.comments() if c.author == own and c.body.lstrip().startswith(marker)]
    if not mine:
        return Posted(PostOutcome.CREATED, forge.create(body).url)
    before = mine[0]
    if before.body.replace("\r\n", "\n").strip() == body.strip():
        return Posted(PostOutcome.UNCHANGED, before.url)
    try:
        return Posted(PostOutcome.EDITED, forge.edit(before, body).url)
    except ForgeError as error:
        if error.status != NOT_FOUND:
            raise
        return Posted(PostOutcome.CREATED, forge.create(body).url)  # it was deleted in between


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


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
        return _text(user.get("login")) if isinstance(user, dict) else ""

    def comments(self) -> list[Comment]:
        return [self._comment(c) for c in self.api.pages(f"{self._issues}/{self.number}/comments")]

    def create(self, body: str) -> Comment:
        path = f"{self._issues}/{self.number}/comments"
        return self._comment(self.api.send("POST", path, {"body": body}))

    def edit(self, comment: Comment, body: str) -> Comment:
        path = f"{self._issues}/comments/{quote(comment.id)}"
        return self._comment(self.api.send("PATCH", path, {"body": body}))

    @staticmethod
    def _comment(data: object) -> Comment:
        found: JsonDict = data if isinstance(data, dict) else {}
        user = found.get("user")
        login = user.get("login") if isinstance(user, dict) else ""
        return Comment(
            str(found.get("id", "")), _text(login), _text(found.get("body")),
            _text(found.get("html_url")),
        )  # fmt: skip


@dataclass
class GitLab:
    """The notes of a merge request on GitLab. ``project`` is its id or path."""

    api: ForgeApi
    project: str
    number: int
    own: str = ""
    characters_max: int = GITLAB_MAX

    @property
    def _notes(self) -> str:
        return f"/projects/{quote(self.project, safe='')}/merge_requests/{self.number}/notes"

    def author(self) -> str:
        if self.own:
            return self.own
        user = self.api.get("/user")
        return _text(user.get("username")) if isinstance(user, dict) else ""

    def comments(self) -> list[Comment]:
        order = {"sort": "asc", "order_by": "created_at"}
        notes = self.api.pages(self._notes, order)
        return [self._comment(n) for n in notes if not n.get("system")]

    def create(self, body: str) -> Comment:
        return self._comment(self.api.send("POST", self._notes, {"body": body}))

    def edit(self, comment: Comment, body: str) -> Comment:
        path = f"{self._notes}/{quote(comment.id)}"
        return self._comment(self.api.send("PUT", path, {"body": body}))

    @staticmethod
    def _comment(data: object) -> Comment:
        found: JsonDict = data if isinstance(data, dict) else {}
        author = found.get("author")
        name = author.get("username") if isinstance(author, dict) else ""
        return Comment(str(found.get("id", "")), _text(name), _text(found.get("body")), "")


def pull_request_of(api: ForgeApi, repository: str, head: JsonDict) -> int | None:
    """Return the open pull request whose head is the commit that a workflow ran for.

    ``head`` is the ``workflow_run`` of GitHub's event, which the runner wrote. None where no open
    pull request has that head any more: a newer commit was pushed, or it was closed.
    """
    owner = (head.get("head_repository") or {}).get("owner") or {}
    query = {"state": "open", "head": f"{owner.get('login', '')}:{head.get('head_branch', '')}"}
    for found in api.pages(f"/repos/{quote(repository)}/pulls", query):
        at = found.get("head")
        if isinstance(at, dict) and at.get("sha") == head.get("head_sha"):
            number = found.get("number")
            return number if isinstance(number, int) else None
    return None


def github_remedy(status: int) -> str:
    """Return what to do about a refusal of GitHub."""
    match status:
        case 401:
            return "the token is not valid; pass a new one"
        case 403:
            return (
                "give the job `permissions: pull-requests: write`; a pull request from a fork "
                "needs the two workflows of docs/pull-requests.md"
            )
        case 404:
            return "check --repository and --pull-request, and that the token may read them"
    return ""


def gitlab_remedy(status: int) -> str:
    """Return what to do about a refusal of GitLab."""
    match status:
        case 401:
            return "the token is not valid, or is a job token, which may not comment"
        case 403:
            return "use a project access token with the scope api and the role Reporter"
        case 404:
            return "check --repository and --pull-request, and that the token may read them"
    return ""
