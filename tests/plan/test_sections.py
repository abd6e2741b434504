"""The sections of a plan: grouping, and that every renderer shows all rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from io import StringIO
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reconciler.model.decision.equals import EqualCandidates
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.text.visible import html_text, markdown_code, one_line
from reconciler.notifications.stream import render_for_terminal
from reconciler.plan.approval import encode_saved_plan
from reconciler.plan.render.html import render_html
from reconciler.plan.render.markdown import CHARACTERS_MAX, render_markdown
from reconciler.plan.render.sections.document import sections_of
from reconciler.plan.render.summary import summary_lines
from reconciler.plan.render.text import render_text
from reconciler.plan.value.actions import ActionKind, PlannedCommand
from reconciler.plan.value.costs import Cost, PoolCost
from reconciler.plan.value.nodes import Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import (
    ROWS_SHOWN_MAX,
    Cell,
    Column,
    Name,
    NameList,
    Section,
    SectionRow,
    Text,
    fold_rest,
    group_similar,
    text_of,
    without_pool,
)
from reconciler.render.charts import Axis
from reconciler.render.markdown import MarkdownSections, SectionLimits
from tests.examples import examples
from tests.plan import fleets
from tests.plan.builders import NOW, PLANS, a_plan, an_action
from tests.plan.strategies import plans

SCREENS = 2
LINES_A_SCREEN = 45
ALL = {
    **PLANS,
    "the same change": fleets.the_same_change,
    "all reject": fleets.pods_that_all_reject,
}


def section(plan: Plan, key: str) -> tuple[SectionRow, ...]:
    (found,) = (section for section in sections_of(plan) if section.key == key)
    return found.rows


def above_the_folds(comment: str) -> str:
    """Return what is seen of a comment before anything is unfolded."""
    while (
        shorter := re.sub(r"<details>((?!<details>).)*?</details>", "", comment, flags=re.DOTALL)
    ) != comment:
        comment = shorter
    return comment


def shown_lines(comment: str) -> int:
    """Return how many lines of text a comment has on a screen, long ones wrapped."""
    lines = above_the_folds(comment).replace("<br>", "\n").splitlines()
    return sum(1 + len(line) // 120 for line in lines if line.strip())


# groups


def test_an_identical_change_of_fifty_node_pools_is_one_expandable_row() -> None:
    plan = fleets.the_same_change()
    (row,) = section(plan, "changes")
    assert text_of(row.cells[0]).startswith("50 NodePools: team-00, team-01, team-02")
    assert text_of(row.cells[1]) == "100 nodes drifted"
    assert len(row.lines) == 1
    assert [text_of(part.cells[0]) for part in row.more] == [
        f"NodePool team-{n:02}" for n in range(50)
    ]
    for key in ("pools", "actions", "blocked"):
        assert len(section(plan, key)) == 1, key


def test_a_comment_about_fifty_node_pools_fits_two_screens_and_names_each() -> None:
    comment = render_markdown(fleets.the_same_change())
    assert len(comment) <= 20_000
    assert shown_lines(comment) <= SCREENS * LINES_A_SCREEN
    assert "lists all" not in comment, "everything fits"
    assert {f"team-{n:02}" for n in range(50)} <= set(re.findall(r"team-\d\d", comment))


def test_the_main_reason_precedes_one_line_about_other_node_pools() -> None:
    (row,) = section(fleets.pods_that_all_reject(), "unschedulable")
    first, others = row.lines
    assert text_of(first.head) == "team-00"
    assert "requests 90 cpu" in text_of(first.cells[0])
    assert isinstance(others.head, NameList)
    assert len(others.head.names) == 49
    comment = render_markdown(fleets.pods_that_all_reject())
    assert len(comment) <= 20_000
    assert shown_lines(comment) <= SCREENS * LINES_A_SCREEN
    assert "**49 NodePools**: does not tolerate the taint" in comment


def test_a_terminal_shows_the_main_reason_and_counts_the_other_node_pools() -> None:
    text = render_text(fleets.pods_that_all_reject())
    assert re.search(r"team-00 +NodePool team-00: requests 90 cpu", text)
    assert re.search(r"49 NodePools +does not tolerate the taint", text)
    assert "`-o html` and `-o json` list everything" in text


def test_ten_similar_actions_are_one_row_with_a_count() -> None:
    actions = tuple(
        an_action(
            f"a{n}", node_claim=f"c{n}", node_pool=f"pool-{n}", reason="Static",
            instance_type="m7g.large", capacity_type="spot", cost_delta=0.03,
        )
        for n in range(10)
    )  # fmt: skip
    (row,) = section(a_plan(actions=actions), "actions")
    assert (row.verb, text_of(row.cells[0])) == ("launch", "10\xa0×\xa0m7g.large spot")
    assert text_of(row.cells[1]) == "10 NodePools"
    assert text_of(row.cells[2]) == "+0.3000"
    assert len(row.more) == 10


def test_few_node_pools_are_listed_and_many_are_grouped_by_change() -> None:
    def plan(count: int) -> Plan:
        pools = {f"p{n:02}": PoolCost(nodes_after=n, after=n / 4) for n in range(count)}
        return a_plan(cost=Cost(before=0.0, after=9.0, by_node_pool=pools))

    assert len(section(plan(12), "pools")) == 12
    rows = section(plan(40), "pools")
    assert len(rows) == ROWS_SHOWN_MAX + 1
    assert text_of(rows[0].cells[0]) == "p39"
    assert text_of(rows[-2].cells[0]) == "and 28 more NodePools"
    assert len(rows[-2].more) == 28
    assert text_of(rows[-1].cells[0]) == "1 unchanged NodePool"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40))
def test_condensing_loses_no_item(items: list[tuple[int, int]]) -> None:
    clusters = group_similar(items, lambda item: item, lambda item: item[1])
    assert sorted(i for cluster in clusters for group in cluster for i in group) == sorted(items)
    rows = fold_rest([SectionRow(cells=(Name(str(i)),)) for i in items], "item")
    assert sum(len(row.more) or 1 for row in rows) == len(items)


@pytest.mark.parametrize(
    ("message", "same"),
    [
        ("NodePool web has no room", "the NodePool has no room"),
        ('NodePool "web" has no room', "the NodePool has no room"),
        ("NodePool web-2 has no room", "NodePool web-2 has no room"),
        ("website", "website"),
    ],
)
def test_a_message_is_compared_without_the_name_of_its_node_pool(message: str, same: str) -> None:
    assert without_pool(message, "web") == same


# painters


def cells_of(rows: tuple[SectionRow, ...]) -> Iterator[Cell]:
    for row in rows:
        yield from row.cells
        for line in row.lines:
            yield from (line.head, *line.cells) if line.head is not None else line.cells
        yield from cells_of(row.more)


def names_of(rows: tuple[SectionRow, ...]) -> Iterator[str]:
    for cell in cells_of(rows):
        if isinstance(cell, Name):
            yield cell.text
        elif isinstance(cell, NameList):
            yield from cell.names


def assert_on_the_page(plan: Plan) -> None:
    page = render_html(plan)
    for shown in sections_of(plan):
        for name in names_of(shown.rows):
            assert f"<code>{html_text(name)}</code>" in page or not name


@pytest.mark.parametrize("name", ALL)
def test_the_page_has_every_name_of_every_row(name: str) -> None:
    assert_on_the_page(ALL[name]())


@given(plans)
@settings(max_examples=examples(40), deadline=None)
def test_no_renderer_loses_a_row(plan: Plan) -> None:
    assert_on_the_page(plan)
    comment, text = render_markdown(plan), render_text(plan, width=200)
    squeezed = " ".join(text.split())
    for shown in sections_of(plan, for_page=False):
        if not shown.rows:
            continue
        assert one_line(shown.title) in squeezed or shown.table
        for row in shown.rows:
            lead = row.cells[0]
            if isinstance(lead, Name):
                assert markdown_code(lead.text) in comment
                assert shown.table or one_line(lead.text) in squeezed


@given(plans)
@settings(max_examples=examples(40), deadline=None)
def test_the_headline_is_the_same_in_every_format(plan: Plan) -> None:
    lines = summary_lines(plan)
    assert json.loads(encode_saved_plan(plan))["summary"]["text"] == lines
    page = render_html(plan)
    text = " ".join(render_text(plan).split())
    comment = unescape(render_markdown(plan)).replace("\u200b", "")
    for line in lines:
        assert f"<p>{html_text(line)}</p>" in page
        assert one_line(line) in text
        assert one_line(line)[:400] in comment


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ALL)
def test_no_section_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in render_text(ALL[name](), width=width, next_command="x" * 30).splitlines():
        assert len(line) <= width or len(line.split()) == 1, line


@pytest.mark.parametrize("rows", [1, 100, 2000])
def test_a_truncated_comment_links_to_the_complete_plan(rows: int) -> None:
    pods = tuple(
        UnschedulablePod(
            pod=f"team-{n}/job-{n}",
            reasons=(Reason(node_pool=f"pool-{n}", code=f"c{n}", message=f"reason {n}"),),
        )
        for n in range(rows)
    )
    comment = render_markdown(a_plan(unschedulable=pods))
    assert len(comment) <= CHARACTERS_MAX
    is_cut = any(f"team-{n}/job-{n}`" not in comment for n in range(rows))
    assert ("`-o html` lists all" in comment) == is_cut


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_colour", "painted"), [("1", False), ("", True), (None, True)])
def test_a_terminal_gets_colours_unless_disabled(
    no_colour: str | None, painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour is not None:
        monkeypatch.setenv("NO_COLOR", no_colour)
    text = render_for_terminal(PLANS["pull_request"](), Terminal())
    assert ("\x1b[" in text) is painted


@pytest.mark.parametrize(
    ("sign", "code"),
    [("+ launch", "32"), ("- remove", "31"), ("± replace", "33"), ("~ NodePool", "33")],
)
def test_a_verb_has_its_colour(sign: str, code: str) -> None:
    plan = PLANS["first_nodes" if sign == "+ launch" else "pull_request"]()
    assert f"\x1b[{code}m{sign}" in render_text(plan, width=120, colour=True)


# the axis of the drawings


@given(st.integers(0, 2**31), st.integers(30, 60 * 86_400))
def test_an_axis_has_a_few_round_times(start: int, span: int) -> None:
    begin = datetime.fromtimestamp(start, UTC)
    axis = Axis(begin, begin + timedelta(seconds=span))
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 10
    assert all(axis.begin <= tick <= axis.end for tick in ticks)
    steps = {after - before for before, after in pairwise(ticks)}
    assert len(steps) <= 1
    assert all(tick.timestamp() % step.total_seconds() == 0 for step in steps for tick in ticks)
    places = [axis.x(tick) for tick in ticks]
    assert places == sorted(places)


def test_a_rollout_chart_shows_deferrals_closed_windows_and_budget_limits() -> None:
    (found,) = (s for s in sections_of(PLANS["closed_window"]()) if s.key == "rollout")
    bars = {bar.kind: bar for lane in found.figure.lanes for bar in lane.bars}
    assert set(bars) == {"launch", "remove", "wait", "closed", "limited"}
    assert bars["closed"].end == NOW + timedelta(hours=10)
    assert "next opens 22:00 UTC" in bars["closed"].about
    assert "2 of 12 nodes at a time" in bars["limited"].about


def test_a_plan_with_unknown_waiting_times_has_no_chart() -> None:
    plan = PLANS["pull_request"]()
    timeless = tuple(d for d in plan.deferred if d.not_before is None)
    plan = msgspec.structs.replace(plan, deferred=timeless, budgets=())
    assert "rollout" not in {found.key for found in sections_of(plan)}


def test_every_object_that_cannot_be_read_is_named() -> None:
    rows = [
        PlanFinding(
            severity="warning",
            code="unreadable-object",
            message=f"cluster.json:{number}:1: Pod shop/web-{number}: cpu: not a quantity",
        )
        for number in range(9)
    ]
    text = render_text(a_plan(diagnostics=tuple(rows)))
    flat = " ".join(text.split())
    assert all(f"Pod shop/web-{number}" in flat for number in range(9))


def test_a_row_counts_how_many_of_equal_candidates_are_removed() -> None:
    nodes = ("n1", "n2", "n3", "n4")

    def removing(*names: str) -> Plan:
        equal = (EqualCandidates(count=1, nodes=nodes),)
        commands = tuple(
            PlannedCommand(
                id=n, reason="Drifted", decision="delete", nodes=(n,), equal_candidates=equal
            )
            for n in names
        )
        actions = tuple(
            an_action(n, kind=ActionKind.TERMINATE, node=n, command=n, reason="Drifted")
            for n in names
        )
        return a_plan(commands=commands, actions=actions)

    for render in (render_text, render_markdown, render_html):
        assert "one of these 4 equal candidates: n1, n2, n3, n4" in render(removing("n1"))
        assert "2 of these 4 equal candidates: n1, n2, n3, n4" in render(removing("n1", "n3"))
        assert "equal candidates" not in render(removing(*nodes))


def test_the_rows_behind_a_fold_name_all_that_the_row_above_only_counts() -> None:
    names = tuple(f"node-{number:02}" for number in range(30))
    parts = [(names[:29], "spot"), (names[29:], "batch")]
    row = SectionRow(
        cells=(NameList(names), Text("batch, spot")),
        more=tuple(SectionRow(cells=(NameList(some), Text(pool))) for some, pool in parts),
    )
    columns = (Column("nodes"), Column("NodePool"))
    section = Section(key="blocked", title="", columns=columns, rows=(row,))
    limits = SectionLimits(rows=20, folded=50, cell=200, chart=False)
    (table,) = MarkdownSections(limits).parts(section)
    shown, _, folded = table.partition("<details><summary>all</summary>")
    assert "and 26 more" in shown
    assert all(f"`{name}`" in folded for name in names)
    assert "more" not in folded


def test_code_in_a_cell_is_shown_as_code_and_a_backtick_of_a_name_as_itself() -> None:
    """What a reader of the forge sees: escaped backticks around commands looked like a mistake."""
    texts = ("run `reconciler lock` or `kubectl get <x>`", "one ` has no partner", "`a|b`")
    rows = tuple(SectionRow(cells=(Name("a`b`c|d"), Text(text))) for text in texts)
    columns = (Column("name"), Column("note"))
    section = Section(key="notes", title="", columns=columns, rows=rows)
    limits = SectionLimits(rows=20, folded=50, cell=200, chart=False)
    (table,) = MarkdownSections(limits).parts(section)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(table)
    assert page.count("<td") == 6
    assert page.count("<code>a`b`c|d</code>") == 3
    assert "run <code>reconciler lock</code> or <code>kubectl get &lt;x&gt;</code>" in page
    assert "one ` has no partner" in page
    assert "<code>a|b</code>" in page
