"""Comments and checks of GitHub and GitLab on a port of this machine, as the APIs describe them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.httpserver import QuietHandler, serving_with

Object = dict[str, Any]
Answer = tuple[int, Any, dict[str, str]]


@dataclass
class ForgeImitation:
    """The data of a forge, and its caller. ``fault`` is called first and may answer a request.

    ``me`` is the owner of the token, None for a token of GitHub Actions, which may not ask.
    """

    token: str = "t0ken"
    me: str | None = None
    may_write: bool = True
    may_check: bool = True
    head: str = "c" * 40
    checks: list[Object] = field(default_factory=list)
    pulls: list[Object] = field(default_factory=list)
    comments: list[Object] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    fault: Callable[[str, str], Answer | None] = lambda _method, _path: None
    characters_max: int = 65_536

    def add(self, author: str, body: str) -> Object:
        """Add a comment."""
        number = len(self.comments) + 1
        made = {
            "id": number,
            "body": body,
            "user": {"login": author},
            "author": {"username": author},
            "html_url": f"https://forge.example/comment/{number}",
            "system": False,
        }
        self.comments.append(made)
        return made

    def bodies(self, author: str) -> list[str]:
        return [c["body"] for c in self.comments if c["user"]["login"] == author]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        found = self.fault(method, path)
        if found is not None:
            return found
        if path.endswith("/user"):
            if self.me is None:
                return 403, {"message": "Resource not accessible by integration"}, {}
            return 200, {"login": self.me, "username": self.me}, {}
        if path.endswith("/pulls"):
            wanted = query.get("head", "")
            return 200, [p for p in self.pulls if p["head"]["label"] == wanted], {}
        if method == "GET" and path.endswith(("/comments", "/notes")):
            size, page = int(query["per_page"]), int(query["page"])
            return 200, self.comments[(page - 1) * size : page * size], {}
        found = self._answer_check(method, path, body)
        if found is not None:
            return found
        if not self.may_write:
            return 403, {"message": "Resource not accessible by integration"}, {}
        if len(body["body"]) > self.characters_max:
            return 422, {"message": "Validation Failed: body is too long"}, {}
        if method == "POST":
            return 201, self.add(self.me or "github-actions[bot]", body["body"]), {}
        (comment,) = [c for c in self.comments if str(c["id"]) == path.rpartition("/")[2]]
        comment["body"] = body["body"]
        return 200, comment, {}

    def _answer_check(self, method: str, path: str, body: Any) -> Answer | None:
        """Return the answer about a pull request or a check, None for another path."""
        if method == "GET" and path.rpartition("/")[0].endswith(("/pulls", "/merge_requests")):
            return 200, {"sha": self.head, "head": {"sha": self.head}}, {}
        if not path.endswith("/check-runs") and "/statuses/" not in path:
            return None
        if not self.may_check:
            return 403, {"message": "Resource not accessible by integration"}, {}
        self.checks.append(body)
        return 201, {"id": len(self.checks)}, {}

    def written(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.calls if method != "GET"]


@contextmanager
def job_with(forge: ForgeImitation, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a forge to a job without an event while the block runs, and yield the URL."""
    for name in (
        *("GITHUB_EVENT_PATH", "GITHUB_EVENT_NAME", "GITHUB_REF", "GITHUB_OUTPUT", "GH_TOKEN"),
        *("GITHUB_STEP_SUMMARY", "GITHUB_REPOSITORY", "CI_PROJECT_ID", "CI_COMMIT_SHA"),
        *("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "CI_PIPELINE_ID", "CI_MERGE_REQUEST_IID"),
    ):
        monkeypatch.delenv(name, raising=False)
    with serving(forge) as served:
        monkeypatch.setenv("GITHUB_API_URL", served)
        monkeypatch.setenv("CI_API_V4_URL", served)
        monkeypatch.setenv("GITHUB_TOKEN", forge.token)
        monkeypatch.setenv("GITLAB_TOKEN", forge.token)
        yield served


@contextmanager
def serving(forge: ForgeImitation) -> Iterator[str]:
    """Serve on loopback while the block runs, and yield the URL of the API."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            forge.calls.append((self.command, url.path, body))
            held = (self.headers.get("Authorization"), self.headers.get("PRIVATE-TOKEN"))
            if f"Bearer {forge.token}" not in held and forge.token not in held:
                answer: Answer = (401, {"message": "Bad credentials"}, {})
            else:
                query = {k: v[0] for k, v in parse_qs(url.query).items()}
                answer = forge.answer(self.command, url.path, query, body)
            status, data, headers = answer
            self.reply(status, json.dumps(data).encode(), headers)

    with serving_with(Handler) as url:
        yield url
