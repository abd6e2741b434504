"""Text that keeps a regular expression busy: no pattern takes quadratic time."""

from __future__ import annotations

import re

import pytest

from tests.hostile.threats import Threat, attack
from tests.patterns import (
    RATIO_MAX,
    Use,
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
