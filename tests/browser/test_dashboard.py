"""The dashboard of a daemon, as a browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.ports.progress import EventKind, Progress
from reconciler.web.server import serve_in_thread
from tests.browser.conftest import Window
from tests.browser.test_pages import CONTRASTS, UNFOLD, schemes, widths
from tests.engine.faults import three_nodes
from tests.engine.world import a_deployment, a_node_class, a_pool
from tests.web.test_dashboard import Site

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    site = Site(three_nodes())
    site.passes(2)
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        yield url


@pytest.fixture(scope="module")
def window(browser: Any, dashboard: str) -> Iterator[Window]:
    opened = Window(browser, offline=False)
    yield opened
    opened.close()  # before the server ends, so that no stream is cut


@pytest.mark.parametrize("path", ["/", "/nodes", "/costs?by=workload", "/history", "/events"])
@widths
@schemes
def test_a_page_of_the_dashboard_fits_and_can_be_read(
    dashboard: str, window: Window, path: str, width: int, scheme: str
) -> None:
    page = window.show(f"{dashboard}{path}", width, scheme)
    page.evaluate(UNFOLD)
    assert page.locator("h1, h2").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [text for contrast, text in page.evaluate(CONTRASTS) if contrast < 4.5] == []
    assert window.complaints == []


@widths
@schemes
def test_an_invalid_commit_is_shown_in_full(browser: Any, width: int, scheme: str) -> None:
    """Its error is long, and nothing of it may be cut off beside a narrow table."""
    site = Site(three_nodes())
    site.passes(2)
    where = "nodes/pool.yaml:15:16: error: spec.template.spec.requirements[0].key: "
    message = f'{where}label "karpenter.sh/capacity-typ" is not allowed; 01234567 stays in effect'
    at = datetime(2026, 11, 22, 9, tzinfo=UTC)
    site.dashboard.record_event(Progress(at, EventKind.INVALID_REVISION, message))
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        window = Window(browser, offline=False)
        page = window.show(f"{url}/", width, scheme)
        assert message in page.get_by_role("alert").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "(box => box.scrollWidth <= box.clientWidth)(document.querySelector("
            "'section[aria-labelledby=inputs] .scroll'))"
        )
        assert [text for contrast, text in page.evaluate(CONTRASTS) if contrast < 4.5] == []
        window.close()


def test_no_table_is_cut_off_on_a_phone(browser: Any) -> None:
    """Budgets that are closed at night, pods that cannot be scheduled, and planned actions."""
    world = three_nodes()
    night = {"nodes": "0", "schedule": "0 22 * * *", "duration": "8h"}
    pool = a_pool("web", budgets=[{"nodes": "3"}, night])
    large = a_deployment("reports-of-the-whole-year", "web", 2, cpu="4000")
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 5), large)
    site = Site(world)
    site.passes(1)
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        window = Window(browser, offline=False)
        page = window.show(f"{url}/", 400, "light")
        titles = page.locator("h2").all_inner_texts()
        assert {"Budget calendar", "Plan now", "Pods that cannot be scheduled"} <= set(titles)
        cut = page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth)"
            ".map(b => b.closest('section').querySelector('h2').textContent)"
        )
        assert cut == []
        window.close()


def test_ten_thousand_nodes_are_shown_by_pages_and_filtered(browser: Any) -> None:
    site = Site(three_nodes())
    site.passes(1)
    view = site.dashboard.view()
    assert view is not None
    nodes = tuple(replace(view.nodes[0], name=f"node-{n:05}") for n in range(10_000))
    site.dashboard._view = replace(view, nodes=nodes)
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        window = Window(browser, offline=False)
        page = window.show(f"{url}/nodes", 1280, "light")
        assert page.get_by_text("10000 nodes").first.is_visible()
        assert page.evaluate("document.getElementsByTagName('*').length") < 8_000
        page.locator("input[name=q]").fill("node-09999")
        page.keyboard.press("Enter")
        page.get_by_text("1 node", exact=True).wait_for()
        assert page.get_by_text("node-09999").first.is_visible()
        assert window.complaints == []
        window.close()


def test_the_pages_are_usable_by_keyboard_alone(dashboard: str, window: Window) -> None:
    page = window.show(dashboard, 1280, "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.goto(dashboard)
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert reached[1:] == ["Overview", "Nodes", "Costs", "History", "Events"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="History").wait_for()
