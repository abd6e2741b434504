"""The documentation site in a browser: nothing from other hosts, diagrams drawn, search works."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.site import site

__all__ = ("site",)

WITH_DIAGRAMS = ["how-decisions-are-made/", "architecture/"]
WIDE = ["", "tutorial/", "commands/", "configuration/", "metrics/", "operations/", "limits/"]
UNDRAWN = "document.querySelectorAll('pre.mermaid').length"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["light", "dark"])
def narrow(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page as on a phone that refuses every request to another host."""
    page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=request.param)
    foreign: list[str] = []

    def route(route: Any) -> None:
        if route.request.url.startswith(address):
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    page.route("**/*", route)
    yield page
    page.close()
    assert foreign == []


@pytest.mark.parametrize("path", WITH_DIAGRAMS)
def test_every_diagram_is_drawn(narrow: Any, address: str, path: str) -> None:
    narrow.goto(address + path)
    narrow.wait_for_function(f"{UNDRAWN} === 0")
    assert narrow.locator("div.mermaid").count() >= 3
    assert "Syntax error" not in narrow.inner_text("body")


def test_no_page_is_wider_than_a_phone(narrow: Any, address: str) -> None:
    wide = []
    for path in [*WIDE, *WITH_DIAGRAMS]:
        narrow.goto(address + path)
        if narrow.evaluate(OVERFLOW) > 0:
            wide.append(path)
    assert wide == []


def test_the_search_finds_a_guide(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address, wait_until="networkidle")  # the index is read by a worker
    page.click(".md-search__input")
    page.keyboard.type("savings plans")
    page.wait_for_selector(".md-search-result__link", state="attached")
    links = page.locator(".md-search-result__link")
    assert any("how-to/savings-plans" in (link.get_attribute("href") or "") for link in links.all())
    page.close()
