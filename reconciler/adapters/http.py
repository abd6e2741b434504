"""HTTP with other servers: one host, limited answers, and pauses that the server requests.

A client calls one server, with TLS or on this machine wherever it sends a secret. Redirects are
not followed. An answer has a largest size and a latest end, also unpacked. No error shows the URL
or what was sent, because either may be a secret.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http.client import HTTPResponse, responses
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import parse_url

from reconciler.model.text.urls import is_unencrypted
from reconciler.model.text.visible import one_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PAUSE_MAX_S: Final = 60.0
"""The longest pause between two attempts."""

_CHUNK: Final = 2**20
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_GZIP: Final = ("gzip", "x-gzip")
_MESSAGE_MAX: Final = 300
_DIGITS_MAX: Final = 12
_SECRET_HEADERS: Final = ("Authorization", "PRIVATE-TOKEN")

_ENDS_AT: Final = ContextVar("_ENDS_AT", default=float("inf"))
"""When the request that is being sent must be answered, by the monotonic clock."""


class HttpFault(Enum):
    """Why there is no answer."""

    UNANSWERED = auto()
    UNTRUSTED = auto()
    TOO_LARGE = auto()
    TOO_SLOW = auto()
    UNREADABLE = auto()


class HttpError(Exception):
    """There is no complete answer."""

    def __init__(self, what: str, fault: HttpFault) -> None:
        self.fault = fault
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """What an answer may take: bytes when unpacked, and seconds."""

    bytes_max: int
    connect_s: float
    read_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. The names of its ``headers`` match in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Return the meaning of the status in words."""
        return responses.get(self.status, "no reason")

    def requested_pause(self) -> float | None:
        """Return the seconds that the server asks to wait, None if it does not ask.

        It does with ``Retry-After`` (RFC 9110, 10.2.3), in seconds or as a date, or with the
        ``X-RateLimit`` headers of GitHub.
        """
        after = self.headers.get("retry-after", "")
        if _is_number(after):
            return float(after)
        with suppress(ValueError, OverflowError):
            until = parsedate_to_datetime(after)
            return max(until.replace(tzinfo=until.tzinfo or UTC).timestamp() - time.time(), 0.0)
        reset = self.headers.get("x-ratelimit-reset", "")
        if self.headers.get("x-ratelimit-remaining") == "0" and _is_number(reset):
            return max(float(reset) - time.time(), 0.0) + 1.0
        return None

    def is_rate_limit(self) -> bool:
        """Return whether the server refuses only for now."""
        is_refused = self.status == _FORBIDDEN and self.requested_pause() is not None
        return is_refused or self.status == _TOO_MANY


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is sent: after a status of ``statuses``, a rate limit or no answer.

    Pauses double. One that the server requests counts up to ``pause_max_s``; one after a rate
    limit without a pause lasts ``limited_s``. No attempt starts after ``total_s`` of pauses.
    """

    attempts: int
    statuses: Container[int]
    first_pause_s: float = 1.0
    pause_max_s: float = PAUSE_MAX_S
    limited_s: float = 0.0
    total_s: float = float("inf")
    repeats_unanswered: bool = True

    def run(
        self,
        send: Callable[[], Reply],
        wait: Callable[[float], object],
        stops: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Send until the answer is final, and return the last one.

        Raises:
            HttpError: the last attempt has no answer.
        """
        waited = 0.0
        for left in reversed(range(self.attempts)):
            pause = self.first_pause_s * 2.0 ** (self.attempts - 1 - left)
            try:
                reply = send()
            except HttpError as error:
                is_final = error.fault is not HttpFault.UNANSWERED or not self.repeats_unanswered
                if is_final or not left or stops():
                    raise
            else:
                pause = self._pause(reply, pause)
                is_final = reply.status not in self.statuses and not reply.is_rate_limit()
                if is_final or not left or waited + pause > self.total_s or stops():
                    return reply
            wait(pause)
            waited += pause
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, reply: Reply, pause: float) -> float:
        requested = reply.requested_pause()
        if requested is not None:
            return min(requested, self.pause_max_s)
        return max(pause, self.limited_s) if reply.status == _TOO_MANY else min(pause, PAUSE_MAX_S)


def url_problem(url: str, *, is_secret: bool, has_query: bool = False) -> str:
    """Return why a server may not be called at a URL, empty if it may.

    Without TLS it may only if nothing that is sent ``is_secret``, or on this machine.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        parse_url(url)
    except (ValueError, urllib3.exceptions.LocationParseError):
        return "not a valid URL"
    if parts.scheme not in ("http", "https"):
        return "not an https or http URL"
    if not host or not _is_printable(url):
        return "not a valid URL"
    if "@" in parts.netloc:
        return "the URL contains a user or password"
    if not has_query and (parts.query or parts.fragment):
        return "the URL contains ? or #"
    if is_secret and is_unencrypted(url):
        return "plain http is allowed only for 127.0.0.1; use https"
    return ""


def redact_url(url: str) -> str:
    """Return a URL as messages may show it: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


class HttpClient:
    """Requests to one server, at ``url`` and below it; ``headers`` may hold its token.

    With an ``address`` it connects to that address whatever the name resolves to, without the
    proxy of the environment. ``trust`` is a file of certificates to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        limits: ReplyLimits,
        headers: Mapping[str, str] | None = None,
        *,
        address: str = "",
        trust: str | None = None,
    ) -> None:
        self._url, self._limits, self._is_pinned = url, limits, bool(address)
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        self._secrets = [
            value.split()[-1] for name, value in self._headers.items() if name in _SECRET_HEADERS
        ]
        if address:
            self._headers["Host"] = urlsplit(url).netloc
        self._pool = _pinned_pool(url, address, trust) if address else _pool(url)
        self._timeout = urllib3.Timeout(connect=limits.connect_s, read=limits.read_s)

    def send(
        self,
        method: str,
        path: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Return the answer to one request, whatever its status.

        Raises:
            HttpError: there is none, or it exceeds a limit.
        """
        ends_at = time.monotonic() + self._limits.total_s
        _ENDS_AT.set(ends_at)
        try:
            response = self._pool.request(
                method,
                self._target(path, query),
                body=body,
                headers={**self._headers, **(headers or {})},
                timeout=self._timeout,
                retries=False,  # which also means that no redirect is followed
                preload_content=False,
            )
            try:
                content = _read_content(response, self._limits.bytes_max)
                return Reply(response.status, response.headers, content)
            finally:
                response.close()
        except urllib3.exceptions.SSLError:
            raise HttpError(
                "its certificate cannot be verified, or it does not use TLS", HttpFault.UNTRUSTED
            ) from None
        except urllib3.exceptions.HTTPError as error:  # its text has the URL
            if time.monotonic() >= ends_at:
                what = f"the answer takes longer than {self._limits.total_s:g} s"
                raise HttpError(what, HttpFault.TOO_SLOW) from None
            raise HttpError(f"no answer ({type(error).__name__})", HttpFault.UNANSWERED) from None
        except ValueError:  # its text has the header
            raise HttpError("a header has invalid characters", HttpFault.UNREADABLE) from None

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        """Return the URL of a request; a pinned pool is given what follows its host."""
        assert path[:1] in ("", "/"), "a path stays on the host"
        url = f"{self._url.rstrip('/')}{path}" if path else self._url
        if self._is_pinned:
            parts = urlsplit(url)
            url = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return f"{url}?{urlencode(query)}" if query else url

    def quote(self, text: str) -> str:
        """Return a text of the server in one line of limited length, without our token."""
        text = text[: 10 * _MESSAGE_MAX]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        line = one_line(text)
        return line if len(line) <= _MESSAGE_MAX else f"{line[:_MESSAGE_MAX]}…"

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear() if isinstance(self._pool, urllib3.PoolManager) else self._pool.close()


def _pool(url: str) -> urllib3.PoolManager:
    """Return connections through the proxy of the environment."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        pool = urllib3.PoolManager()
    else:
        pool = urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")
    pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return pool


def _pinned_pool(url: str, address: str, trust: str | None) -> urllib3.HTTPSConnectionPool:
    parts = urlsplit(url)
    return _HttpsPool(
        address,
        parts.port or 443,
        ssl_context=ssl.create_default_context(cafile=trust),
        assert_hostname=parts.hostname,
        server_hostname=parts.hostname,
    )


class _TimedReader(io.RawIOBase):
    """What a server sends, until the time of the request is over.

    The timeout of a socket starts again with each byte. The parser of the standard library reads
    headers, interim answers (``100 Continue``) and trailers for as long as there are any.
    """

    def __init__(self, source: socket.SocketIO, connection: socket.socket) -> None:
        self._source, self._connection = source, connection
        self._ends_at = _ENDS_AT.get()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time of the request is over")
        usual = self._connection.gettimeout()
        self._connection.settimeout(left if usual is None else min(usual, left))
        try:
            return self._source.readinto(buffer)
        finally:
            self._connection.settimeout(usual)

    def close(self) -> None:
        self._source.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """An answer that ends with the time of its request, headers included."""

    def __init__(
        self,
        sock: socket.socket,
        debuglevel: int = 0,
        method: str | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = io.BufferedReader(_TimedReader(sock.makefile("rb", buffering=0), sock))


class _TimedHttp(HTTPConnection):
    response_class = _TimedResponse


class _TimedHttps(HTTPSConnection):
    response_class = _TimedResponse


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _TimedHttp


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TimedHttps


def _read_content(response: urllib3.BaseHTTPResponse, bytes_max: int) -> bytes:
    """Return the body of an answer. Only gzip is unpacked, because a proxy may add it.

    Raises:
        HttpError: it exceeds a limit, or cannot be unpacked.
    """
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", *_GZIP):
        raise HttpError(f"the answer is packed ({coding[:40]!a})", HttpFault.UNREADABLE)
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if coding in _GZIP else None
    content = bytearray()
    try:
        while chunk := response.read1(_CHUNK, decode_content=False):
            room = bytes_max + 1 - len(content)
            content += unpack.decompress(chunk, room) if unpack else chunk
            if len(content) > bytes_max:
                what = f"the answer has more than {bytes_max:,} bytes"
                raise HttpError(what, HttpFault.TOO_LARGE)
            if unpack is not None and unpack.unused_data:
                break
        is_damaged = unpack is not None and bool(content) and not unpack.eof
    except zlib.error:
        is_damaged = True
    if is_damaged or (unpack is not None and unpack.unused_data):
        raise HttpError("the answer is damaged", HttpFault.UNREADABLE)
    return bytes(content)
