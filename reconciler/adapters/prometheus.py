"""Queries of Prometheus over HTTP: the token goes to one host only, and answers are limited."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import responses
from typing import Final, Literal
from urllib.parse import urljoin, urlsplit

import msgspec
import urllib3

from reconciler.adapters.http import connection_pool, retry_pause
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import is_unencrypted
from reconciler.model.text.visible import one_line
from reconciler.ports.metrics import MetricSample, TooMuchDataError

BYTES_MAX: Final = 256 * 2**20
SERIES_MAX: Final = 1_000_000
ATTEMPTS: Final = 4
_PATH: Final = "/api/v1/query"
_TIMEOUT: Final = urllib3.Timeout(connect=10, read=150)
"""Prometheus itself ends a query after two minutes."""
_TOTAL_S: Final = 600.0
_FIRST_PAUSE_S: Final = 1.0
_RETRIED: Final = frozenset({429, 502, 503, 504})
_REDIRECTED: Final = range(300, 400)
_MESSAGE_MAX: Final = 300
_WARNINGS_MAX: Final = 10
_CHUNK: Final = 2**20
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_FLAG: Final = "--prometheus"
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
        self._bytes_max, self._series_max = bytes_max, series_max
        self._pool = connection_pool(self._url)
        self._decoder = msgspec.json.Decoder(_Answer)
        self.warnings: list[str] = []

    def query(self, expression: str, at: int) -> list[MetricSample]:
        """Return the vector that an expression has at a time, in seconds since 1970.

        Raises:
            TooMuchDataError: there is too much of it for one answer.
            UnreadableError: there is no answer, or it cannot be read.
        """
        for attempt in range(ATTEMPTS):
            pause = _FIRST_PAUSE_S * 2.0**attempt
            is_last = attempt == ATTEMPTS - 1
            try:
                status, headers, body = self._post({"query": expression, "time": str(at)})
            except urllib3.exceptions.SSLError:
                raise self._error(
                    "its certificate cannot be verified, or it does not use TLS",
                    "check the URL; SSL_CERT_FILE may name the certificates to trust",
                ) from None
            except urllib3.exceptions.HTTPError as error:
                if is_last:
                    raise self._error(
                        f"no answer ({type(error).__name__})",  # its text has the URL
                        "check the URL and the network",
                    ) from None
            else:
                if status == HTTPStatus.OK:
                    return self._parse_vector(body)
                refusal = self._response_error(status, headers, body)
                if is_last or status not in _RETRIED or isinstance(refusal, TooMuchDataError):
                    raise refusal
                pause = retry_pause(headers, pause)
            self._wait(pause)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, fields: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        response = self._pool.request(
            "POST",
            self._url,
            fields=fields,
            encode_multipart=False,
            headers=headers,
            timeout=_TIMEOUT,
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            return response.status, response.headers, self._read_body(response)
        finally:
            response.close()

    def _read_body(self, response: urllib3.BaseHTTPResponse) -> bytes:
        deadline = time.monotonic() + _TOTAL_S
        body = bytearray()
        while chunk := response.read1(_CHUNK, decode_content=False):
            body += chunk
            if len(body) > self._bytes_max:
                raise TooMuchDataError(
                    f"the answer has more than {self._bytes_max:,} bytes",
                    where=self._where,
                    remedy=_SMALLER,
                )
            if time.monotonic() > deadline:
                raise TooMuchDataError(
                    f"the answer takes longer than {_TOTAL_S:.0f} s",
                    where=self._where,
                    remedy=_SMALLER,
                )
        return bytes(body)

    def _parse_vector(self, body: bytes) -> list[MetricSample]:
        try:
            answer = self._decoder.decode(body)
            if answer.status != "success" or answer.data is None:
                message = self._redact_message(answer.error)
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
                f"the answer is not one of Prometheus: {self._redact_message(str(error))}",
                "pass the URL without /api/v1",
            ) from error

    def _add_warnings(self, warnings: list[str]) -> None:
        for warning in warnings[:_WARNINGS_MAX]:
            line = self._redact_message(warning)
            if line not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
                self.warnings.append(line)

    def _response_error(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> UnreadableError:
        """Return the error of a rejected query."""
        if status in _REDIRECTED:
            target = urljoin(self._url, headers.get("location", ""))
            return self._error(
                f"HTTP {status}: redirects to {self._redact_message(_redact_url(target))}",
                "pass that URL if Prometheus is there; redirects are not followed",
            )
        try:
            answer = self._decoder.decode(body)
        except (ValueError, RecursionError):
            answer = _Answer("error")
        reason = self._redact_message(answer.error) or responses.get(status, "no reason")
        what = f"HTTP {status}: {reason}"
        too_much = status == HTTPStatus.UNPROCESSABLE_ENTITY or answer.error_type == "timeout"
        if too_much or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return TooMuchDataError(what, where=self._where, remedy=_SMALLER)
        return self._error(what, _remedy(status, has_token=bool(self._token)))

    def _error(self, what: str, remedy: str) -> UnreadableError:
        return UnreadableError(what, where=self._where, remedy=remedy)

    def _redact_message(self, text: str) -> str:
        """Return a message of the server in one line, without the token."""
        text = text[: 10 * _MESSAGE_MAX]
        line = one_line(text.replace(self._token, "***") if self._token else text)
        return line if len(line) <= _MESSAGE_MAX else f"{line[:_MESSAGE_MAX]}…"


def _check_url(url: str, token: str) -> str:
    """Return the address without a slash at its end.

    Raises:
        UsageError: it or the token cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError("not a valid URL", where=_FLAG, remedy=_FORM) from error
    if parts.scheme not in ("http", "https") or not host or not _PRINTABLE.fullmatch(url):
        raise UsageError("not an https or http URL", where=_FLAG, remedy=_FORM)
    if "@" in parts.netloc:
        raise UsageError(
            "the URL contains a user or password",
            where=_FLAG,
            remedy="remove it; PROMETHEUS_TOKEN takes a bearer token",
        )
    if parts.query or parts.fragment:
        raise UsageError("the URL contains ? or #", where=_FLAG, remedy=_FORM)
    if token and not _PRINTABLE.fullmatch(token):
        raise UsageError(
            "the token has characters other than printable ASCII",
            where="PROMETHEUS_TOKEN",
            remedy="set it to the token alone",
        )
    if token and is_unencrypted(url):
        raise UsageError(
            f"{_redact_url(url)} uses plain http, which would show the token",
            where=_FLAG,
            remedy="use https, or unset PROMETHEUS_TOKEN",
        )
    return _redact_url(url).rstrip("/")


def _redact_url(url: str) -> str:
    """Return an address without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "another URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _remedy(status: int, *, has_token: bool) -> str:
    match status:
        case HTTPStatus.BAD_REQUEST:
            return "check --match"
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return "check PROMETHEUS_TOKEN" if has_token else "set PROMETHEUS_TOKEN to a token"
        case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED:
            return "pass the URL without /api/v1"
    return "run the command again later"
