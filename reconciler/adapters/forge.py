"""Comments on pull requests through the REST API of a forge (GitHub, GitLab).

There is one comment for each marker. Our own comment is edited; anybody else's is left alone. The
token goes to one host only, and waiting is bounded.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

import httpx

from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.json import JsonDict
from reconciler.model.text.urls import is_unencrypted, without_secrets

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
TOO_MANY: Final = 429
UNAUTHORIZED: Final = 401
PAGE: Final = 100

_PAGES_MAX: Final = 100
_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 4
_WAIT_MAX_S: Final = 120.0
_MESSAGE_MAX: Final = 300
_BYTES_MAX: Final = 32 * 1024 * 1024
_TEXT_BYTES_MAX: Final = 2_000
_TOTAL_S: Final = 120.0


class ForgeError(ReconcilerError):
    """The API refused a call or did not answer; ``status`` is that of HTTP, 0 without one."""

    def __init__(self, message: str, status: int, *, where: str, remedy: str = "") -> None:
        self.status = status
        super().__init__(message, where=where, remedy=remedy)


@dataclass
class ForgeApi:
    """One API below ``url``. ``headers`` carry the token.

    ``remedy`` returns what a user can do about a status; ``wait`` passes seconds between attempts.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    remedy: Callable[[int], str]
    wait: Callable[[float], None] = time.sleep
    _client: httpx.Client | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://")):
            message = f"{without_secrets(self.url, is_value=True)} is not a URL"
            raise UsageError(message, where="--api-url", remedy="write https://HOST/PATH")
        if is_unencrypted(self.url):
            raise UsageError(
                f"{without_secrets(self.url, is_value=True)} uses plain http, which would show "
                "the token",
                where="--api-url",
                remedy="use https",
            )

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
        import httpx

        where = f"{method} {path}"
        waited = 0.0
        for left in reversed(range(_ATTEMPTS)):
            pause = 2.0 ** (_ATTEMPTS - 1 - left)
            try:
                with self._connection().stream(
                    method, self.url.rstrip("/") + path, params=query, json=body
                ) as answer:
                    content = _read_content(answer, where)
            except httpx.HTTPError as error:
                if method == "POST" or not left:
                    raise _no_answer_error(error, where) from error
            else:
                if answer.is_success:
                    return _parse_content(content, answer.status_code, where)
                limited = _seconds_to_wait(answer)
                if limited is None and (method == "POST" or answer.status_code < 500):
                    raise self._response_error(answer, content, where)
                pause = pause if limited is None else limited
                if not left or waited + pause > _WAIT_MAX_S:
                    raise self._response_error(answer, content, where, pause=limited)
            self.wait(pause)
            waited += pause
        raise AssertionError("the last attempt returns or raises")

    def _connection(self) -> httpx.Client:
        if self._client is None:
            import httpx

            headers = {**self.headers, "Accept-Encoding": "identity"}
            self._client = httpx.Client(headers=headers, timeout=_TIMEOUT_S)
        return self._client

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _response_error(
        self, answer: httpx.Response, content: bytes, where: str, *, pause: float | None = None
    ) -> ForgeError:
        if pause is not None:
            remedy = f"the rate limit ends in {pause:.0f} s; run the command again then"
        else:
            remedy = self.remedy(answer.status_code)
        message = f"HTTP {answer.status_code}: {_error_message(answer, content)}"
        return ForgeError(message, answer.status_code, where=where, remedy=remedy)


def _no_answer_error(error: httpx.HTTPError, where: str) -> ForgeError:
    what = f"no answer ({type(error).__name__})"
    return ForgeError(what, 0, where=where, remedy="run the command again; it edits what it posted")


def _read_content(answer: httpx.Response, where: str) -> bytes:
    """Return the body of an answer, which may be neither too large nor too slow.

    Only gzip is unpacked, because a proxy may add it, and in pieces of limited size.

    Raises:
        ForgeError: it is too large, takes too long, or is packed in another way.
    """
    status = answer.status_code
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip", ""):
        raise ForgeError(f"the answer is packed ({coding[:40]})", status, where=where)
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if coding.endswith("gzip") else None
    deadline = time.monotonic() + _TOTAL_S
    content = bytearray()
    for chunk in answer.iter_raw():
        if unpack is None:
            content += chunk
        else:
            try:
                content += unpack.decompress(chunk, _BYTES_MAX + 1 - len(content))
            except zlib.error as error:
                raise ForgeError("the answer is damaged", status, where=where) from error
        if len(content) > _BYTES_MAX:
            raise ForgeError("the answer is too large", status, where=where)
        if time.monotonic() > deadline:
            raise ForgeError("the answer takes too long", status, where=where)
    return bytes(content)


def _parse_content(content: bytes, status: int, where: str) -> object:
    if not content:
        return None
    try:
        data: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ForgeError("the answer is not JSON", status, where=where) from error
    return data


def _error_message(answer: httpx.Response, content: bytes) -> str:
    """Return the error message of the API, in one line."""
    try:
        data: object = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    text = content[:_TEXT_BYTES_MAX].decode("utf-8", "replace")
    message = data.get("message") or data.get("error") if isinstance(data, dict) else text
    return " ".join(str(message or answer.reason_phrase).split())[:_MESSAGE_MAX]


def _seconds_to_wait(answer: httpx.Response) -> float | None:
    """Return the seconds until a rate limit ends, None if the answer is not a rate limit."""
    if answer.status_code not in (FORBIDDEN, TOO_MANY):
        return None
    after = answer.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return max(float(reset) - time.time(), 0.0) + 1.0
    return 60.0 if answer.status_code == TOO_MANY else None


GITHUB_MAX: Final = 65_536
GITLAB_MAX: Final = 1_000_000
"""How many characters a comment may have."""

ACTIONS_BOT: Final = "github-actions[bot]"


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


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number_or_empty(value: object) -> str:
    return str(value) if type(value) is int and value > 0 else ""


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
        return _text_or_empty(user.get("login")) if isinstance(user, dict) else ""

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
            _number_or_empty(found.get("id")), _text_or_empty(login),
            _text_or_empty(found.get("body")), _text_or_empty(found.get("html_url")),
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
        return _text_or_empty(user.get("username")) if isinstance(user, dict) else ""

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
        return Comment(
            _number_or_empty(found.get("id")),
            _text_or_empty(name),
            _text_or_empty(found.get("body")),
            "",
        )


def find_pull_request(api: ForgeApi, repository: str, head: JsonDict) -> int | None:
    """Return the open pull request whose head is the commit that a workflow ran for.

    ``head`` is the ``workflow_run`` of GitHub's event, which the runner wrote. None if no open
    pull request has that head any more: a newer commit was pushed, or it was closed.
    """
    source = head.get("head_repository")
    owner = source.get("owner") if isinstance(source, dict) else None
    login = _text_or_empty(owner.get("login")) if isinstance(owner, dict) else ""
    branch, sha = (_text_or_empty(head.get(name)) for name in ("head_branch", "head_sha"))
    if not (login and branch and sha):
        return None  # the fork was deleted meanwhile, or the event is not about a branch
    query = {"state": "open", "head": f"{login}:{branch}"}
    for found in api.pages(f"/repos/{quote(repository)}/pulls", query):
        at = found.get("head")
        if isinstance(at, dict) and at.get("sha") == sha:
            number = _number_or_empty(found.get("number"))
            return int(number) if number else None
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
