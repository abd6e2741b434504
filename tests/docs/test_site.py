"""The documentation site: it builds without a warning, and it needs no other host."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.engine.faults import three_nodes
from tests.site import site
from tests.web.test_metrics import Daemon

__all__ = ("site",)

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"([^\"]+)|<link[^>]*\shref=\"([^\"]+)[^>]*>"
)
IMPORTED = re.compile(r"url\(\s*[\"']?(https?:|//)[^)]*\)|@import")


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    foreign = []
    for page in pages(site):
        for match in LOADED.finditer(page.read_text(encoding="utf-8")):
            address = match[1] or match[2]
            if re.match(r"https?:|//", address) and 'rel="canonical"' not in match[0]:
                foreign.append(f"{page.relative_to(site)}: {address}")
    styles = [s for s in site.rglob("*.css") if IMPORTED.search(s.read_text(encoding="utf-8"))]
    assert len(pages(site)) > 40
    assert foreign == []
    assert styles == []


def test_pages_with_diagrams_include_the_script_that_draws_them(site: Path) -> None:
    drawn = 0
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        scripts = [s for s in re.findall(r'<script src="([^"]+)"', text) if "mermaid" in s]
        assert bool(scripts) == ('<pre class="mermaid">' in text), page
        for script in scripts:
            assert (page.parent / script).is_file()
            drawn += 1
    assert drawn >= 1


def test_links_to_files_outside_the_site_point_to_the_repository(site: Path) -> None:
    text = (site / "pull-requests" / "index.html").read_text(encoding="utf-8")
    base = "https://github.com/reconciler/reconciler"
    assert f"{base}/blob/main/examples/ci/github/reconciler-plan.yml" in text
    assert f"{base}/tree/main/examples/policies" in (site / "policies" / "index.html").read_text(
        encoding="utf-8"
    )


def test_every_page_can_be_found_by_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    shown = {page.parent.relative_to(site).as_posix() + "/" for page in pages(site)}
    missing = {page for page in shown if page not in found and page != "./"}
    assert missing == set()
    assert any(
        "savings plan" in entry["text"].lower() and entry["location"].startswith("how-to/")
        for entry in index["docs"]
    )


def test_every_metric_of_a_daemon_is_in_the_reference() -> None:
    daemon = Daemon(three_nodes())
    daemon.passes(1)
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name, _ in daemon.rows()}
    emitted = {name for name in names if not name.endswith("_nodeclaims")} | {
        "reconciler_nodeclaims"
    }
    assert len(emitted) > 20
    assert [name for name in sorted(emitted) if f"- `{name}" not in page] == []
