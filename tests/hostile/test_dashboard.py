"""The dashboard of a daemon: untrusted text, and access control."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from starlette.types import Receive, Scope, Send

from reconciler.ports.progress import EventKind, Progress
from reconciler.web.connections import CONNECTIONS_MAX, TimedConnection
from reconciler.web.dashboard import DashboardAccess
from reconciler.web.fleets import WatchedFleets
from reconciler.web.health import DaemonHealth
from reconciler.web.server import (
    dashboard_access,
    is_loopback_address,
    make_fleets_app,
    make_probes_app,
    serve_in_thread,
)
from tests.hostile.threats import Threat, attack
from tests.web.test_connections import (
    BEGINNINGS,
    FOREIGN,
    LOCAL,
    ask,
    is_refused_while_sending,
    served,
    wait_until_closed,
)
from tests.web.test_dashboard import Site

AT = datetime(2026, 11, 22, tzinfo=UTC)
MARKUP = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></tr></table><h1>approved</h1>",
    "{{ 7 * 7 }}",
    "\u202etxt.exe",
    "\x1b[2J",
)


@attack(Threat.OUTPUT, "markup in a name or message that the dashboard shows")
@pytest.mark.parametrize(
    "text", MARKUP, ids=["script", "image", "table", "template", "direction", "escape"]
)
def test_untrusted_text_is_shown_and_not_interpreted(text: str) -> None:
    site = Site()
    site.dashboard.fleet = text
    site.dashboard.record_event(Progress(AT, EventKind.FAILED, text))
    for path in ("/", "/events"):
        page = site.page(path)
        assert not re.search(r"<(script(?! src=)|img|h1>approved)", page)
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert "49" not in re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "", page)


@attack(Threat.SECRETS, "a reader of the dashboard without a token")
@pytest.mark.parametrize(
    "path", ["/", "/nodes", "/events", "/history", "/stream", "/static/live.js", "//"]
)
def test_without_a_token_nothing_is_shown(path: str) -> None:
    site = Site(access=DashboardAccess(token="s3cret"))
    site.dashboard.record_event(Progress(AT, EventKind.LAUNCHED, "shop-1"))
    status, text, _ = site.get(path)
    assert status == 401
    assert "shop" not in text


@attack(Threat.SECRETS, "a reader of one of several fleets' pages without a token")
@pytest.mark.parametrize(
    "path",
    ["/", "/stream", "/fleets/shop/", "/fleets/shop/nodes", "/fleets/shop/stream", "/fleets"],
)
def test_without_a_token_no_fleet_name_is_shown(path: str) -> None:
    fleets = WatchedFleets()
    fleets.add("shop", DaemonHealth())
    access = DashboardAccess(token="s3cret")
    with serve_in_thread("127.0.0.1:0", make_fleets_app(fleets, access)) as url:
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{url}{path}", timeout=10)
        with refused.value as answer:
            assert answer.code == 401
            assert b"shop" not in answer.read()


@attack(Threat.SECRETS, "a dashboard that listens on all interfaces without a token")
@pytest.mark.parametrize("address", ["*:8080", "0.0.0.0:8080", "10.0.0.1:8080", "[::]:8080"])
def test_a_dashboard_beyond_loopback_requires_a_token(address: str) -> None:
    site = Site(access=DashboardAccess(is_open=is_loopback_address(address)))
    assert site.get("/")[0] == 404
    assert site.get("/stream")[0] == 404
    assert site.get("/healthz")[0] == 200


@attack(Threat.SECRETS, "a file of the server requested through the dashboard")
@pytest.mark.parametrize(
    "path",
    ["/static/../view.py", "/static/%2e%2e/view.py", "/static/..%2fview.py", "/static//etc/passwd"],
    ids=["dots", "encoded dots", "encoded slash", "absolute"],
)
def test_only_files_of_the_dashboard_are_served(path: str) -> None:
    assert Site().get(path)[0] == 404


# -- browsers of others, and clients that never finish --------------------------------------------


@attack(
    Threat.SECRETS, "a page of a stranger whose host name leads to the dashboard (DNS rebinding)"
)
@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/", "/events", "/stream", "/metrics", "/readyz", "/healthz"])
def test_a_browser_that_came_under_another_name_is_refused(host: str, path: str) -> None:
    with served(failure="secret failure") as port:
        status, text = ask(port, path, host)
        assert 400 <= status < 500
        assert "secret" not in text


@attack(Threat.SECRETS, "a failure of a pass, as everybody who can reach a probe reads it")
@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
def test_a_probe_without_a_token_shows_no_message(path: str) -> None:
    access = dashboard_access("0.0.0.0:0", "s3cret", "X-User", ())
    with served(access, failure="password of arn:aws:iam::1:role/x") as port:
        for more in ((), ("Authorization: Bearer wrong",), ("X-User:",)):
            _, text = ask(port, path, "10.0.0.9:8080", *more)
            assert re.fullmatch(r"[a-z-]+\n", text)


@attack(Threat.EXHAUSTION, "more silent connections to the dashboard than it can have")
@pytest.mark.parametrize("start", BEGINNINGS.values(), ids=BEGINNINGS)
def test_connections_without_a_request_keep_no_probe_out(start: bytes) -> None:
    with served() as port, ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                client.sendall(start)
        for path in ("/healthz", "/metrics", "/"):
            assert ask(port, path)[0] == 200


@attack(Threat.EXHAUSTION, "more streams and unread answers of the dashboard than it can have")
def test_connections_that_are_answered_keep_no_probe_out(capfd: pytest.CaptureFixture[str]) -> None:
    requests = (b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n", b"nonsense\r\n\r\n")
    with served() as port, ExitStack() as stack:
        for number in range(2 * CONNECTIONS_MAX):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(requests[number % 10 == 0])
            if number % 10:
                assert client.recv(15) == b"HTTP/1.1 200 OK"
        for path in ("/healthz", "/metrics", "/"):
            assert ask(port, path)[0] == 200
    assert capfd.readouterr().err == "", "a client writes nothing into the log"


@attack(Threat.EXHAUSTION, "a request that arrives at the dashboard a byte at a time")
@pytest.mark.parametrize("start", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_request_that_never_ends_is_closed(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedConnection, "request_s", 0.3)
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(start)
        assert is_refused_while_sending(client)


@attack(Threat.EXHAUSTION, "connections that are held open until the daemon has no files left")
@pytest.mark.parametrize("start", [b"", b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_connection_too_many_closes_the_oldest(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "request_s", 10_000)
    monkeypatch.setattr(TimedConnection, "connections_max", 5)
    with served() as port, ExitStack() as stack:
        clients = []
        for _ in range(20):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            clients[-1].sendall(start)
            if start:
                assert clients[-1].recv(15) == b"HTTP/1.1 200 OK"
        assert ask(port, "/healthz")[0] == 200
        assert wait_until_closed(clients[0])


@attack(Threat.EXHAUSTION, "an answer that a client asks for and does not read")
def test_an_answer_that_is_never_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedConnection, "unread_s", 0.3)
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
            assert closed.wait(20)


OVERSIZE = {
    "a path": b"GET /" + b"x" * 2**22 + b" HTTP/1.1\r\n\r\n",
    "a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2**22 + b"\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 2**20 + b"\r\n",
    "a host": b"GET / HTTP/1.1\r\nHost: " + b"x" * 2**22 + b"\r\n\r\n",
    "a method": b"G" * 2**22 + b" / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "a body and its length twice": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\nx"
    ),
}


@attack(Threat.EXHAUSTION, "a request with a line or with headers of mebibytes, or of two meanings")
@pytest.mark.parametrize("request_", OVERSIZE.values(), ids=OVERSIZE)
@pytest.mark.parametrize("is_for_probes", [False, True])
def test_an_oversize_request_is_refused_and_the_next_one_answered(
    request_: bytes, is_for_probes: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    fleets = WatchedFleets()
    fleets.expected = 1
    fleets.add("shop", DaemonHealth())
    app = make_probes_app(fleets) if is_for_probes else make_fleets_app(fleets, LOCAL)
    with serve_in_thread("127.0.0.1:0", app) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            with suppress(OSError):
                client.sendall(request_)
            with suppress(ConnectionError):
                assert client.recv(12) in (b"HTTP/1.1 400", b"")
        assert ask(port, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


BODIES = {
    "both lengths": "Content-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length": "Content-Length: 2\r\n\r\nab",
    "chunks": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@attack(Threat.SECRETS, "a request in what a proxy took for the body of another (smuggling)")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("body", BODIES)
def test_nothing_after_a_body_is_a_request(method: str, body: str) -> None:
    access = dashboard_access("0.0.0.0:0", "", "X-User", ())
    head = "HTTP/1.1\r\nHost: localhost\r\n"
    first = f"{method} /healthz {head}{BODIES[body]}"
    second = f"GET / {head}X-User: anna\r\nConnection: close\r\n\r\n"
    with served(access) as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall((first + second).encode())
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"shop" not in answers
