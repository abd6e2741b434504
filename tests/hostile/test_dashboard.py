"""The dashboard of a daemon: untrusted text, and access control."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from reconciler.ports.progress import EventKind, Progress
from reconciler.web.dashboard import DashboardAccess
from reconciler.web.fleets import WatchedFleets
from reconciler.web.health import DaemonHealth
from reconciler.web.server import is_loopback_address, make_fleets_app, serve_in_thread
from tests.hostile.threats import Threat, attack
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
