"""Which connections the server of a daemon keeps, for which host, and what a probe answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from reconciler.model.errors import UsageError
from reconciler.web.connections import CONNECTIONS_MAX, TimedConnection
from reconciler.web.dashboard import Dashboard, DashboardAccess
from reconciler.web.fleets import WatchedFleets
from reconciler.web.health import DaemonHealth
from reconciler.web.metrics import FleetMetrics
from reconciler.web.server import dashboard_access, make_app, make_probes_app, serve_in_thread
from tests.cli.commandlines import request_of

LOCAL = dashboard_access("127.0.0.1:0", "", "", ())


@contextmanager
def served(access: DashboardAccess = LOCAL, failure: str = "") -> Iterator[int]:
    """Serve the pages of a daemon and yield the port."""
    health = DaemonHealth()
    if failure:
        health.record_failure(failure)
    app = make_app(FleetMetrics(), health, Dashboard("shop", health), access)
    with serve_in_thread("127.0.0.1:0", app) as url:
        yield int(url.rpartition(":")[2])


def ask(port: int, path: str = "/", host: str | None = "localhost", *more: str) -> tuple[int, str]:
    """Return status and body of an answer to a request with exactly these headers."""
    names = [] if host is None else [f"Host: {host}"]
    version = "1.0" if host is None else "1.1"
    lines = [f"GET {path} HTTP/{version}", *names, *more, "Connection: close", "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall("\r\n".join(lines).encode())
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


FOREIGN = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("", "[::1].evil.example", "10.0.0.1", "localhost:80:80", "127.0.0.1@evil.example"),
    *("127.0.0.999", "127.1", "[::ffff:127.0.0.1]", "a.localhost", "localhost, evil.example"),
)
OWN = ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:80", "localhost.", None)


@pytest.mark.parametrize("path", ["/", "/metrics", "/readyz", "/static/live.js"])
@pytest.mark.parametrize("host", FOREIGN)
def test_a_server_on_loopback_answers_for_its_own_names_only(host: str, path: str) -> None:
    with served(failure="secret") as port:
        status, text = ask(port, path, host)
        assert status in (400, 421)
        assert "secret" not in text
        assert "shop" not in text


@pytest.mark.parametrize("host", OWN)
def test_names_of_loopback_are_answered(host: str | None) -> None:
    with served() as port:
        assert ask(port, "/", host)[0] == 200


def test_names_that_the_operator_allows_are_answered() -> None:
    access = dashboard_access("127.0.0.1:0", "", "", ("Fleet.Example.com",))
    with served(access) as port:
        assert ask(port, "/", "fleet.example.com:443")[0] == 200
        assert ask(port, "/", "example.com")[0] == 421


def test_beyond_loopback_a_foreign_name_needs_the_token() -> None:
    access = dashboard_access("fleet.internal:8080", "s3cret", "X-User", ())
    with served(access) as port:
        assert ask(port, "/metrics", "reconciler.kube-system.svc")[0] == 200
        assert ask(port, "/healthz", "10.1.2.3:8080")[0] == 200
        assert ask(port, "/", "evil.example", "X-User: anna")[0] == 421
        assert ask(port, "/", "evil.example", "Authorization: Bearer s3cret")[0] == 200
        assert ask(port, "/", "fleet.internal:8080", "X-User: anna")[0] == 200
        assert ask(port, "/", "10.1.2.3", "X-User: anna")[0] == 200


def test_a_probe_answers_with_a_code_and_for_readers_with_access_with_the_reason() -> None:
    access = dashboard_access("0.0.0.0:0", "s3cret", "", ())
    with served(access, failure="arn:aws:iam::1:role/x is denied") as port:
        assert ask(port, "/readyz") == (503, "failing\n")
        assert ask(port, "/healthz") == (200, "alive\n")
        reason = "no pass has ended yet; last failure: arn:aws:iam::1:role/x is denied\n"
        assert ask(port, "/readyz", "localhost", "Authorization: Bearer s3cret") == (503, reason)


def test_the_listener_for_probes_serves_nothing_else() -> None:
    fleets = WatchedFleets()
    fleets.expected = 1
    fleets.add("shop", health := DaemonHealth())
    health.record_failure("secret")
    with serve_in_thread("127.0.0.1:0", make_probes_app(fleets)) as url:
        port = int(url.rpartition(":")[2])
        assert ask(port, "/healthz") == (200, "alive\n")
        assert ask(port, "/readyz", "10.0.0.9:8081") == (503, "failing\n")
        health.record_pass()
        assert ask(port, "/readyz") == (200, "ready\n")
        for path in ("/", "/metrics", "/events", "/fleets/shop/"):
            status, text = ask(port, path)
            assert status == 404
            assert "shop" not in text


def wait_until_closed(client: socket.socket) -> bool:
    client.settimeout(10)
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def is_refused_while_sending(client: socket.socket) -> bool:
    """Send a byte at a time, and return whether the server closes the connection meanwhile."""
    for _ in range(500):
        try:
            client.sendall(b"x")
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedConnection, "request_s", 0.3)
    monkeypatch.setattr(TimedConnection, "unread_s", 0.3)


BEGINNINGS = {
    "silent": b"",
    "half a line": b"GET / HT",
    "no end of headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "after an answer": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    "an endless body": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n",
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("start", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_request_that_never_ends_is_closed(start: bytes) -> None:
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(start)
        assert wait_until_closed(client)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("start", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_request_of_a_byte_at_a_time_is_closed(start: bytes) -> None:
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(start)
        assert is_refused_while_sending(client)


def test_silent_connections_keep_nobody_out() -> None:
    with served() as port, ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 30):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert ask(port, "/healthz")[0] == 200
        assert ask(port, "/")[0] == 200


@pytest.mark.usefixtures("hurried")
def test_an_answer_that_is_not_read_is_closed() -> None:
    closed = threading.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**26), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        closed.set()

    with serve_in_thread("127.0.0.1:0", app) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert closed.wait(30)


def test_a_stream_of_events_stays_open(hurried: None) -> None:
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.settimeout(10)
        text = b""
        while b"retry: 3000" not in text:
            part = client.recv(65536)
            assert part, text
            text += part
        client.settimeout(1)  # three times what an unfinished request may take here
        with pytest.raises(TimeoutError):
            client.recv(65536)


@pytest.mark.parametrize(
    "name", ["https://x.example", "x.example:80", "x/y", "a b", "*.example.com", "-" * 64]
)
def test_only_host_names_can_be_allowed(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a host name"):
        request_of(["run", str(tmp_path), "--listen", ":0", f"--allowed-host={name}"])


def test_allowed_hosts_come_from_options_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_ALLOWED_HOSTS", "a.example, b.example.,")
    monkeypatch.setenv("RECONCILER_LISTEN_PROBES", "*:8081")
    serving = request_of(["run", str(tmp_path)]).serving
    assert (serving.hosts, serving.probes) == (("a.example", "b.example"), "*:8081")
    serving = request_of(["run", str(tmp_path), "--allowed-host", "c.example"]).serving
    assert serving.hosts == ("c.example",)
