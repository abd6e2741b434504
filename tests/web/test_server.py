"""What a daemon answers over HTTP, asked by a client of its own process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from reconciler.model.errors import UsageError
from reconciler.web.dashboard import Dashboard, DashboardAccess
from reconciler.web.health import DaemonHealth
from reconciler.web.metrics import FleetMetrics
from reconciler.web.server import make_app, parse_address, serve_in_thread

OPEN = DashboardAccess(is_open=True)


class Time:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def health(time: Time) -> DaemonHealth:
    return DaemonHealth(monotonic=time)


@pytest.fixture
def url(health: DaemonHealth) -> Iterator[str]:
    with serve_in_thread("127.0.0.1:0", an_app(health)) as url:
        yield url


def an_app(health: DaemonHealth, access: DashboardAccess = OPEN) -> Any:
    return make_app(FleetMetrics(), health, Dashboard("shop", health), access)


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_served_in_the_format_of_prometheus(url: str) -> None:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert b"karpenter_build_info" in answer.read()


def test_a_daemon_is_ready_once_a_pass_has_ended(
    url: str, health: DaemonHealth, time: Time
) -> None:
    assert get(f"{url}/readyz") == (503, "no pass has ended yet\n")
    health.record_failure("throttled")
    assert get(f"{url}/readyz") == (503, "no pass has ended yet; last failure: throttled\n")
    health.record_pass()
    time.now += 7
    assert get(f"{url}/readyz") == (200, "last pass ended 7 s ago\n")


def test_a_daemon_whose_passes_no_longer_end_is_not_ready(
    url: str, health: DaemonHealth, time: Time
) -> None:
    health.record_pass()
    for _ in range(11):
        time.now += 30
        health.record_heartbeat()
    health.record_failure("throttled")
    expected = "no pass has ended for 330 s (limit 300 s); last failure: throttled\n"
    assert get(f"{url}/readyz") == (503, expected)
    assert get(f"{url}/healthz") == (200, "last heartbeat 0 s ago\n")


def test_a_daemon_that_hangs_is_neither_alive_nor_ready(
    url: str, health: DaemonHealth, time: Time
) -> None:
    health.record_pass()
    time.now += 601
    assert get(f"{url}/healthz") == (503, "no heartbeat for 601 s (limit 600 s)\n")
    assert get(f"{url}/readyz")[0] == 503


def test_a_standby_is_ready(url: str, health: DaemonHealth) -> None:
    health.record_standby()
    assert get(f"{url}/readyz") == (200, "standby: another process holds the lease\n")


def test_other_paths_are_not_found(url: str) -> None:
    assert get(f"{url}/secrets")[0] == 404
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{url}/metrics", data=b"x", timeout=10)
    with caught.value as error:
        assert error.code == 405


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", ("127.0.0.1", 8080)),
        ("*:8080", ("0.0.0.0", 8080)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_valid_addresses_are_accepted(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", "localhost", "localhost:http", "x:65536", "x:-1"])
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not HOST:PORT.*for example"):
        parse_address(text)


def test_a_port_in_use_is_an_error_with_a_remedy(health: DaemonHealth) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=r"cannot listen on .*in use.*free port"),
            serve_in_thread(f"127.0.0.1:{port}", an_app(health)),
        ):
            pass


def test_an_open_page_does_not_keep_the_server_from_closing(
    health: DaemonHealth, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(FleetMetrics(), health, Dashboard("shop", health), OPEN)
    with serve_in_thread("127.0.0.1:0", app) as url:
        stream = urlopen(f"{url}/stream", timeout=10)
        assert stream.readline() == b"retry: 3000\n"
    with stream:
        assert stream.read() == b"\n", "the server has ended the stream itself"
    assert caplog.records == []
