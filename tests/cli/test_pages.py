"""Every page of every command is well-formed, and has the facts that its JSON has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from markdown_it import MarkdownIt

from reconciler.adapters.clock import SystemClock
from reconciler.cli.main import main
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
)
from reconciler.model.text.money import format_dollars
from reconciler.watch.scoring import score_action
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.recorded_fleet import NOW_ARGUMENT, record
from tests.cli.test_overlays import COMMITTED
from tests.cli.test_plan import CATALOG, DEPLOYMENT, a_fleet
from tests.cli.test_trace import OPENB
from tests.repositories import commit_all, init
from tests.states import open_state
from tests.watch.claims import START, after, command, node

NOW: Final = ("--now", "2026-03-02T12:00:00Z")
TRACE: Final = "trace.csv"

Reply = Any
Facts = Callable[[Reply], Iterable[object]]


class Case(NamedTuple):
    """A command line, and the facts of its JSON that each page has to show."""

    words: tuple[str, ...]
    facts: Facts


def names(*paths: str) -> Facts:
    """Return the values at dotted paths; a list on the way stands for each of its items."""

    def found(value: Reply, steps: list[str]) -> Iterator[object]:
        if isinstance(value, list):
            for item in value:
                yield from found(item, steps)
        elif not steps:
            yield value
        elif isinstance(value, dict) and steps[0] in value:
            yield from found(value[steps[0]], steps[1:])

    return lambda reply: [fact for path in paths for fact in found(reply, path.split("."))]


def name_and_verdict(reply: Reply) -> list[object]:
    """Return what an explanation is about, and its verdict, with which the page begins."""
    return [reply["about"]["name"], reply["verdict"][1:]]


def keys(path: str) -> Facts:
    """Return the keys of a mapping."""
    return lambda reply: [key for mapping in names(path)(reply) for key in dict(mapping)]  # type: ignore[call-overload]


RECORDED: Final = (
    Case(("status",), names("fleet", "blockers.name", "rollouts.nodePool")),
    Case(("top",), names("nodes.name", "nodes.instanceType", "nodes.zone")),
    Case(("top", "--by", "workload"), names("groups.name")),
    Case(("get", "nodeclaims"), names("items.metadata.name")),
    Case(("get", "nodes"), names("items.metadata.name")),
    Case(("get", "nodepools"), names("items.metadata.name")),
    Case(("get", "plans"), names("items.metadata.name")),
    Case(("get", "actions"), names("items.metadata.name", "items.spec.kind")),
    Case(("get", "commands"), names("items.metadata.name")),
    Case(("describe", "nodeclaim", "web-old1"), names("metadata.name", "status.imageID")),
    Case(("describe", "node", "ip-web-old2.internal"), names("metadata.name")),
    Case(("describe", "nodepool", "web"), names("metadata.name")),
    Case(("describe", "command", "drifted-1"), names("metadata.name", "spec.reason")),
    Case(("history",), names("items.spec.target", "items.spec.verb")),
    Case(("history", "--by-command"), names("items.spec.reason", "items.spec.targets")),
    Case(("report",), names("fleet", "blockers.message")),
    Case(("explain", "pod", "ml/train-0"), names("about.name", "plan.digest", "reasons.message")),
    Case(("explain", "node", "ip-web-old2.internal"), name_and_verdict),
    Case(("state", "check"), names("findings.message")),
)
DESIRED: Final = (
    Case(("config",), lambda reply: reply),
    Case(("hash", "."), names("name", "hash")),
    Case(("plan", *NOW), names("nodeClaims.nodePool", "nodeClaims.launch.instanceType")),
    Case(("plan", *NOW, "--trace", TRACE, "--base", "HEAD"), keys("backtest.sides")),
    Case(("simulate", *NOW, "--seed", "1"), names("nodes.nodePool")),
    Case(
        ("simulate", *NOW, "--trace", TRACE, "--against", "karpenter-defaults"),
        lambda reply: [
            *reply["backtest"]["sides"],
            *(format_dollars(side["dollars"]) for side in reply["backtest"]["sides"].values()),
        ],
    ),
    Case(("advise", *NOW, "--candidates", "5"), names("fleet", "refused.id")),
    Case(("explain", "nodepool", "general", *NOW), name_and_verdict),
    Case(("overlays", *NOW), names("items.metadata.name", "items.spec.priceAdjustment")),
    Case(("trace", "summary", TRACE), names("pods", "classes")),
)


def named(case: Case) -> str:
    return "-".join(word for word in case.words if not word.startswith(("-", "2026")))


@pytest.mark.parametrize("form", ["html", "markdown"])
@pytest.mark.parametrize("case", RECORDED, ids=named)
def test_a_page_of_recorded_state(
    case: Case, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.chdir(folder)
    record(folder / ".reconciler")
    expect_facts((*case.words, NOW_ARGUMENT), case.facts, form, capsys)


@pytest.mark.parametrize("form", ["html", "markdown"])
@pytest.mark.parametrize("case", DESIRED, ids=named)
def test_a_page_of_a_fleet(
    case: Case, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = a_fleet(tmp_path, DEPLOYMENT, CATALOG)
    monkeypatch.chdir(folder)
    Path(TRACE).write_text(OPENB)
    Path("reconciler.yaml").write_text(COMMITTED)
    init(folder)
    commit_all(folder)
    expect_facts(case.words, case.facts, form, capsys)


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_a_page_of_predictions(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with open_state(".reconciler", "web") as state:
        made = state.predictions.record(Prediction(START, (node(),), (command("Empty", "n"),)))
        other: tuple[NodeFacts, ...] = (node("m5.xlarge"),)
        launch = KarpenterAction(after(1), KarpenterActionKind.LAUNCH, other)
        state.predictions.score([score_action(launch, made)])
    words = ("watch", "report", "--set", "fleet=web", "--now", "2026-03-02T12:00:00Z")
    facts = names("wrong.cause", "wrong.action.launches.instanceType")
    expect_facts(words, facts, form, capsys)


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_a_page_of_purchased_commitments(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(a_fleet(tmp_path, DEPLOYMENT, CATALOG))
    cloud = EmbeddedEC2(SystemClock(), region="eu-west-1")
    cloud.contracts.add_plan("sp-1", "Compute", "1.50", "2027-01-01T00:00:00.000Z")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with serve(cloud) as url:
        words = ("check", "--commitments", "--set", f"aws.endpointUrl={url}",
                 "--set", "aws.region=eu-west-1")  # fmt: skip
        facts = names("commitments.savingsPlans.note", "commitments.savingsPlans.type")
        expect_facts(words, facts, form, capsys)


def expect_facts(
    words: tuple[str, ...], facts: Facts, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expect a well-formed page, which has the facts of the JSON."""
    assert main([*words, "-o", "json"]) == 0, capsys.readouterr().err
    expected = [str(fact) for fact in facts(json.loads(capsys.readouterr().out)) if fact != ""]
    assert expected, "the JSON has facts"
    assert main([*words, "-o", form]) == 0, capsys.readouterr().err
    page = capsys.readouterr().out
    shown = text_of_html(page) if form == "html" else text_of_markdown(page)
    missing = [fact for fact in expected if " ".join(fact.split()) not in shown]
    assert not missing, shown


class Tags(HTMLParser):
    """Expects that every element is closed in order, and collects the text and the titles."""

    VOID: Final = frozenset({"meta", "input", "br", "circle", "path", "line", "rect", "use"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.texts += [value or "" for name, value in attrs if name in ("title", "aria-label")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)


def text_of_html(page: str) -> str:
    """Return the text of a page, whose elements are closed in order."""
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return " ".join("".join(tags.texts).split())


def text_of_markdown(page: str) -> str:
    """Return the text of a page, whose tables have as many cells in each row as in their header."""
    assert page.startswith("### ")
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    width = cells = 0
    for token in tokens:
        match token.type:
            case "table_open":
                width = 0
            case "tr_open":
                cells = 0
            case "th_open" | "td_open":
                cells += 1
            case "tr_close":
                width = width or cells
                assert cells == width
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    parts = [child.content for token in tokens for child in token.children or ()]
    parts += [token.content for token in tokens if token.type in ("fence", "code_block")]
    return " ".join(re.sub(r"<[^>]*>", "", unescape(" ".join(parts))).split())
