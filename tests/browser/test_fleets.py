"""The pages of a process that serves several fleets, as a browser shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.web.dashboard import DashboardAccess
from reconciler.web.fleets import WatchedFleets
from reconciler.web.health import DaemonHealth
from reconciler.web.observer import WebNotifier, WebObserver
from reconciler.web.server import make_fleets_app, serve_in_thread
from tests.browser.conftest import Window
from tests.browser.test_pages import CONTRASTS, UNFOLD, schemes, widths
from tests.engine.faults import three_nodes
from tests.engine.world import TAGS

pytestmark = pytest.mark.exhaustive

NAMES = ("checkout", "search-" + "a-name-as-long-as-names-may-be-" * 3, "failing", "starting")


@pytest.fixture(scope="module")
def fleets() -> WatchedFleets:
    """Four fleets: two have ended passes, one fails, and one has just been added."""
    fleets = WatchedFleets()
    fleets.expected = len(NAMES)
    for name in NAMES:
        health = DaemonHealth()
        fleet = fleets.add(name, health)
        if name == "failing":
            health.record_failure("EC2 does not answer: " + "a-long-word-of-an-error" * 8)
        if name in NAMES[:2]:
            engine = three_nodes().engine()
            dashboard, metrics = fleet.dashboard, fleet.metrics
            notifier = WebNotifier(engine.ports.notifier, metrics, health, dashboard)
            left = iter(range(2))
            run(
                replace(engine.ports, notifier=notifier),
                engine.source,
                Mandate(TAGS),
                intervals=PassIntervals(busy=5.0),
                stop=lambda left=left: next(left, None) is None,  # type: ignore[misc]
                next_change=lambda _: None,
                observer=WebObserver(metrics, health, dashboard),
            )
    return fleets


@pytest.fixture(scope="module")
def site(fleets: WatchedFleets) -> Iterator[str]:
    access = DashboardAccess(is_open=True)
    with serve_in_thread("127.0.0.1:0", make_fleets_app(fleets, access)) as url:
        yield url


@pytest.fixture(scope="module")
def window(browser: Any, site: str) -> Iterator[Window]:
    opened = Window(browser, offline=False)
    yield opened
    opened.close()  # before the server ends, so that no stream is cut


@pytest.mark.parametrize("path", ["/", *(f"/fleets/{NAMES[1]}/{page}" for page in ("", "nodes"))])
@widths
@schemes
def test_a_page_of_several_fleets_fits_and_can_be_read(
    site: str, window: Window, path: str, width: int, scheme: str
) -> None:
    page = window.show(f"{site}{path}", width, scheme)
    page.evaluate(UNFOLD)
    assert page.locator("h1, h2").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [text for contrast, text in page.evaluate(CONTRASTS) if contrast < 4.5] == []
    assert window.complaints == []


def test_the_list_links_to_the_pages_of_every_fleet_and_back(site: str, window: Window) -> None:
    page = window.show(f"{site}/", 400, "light")
    for name in NAMES:
        assert page.get_by_role("link", name=name, exact=True).is_visible()
    assert page.get_by_role("cell", name="EC2 does not answer").is_visible()
    page.get_by_role("link", name=NAMES[0], exact=True).click()
    page.get_by_role("link", name="All fleets").click()
    assert page.url == f"{site}/"


def test_a_fleet_that_is_added_appears_without_a_reload(
    site: str, window: Window, fleets: WatchedFleets
) -> None:
    page = window.show(f"{site}/", 1280, "light")
    fleets.add("newcomer", DaemonHealth())
    page.get_by_role("link", name="newcomer", exact=True).wait_for(timeout=20_000)
    fleets.remove("newcomer")
