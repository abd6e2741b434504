"""Hostile names, labels, messages and file names in everything that a command writes."""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from reconciler.cli.main import main
from reconciler.cli.output.findings import render_github
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.visible import Painted, markdown_code, markdown_text
from reconciler.notifications.log import TerminalNotifier
from reconciler.notifications.stream import FilteredStream
from reconciler.plan.render.html import render_html
from reconciler.plan.render.markdown import CHARACTERS_MAX, render_markdown, render_mermaid
from reconciler.plan.render.text import render_text
from reconciler.plan.value.plan import Plan
from reconciler.ports.progress import Progress
from reconciler.render.page import SCRIPT
from tests.cli.test_plan import CATALOG, CLASS, NOW, POOL
from tests.hostile.threats import Threat, attack
from tests.plan.builders import PLANS

PAYLOADS = {
    "a workflow command on a new line": "x\n::error::owned",
    "a workflow command after spaces": "x\n \t ::add-mask::owned",
    "a workflow command at the start": "::set-output name=a::b",
    "an old workflow command": "##[error]owned",
    "a command of Azure Pipelines": "##vso[task.setvariable variable=a]b",
    "a workflow command after a carriage return": "x\r::error::owned",
    "colours": "\x1b[31;8mhidden\x1b[0m",
    "a terminal title": "\x1b]0;owned\x07",
    "a section of a GitLab log": "section_start:0:x\r\x1b[0K",
    "C1 control characters": "\x9b31m\x90q\x85x",
    "backspaces": "safe\x08\x08\x08\x08evil\x7f",
    "directions": "user\u202eexe.\u2066gpj\u2069",
    "line separators": "a\u2028::error::b\u2029c",
    "characters without a width": "ad\u200bmin\ufeff\u00ad\u2060",
    "tags": "web\U000e0061\U000e0062",
    "a mention": "@victim and @org/team",
    "references of GitHub": "fixes #1, GH-2, owner/repo#3 and "
    + "0123456789abcdef" * 2
    + "01234567",
    "references of GitLab": '!1 ~label ~"two words" %milestone $2 &3 [vulnerability:4]',
    "a quick action": "x\n/close\n/approve",
    "a link": "[click](javascript:alert(1)) <http://evil.example> [a]: http://evil.example",
    "links that write themselves": "http://evil.example ftp://evil.example www.evil.example a@b.cd",
    "an image": "![x](http://evil.example/x.png)",
    "HTML": '<script>alert(1)</script><img src=x onerror="alert(1)">',
    "HTML within an attribute": "\" onmouseover=\"alert(1)\" x='y' onclick='alert(1)",
    "a cell of a table": "a | b || c \\| d",
    "a fence": "```\n::error::x\n```",
    "a code span": "`` ` `@victim` `",
    "the end of a chart": '"]; click a0 "javascript:alert(1)"; x["',
    "a directive of a chart": "%%{init: {'securityLevel':'loose'}}%%",
    "the end of a page": "</title></style></pre></code><script>alert(1)</script>",
    "math": "$`@victim`$ $$x$$",
}
HOSTILE = st.one_of(
    st.sampled_from(sorted(PAYLOADS.values())),
    st.text(
        st.sampled_from(
            sorted(set("".join(PAYLOADS.values())) | set("a b1/:.-\n\r\t\x00\x1b\u202e\u200d"))
        ),
        max_size=30,
    ),
    st.text(max_size=20),
)
payloads = pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
COMMAND = re.compile(r"(?m)^\s*::|##\w*\[")


def hostile(value: Any, text: str, hint: Any = None) -> Any:
    """Return a Struct with ``text`` beside each text of it that is free."""
    if isinstance(value, msgspec.Struct):
        hints = get_type_hints(type(value))
        return msgspec.structs.replace(
            value,
            **{
                name: hostile(getattr(value, name), text, hints[name])
                for name in value.__struct_fields__
                if name != "severity"  # one of three words, which are ours
            },
        )
    if isinstance(value, str):
        is_one_of_ours = isinstance(hint, type) and issubclass(hint, Enum)
        is_ours = is_one_of_ours or isinstance(value, Enum) or "Literal" in str(hint)
        return value if is_ours else f"{text}{value}{text}"
    if isinstance(value, (tuple, list)):
        return type(value)(hostile(item, text, hint) for item in value)
    if isinstance(value, dict):
        return {f"{text}{key}": hostile(item, text) for key, item in value.items()}
    return value


def through_the_door(text: str) -> str:
    out = io.StringIO()
    FilteredStream(out).write(text)
    return out.getvalue()


def assert_inert_on_a_terminal(text: str) -> None:
    assert CONTROL.search(text) is None, ascii(text)
    assert COMMAND.search(text) is None, ascii(text)


TAGS_OF_OURS = {
    "<br>", "<sub>", "</sub>", "<code>", "</code>", "<details>", "<details open>", "</details>",
    "<summary>", "</summary>",
}  # fmt: skip
ACTIVE = re.compile(
    r"(?<!\w)@\w|(?<!\w)#\d|\w#\d|GH-\d|://|\bwww\.|![0-9]|~[\w\"]|%[a-z]|\w@\w+\.\w"
    r"|(?<![\w-])[0-9a-f]{7,40}(?!\w)",
    re.ASCII,
)


def assert_inert_markdown(text: str, *, code: bool = False) -> None:
    """Parse it as GitHub does, and find only our own markup in it; ``code`` may be in blocks.

    Code is never a reference.
    """
    before = ""
    for token in every(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)):
        assert token.type not in ("link_open", "image", "s_open"), token
        if token.type in ("html_inline", "html_block"):
            assert set(re.findall(r"<[^>]*>", token.content)) <= TAGS_OF_OURS, token.content
        if token.type in ("html_inline", "html_block", "text") and before != "<code>":
            shown = re.sub("<code>.*?</code>", "", token.content)
            assert ACTIVE.search(unescape(shown)) is None, ascii(token.content)
        before = token.content
        assert token.type != "fence" or token.info == "mermaid" or (code and not token.info)
    assert not any(line.startswith("/") for line in text.split("\n")), "a quick action of GitLab"


def every(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from every(token.children or [])


class Page(HTMLParser):
    """Fails on anything active, and keeps the policy and the style sheets."""

    ALLOWED: ClassVar = {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "small", "p", "div", "b",
        "table", "thead", "tbody", "tr", "th", "td", "code", "span", "details", "summary", "svg",
        "rect", "path", "text", "g", "line", "br", "pre", "header", "section", "input", "output",
        "time", "script", "ul", "li", "circle",
    }  # fmt: skip
    ATTRIBUTES: ClassVar = {
        "class", "lang", "charset", "name", "content", "http-equiv", "colspan", "open", "role",
        "viewbox", "width", "height", "aria-label", "d", "x", "y", "x1", "x2", "y1", "y2", "rx",
        "text-anchor", "fill", "id", "scope", "data-label", "data-sort", "type", "placeholder",
        "aria-live", "hidden", "tabindex", "datetime", "cx", "cy", "r", "aria-hidden",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.policy = ""
        self.styles: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.ALLOWED, tag
        assert {name for name, _ in attrs} <= self.ATTRIBUTES, attrs
        values = dict(attrs)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.styles.append(data)
        if self._inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def assert_inert_page(text: str) -> None:
    page = Page()
    page.feed(text)
    assert "default-src 'none'" in page.policy
    assert "unsafe" not in page.policy
    assert "base-uri 'none'" in page.policy
    [style], [script] = page.styles, page.scripts
    assert script == SCRIPT
    for source, content in (("style-src", style), ("script-src", script)):
        known = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{source} 'sha256-{known}';" in page.policy
    assert CONTROL.search(text) is None


def assert_inert_chart(text: str) -> None:
    """Only our own lines, and labels that no quote, bracket or directive leaves."""
    node = re.compile(r'  (\w+)\["([^"\[\]{}()<>|`%@\\]*(?:<br/>[^"<>]*)?)"\](:::\w+)?')
    for line in text.rstrip("\n").split("\n")[4:]:
        assert node.fullmatch(line) or re.fullmatch(r"  a\d+ --> a\d+", line), line


@attack(Threat.OUTPUT, "hostile text in every field of a plan, on a terminal")
@payloads
def test_a_plan_on_a_terminal_escapes_hostile_text(payload: str) -> None:
    plan = hostile(PLANS["pull_request"](), payload)
    assert_inert_on_a_terminal(through_the_door(render_text(plan)))


@attack(Threat.OUTPUT, "hostile text in every field of a plan, on a terminal with colours")
@payloads
def test_only_our_own_colours_reach_a_terminal(payload: str) -> None:
    plan = hostile(PLANS["pull_request"](), payload)
    shown = through_the_door(render_text(plan, colour=True))
    assert_inert_on_a_terminal(re.sub(r"\x1b\[(0|1|2|31|32|33|36)m", "", shown))


@attack(Threat.OUTPUT, "hostile text in every field of a plan, in a comment on a pull request")
@payloads
def test_a_comment_escapes_hostile_text(payload: str) -> None:
    text = render_markdown(hostile(PLANS["pull_request"](), payload))
    assert_inert_markdown(text)
    assert_inert_on_a_terminal(through_the_door(text))
    assert len(text) <= CHARACTERS_MAX


@attack(Threat.OUTPUT, "hostile text in every field of a plan, on a page")
@payloads
def test_a_page_escapes_hostile_text(payload: str) -> None:
    assert_inert_page(render_html(hostile(PLANS["pull_request"](), payload)))


@attack(Threat.OUTPUT, "hostile text in every field of a plan, in a chart")
@payloads
def test_a_chart_escapes_hostile_text(payload: str) -> None:
    assert_inert_chart(render_mermaid(hostile(PLANS["pull_request"](), payload)))


@attack(Threat.OUTPUT, "generated text in every field of a plan, in every format")
@given(text=HOSTILE, name=st.sampled_from(sorted(PLANS)))
@settings(max_examples=60, deadline=None)
def test_no_text_in_a_plan_is_active_in_any_format(text: str, name: str) -> None:
    plan: Plan = hostile(PLANS[name](), text)
    assert_inert_on_a_terminal(through_the_door(render_text(plan)))
    assert_inert_markdown(render_markdown(plan))
    assert_inert_page(render_html(plan))
    assert_inert_chart(render_mermaid(plan))


@attack(Threat.OUTPUT, "generated text in Markdown")
@given(text=HOSTILE)
@settings(max_examples=300, deadline=None)
def test_markdown_keeps_any_text_within_its_cell(text: str) -> None:
    for shown in (markdown_text(text), markdown_code(text)):
        table = f"| a | b |\n| :-- | :-- |\n| {shown} | end |\n"
        assert_inert_markdown(table)
        tokens = MarkdownIt("commonmark").enable("table").parse(table)
        assert [t.content for t in tokens if t.type == "inline"][3:] == ["end"]


@attack(Threat.OUTPUT, "a command of GitLab or of a bot at the start of a line of a comment")
@pytest.mark.parametrize("text", ["/approve", " /close", "x\n/label ~y", "\u2028/merge", "//x"])
def test_no_line_of_markdown_begins_with_a_command(text: str) -> None:
    """Guard: the entity for a slash at the start in ``markdown_text``."""
    for shown in (markdown_text(text), markdown_code(text)):
        assert not any(line.lstrip().startswith("/") for line in shown.splitlines())
    assert "/approve" in MarkdownIt().render(markdown_text("/approve"))


def test_a_comment_with_the_longest_names_fits() -> None:
    text = render_markdown(hostile(PLANS["pull_request"](), "@" * 5000))
    assert len(text) <= CHARACTERS_MAX
    assert "too long for a comment" in text


@attack(Threat.OUTPUT, "a workflow command written in pieces")
@pytest.mark.parametrize(
    "pieces",
    [("x\n", ":", ":error::y"), ("x\n" + " " * 200, "::error::y"), ("##", "[error]y")],
    ids=["a colon", "far to the right", "brackets"],
)
def test_the_output_filter_keeps_its_state_between_writes(pieces: tuple[str, ...]) -> None:
    out = io.StringIO()
    door = FilteredStream(out)
    for piece in pieces:
        door.write(piece)
    assert_inert_on_a_terminal(out.getvalue())


@attack(Threat.OUTPUT, "colour codes in text from others")
def test_the_output_filter_trusts_only_styled_text() -> None:
    assert through_the_door("\x1b[31mred") == "\\u001b[31mred"
    assert through_the_door(Painted("\x1b[31mred\x1b[0m\x1b]0;title\x07")) == (
        "\x1b[31mred\x1b[0m\\u001b]0;title\\u0007"
    )


@attack(Threat.OUTPUT, "hostile text in JSON")
@given(text=HOSTILE)
@settings(max_examples=100, deadline=None)
def test_json_is_exact_and_inert(text: str) -> None:
    written = json.dumps({"name": text, text: 1}, ensure_ascii=False, indent=2) + "\n"
    shown = through_the_door(written)
    assert_inert_on_a_terminal(shown)
    assert json.loads(shown) == {"name": text, text: 1}


@attack(Threat.OUTPUT, "hostile text in a line of the daemon's log")
@payloads
def test_a_log_message_stays_on_one_line(payload: str) -> None:
    out = io.StringIO()
    notifier = TerminalNotifier(FilteredStream(out), colour=False)  # type: ignore[arg-type]
    notifier.notify(Progress(datetime(2026, 1, 3, tzinfo=UTC), "Failed", f"AWS: {payload}"))
    assert out.getvalue().count("\n") == 1
    assert_inert_on_a_terminal(out.getvalue())


@attack(Threat.OUTPUT, "an annotation for GitHub that ends early and starts another")
@payloads
def test_an_annotation_is_one_workflow_command(payload: str) -> None:
    place = Place(f"a{payload}.yaml", 1, 1)
    finding = Diagnostic(Severity.ERROR, "syntax", payload, place, payload, payload)
    text = through_the_door(render_github([finding]))
    assert text.count("\n") == 1
    assert text.startswith("::error file=a")
    assert CONTROL.search(text) is None
    properties = text.removeprefix("::error ").partition("::")[0]
    assert [p.partition("=")[0] for p in properties.split(",")] == ["file", "line", "col", "title"]


def a_fleet(beside: Path) -> Path:
    """Write a fleet that has each payload wherever a fleet holds free text."""
    folder = beside / "fleet"
    for number, payload in enumerate(PAYLOADS.values()):
        (folder / str(number)).mkdir(parents=True)
        write_fleet(folder / str(number), json.dumps(payload))
    return folder


def write_fleet(folder: Path, quoted: str) -> None:
    (folder / "pool.yaml").write_text(POOL + f"      taints: [{{key: {quoted}, effect: X}}]\n")
    (folder / "class.yaml").write_text(CLASS + f"  tags: {{{quoted}: {quoted}}}\n  {quoted}: 1\n")
    (folder / "bad.yaml").write_text(
        f"kind: {quoted}\napiVersion: v1\nmetadata: {{name: {quoted}}}"
    )


@attack(Threat.OUTPUT, "hostile text in a fleet, as `validate` reports it")
@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_validate_escapes_hostile_text(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(a_fleet(tmp_path)), "-o", form]) == 3
    out, err = capsys.readouterr()
    assert CONTROL.search(out) is None
    if form == "github":
        lines = out.splitlines()
        assert all(re.match(r"::(error|warning|notice) ", line) for line in lines)
        assert len(lines) == out.count("\n")
    else:
        assert COMMAND.search(out) is None
    if form in ("json", "sarif"):
        json.loads(out)
    assert_inert_on_a_terminal(err)


NAMES = {
    "a workflow command": "x\n::error::owned",
    "colours": "\x1b[31m",
    "directions": "a\u202eb",
    "an old workflow command": "##[error]x",
}


@attack(Threat.OUTPUT, "a hostile file name, as `validate` reports it")
@pytest.mark.parametrize("form", ["text", "github", "sarif", "json"])
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_validate_escapes_hostile_file_names(
    name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"f{name}"
    try:
        folder.mkdir()
    except UnicodeEncodeError:
        pytest.skip("the locale of this run has no such file name")
    (folder / f"{name}.yaml").write_text("a: [")
    assert main(["validate", str(folder), "-o", form]) == 3
    out = capsys.readouterr().out
    assert CONTROL.search(out) is None
    if form != "github":
        assert COMMAND.search(out) is None
    else:
        assert out.count("::error ") == out.count("\n") == out.count("\n::error ") + 1


@attack(Threat.OUTPUT, "hostile text on the command line, as an error repeats it")
@payloads
def test_errors_escape_hostile_text(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["plan", payload], [payload], ["plan", "--now", payload], ["get", payload]):
        if "\x00" in payload:
            continue
        assert main(words) in (1, 2)
        out, err = capsys.readouterr()
        assert not out
        assert err.count("\n") == 1
        assert_inert_on_a_terminal(err)


def a_cluster() -> dict[str, Any]:
    """Return a cluster whose objects carry the payloads in names, labels and messages."""
    items = [item for payload in PAYLOADS.values() for item in hostile_objects(payload)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def hostile_objects(payload: str) -> list[dict[str, Any]]:
    labels = {"karpenter.sh/nodepool": "general", payload: payload}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{payload}", "labels": labels, "annotations": {payload: payload}},
        "spec": {"providerID": f"aws:///{payload}"},
        "status": {
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True", "message": payload}],
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{payload}", "namespace": f"s{payload}", "labels": labels},
        "spec": {
            "containers": [{"name": payload, "resources": {"requests": {"cpu": "900"}}}],
            "nodeSelector": {payload: payload},
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            ],
        },
    }
    return [node, pod]


@attack(Threat.OUTPUT, "hostile names and labels in a cluster, as `plan` reports them")
@pytest.mark.parametrize("form", ["text", "json", "markdown", "html", "mermaid"])
def test_plan_escapes_hostile_names_of_a_cluster(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    (tmp_path / "snapshot.json").write_text(json.dumps(a_cluster()))
    words = ["plan", str(fleet), "--snapshot", str(tmp_path / "snapshot.json"), "--now", NOW]
    code = main([*words, "--catalog", str(tmp_path / "catalog.json"), "-o", form])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert_inert_on_a_terminal(out)
    assert_inert_on_a_terminal(err)
    match form:
        case "json":
            shown = {entry["pod"] for entry in json.loads(out)["unschedulable"]}
            assert shown == {f"s{payload}/p{payload}" for payload in PAYLOADS.values()}
        case "markdown":
            assert_inert_markdown(out)
        case "html":
            assert_inert_page(out)
        case "mermaid":
            assert_inert_chart(out)


@attack(Threat.OUTPUT, "hostile names in a simulation's page")
def test_simulate_writes_inert_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    (tmp_path / "snapshot.json").write_text(json.dumps(a_cluster()))
    words = ["simulate", str(fleet), "--snapshot", str(tmp_path / "snapshot.json"), "--now", NOW]
    words += ["--catalog", str(tmp_path / "catalog.json"), "--until", "10m"]
    for form in ("html", "text"):
        assert main([*words, "-o", form]) == 0
        out, err = capsys.readouterr()
        assert_inert_on_a_terminal(out)
        assert_inert_on_a_terminal(err)
        if form == "html":
            assert_inert_page(out)


@attack(Threat.OUTPUT, "hostile names in a cluster, as explanations and advice repeat them")
@pytest.mark.parametrize("form", ["text", "json", "yaml"])
@pytest.mark.parametrize("words", [("explain", "gap"), ("explain", "pod"), ("advise",)])
def test_explanations_and_advice_escape_hostile_names(
    words: tuple[str, ...], form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod that nobody can place does not keep others from being advised either."""
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    (tmp_path / "snapshot.json").write_text(json.dumps(a_cluster()))
    payloads = PAYLOADS.values() if words == ("explain", "pod") else [""]
    for payload in payloads:
        names = [f"s{payload}/p{payload}"] if payload else []
        line = [*words, *names, str(fleet), "--snapshot", str(tmp_path / "snapshot.json")]
        line += ["--now", NOW, "--catalog", str(tmp_path / "catalog.json"), "-o", form]
        assert main(line) == 0
        out, err = capsys.readouterr()
        assert_inert_on_a_terminal(out)
        assert_inert_on_a_terminal(err)


def test_ordinary_text_passes_the_output_filter_unchanged() -> None:
    text = "general  ● 3 → 4 nodes, ±0 €, arn:aws:iam::123:role/x, 10% # 1, naïve 日本語 🙂\n"
    assert through_the_door(text) == text


def test_the_output_filter_is_removed_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    before = sys.stdout
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["--help"]) == 0
    assert sys.stdout is before
    assert "usage" in out.getvalue()
    capsys.readouterr()
