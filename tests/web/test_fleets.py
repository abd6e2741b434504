"""Metrics, health checks and dashboards of several fleets at one address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from reconciler.ports.progress import EventKind, Progress
from reconciler.web.dashboard import DashboardAccess
from reconciler.web.fleets import WatchedFleets
from reconciler.web.health import DaemonHealth
from reconciler.web.server import make_fleets_app, serve_in_thread

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Elapsing:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def two_fleets() -> tuple[WatchedFleets, dict[str, DaemonHealth], Elapsing]:
    fleets, elapsing = WatchedFleets(), Elapsing()
    healths = {name: DaemonHealth(monotonic=elapsing) for name in ("web", "shop")}
    for name, health in healths.items():
        fleets.add(name, health)
    fleets.expected = 2
    return fleets, healths, elapsing


class Browser:
    """Asks a server for pages."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        try:
            with urlopen(Request(f"{self._url}{path}", headers=headers), timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def text(self, path: str) -> str:
        return self.get(path)[1]

    def status(self, path: str, **headers: str) -> int:
        return self.get(path, **headers)[0]


@contextmanager
def client(fleets: WatchedFleets, *, is_open: bool = True) -> Iterator[Browser]:
    access = DashboardAccess(is_open=is_open, token="t")
    with serve_in_thread("127.0.0.1:0", make_fleets_app(fleets, access)) as url:
        yield Browser(url)


def test_probes_name_the_fleet_that_fails() -> None:
    fleets, healths, elapsing = two_fleets()
    healths["web"].record_pass()
    healths["shop"].record_failure("EC2 does not answer")
    with client(fleets) as site:
        assert site.get("/readyz") == (
            503,
            "fleet shop: no pass has ended yet; last failure: EC2 does not answer\n",
        )
        healths["shop"].record_pass()
        assert site.status("/readyz") == 200
        elapsing.now += 700
        healths["web"].record_heartbeat()
        status, text = site.get("/healthz")
        assert status == 503
        assert text == "fleet shop: no heartbeat for 700 s (limit 600 s)\n"
        fleets.remove("shop")
        assert site.status("/healthz") == 200


def test_a_process_is_not_ready_before_its_fleets_are_known() -> None:
    fleets = WatchedFleets()
    with client(fleets) as site:
        assert site.status("/readyz") == 503
        fleets.expected = 0
        assert site.status("/readyz") == 200


def test_metrics_have_one_family_whose_samples_name_their_fleet() -> None:
    fleets, _, _ = two_fleets()
    fleets.fleets()["web"].metrics.record_start()
    fleets.calls.record_call("ec2", "CreateFleet", "ok", 0.1)
    fleets.fleets()["shop"].metrics.record_call("ec2", "CreateFleet", "ok", 0.1)
    with client(fleets) as site:
        text = site.text("/metrics")
    assert text.count("# TYPE reconciler_lease_held gauge") == 1
    assert 'reconciler_lease_held{fleet="web"} 1.0' in text
    assert 'reconciler_lease_held{fleet="shop"} 0.0' in text
    assert (
        'reconciler_api_calls_total{operation="CreateFleet",outcome="ok",service="ec2"} 2.0' in text
    )


def test_the_list_counts_the_fleets_that_are_not_ready() -> None:
    fleets, healths, _ = two_fleets()
    healths["web"].record_pass()
    healths["shop"].record_failure("EC2 does not answer")
    with client(fleets) as site:
        page = site.text("/")
        assert "Not ready: 1 of 2 fleets" in page
        assert page.count("EC2 does not answer") == 1
        assert "2 fleets in this process: 0 nodes, $0" in page
        healths["shop"].record_pass()
        assert "Ready: 2 fleets" in site.text("/")


def test_each_fleet_has_its_own_pages() -> None:
    fleets, _, _ = two_fleets()
    dashboard = fleets.fleets()["shop"].dashboard
    dashboard.record_event(Progress(NOW, EventKind.FAILED, "of the shop"))
    with client(fleets) as site:
        assert 'href="/fleets/shop/"' in site.text("/")
        assert "of the shop" in site.text("/fleets/shop/events")
        assert "of the shop" not in site.text("/fleets/web/events")
        assert 'data-stream="/fleets/shop/stream?since=1"' in site.text("/fleets/shop/")
        assert '<a href="/">All fleets</a>' in site.text("/fleets/shop/")
        assert site.status("/fleets/nobody/") == 404


def test_the_pages_of_every_fleet_need_the_token() -> None:
    fleets, _, _ = two_fleets()
    with client(fleets, is_open=False) as site:
        for path in ("/", "/fleets/shop/", "/fleets/shop/nodes", "/fleets/metrics", "/stream"):
            assert site.status(path) == 401, path
        assert site.status("/metrics") == 200
        assert site.status("/", Authorization="Bearer t") == 200
