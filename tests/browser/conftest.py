"""A real browser, and the pages that are shown in it. Without a browser the tests are skipped."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.plan.render.html import render_html
from reconciler.watch.page import render_html as watch_page
from reconciler.watch.report import report_of
from tests.engine.world import a_deployment, a_pool
from tests.hostile.test_output import PAYLOADS, hostile
from tests.plan import fleets
from tests.plan.builders import PLANS
from tests.repositories import commit_all, init
from tests.simulated.simulations import words, write_fleet
from tests.watch.claims import START
from tests.watch.test_report import SCORES

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
WINDOW = {"nodes": "0", "schedule": "3 9 * * *", "duration": "5m"}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium, or set CHROMIUM to its path")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files of the pages, by name."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "a small plan": render_html(PLANS["pull_request"]()),
        "the first nodes": render_html(PLANS["first_nodes"]()),
        "nothing to do": render_html(PLANS["nothing_to_do"]()),
        "a change of 50 NodePools": render_html(fleets.the_same_change()),
        "pods that all reject": render_html(fleets.pods_that_all_reject()),
        "hostile text": render_html(hostile(PLANS["closed_window"](), "".join(PAYLOADS.values()))),
        "predictions": watch_page(report_of(SCORES, START)),
        "a rollout": rollout(tmp_path_factory.mktemp("rollout")),
        "a backtest": backtest(tmp_path_factory.mktemp("backtest")),
    }
    files = {name: folder / f"{name.replace(' ', '-')}.html" for name in made}
    for name, file in files.items():
        file.write_text(made[name], encoding="utf-8")
    return files


def rollout(folder: Path) -> str:
    """Simulate the merge of a change, one node at a time and not between 9:03 and 9:08."""
    budgets = [{"nodes": "1"}, WINDOW]
    size = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}
    for labels in ({}, {"new": "yes"}):
        pools = [
            a_pool("web", budgets=budgets, labels=labels, template={"requirements": [size]}),
            a_pool("api", template={"requirements": [size]}),
        ]
        deployments = [a_deployment("web", "web", 6), a_deployment("api", "api", 2)]
        write_fleet(folder, [*pools, *deployments])
        if not labels:
            init(folder / "fleet")
            commit_all(folder / "fleet")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["simulate", *words(folder, "--base", "HEAD", "-o", "html")]) == 0
    return out.getvalue()


def backtest(folder: Path) -> str:
    """Replay a day in which pods come and go, against three sides and with two seeds."""
    for after in ("30m", "30s"):
        write_fleet(folder, [a_pool("web", policy="WhenEmptyOrUnderutilized", after=after)])
        if after == "30m":
            init(folder / "fleet")
            commit_all(folder / "fleet")
    rows = [f"p{n},1500,1024,0,0,{n * 1800},{n * 1800 + 3600 * (1 + n % 3)}," for n in range(40)]
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"
    trace = folder / "trace.csv"
    trace.write_text("\n".join([f"{columns},scheduled_time", *rows, ""]), encoding="utf-8")
    more = ("--trace", str(trace), "--against", "karpenter-defaults", "--seeds", "2")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["simulate", *words(folder, "--base", "HEAD", *more, "-o", "html")]) == 0
    return out.getvalue()


class Window:
    """Shows one page at a time, and keeps whatever a page complains of."""

    def __init__(self, browser: Any, *, script: bool = True, offline: bool = True) -> None:
        self.complaints: list[str] = []
        context = browser.new_context(java_script_enabled=script, offline=offline)
        self._page = context.new_page()
        self._page.on("console", lambda message: self.complaints.append(message.text))
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.on("requestfailed", self._failed)

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a stream ends when its page is left
            self.complaints.append(request.url)

    def close(self) -> None:
        self._page.context.close()

    def show(self, url: str, width: int, scheme: str) -> Any:
        self._page.set_viewport_size({"width": width, "height": 900})
        self._page.emulate_media(color_scheme=scheme)
        self._page.goto(url)
        return self._page


@pytest.fixture(scope="session")
def windows(browser: Any) -> dict[bool, Window]:
    """Return a window with scripts, and one without."""
    return {script: Window(browser, script=script) for script in (True, False)}


@pytest.fixture
def opened(windows: dict[bool, Window], pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open a page at a width, in a colour scheme; whatever it complains of fails the test."""

    def show(name: str, *, width: int = 1280, scheme: str = "light", script: bool = True) -> Any:
        return windows[script].show(pages[name].as_uri(), width, scheme)

    yield show
    for window in windows.values():
        complaints, window.complaints = window.complaints, []
        assert complaints == []
