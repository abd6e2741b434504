from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from reconciler.cli.main import main
from reconciler.cli.parser.commandline import COMMANDS
from reconciler.plan.run import TRANSITIONS
from tests.hostile import catalogue
from tests.hostile.threats import Threat

ROOT = Path(__file__).resolve().parents[1]
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
LINK = re.compile(r"\[[^\]]+\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_the_configuration_reference_agrees_with_the_schemas() -> None:
    generate = generator()
    assert generate.PAGE.read_text(encoding="utf-8") == generate.configuration_page(), (
        "run docs/generate.py"
    )


@pytest.mark.parametrize("name", ["commands", "metrics", "events", "exit-codes"])
def test_a_page_of_the_reference_matches_the_code(name: str) -> None:
    path = ROOT / "docs" / f"{name}.md"
    assert path.read_text(encoding="utf-8") == generator().reference_pages()[path], (
        "run docs/generate.py"
    )


def test_every_command_has_a_section_in_the_reference() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"### `{name}`\n" not in page] == []


def test_the_documented_states_of_actions_agree_with_the_code() -> None:
    generate = generator()
    page = generate.ARCHITECTURE.read_text(encoding="utf-8")
    assert page == generate.architecture_page(), "run docs/generate.py"
    for row in TRANSITIONS:
        assert f"| `{row.before}` | {row.event}" in page


def test_the_tables_of_workloads_agree_with_the_code() -> None:
    generate = generator()
    page = generate.WORKLOADS.read_text(encoding="utf-8")
    assert page == generate.workloads_page(), "run docs/generate.py"


def test_the_threat_model_counts_the_attacks_on_each_defence() -> None:
    page = catalogue.PAGE.read_text(encoding="utf-8")
    assert page == catalogue.page(), "run python -m tests.hostile --document"
    assert {attack.threat for attack in catalogue.attacks()} == set(Threat)


def test_the_tests_that_the_threat_model_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", catalogue.PAGE.read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_link_in_the_texts_has_a_target() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_anchor_in_the_texts_is_a_heading() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{anchor}"
        for page in pages
        for target, anchor in ANCHOR.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
        for goal in [(page.parent / target).resolve() if target else page]
        if goal.suffix == ".md" and anchor not in anchors(goal)
    ]
    assert broken == []


def test_every_row_of_a_table_is_below_its_header() -> None:
    """A blank line in a table ends it: what follows is shown as text with bars."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    blocks = {
        f"{page.relative_to(ROOT)}: {block.splitlines()[0]}": block
        for page in pages
        for block in without_code(page.read_text(encoding="utf-8")).split("\n\n")
        if block.strip().startswith("|")
    }
    assert blocks
    assert [row for row, block in blocks.items() if "\n|--" not in block] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page, as GitHub and the site make them from its headings."""
    prose = without_code(page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles)


def test_no_sentence_is_on_two_pages() -> None:
    """Generated pages and decisions may repeat; a page that a reader opens does not."""
    generated = {*generator().reference_pages(), generator().PAGE, catalogue.PAGE}
    pages: dict[str, list[str]] = defaultdict(list)
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        if "decisions" not in page.parts and page not in generated:
            for sentence in sentences(page.read_text(encoding="utf-8")):
                pages[sentence].append(page.relative_to(ROOT).as_posix())
    assert {sentence: names for sentence, names in pages.items() if len(names) > 1} == {}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of at least six words outside of tables and blocks of code."""
    for paragraph in re.split(r"\n\s*\n|\n\s*- |\n\d+\. |\n#+ ", without_code(text)):
        if "|" not in paragraph:
            for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split())):
                words = re.findall(r"[\w`./-]+", sentence.lower())
                if len(words) > 5:
                    yield " ".join(words)


def without_code(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_shows_the_plan_that_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split("$ reconciler plan examples/web\n")[1].split("```")[0].splitlines()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["plan", "examples/web"]) == 0
    printed = capsys.readouterr().out.splitlines()
    after_the_revision_and_the_moment = 2
    assert printed[after_the_revision_and_the_moment:] == shown[after_the_revision_and_the_moment:]
