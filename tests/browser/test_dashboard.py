"""The dashboard of a daemon, as a browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.web.server import listening
from tests.browser.conftest import Window
from tests.browser.test_pages import CONTRASTS, UNFOLD, schemes, widths
from tests.engine.trouble import three_nodes
from tests.web.test_dashboard import Site


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    site = Site(three_nodes())
    site.passes(2)
    with listening("127.0.0.1:0", site.app) as url:
        yield url


@pytest.fixture(scope="module")
def window(browser: Any, dashboard: str) -> Iterator[Window]:
    opened = Window(browser, offline=False)
    yield opened
    opened.close()  # before the server ends, so that no stream is cut


@pytest.mark.parametrize("path", ["/", "/nodes", "/events"])
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
