"""Text that keeps a regular expression busy: no pattern takes quadratic time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from reconciler.desired.terraform.modules import find_objects
from tests.hostile.threats import Threat, attack
from tests.patterns import (
    RATIO_MAX,
    Use,
    growth,
    has_possessive_alternatives,
    uses,
    worst_growth,
)

USES = uses()


@attack(Threat.EXHAUSTION, "text made of the parts of each of our regular expressions")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.where)
def test_no_pattern_takes_quadratic_time(use: Use) -> None:
    ratio, text = worst_growth(use)
    assert ratio < RATIO_MAX, f"eight times {text} takes {ratio:.0f} times as long"


@attack(Threat.EXHAUSTION, "Terraform text that keeps its reader busy")
@pytest.mark.parametrize(
    ("start", "part", "end"),
    [
        ("x", " ", "y"),
        ("[", "a", "]"),
        ("[", " ", "]"),
        ("[", "a,", "]"),
        ("[", "# a\n", "]"),
        ("{a = ", "b", "}"),
        ("f(", "/* a */", ")"),
        ("1", " + 1", ""),
        ("x", "[0]", ""),
        ('"', "${a}", '"'),
        ('"', "%{if a}b%{endif}", '"'),
    ],
)
def test_no_terraform_text_takes_quadratic_time(start: str, part: str, end: str) -> None:
    def run_of(length: int) -> Callable[[], None]:
        text = f"variable a {{\n default = {start}{part * (length // len(part))}{end}\n}}\n"

        def run() -> None:
            find_objects({"main.tf": text}, lambda _: None)

        return run

    assert growth(run_of) < RATIO_MAX


def test_the_measurement_finds_a_quadratic_and_an_exponential_pattern() -> None:
    quadratic = Use("a", re.compile(r"(?<![/])([\w+]+):\S+@"), frozenset({"search"}))
    assert worst_growth(quadratic)[0] > RATIO_MAX
    exponential = Use("b", re.compile(r"(a+)+b"), frozenset({"match"}))
    assert worst_growth(exponential)[0] > RATIO_MAX


@pytest.mark.parametrize("use", USES, ids=lambda use: use.where)
def test_no_alternatives_are_repeated_possessively(use: Use) -> None:
    """Python 3.11.2 does not find all matches of such a pattern."""
    assert not has_possessive_alternatives(use.pattern)


def test_possessive_alternatives_are_found() -> None:
    assert has_possessive_alternatives(re.compile(r"(?:a++|bc)*+d"))
    assert not has_possessive_alternatives(re.compile(r"(?:[ab]*+\n)++|c++"))
