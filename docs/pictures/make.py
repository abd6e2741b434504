"""Create the pictures of the documentation from real runs: ``python docs/pictures/make.py``.

The comment is the plan of a change to ``examples/multi-team``, as a platform renders its Markdown.
The dashboard is that of an engine on the embedded cloud. The backtest is that of a day of the trace
of ``benchmarks.backtest``. The terminal shows the recorded fleet of the tests. Needs Chromium and
the package playwright.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt

from benchmarks.backtest import CHEAPEST, FLEET, TRACE, cut_trace
from reconciler.assembly.inputs.request import StateRequest
from reconciler.cli.main import main
from reconciler.terminal.app import FleetApp
from reconciler.terminal.fleet import TerminalFleet
from reconciler.web.server import serve_in_thread
from tests.cli.recorded_fleet import NOW as RECORDED_AT
from tests.cli.recorded_fleet import record
from tests.engine.world import SETTINGS, a_deployment, a_node_class, a_pool, a_world
from tests.web.test_dashboard import Site

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
NOW: Final = "2026-03-02T09:00:00Z"
_STYLE: Final = """
body { font: 14px/1.5 -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif;
  color: #1f2328; margin: 0; padding: 16px; background: #fff }
article { border: 1px solid #d1d9e0; border-radius: 6px; overflow: hidden }
header { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e }
section { padding: 0 16px 12px }
table { border-collapse: collapse; margin-bottom: 16px }
th, td { border: 1px solid #d1d9e0; padding: 6px 13px } th { text-align: left }
code { background: #818b981f; border-radius: 6px; padding: .2em .4em; font: 85% monospace }
h3 { font-size: 1.25em } h4 { font-size: 1em } td { vertical-align: top }
"""
DASHBOARDS: Final = ((1280, "light"), (1280, "dark"), (400, "light"), (400, "dark"))
"""In which widths and colours the pages of the dashboard are shown."""
SHOP: Final = replace(SETTINGS, fleet="shop")
CHANGE: Final = ("values: [on-demand]", "values: [spot, on-demand]")
"""What the pull request of the picture changes in the NodePool ``search``."""


def comment_page() -> str:
    """Return the page of a pull-request comment: the search team allows spot."""
    with tempfile.TemporaryDirectory() as place:
        fleet = _copy_example(Path(place), "multi-team")
        pools = fleet / "nodes/pools.yaml"
        text = pools.read_text(encoding="utf-8")
        assert CHANGE[0] in text, f"examples/multi-team no longer contains {CHANGE[0]}"
        pools.write_text(text.replace(*CHANGE, 1), encoding="utf-8")
        _commit(fleet, "Allow spot for search")
        out = io.StringIO()
        words = ["plan", str(fleet), "--base", "HEAD~1", "--now", NOW, "-o", "markdown"]
        with redirect_stdout(out):
            code = main(words)
    assert code == 0, out.getvalue()
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(out.getvalue())
    return (
        f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><article>"
        f"<header><b>reconciler</b> commented</header><section>{body}</section></article>"
    )


@contextmanager
def dashboard_url() -> Iterator[str]:
    """Yield the URL of the dashboard of a fleet whose NodePool ``web`` is being rolled out.

    The engine is the real one; EC2 and the cluster are simulated, as in its tests.
    """
    api = a_pool("api", policy="WhenEmptyOrUnderutilized", after="5m", budgets=[{"nodes": "50%"}])
    batch = a_pool("batch", capacity_types=("spot",)), a_deployment("batch", "batch", 4, cpu="700m")
    web = a_deployment("web", "web", 6)
    many, few = (a_deployment("api", "api", count) for count in (9, 4))
    for workload in (web, many, few, batch[1]):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"]["memory"] = "3Gi"
    world = a_world(a_pool("web"), web, api, many, *batch, starting_s=60, settings=SHOP)
    site = Site(world)
    site.passes(30)
    world.git.commit(
        a_node_class(), a_pool("web", labels={"release": "2"}, budgets=[{"nodes": "2"}]), web,
        api, few, *batch,
    )  # fmt: skip
    site.passes(3)
    with serve_in_thread("127.0.0.1:0", site.app) as url:
        yield url


def backtest_page() -> str:
    """Return the page of a backtest: the cheapest packing and Karpenter's defaults for one day."""
    with tempfile.TemporaryDirectory() as place:
        fleet = Path(place) / "fleet"
        fleet.mkdir()
        (fleet / "nodes.yaml").write_text(FLEET, encoding="utf-8")
        trace = cut_trace(str(TRACE / "openb-default.csv.gz"), "116", Path(place))
        words = ["simulate", str(fleet), "--trace", str(trace), "--now", NOW, "--until", "24h"]
        out = io.StringIO()
        with redirect_stdout(out):
            code = main([*words, *CHEAPEST, "--against", "karpenter-defaults", "-o", "html"])
    assert code == 0, out.getvalue()
    return out.getvalue()


def terminal_drawing() -> str:
    """Return the nodes of the recorded fleet of the tests on a terminal, as SVG."""

    async def draw(folder: Path) -> str:
        app = FleetApp(TerminalFleet(StateRequest(path=str(folder), now=RECORDED_AT)))
        async with app.run_test(size=(130, 24)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause(1)  # columns get their widths only when the terminal is idle
            await pilot.press("down", "down", "e")
            await pilot.pause(1)
            return app.export_screenshot()

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "web"
        folder.mkdir()
        record(folder / ".reconciler")
        return asyncio.run(draw(folder))


def _copy_example(place: Path, example: str) -> Path:
    """Return a copy of an example in a separate repository."""
    fleet = place / example
    shutil.copytree(ROOT / "examples" / example, fleet)
    _git("init", "-q", "-b", "main", str(fleet))
    _commit(fleet, "The fleet")
    return fleet


def _commit(fleet: Path, message: str) -> None:
    person = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    _git("-C", str(fleet), "add", "-A")
    _git("-C", str(fleet), *person, "commit", "-qm", message)


def _git(*words: str) -> None:
    subprocess.run(["git", *words], check=True)  # noqa: S603, S607 - on a folder of our own


def take_picture(page: Any, path: Path, width: int) -> None:
    """Write a picture of a page."""
    page.set_viewport_size({"width": width, "height": 200})
    page.screenshot(path=path, full_page=True)


def make_pictures(folder: Path) -> None:
    """Create all pictures in a folder."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    pages = (
        ("comment.png", comment_page(), 900),
        ("backtest.png", backtest_page(), 900),
        ("top.png", terminal_drawing(), 1200),  # runs an event loop, as the driver does below
    )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, content, width in pages:
            page = browser.new_page()  # a page keeps the content policy of the one before
            page.set_content(content)
            take_picture(page, folder / name, width)
        page = browser.new_page()
        with dashboard_url() as url:
            page.goto(url)
            take_picture(page, folder / "dashboard.png", 1100)
            for width, scheme in DASHBOARDS:
                page.emulate_media(color_scheme=scheme)
                for path in ("nodes", "costs?by=workload", "history", "events"):
                    page.goto(f"{url}/{path}")
                    name = path.partition("?")[0]
                    take_picture(page, folder / f"dashboard-{name}-{width}-{scheme}.png", width)
                page.goto(url)
                take_picture(page, folder / f"dashboard-{width}-{scheme}.png", width)
            browser.close()


if __name__ == "__main__":
    make_pictures(HERE)
