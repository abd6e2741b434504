"""How replies look: what a page begins with, lists, names with values, and numbers."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from reconciler.render.listing import heading_words
from reconciler.render.reply import render_page, render_sections, table_section, text_section

FACTS = table_section("facts", ("", ""), [("Fleet:", "shop"), ("Revision:", "")])
LEAD = text_section("sums", "", ["12 nodes", "run `reconciler top`"])
NODES = table_section(
    "nodes", ("node", "$/hour", "seen"), [("ip-10-0-0-1", "0.0725", "2026-03-02 23:00 UTC")]
)


def page(*sections: object, form: str = "html") -> str:
    return render_page("Nodes of shop", sections, form)  # type: ignore[arg-type]


def test_sentences_without_a_title_begin_the_page() -> None:
    assert '<div class="sum"><p>12 nodes</p><p>run <code>reconciler top</code></p></div>' in page(
        LEAD, NODES
    )
    assert page(LEAD, form="markdown").splitlines()[2:] == ["12 nodes", "", "run `reconciler top`"]


def test_the_title_of_the_page_is_not_repeated() -> None:
    verdict = text_section("verdict", "Nodes of shop", ["12 are ready"], "kept by a budget.")
    html = page(verdict)
    assert html.count(">Nodes of shop<") == 2  # the title of the tab, and the heading
    assert "<p>Kept by a budget.</p><p>12 are ready</p>" in html
    assert "Kept by a budget.\n\n12 are ready\n" in page(verdict, form="markdown")


def test_the_name_in_the_title_is_not_the_first_fact_as_well() -> None:
    named = render_page("Status of web", [FACTS], "markdown")
    assert named.splitlines()[2:] == ["- Fleet: shop", "- Revision: -"]
    assert page(FACTS, form="markdown").splitlines()[2:] == ["Revision: -"]


def test_the_columns_of_a_page_have_words() -> None:
    shouting = table_section("claims", ("NAME", "NODEPOOL", "$/HOUR"), [("a", "web", "1")])
    assert "| name | NodePool | $/hour |" in page(shouting, form="markdown")


@pytest.mark.parametrize(
    ("name", "words"), [("node_pool", "NodePool"), ("NODE-POOL", "NodePool"), ("CPU", "CPU")]
)
def test_a_field_is_a_column_with_the_name_of_its_kind(name: str, words: str) -> None:
    assert heading_words(name) == words


@pytest.mark.parametrize("name", ["web-4f9f09d4", "reconciler/3a10fd1c9736", "al2023.0.20260101"])
def test_a_name_that_ends_as_a_commit_is_code_as_a_whole(name: str) -> None:
    assert f"<code>{name}</code> and ip-10-0-0-1" in page(
        text_section("names", "", [f"{name} and ip-10-0-0-1"]), form="markdown"
    )


def test_a_number_is_not_parted_from_what_it_counts() -> None:
    assert "2\xa0×\xa0launch" in page(text_section("sums", "", ["2 × launch"]))


def test_names_with_values_are_no_table_without_a_header() -> None:
    assert '<td class="name">Fleet</td><td>shop</td>' in render_page("Status", [FACTS], "html")
    assert render_sections([FACTS]) == "Fleet:     shop\nRevision:  -\n"


def test_a_list_of_one_text_is_a_sentence() -> None:
    assert "<h2>Advice</h2><p>none</p>" in page(text_section("advice", "Advice", ["none"]))
    several = text_section("advice", "Advice", ["one", "two"])
    assert "<ul><li>one</li><li>two</li></ul>" in page(several)
    assert page(several, form="markdown").endswith("#### Advice\n\n- one\n- two\n")


def test_amounts_and_times_are_not_broken() -> None:
    html = page(NODES)
    assert '<td class="n" data-label="$/hour">0.0725</td>' in html
    assert '<td class="t" data-label="seen">2026-03-02 23:00 UTC</td>' in html
    assert render_sections([NODES]) == (
        "NODE         $/HOUR  SEEN\nip-10-0-0-1  0.0725  2026-03-02 23:00 UTC\n"
    )


@pytest.mark.parametrize(
    "text",
    ["- x", "+ x", "1. x", "12) x", "---", "===", "# x", "> x", "* x", "```", "~~~", "a - b"],
)
def test_a_text_of_a_list_begins_nothing_else(text: str) -> None:
    section = text_section("notes", "Notes", [text, "last"])
    tokens = MarkdownIt().parse(page(section, form="markdown"))
    assert [t.type for t in tokens].count("list_item_open") == 2
    shown = [t for t in tokens if t.type == "inline"][-2]
    assert "".join(child.content for child in shown.children or ()) == text
