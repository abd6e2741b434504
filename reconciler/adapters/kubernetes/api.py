"""Calls of the Kubernetes API: repeated where that may help, and bounded in every way.

Every call that is made here may be repeated without harm: reads, changes that name the version
they change, deletions and evictions that name the very object. So a call without an answer is
simply made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from reconciler.adapters.kubernetes.access import Access
from reconciler.adapters.kubernetes.errors import (
    NO_ANSWER,
    UNAUTHORIZED,
    ApiError,
    refusal,
)

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

ATTEMPTS: Final = 4
_CONNECT_S: Final = 5.0
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
_PART: Final = 65536
"""How many bytes of an answer are read at once."""
_OK: Final = range(200, 300)
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"


def _never(error: ApiError) -> bool:
    del error
    return False


@dataclass
class Api:
    """One API server. ``connect`` leads there, anew where the credentials have run out.

    ``wait`` passes seconds between two attempts; an answer may take ``timeout_s``.
    """

    connect: Callable[[], Access]
    wait: Callable[[float], None]
    timeout_s: float = 30.0
    _access: Access | None = field(default=None, repr=False)

    @property
    def access(self) -> Access:
        """The way there, found when it is first asked for.

        Raises:
            ClusterError, UsageError: there is none.
        """
        if self._access is None:
            self._access = self.connect()
        return self._access

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = JSON,
        is_answer: Callable[[ApiError], bool] = _never,
    ) -> bytes:
        """Return the body of the answer.

        ``is_answer`` tells of a refusal that it is what the API has to say, and not repeated.

        Raises:
            ApiError: the API refused, or gave no answer to any attempt.
        """
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        renewed = False
        pause = _PAUSE_S
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._once(method, target, body, content)
            except ApiError as error:
                if error.status == UNAUTHORIZED and left and not renewed:
                    renewed = True
                    continue
                if not left or not error.passes or is_answer(error):
                    raise
                self.wait(min(max(pause, error.retry_after_s), _PAUSE_MAX_S))
                pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def lines(self, path: str, query: Mapping[str, str], silence_s: float) -> Iterator[bytes]:
        """Yield an answer line by line, as it comes, until the API ends it; it is asked once.

        The API may say nothing for ``silence_s``.

        Raises:
            ApiError: the API refused, did not answer, or was silent for too long.
        """
        target = f"{path}?{urlencode(query, quote_via=quote)}"
        with self._border(f"GET {target}"):
            answer = self._asked("GET", target, None, JSON, silence_s)
            try:
                rest = b""
                for part in answer.stream(_PART):
                    *whole, rest = (rest + part).split(b"\n")
                    yield from whole
            finally:
                answer.close()

    def _once(self, method: str, target: str, body: Any, content: str) -> bytes:
        with self._border(f"{method} {target}"):
            said: bytes = self._asked(method, target, body, content, self.timeout_s).read()
            return said

    def _asked(
        self, method: str, target: str, body: Any, content: str, silence_s: float
    ) -> HTTPResponse:
        """Make a call once, by the client's connection, without its models.

        Where it is not authorized, the way is found anew for the next one.
        """
        client = self.access.client
        headers = {"Accept": JSON, "User-Agent": client.user_agent}
        if body is not None:
            headers["Content-Type"] = content
        client.update_params_for_auth(headers, [], ["BearerToken"], target, method, body)
        answer: HTTPResponse = client.rest_client.request(
            method,
            f"{self.access.server}{target}",
            headers=headers,
            body=body,
            _request_timeout=(_CONNECT_S, silence_s),
        ).response
        if answer.status in _OK:
            return answer
        if answer.status == UNAUTHORIZED:
            self._access = None
        retry_after = answer.headers.get("Retry-After", "")
        call = f"{method} {target}"
        raise refusal(call, answer.status, answer.reason or "", answer.read(), retry_after)

    @contextmanager
    def _border(self, call: str) -> Iterator[None]:
        """Tell what goes wrong on the way as an error of ours."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:  # of TLS: asking again changes nothing
            raise ApiError(call, -1, "no trusted connection", str(error.reason)) from error
        except (HTTPError, OSError, ConfigException) as error:
            what = f"{type(error).__name__} from {self.access}"
            raise ApiError(call, NO_ANSWER, "no answer", what) from error
