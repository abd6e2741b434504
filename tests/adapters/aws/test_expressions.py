"""Expressions in kubelet settings have their CEL value, or are rejected."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.aws.bootstrap.kubelet import evaluate
from reconciler.model.errors import UsageError

FACTS = {"vcpus": 96, "memory_mib": 8192, "max_pods": 29, "instance_type": "m5.large"}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("200 + 8 * vcpus", 968),
        ("(200 + 8) * 2", 416),
        ("memory_mib / 100", 81),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7.9", 7),
        ("double(vcpus) * 0.5", 48),
        ("int(2.9) + 1", 3),
        ("min(110, 20 * 2)", 40),
        ("max(1.5, 2.5)", 2),
        ("vcpus > 4 ? 10 : 20", 10),
        ("vcpus < 4 ? 10 : vcpus < 100 ? 20 : 30", 20),
        ("instance_type.startsWith('m5') && !(vcpus == 2) ? 1 : 2", 1),
        ('instance_type == "m5" + ".large" || false ? 1 : 2', 1),
        ("- - 3", 3),
        ("-" * 200 + "1", 1),
        ("size('[{') + 1", 3),
        ("instance_type.matches('^m[0-9]') ? 1 : 2", 1),
    ],
)
def test_a_formula_has_its_value(text: str, number: int) -> None:
    assert evaluate(text, FACTS) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "1 2",
        "(1",
        "cores * 2",
        "1 / 0",
        "1.0 / 0.0",
        "1 + 1.0",
        "vcpus ? 1 : 2",
        "true",
        "'a'",
        "!1",
        "-'a'",
        "'a' * 'b'",
        "5.0 % 2.0",
        "min(1)",
        "min(1, 2.0)",
        "open('x')",
        "vcpus.startsWith('9')",
        "__import__",
        "1 $ 2",
        "(" * 400 + "1" + ")" * 400,
        "9223372036854775807 + 1",
        "null",
        "timestamp('2026-01-01T00:00:00Z')",
    ],
)
def test_an_expression_without_a_value_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        evaluate(text, FACTS)


def test_a_missing_package_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(UsageError, match=r"common-expression-language.*pip install"):
        evaluate("1 + vcpus", FACTS)


@given(st.text(alphabet="0123456789.+-*/%()<>=!&|?:, vcpusmin'a", max_size=40))
def test_any_text_is_a_number_or_rejected(text: str) -> None:
    try:
        value = evaluate(text, FACTS)
    except ValueError:
        return
    assert type(value) is int
