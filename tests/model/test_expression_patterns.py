"""Regular expressions of CEL: as Python's where both agree, and without backtracking."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.expressions.patterns import Pattern, PatternError
from tests.examples import examples

_atoms = st.sampled_from(
    ["a", "b", "_", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\S", r"\.", r"\b", "^", "$", "-"]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda text: f"({text})"),
        st.tuples(inner, marks).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


_patterns = st.recursive(_atoms, _larger, max_leaves=8)


@settings(max_examples=examples(1000))
@given(_patterns, st.text("ab1_.- ", max_size=8))
def test_a_pattern_matches_as_with_python(pattern: str, text: str) -> None:
    assert Pattern(pattern).search(text) == bool(re.search(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a$", "a\n", False),
        ("a{,2}", "a{,2}", True),
        ("a{x", "a{x", True),
        ("[]a]+", "]", True),
        ("[a-]", "-", True),
        (r"^[\d.]+$", "1.2", True),
        (r"\Aab\z", "ab", True),
        ("", "", True),
        ("a|", "b", True),
        ("^g[0-9]+e?\\.(x?large|metal)$", "g6e.xlarge", True),
    ],
)
def test_a_pattern_means_what_it_means_in_re2(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern).search(text) is expected


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "[a", "*", "a**", "a{2}{3}", "(?i)a", "(?P<n>a)", "\\",
     r"\1", r"\p{L}", "[b-a]",
     "a{3,2}", "a{9999}", "(" * 50 + ")" * 50, "((a{30}){30}){30}", "a" * 501, "[[:alpha:]]",
     r"[\D]"],
)  # fmt: skip
def test_what_is_not_supported_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a*a*a*b", "a?" * 60 + "a" * 60 + "b", "(a|a)" * 40 + "b", "(a+)+b", "(a|aa)+b", "(a*)*b"],
)
def test_no_pattern_backtracks(pattern: str) -> None:
    start = time.process_time()
    assert not Pattern(pattern).search("a" * 500)
    assert time.process_time() - start < 2
