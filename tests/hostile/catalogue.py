"""The attacks that ``docs/security.md`` counts for each threat, read without running a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.hostile.threats import Threat

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "security.md"
_TABLE = re.compile(r"(?<=<!-- attacks -->\n).*?(?=<!-- end -->)", re.DOTALL)


class Attack(NamedTuple):
    """An attack and the test that runs it."""

    threat: Threat
    description: str
    module: str
    test: str


def attacks() -> Iterator[Attack]:
    """Yield every marked test below this folder, in order of the files and of their lines."""
    for path in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                match mark:
                    case ast.Call(
                        func=ast.Name(id="attack"),
                        args=[ast.Attribute(attr=name), ast.Constant(value=str(description))],
                    ):
                        yield Attack(Threat[name], description, path.stem, node.name)


def page() -> str:
    """Return ``docs/security.md`` with the table of attacks as they are now."""
    found = list(attacks())
    lines = ["", "| threat | attacks |", "|---|--:|"]
    for threat in Threat:
        number = sum(attack.threat is threat for attack in found)
        anchor = threat.value.lower().replace(" ", "-")
        lines.append(f"| [{threat.value}](#{anchor}) | {number} |")
    return _TABLE.sub("\n".join([*lines, "", ""]), PAGE.read_text(encoding="utf-8"))


def listing() -> Iterator[str]:
    """Yield the lines that list every attack and its test, by threat."""
    found = list(attacks())
    for threat in Threat:
        yield f"\n{threat.value}"
        for attack in found:
            if attack.threat is threat:
                yield f"  {attack.description} ({attack.module}: {attack.test})"
