"""The renderings of a plan, compared with golden files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from reconciler.model.decision.changes import Change, FieldChange
from reconciler.model.text.money import format_percent_change
from reconciler.model.text.quoting import code_spans
from reconciler.model.text.visible import markdown_text
from reconciler.plan.render.html import render_html
from reconciler.plan.render.markdown import CHARACTERS_MAX, render_markdown, render_mermaid
from reconciler.plan.render.text import render_text
from reconciler.plan.value.costs import Cost, PoolCost
from reconciler.plan.value.nodes import Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import Column, Section, SectionRow, Text
from reconciler.render.html import render_section
from reconciler.render.page import SCRIPT
from tests.examples import examples
from tests.plan.builders import PLANS, a_claim, a_plan, an_action
from tests.plan.strategies import plans

GOLDEN = Path(__file__).parent / "golden"
FORMS = {
    "80.txt": lambda plan: render_text(plan, width=80, next_command="reconciler apply plan.json"),
    "160.txt": lambda plan: render_text(plan, width=160, next_command="reconciler apply plan.json"),
    "ansi": lambda plan: render_text(plan, width=80, colour=True),
    "md": render_markdown,
    "mmd": render_mermaid,
    "html": render_html,
}
NASTY = "a|b`c<script>alert(1)</script>*x*_y_[l](http://e.vil)![i](x)@all #1 \\ $m$\n| x"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PLANS)
def test_renderings_equal_the_golden_files(
    name: str, form: str, request: pytest.FixtureRequest
) -> None:
    golden = GOLDEN / f"{name}.{form}"
    text = FORMS[form](PLANS[name]())
    if request.config.getoption("--update-golden"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", PLANS)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in render_text(PLANS[name](), width=width).splitlines():
        assert len(line) <= width or len(line.split()) == 1, line


def test_colours_change_nothing_else() -> None:
    plan = PLANS["pull_request"]()
    painted = render_text(plan, width=80, colour=True)
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == render_text(plan, width=80)


@given(plans)
@settings(max_examples=examples(60), deadline=None)
def test_every_plan_can_be_rendered(plan: Plan) -> None:
    for render in FORMS.values():
        assert render(plan)


def nasty_plan(times: int = 1) -> Plan:
    name = NASTY * times
    a_pod = UnschedulablePod(pod=name, reasons=(Reason(node_pool=name, message=name),))
    return a_plan(
        fleet=name,
        compared_with="base",
        changes=(
            Change(
                op="update",
                kind=name,
                name=name,
                file=name,
                line=1,
                fields=(FieldChange(path=name, old=name, new=[name, {"key": name}]),),
            ),
        ),
        unschedulable=(a_pod,),
        node_claims=(a_claim(name),),
        cost=Cost(before=0.0, after=0.0, by_node_pool={name: PoolCost()}),
    )


def test_a_name_cannot_break_out_of_a_comment() -> None:
    text = render_markdown(nasty_plan())
    tags = set(re.findall(r"<[^>]*>", text))
    assert tags <= {
        "<code>", "</code>", "<br>", "<sub>", "</sub>", "</details>", "</summary>",
        "<summary>", "<details>", "<details open>",
    }  # fmt: skip
    assert "@all" not in text
    assert "http://" not in text
    assert "![" not in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") in (3, 4, 5, 6, 7), line
            assert line.endswith("|")


@pytest.mark.parametrize("character", list("<>&|`*_[]\\@#$~!"))
def test_markdown_syntax_is_escaped(character: str) -> None:
    shown = markdown_text(f"a{character}b").replace("&#8203;", "")
    assert shown == f"a&#{ord(character)};b"


def test_a_page_shows_names_as_inert_text() -> None:
    page = render_html(nasty_plan())
    assert page.count("<script") == 1
    assert f"<script>{SCRIPT}</script>" in page
    assert "src=" not in page
    assert "href=" not in page
    assert "@import" not in page
    assert "url(" not in page


class Tags(HTMLParser):
    """Fails on an end tag that does not close the innermost open one."""

    VOID = frozenset({"meta", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """One that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", [*PLANS, "nasty"])
def test_every_tag_of_the_page_is_closed(name: str) -> None:
    tags = Tags()
    tags.feed(render_html(nasty_plan() if name == "nasty" else PLANS[name]()))
    assert tags.open == []


def test_a_chart_label_stays_in_its_quotes() -> None:
    actions = (an_action("x", node_claim='"]; click x "http://e.vil'),)
    lines = render_mermaid(a_plan(actions=actions)).splitlines()
    box = next(line for line in lines if line.startswith("  a0["))
    assert box.count('"') == 2


def test_a_huge_plan_fits_into_a_comment() -> None:
    pods = tuple(
        UnschedulablePod(
            pod=f"team-{i}/p",
            reasons=tuple(
                Reason(node_pool=f"pool-{j}", message=f"{NASTY} {i} {j}") for j in range(30)
            ),
        )
        for i in range(500)
    )
    pools = {f"pool-{i}": PoolCost(nodes_after=i, after=float(i)) for i in range(500)}
    text = render_markdown(
        a_plan(unschedulable=pods, cost=Cost(before=0.0, after=9.0, by_node_pool=pools))
    )
    assert len(text) <= CHARACTERS_MAX
    assert "more (`-o html` lists all)" in text


def test_a_comment_with_very_long_names_fits() -> None:
    assert len(render_markdown(nasty_plan(times=2000))) <= CHARACTERS_MAX


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("no code", [("no code", False)]),
        ("Try `--set a=b`.", [("Try ", False), ("--set a=b", True), (".", False)]),
        ("`a` and `b`", [("a", True), (" and ", False), ("b", True)]),
        ("one ` alone", [("one ` alone", False)]),
        ("", []),
    ],
)
def test_text_between_backticks_is_code(text: str, spans: list[tuple[str, bool]]) -> None:
    assert code_spans(text) == spans


def test_advice_in_the_headline_is_code_in_a_comment_and_on_a_page() -> None:
    cost = Cost(before=0.0, after=1.0, lower_bound=0.5, bound_gap=1.0, bound_held_by="Packing")
    plan = msgspec.structs.replace(a_plan(), cost=cost)
    assert " `reconciler advise` finds" in render_markdown(plan)
    assert " <code>reconciler advise</code> finds" in render_html(plan)


def test_advice_in_a_cell_of_a_page_is_code() -> None:
    row = SectionRow(cells=(Text("run `reconciler lock` <b>"),))
    section = Section(key="notes", title="Notes", columns=(Column("note"),), rows=(row,))
    assert "run <code>reconciler lock</code> &lt;b&gt;" in str(render_section(section))


@pytest.mark.parametrize("name", ["``", "`0`", "a`b"])
def test_a_name_in_the_headline_is_never_code(name: str) -> None:
    plan = a_plan(unschedulable=(UnschedulablePod(pod=name, reasons=()),))
    shown = name.replace("`", "&#x27;")
    assert f"<p>Unschedulable: {shown}.</p>" in render_html(plan)


@pytest.mark.parametrize(
    ("percent", "digits", "text"),
    [
        (12.4, 0, "+12%"),
        (-12.46, 1, "−12.5%"),
        (0.04, 1, "0.0%"),
        (-0.4, 0, "0%"),
        (0.0, 0, "0%"),
    ],
)
def test_a_change_in_percent_has_a_minus_and_none_that_rounds_to_zero(
    percent: float, digits: int, text: str
) -> None:
    assert format_percent_change(percent, digits) == text
