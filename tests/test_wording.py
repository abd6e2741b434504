"""Strings, docstrings, comments and docs avoid the forms that the wording guide forbids."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REWRITTEN = (
    "docs",
    "examples",
    "reconciler",
    "reconciler_embedded",
    "schemas",
    "tests/action",
    "tests/adapters",
    "tests/browser",
    "tests/catalog",
    "tests/cli",
    "tests/contracts",
    "tests/deploy",
    "tests/desired",
    "tests/diff",
    "tests/disruption",
    "tests/docs",
    "tests/engine",
    "tests/hostile",
    "tests/live",
    "tests/model",
    "tests/notifications",
    "tests/observed",
    "tests/placement",
    "tests/plan",
    "tests/simulated",
    "tests/web",
)
"""Folders that avoid the forms in ``FORBIDDEN`` and ``DIALECT``; add each that was rewritten."""

NAMED = ("reconciler", "reconciler_embedded", "benchmarks", ".ci")
"""Folders whose identifiers avoid the words in ``NAMES``."""

FORBIDDEN = {
    r"whence": "name the source",
    r"dearer": "more expensive",
    r"so long": "while, until, or the duration",
    r"so many": "the number",
    r"as far as": "if, or up to",
    r"would do": "alternative, suitable",
    r"will do": "is accepted",
    r"the least that": "the minimum",
    r"of late": "recently",
    r"in vain": "without success",
    r"oftener": "more often",
    r"deeds?": "subcommand, operation",
    r"mend(s|ed|ing)?": "fix, correct",
    r"between two looks|looked at again|looks? again": "pass, revalidated",
    r"your word": "confirm",
    r"is no (choice|regular|event|list|time|script|config)": "is not a valid ...",
    r"may not go|nodes? goes": "cannot be disrupted, is removed",
    r"carr(y|ies) a plan out": "apply a plan",
    r"no place|without a place": "cannot be scheduled",
    r"does not speak of": "is not in",
    r"there is no such": "does not exist",
    r"it is tried again": "it will be retried",
    r"an hour once": "$/hour",
    r"what chance": "random seed",
    r"form of the": "output format",
    r"holes": "gaps",
    r"nothing is recorded": "no recorded state",
    r"stands already": "already defined",
}
"""A form that no text may contain (a regular expression of words) → what to write instead."""

DIALECT = {
    r"anew": "again",
    r"heed(s|ed|ing)?": "respect, follow",
    r"wish(es|ed|ing)?": "request, preference",
    r"vain": "failed attempt",
    r"dear|dearest": "expensive, most expensive",
    r"word of": "message, event",
    r"looks? (at|of)|looked at|(a|each|next|every) look(?!-)": "read, check, observation",
    r"as it stands|as things stand": "current, unchanged",
    r"(speak|speaks|spoke) of": "mention, contain",
    r"is thought (of as|to be)": "estimated",
    r"held there": "constrained by",
    r"(is|are|be) told|told apart": "is reported, distinguished",
    r"(is|are|be) said": "is reported",
    r"bears? (a|an|its|the)": "has",
    r"(find|finds|found|has|have) no place": "does not fit, is unschedulable",
    r"(git|world|we) moved": "configuration, infrastructure or release changed",
    r"whose it is": "the owner",
}
"""The same for the folders in ``REWRITTEN``."""

FOR_READERS = {
    r"(at|to) rest": "steady state",
    r"stuck": "cannot be replaced",
    r"judge(s|d)?": "evaluate",
    r"aws' ": "AWS's",
    r"theoretical minimum for": "lower bound",
    r"outside git": "not in a git repository",
}
"""The same for pages, descriptions in schemas, and sentences that a command prints."""

NAMES = {word for word in (*FORBIDDEN, *DIALECT) if word.isalpha()} | {
    "believed", "dear", "dearest", "deed", "deeds", "equip", "essence", "furnished", "hasten",
    "heed", "homeless", "leaver", "lonely", "looks", "mingled", "parted", "said", "scene", "toll",
    "told", "wish", "wished", "wishes",
}  # fmt: skip
"""Words that no identifier contains between its underscores; forbidden words are among them."""


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string; the parts of an f-string are one text."""
    tree = ast.parse(source)
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node and isinstance(part, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_text(value) for value in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in parts and type(node.value) is str:
            yield node.lineno, node.value


def _text(value: ast.expr) -> str:
    """Return a part of an f-string; a value stands for a word that no form contains."""
    return str(value.value) if isinstance(value, ast.Constant) else "…"


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment; those on consecutive lines are one text.

    A line is searched for ``#`` without parsing it, which is fast: the rest of a string that
    contains one is checked twice.
    """
    first, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        _, mark, text = f" {line}".partition(" #")
        if mark:
            first = first if lines else number
            lines.append(text)
        elif lines:
            yield first, " ".join(lines)
            lines = []


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each name, attribute, parameter and definition."""
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each paragraph of a Markdown page, code left out."""
    plain = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", lambda code: "\n" * code[0].count("\n"), page)
    line = 1
    for text in re.split(r"(\n\s*\n)", plain):
        yield line, text
        line += text.count("\n")


def descriptions(schema: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each description in a JSON schema."""
    for line, text in enumerate(schema.splitlines(), 1):
        name, _, value = text.strip().rstrip(",").partition(": ")
        if name == '"description"' and value.startswith('"'):
            yield line, json.loads(value)


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string of several words, without documentation.

    Messages of assertions are left out: nobody but a developer reads them.
    """
    left_out = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return ((line, text) for line, text in texts(source) if " " in text and line not in left_out)


def find_forbidden(parts: Iterable[tuple[int, str]], forms: Mapping[str, str]) -> list[str]:
    """Return a line for each forbidden form in a text: line number, form, and better words."""
    pattern = re.compile(rf"\b(?:{'|'.join(forms)})\b")
    found = []
    for line, text in parts:
        for match in pattern.finditer(" ".join(text.lower().split())):
            better = next(words for form, words in forms.items() if re.fullmatch(form, match[0]))
            found.append(f'line {line}: "{match[0]}" (write: {better})')
    return found


@cache
def parts_of(folder: str) -> list[tuple[Path, list[tuple[int, str]]]]:
    """Return the texts of the modules, pages and tables of a folder, with their lines."""
    found = []
    for path in sorted((ROOT / folder).rglob("*")):
        if folder == "schemas" and path.suffix == ".json":
            found.append((path, list(descriptions(path.read_text(encoding="utf-8")))))
        if path.suffix in {".py", ".md", ".toml"}:
            content = path.read_text(encoding="utf-8")
            is_page = path.suffix != ".py"
            parts = paragraphs(content) if is_page else chain(texts(content), comments(content))
            found.append((path, list(parts)))
    return found


def find_faults(folder: str, forms: Mapping[str, str]) -> list[str]:
    """Return the forbidden forms in the modules and pages of a folder."""
    return [
        f"{path.relative_to(ROOT)}, {fault}"
        for path, parts in parts_of(folder)
        for fault in find_forbidden(parts, forms)
    ]


QUOTED = re.compile(r"(?<![\w='\"])'[\w.…/#?-]+(?: [\w.…-]+){0,3}'(?![\w'\"])")
"""A word or a few between single quotes."""

OF_OTHERS = (
    "adapters/aws/bootstrap/family.py",
    "adapters/database",
    "initialization/pipelines.py",
    "cli/parser/examples.py",
    "render/page.py",
    "web/dashboard.py",
)
"""Modules of ``reconciler`` with text in other languages: shells, SQL, YAML, HTTP headers, and
messages as AWS words them."""


def single_quotes(source: str) -> list[tuple[int, str]]:
    """Return the line and the text of each quotation in single quotes, ``{x!r}`` among them.

    Docstrings, assertions, ``__repr__`` and code between backticks are left out.
    """
    if QUOTED.search(source) is None and not re.search(r"!r}|'{", source):
        return []
    tree = ast.parse(source)
    lines = {line for node in ast.walk(tree) for line in unchecked_lines(node)}
    found = [
        (node.lineno, f"{{{ast.unparse(node.value)}!r}}")
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r")
    ]
    for line, text in texts(source):
        match = QUOTED.search(re.sub(r"`[^`]*`", "", text))
        found += [(line, match[0])] if match is not None else []
    return [(line, text) for line, text in found if line not in lines]


def unchecked_lines(node: ast.AST) -> range:
    """Return the lines of a node that are no message: an assertion, a docstring, a ``__repr__``."""
    if isinstance(node, ast.Assert) or getattr(node, "name", "") == "__repr__":
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return range(first.lineno, first.lineno + 1)
    return range(0)


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_messages_quote_values_with_double_quotes() -> None:
    """``model/text/quoting.py`` does so; the names of fields are between backticks."""
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {text}"
        for path in sorted((ROOT / "reconciler").rglob("*.py"))
        if not path.relative_to(ROOT / "reconciler").as_posix().startswith(OF_OTHERS)
        for line, text in single_quotes(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = f"invalid time {text[:60]!r}"', "{text[:60]!r}"),
        ("x = f\"no such field: '{name}'\"", "'…'"),
        ("x = \"only 'limits.nodes' is supported\"", "'limits.nodes'"),
        ("x = \"run `pip install 'a'`\"", None),
        ("x = \"the fleet's nodes and the pods' requests\"", None),
        ('def f():\n    """Return what \'x\' means."""', None),
        ('assert x, f"no date in {x!r}"', None),
    ],
)
def test_single_quotes_are_found(source: str, found: str | None) -> None:
    assert [text for _, text in single_quotes(source)] == ([found] if found else [])


@pytest.mark.parametrize("folder", REWRITTEN)
def test_text_avoids_the_words_that_the_guide_forbids(folder: str) -> None:
    found = find_faults(folder, FORBIDDEN)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", REWRITTEN)
def test_rewritten_text_avoids_dialect(folder: str) -> None:
    found = find_faults(folder, DIALECT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["docs", "examples", "schemas", "deploy"])
def test_pages_and_schemas_use_the_words_of_readers(folder: str) -> None:
    """Records of decisions are left out: they are about the code, and use its names."""
    found = [
        f"{path.relative_to(ROOT)}, {fault}"
        for path, parts in parts_of(folder)
        if path.suffix != ".py" and "decisions" not in path.parts
        for fault in find_forbidden(parts, FOR_READERS)
    ]
    assert not found, "\n".join(found)


def test_sentences_of_commands_use_the_words_of_readers() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {fault}"
        for path in sorted((ROOT / "reconciler").rglob("*.py"))
        for fault in find_forbidden(sentences(path.read_text(encoding="utf-8")), FOR_READERS)
    ]
    assert not found, "\n".join(found)


def test_words_of_developers_are_found_only_where_users_read_them() -> None:
    source = '''"""A fleet at rest."""
assert x, "this has come to rest"
print(f"{x} nodes stuck at rest", "stuck")
'''
    schema = '{\n  "stuck": {\n    "description": "what AWS\' list is judged by"\n  }\n}'
    assert [
        fault.partition(" (")[0] for fault in find_forbidden(sentences(source), FOR_READERS)
    ] == [
        'line 3: "stuck"',
        'line 3: "at rest"',
    ]
    found = find_forbidden(descriptions(schema), FOR_READERS)
    assert [fault.partition(" (")[0] for fault in found] == [
        'line 3: "aws\' "',
        'line 3: "judged"',
    ]


@pytest.mark.parametrize("folder", NAMED)
def test_identifiers_avoid_dialect(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in identifiers(path.read_text(encoding="utf-8"))
        if NAMES & set(name.lower().split("_"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", sorted({*REWRITTEN, *NAMED}))
def test_checked_folders_contain_text(folder: str) -> None:
    assert any(parts for _, parts in parts_of(folder))


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ('x = "232 other types would do"', "would do"),
        ('def f():\n    """Return whence a price comes."""', "whence"),
        ('x = f"give the command again when {y} is mended"', "mended"),
        ('x = ("Said so " "long ago")', "so long"),
        ('x = f"Mend{1} it, or mend\\nit"', "mend"),
        ("x = 1  # dearer than y", "dearer"),
        ("# for so\n# long as it takes\nx = 1", "so long"),
    ],
    ids=["string", "docstring", "f-string", "joined", "lines", "comment", "comment-block"],
)
def test_a_forbidden_word_is_found(source: str, form: str) -> None:
    found = find_forbidden([*texts(source), *comments(source)], FORBIDDEN)
    assert any(f'"{form}"' in fault for fault in found)


def test_a_forbidden_word_in_a_page_is_found_with_its_line() -> None:
    page = "# Prices\n\n```\nwhence\n```\n\nThe plan says `whence`\nand names so\nmany prices.\n"
    assert find_forbidden(paragraphs(page), FORBIDDEN) == ['line 7: "so many" (write: the number)']


def test_a_dialect_word_in_an_identifier_is_found() -> None:
    source = "def price_said(wish): return wish.told_at"
    found = {name for _, name in identifiers(source) if NAMES & set(name.split("_"))}
    assert found == {"price_said", "wish", "told_at"}


def test_identifiers_and_parts_of_words_are_not_text() -> None:
    source = 'mend = recommend("amendment, indeed, solong")  # mended_at'
    assert find_forbidden([*texts(source), *comments(source)], FORBIDDEN) == []
