"""Queries of Prometheus over HTTP: the token goes to one host only, and answers are limited."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import urlencode, urljoin

import msgspec

from reconciler.adapters.http import (
    HttpClient,
    HttpError,
    HttpFault,
    Reply,
    ReplyLimits,
    Retries,
    redact_url,
    url_problem,
)
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.ports.metrics import MetricSample, TooMuchDataError

BYTES_MAX: Final = 256 * 2**20
SERIES_MAX: Final = 1_000_000
ATTEMPTS: Final = 4
_PATH: Final = "/api/v1/query"
_RETRIES: Final = Retries(ATTEMPTS, statuses={429, 502, 503, 504})
_REDIRECTED: Final = range(300, 400)
_WARNINGS_MAX: Final = 10
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_FLAG: Final = "--prometheus"
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FORM: Final = "write https://HOST/PATH, without /api/v1"
_SMALLER: Final = "pass a shorter --since, a longer --step, or --match"


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, rename="camel"):
    """An instant vector; ``value`` is the time of the query and the value as text."""

    result_type: Literal["vector"]
    result: list[_Series]


class _Answer(msgspec.Struct, rename="camel"):
    """What Prometheus answers; ``data`` is there on success, the error otherwise."""

    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None


class Prometheus:
    """One server, below ``url``. ``wait`` passes seconds between attempts; an answer is limited.

    ``warnings`` are the first of its answers, each once: some of the data may be missing.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        wait: Callable[[float], None] = time.sleep,
        *,
        bytes_max: int = BYTES_MAX,
        series_max: int = SERIES_MAX,
    ) -> None:
        """Check the address and the token; nothing connects before a query.

        Raises:
            UsageError: they cannot be used.
        """
        self._url = _check_url(url, token) + _PATH
        self._where = f"POST {self._url}"
        self._token = token
        self._wait = wait
        self._series_max = series_max
        headers = {"Accept": "application/json", "Content-Type": _FORM_TYPE}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        limits = ReplyLimits(bytes_max, connect_s=10, read_s=150, total_s=600)
        self._client = HttpClient(self._url, limits, headers)
        self._decoder = msgspec.json.Decoder(_Answer)
        self.warnings: list[str] = []

    def query(self, expression: str, at: int) -> list[MetricSample]:
        """Return the vector that an expression has at a time, in seconds since 1970.

        Raises:
            TooMuchDataError: there is too much of it for one answer.
            UnreadableError: there is no answer, or it cannot be read.
        """
        form = urlencode({"query": expression, "time": str(at)}).encode()

        def send() -> Reply:
            reply = self._client.send("POST", body=form)
            error = None if reply.is_success else self._response_error(reply)
            if isinstance(error, TooMuchDataError):
                raise error  # the same query would be too much again
            return reply

        try:
            reply = _RETRIES.run(send, self._wait)
        except HttpError as error:
            if error.fault in (HttpFault.TOO_LARGE, HttpFault.TOO_SLOW):
                raise TooMuchDataError(str(error), where=self._where, remedy=_SMALLER) from None
            raise self._error(
                str(error),
                "check the URL; SSL_CERT_FILE may name the certificates to trust"
                if error.fault is HttpFault.UNTRUSTED
                else "check the URL and the network",
            ) from None
        if reply.status != HTTPStatus.OK:
            raise self._response_error(reply)
        return self._parse_vector(reply.body)

    def _parse_vector(self, body: bytes) -> list[MetricSample]:
        try:
            answer = self._decoder.decode(body)
            if answer.status != "success" or answer.data is None:
                message = self._client.quote(answer.error)
                raise self._error(
                    f"status {quote_value(answer.status, 40)}: {message}", "check the server"
                )
            self._add_warnings(answer.warnings or [])
            if len(answer.data.result) > self._series_max:
                raise TooMuchDataError(
                    f"the answer has more than {self._series_max:,} series",
                    where=self._where,
                    remedy=_SMALLER,
                )
            return [MetricSample(row.metric, float(row.value[1])) for row in answer.data.result]
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise self._error(
                f"the answer is not one of Prometheus: {self._client.quote(str(error))}",
                "pass the URL without /api/v1",
            ) from error

    def _add_warnings(self, warnings: list[str]) -> None:
        for warning in warnings[:_WARNINGS_MAX]:
            line = self._client.quote(warning)
            if line not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
                self.warnings.append(line)

    def _response_error(self, reply: Reply) -> UnreadableError:
        """Return the error of a rejected query."""
        status = reply.status
        if status in _REDIRECTED:
            target = redact_url(urljoin(self._url, reply.headers.get("location", "")))
            return self._error(
                f"HTTP {status}: redirects to {self._client.quote(target)}",
                "pass that URL if Prometheus is there; redirects are not followed",
            )
        try:
            answer = self._decoder.decode(reply.body)
        except (ValueError, RecursionError):
            answer = _Answer("error")
        reason = self._client.quote(answer.error) or reply.reason
        what = f"HTTP {status}: {reason}"
        too_much = status == HTTPStatus.UNPROCESSABLE_ENTITY or answer.error_type == "timeout"
        if too_much or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return TooMuchDataError(what, where=self._where, remedy=_SMALLER)
        return self._error(what, _remedy(status, has_token=bool(self._token)))

    def _error(self, what: str, remedy: str) -> UnreadableError:
        return UnreadableError(what, where=self._where, remedy=remedy)


def _check_url(url: str, token: str) -> str:
    """Return the address without a slash at its end.

    Raises:
        UsageError: it or the token cannot be used.
    """
    problem = url_problem(url, is_secret=bool(token))
    if problem:
        raise UsageError(problem, where=_FLAG, remedy=_FORM)
    if token and not _PRINTABLE.fullmatch(token):
        raise UsageError(
            "the token has characters other than printable ASCII",
            where="PROMETHEUS_TOKEN",
            remedy="set it to the token alone",
        )
    return url.rstrip("/")


def _remedy(status: int, *, has_token: bool) -> str:
    match status:
        case HTTPStatus.BAD_REQUEST:
            return "check --match"
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return "check PROMETHEUS_TOKEN" if has_token else "set PROMETHEUS_TOKEN to a token"
        case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED:
            return "pass the URL without /api/v1"
    return "run the command again later"
