"""Strings and docstrings use the vocabulary of the wording guide, not the forms that it forbids."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKED = ("reconciler/cli", "reconciler/engine", "reconciler/adapters")
"""Folders that pass; add a folder once its strings are rewritten."""

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

_PATTERN = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{form})\b)" for number, form in enumerate(FORBIDDEN)),
    re.IGNORECASE,
)


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


def forbidden(source: str) -> list[str]:
    """Return a line for each forbidden form in a module: line number, form, and better words."""
    better = list(FORBIDDEN.values())
    found = []
    for line, text in texts(source):
        for match in _PATTERN.finditer(" ".join(text.split())):
            number = next(n for n in range(len(better)) if match[f"w{n}"])
            found.append(f'line {line}: "{match[0]}" (write: {better[number]})')
    return found


@pytest.mark.parametrize("folder", CHECKED)
def test_strings_avoid_the_words_that_the_guide_forbids(folder: str) -> None:
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    found = [
        f"{module.relative_to(ROOT)}, {fault}"
        for module in modules
        for fault in forbidden(module.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ('x = "232 other types would do"', "would do"),
        ('def f():\n    """Return whence a price comes."""', "whence"),
        ('x = f"give the command again when {y} is mended"', "mended"),
        ('x = ("Said so " "long ago")', "so long"),
        ('x = f"Mend{1} it, or mend\\nit"', "mend"),
    ],
    ids=["string", "docstring", "f-string", "joined", "lines"],
)
def test_a_forbidden_word_is_found(source: str, form: str) -> None:
    assert any(f'"{form}"' in fault for fault in forbidden(source))


def test_identifiers_and_parts_of_words_are_not_meant() -> None:
    assert forbidden('mend = recommend("amendment, indeed, solong")') == []
