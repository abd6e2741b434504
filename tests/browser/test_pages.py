"""The pages of a plan and of a simulation, as a browser shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plan import fleets

pytestmark = pytest.mark.exhaustive

Open = Callable[..., Any]
PAGES = [
    "a small plan",
    "the first nodes",
    "nothing to do",
    "a change of 50 NodePools",
    "pods that all reject",
    "a rollout",
    "a backtest",
    "predictions",
]
every_page = pytest.mark.parametrize("name", PAGES)
widths = pytest.mark.parametrize("width", [1280, 400])
schemes = pytest.mark.parametrize("scheme", ["light", "dark"])

CONTRASTS = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const found = numbers(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("h1,h2,small,p,td,th,code,span,summary,b,text,div,a")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility()) continue;
    const style = getComputedStyle(e);
    const ink = e.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(numbers(ink)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([contrast, e.textContent.slice(0, 40)]);
  }
  return found;
}"""

UNFOLD = "document.querySelectorAll('details').forEach(d => d.open = true)"


@every_page
@widths
@schemes
def test_a_page_fits_its_screen(opened: Open, name: str, width: int, scheme: str) -> None:
    page = opened(name, width=width, scheme=scheme)
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    headline = page.locator(".sum p").first
    assert headline.is_visible()
    box = headline.bounding_box()
    assert box["y"] + box["height"] < 900, "above the fold of the screen"


@every_page
@schemes
def test_every_text_has_sufficient_contrast(opened: Open, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    page.evaluate(UNFOLD)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 5
    assert [text for contrast, text in contrasts if contrast < 4.5] == []


def rows(page: Any, section: str) -> list[str]:
    """Return the first cells of the rows of a section that can be seen."""
    bodies = page.locator(
        f"#{section} > .wide > table > tbody:visible, "
        f"#{section} > details > .wide > table > tbody:visible"
    )
    return [body.locator("tr").first.inner_text() for body in bodies.all()]


def test_the_filter_leaves_the_rows_that_have_all_words(opened: Open) -> None:
    page = opened("a small plan")
    page.get_by_label("Filter rows").fill("BATCH empty")
    (row,) = rows(page, "actions")
    assert "Empty: no pods to reschedule" in row
    assert page.locator("output").inner_text().startswith("1 of ")
    page.get_by_label("Filter rows").fill("")
    assert len(rows(page, "actions")) == 3
    assert page.locator("output").inner_text() == ""


def test_the_filter_opens_what_hides_the_word(opened: Open) -> None:
    page = opened("a change of 50 NodePools")
    page.get_by_label("Filter rows").fill("team-37")
    assert page.locator("#pools code", has_text="team-37").first.is_visible()


def test_a_column_sorts_up_and_down_by_its_numbers(opened: Open) -> None:
    page = opened("the first nodes")
    cost = page.get_by_role("button", name="$/month")
    cost.click()
    first = [row.split()[0] for row in rows(page, "pools")]
    cost.click()
    assert first == ["general", "gpu"]
    assert [row.split()[0] for row in rows(page, "pools")] == ["gpu", "general"]
    assert page.locator("th[aria-sort=descending]").count() == 1


def test_a_collapsed_row_expands_to_every_node_pool(opened: Open) -> None:
    page = opened("a change of 50 NodePools")
    unfold = page.locator("#pools summary").first
    assert not page.locator("#pools code", has_text="team-49").is_visible()
    unfold.click()
    shown = page.locator("#pools details code").all_inner_texts()
    assert shown == [f"team-{n:02}" for n in range(fleets.POOLS)]


@every_page
@widths
def test_a_page_can_be_read_without_its_script(opened: Open, name: str, width: int) -> None:
    page = opened(name, width=width, script=False)
    assert not page.locator(".find").is_visible()
    assert page.locator(".sum p").first.is_visible()
    for summary in page.locator("section > details > summary").all():
        summary.click()
        assert summary.locator("xpath=..").locator("table, svg").first.is_visible()


def test_a_rollout_shows_nodes_windows_and_the_wall_clock(opened: Open) -> None:
    page = opened("a rollout")
    ticks = page.locator("svg .soft").all_text_contents()
    assert "UTC" in ticks
    assert {"09:02", "09:12"} <= set(ticks)
    for kind in ("run", "drain", "closed", "limited"):
        assert page.locator(f"svg .b-{kind}").count() > 0, kind
    closed = page.locator("svg .b-closed").first.locator("xpath=..").locator("title")
    assert "no disruption allowed" in closed.text_content()
    assert "09:03 UTC to 2026-03-02 09:08 UTC" in closed.text_content()
    named = set(page.locator("svg g[role=img] > text").all_text_contents())
    story = page.locator("pre").inner_text()
    nodes = {name for name in named if name.startswith("web-")}
    assert len(nodes) >= 6
    assert [name for name in nodes if name not in story] == []
    assert ".internal" not in story, "nodes have one name"
    folded = page.locator("details", has_text="nodes that did not change").first
    assert folded.get_attribute("open") is None


@widths
@schemes
def test_curves_of_a_backtest_are_distinguishable_without_colour(
    opened: Open, width: int, scheme: str
) -> None:
    page = opened("a backtest", width=width, scheme=scheme)
    assert page.locator("svg.curves").count() == 3
    for drawing in page.locator("svg.curves").all():
        box = drawing.bounding_box()
        assert box["x"] + box["width"] <= width, "nothing to scroll"
        style = "e => getComputedStyle(e).strokeDasharray"
        dashes = [line.evaluate(style) for line in drawing.locator(".curve").all()]
        assert len(dashes) == len(set(dashes)) == 3
        size = "e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a"
        assert drawing.locator("text").first.evaluate(size) >= 9, "pixels on the screen"
        labels = [text.bounding_box() for text in drawing.locator("text").all()]
        assert not any(overlap(a, b) for n, a in enumerate(labels) for b in labels[:n])
        for label in labels:
            assert label["x"] >= box["x"] - 1
            assert label["x"] + label["width"] <= box["x"] + box["width"] + 1
    names = page.locator(".samples").first.inner_text().split()
    assert names == ["head", "base", "karpenter-defaults"]


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    """Return whether two boxes overlap by more than the space around letters."""
    wide = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
    high = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
    return wide > 1 and high > 0.3 * min(a["height"], b["height"])


def test_a_browser_shows_hostile_text_without_running_it(opened: Open) -> None:
    page = opened("hostile text")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.evaluate(UNFOLD)
    page.get_by_label("Filter rows").fill("script")
    for row in page.locator("tbody:visible").all()[:5]:
        row.hover()
    assert page.locator("script").count() == 1
    assert page.locator("img, iframe, a[href], form, [onclick], [onmouseover]").count() == 0
    assert "<script>alert(1)</script>" in page.locator("body").inner_text()
    assert dialogs == []
