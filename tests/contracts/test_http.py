"""Every client of HTTP, with a server that behaves badly: each refuses, in one line, in time."""

from __future__ import annotations

import gzip
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import repeat
from pathlib import Path
from threading import Event

import pytest

from reconciler.adapters.forge import GITHUB_REMEDIES, ForgeApi
from reconciler.adapters.http import HttpClient, HttpError, HttpFault, ReplyLimits
from reconciler.adapters.https import download
from reconciler.adapters.prometheus import Prometheus
from reconciler.model.errors import ReconcilerError
from reconciler.model.notification import NoticeKind, Webhook
from reconciler.notifications.delivery import DeliveryQueue
from reconciler.notifications.notices import Notice
from tests.httpserver import QuietHandler, serving_with

SECRET = "s3cr3t-t0ken"
NOW = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
HOOK = Webhook("HOOK_URL")


@dataclass
class Server:
    """A server whose answers are written as they are; it repeats the last one."""

    answers: list[Callable[[], Iterator[bytes]]] = field(default_factory=list)
    url: str = ""
    requests: int = 0


@dataclass
class Waits:
    """A clock whose pauses take no time and are recorded."""

    seconds: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        del until
        self.seconds.append(seconds)


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            state.requests += 1
            self.close_connection = True
            for piece in (state.answers.pop(0) if state.answers[1:] else state.answers[0])():
                self.wfile.write(piece)

    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving_with(Handler, certificate) as state.url:
        yield state


def forge(url: str, waits: Waits) -> str:
    headers = {"Authorization": f"Bearer {SECRET}"}
    return message_of(lambda: ForgeApi(url, headers, GITHUB_REMEDIES, waits.wait).get("/user"))


def prometheus(url: str, waits: Waits) -> str:
    return message_of(lambda: Prometheus(url, SECRET, waits.wait, bytes_max=10**6).query("up", 1))


def webhook(url: str, waits: Waits) -> str:
    notice = Notice("shop/1", NOW, NoticeKind.FAILED, "shop", "t", "no capacity")
    records: list[str] = []
    log = logging.getLogger("reconciler.notifications.delivery")
    logged = Event()

    def keep(record: logging.LogRecord) -> bool:
        records.append(record.getMessage())
        logged.set()
        return True

    log.addFilter(keep)
    with DeliveryQueue(waits, {"HOOK_URL": f"{url}/{SECRET}"}) as deliveries:
        deliveries.deliver(notice, HOOK)
        assert logged.wait(20)
    log.removeFilter(keep)
    return "".join(records)


def snapshot(url: str, _waits: Waits) -> str:
    return message_of(lambda: download(f"{url}/file?X-Amz-Signature={SECRET}", 10**6))


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except ReconcilerError as error:
        return str(error)
    return ""


CLIENTS = (forge, prometheus, webhook, snapshot)


def answer(status: str, *headers: str, body: bytes = b"") -> Callable[[], Iterator[bytes]]:
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers, "Connection: close", "", "")).encode()
    return lambda: iter((head, body))


def endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    yield from repeat(b"x" * 2**16)


FAULTS = {
    "an answer without end": (endless, "the answer has more than"),
    "an answer that unpacks without end": (
        answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(bytes(40 * 10**6))),
        "the answer has more than",
    ),
    "another way of packing": (answer("200 OK", "Content-Encoding: br"), "the answer is packed"),
    "damaged content": (
        answer("200 OK", "Content-Encoding: gzip", body=b"not gzip"),
        "the answer is damaged",
    ),
    "half of packed content": (
        answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(b"x" * 99)[:-9]),
        "the answer is damaged",
    ),
    "half of an answer": (answer("200 OK", "Content-Length: 9", body=b"{}"), "no answer ("),
    "no answer": (lambda: iter(()), "no answer ("),
    "something else": (lambda: iter((b"SSH-2.0-x\r\n",)), "no answer ("),
    "a redirect": (
        answer("302 Found", f"Location: https://localhost:1/?{SECRET}", "Content-Length: 0"),
        "",
    ),
    "our secrets in a refusal": (
        answer("400 Bad", "Content-Length: 12", body=SECRET.encode()),
        "400",
    ),
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_refuses_a_bad_answer_in_one_line_without_secrets(
    fault: str, client: Callable[[str, Waits], str], server: Server
) -> None:
    bad, expected = FAULTS[fault]
    server.answers = [bad]
    message = client(server.url, Waits())
    assert message
    assert expected in message
    assert SECRET not in message
    assert "\n" not in message


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sends_nothing_without_the_right_certificate(
    client: Callable[[str, Waits], str], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    server.answers = [answer("200 OK")]
    assert "its certificate cannot be verified" in client(server.url, Waits())
    assert server.requests == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sends_no_secret_without_tls(client: Callable[[str, Waits], str]) -> None:
    message = client("http://host.example", Waits())
    assert "http" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("Retry-After: 7", 7.0),
        (f"Retry-After: {format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True)}", 0.0),
        ("Retry-After: soon", None),
        ("Retry-After: -1", None),
        ("Retry-After: Fri, 31 Dec 99999 23:59:59 GMT", None),
    ],
)
@pytest.mark.parametrize("client", CLIENTS[:3])
def test_a_client_pauses_as_the_server_requests(
    client: Callable[[str, Waits], str], header: str, pause: float | None, server: Server
) -> None:
    server.answers = [
        answer("503 Busy", header, "Content-Length: 0"),
        answer("404 Gone", "Content-Length: 0"),
    ]
    waits = Waits()
    assert "404" in client(server.url, waits)
    usual = 2.0 if client is webhook else 1.0
    assert waits.seconds == [usual if pause is None else pause]


def drip() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    for _ in range(10_000):
        yield b"x"
        time.sleep(0)


def test_an_answer_that_never_ends_is_given_up(server: Server) -> None:
    server.answers = [drip]
    client = HttpClient(server.url, ReplyLimits(10**9, connect_s=5, read_s=5, total_s=0.0))
    with pytest.raises(HttpError, match="takes longer than 0 s") as caught:
        client.send("GET")
    assert caught.value.fault is HttpFault.TOO_SLOW
