"""Calls of a forge's REST API: the token goes to one host only, and waiting is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.json import JsonDict
from reconciler.model.text.urls import is_unencrypted, without_secrets

if TYPE_CHECKING:
    import httpx

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
TOO_MANY: Final = 429
UNAUTHORIZED: Final = 401
PAGE: Final = 100

_PAGES_MAX: Final = 100
_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 4
_WAIT_MAX_S: Final = 120.0
_SAID_MAX: Final = 300
_BYTES_MAX: Final = 32 * 1024 * 1024


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
                answer = self._connection().request(
                    method, self.url.rstrip("/") + path, params=query, json=body
                )
            except httpx.HTTPError as error:
                if method == "POST" or not left:
                    raise _unanswered(error, where) from error
            else:
                if answer.is_success:
                    return _content(answer, where)
                limited = _seconds_to_wait(answer)
                if limited is None and (method == "POST" or answer.status_code < 500):
                    raise self._refusal(answer, where)
                pause = pause if limited is None else limited
                if not left or waited + pause > _WAIT_MAX_S:
                    raise self._refusal(answer, where, pause=limited)
            self.wait(pause)
            waited += pause
        raise AssertionError("the last attempt returns or raises")

    def _connection(self) -> httpx.Client:
        if self._client is None:
            import httpx

            self._client = httpx.Client(headers=dict(self.headers), timeout=_TIMEOUT_S)
        return self._client

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _refusal(
        self, answer: httpx.Response, where: str, *, pause: float | None = None
    ) -> ForgeError:
        if pause is not None:
            remedy = f"the rate limit ends in {pause:.0f} s; run the command again then"
        else:
            remedy = self.remedy(answer.status_code)
        message = f"HTTP {answer.status_code}: {_said(answer)}"
        return ForgeError(message, answer.status_code, where=where, remedy=remedy)


def _unanswered(error: httpx.HTTPError, where: str) -> ForgeError:
    what = f"no answer ({type(error).__name__})"
    return ForgeError(what, 0, where=where, remedy="run the command again; it edits what it posted")


def _content(answer: httpx.Response, where: str) -> object:
    if len(answer.content) > _BYTES_MAX:
        raise ForgeError("the answer is too large", answer.status_code, where=where)
    if not answer.content:
        return None
    try:
        data: object = answer.json()
    except ValueError as error:
        raise ForgeError("the answer is not JSON", answer.status_code, where=where) from error
    return data


def _said(answer: httpx.Response) -> str:
    """Return the API's own words, in one line."""
    try:
        data = answer.json()
    except ValueError:
        data = None
    words = data.get("message") or data.get("error") if isinstance(data, dict) else answer.text
    return " ".join(str(words or answer.reason_phrase).split())[:_SAID_MAX]


def _seconds_to_wait(answer: httpx.Response) -> float | None:
    """Return how long a rate limit asks to wait; None where it is not a rate limit."""
    if answer.status_code not in (FORBIDDEN, TOO_MANY):
        return None
    after = answer.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return max(float(reset) - time.time(), 0.0) + 1.0
    return 60.0 if answer.status_code == TOO_MANY else None
