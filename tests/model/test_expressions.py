"""CEL expressions on devices: their values, their errors, and their limits."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.expressions.evaluation import evaluate
from reconciler.model.expressions.selectors import selector_problem
from reconciler.model.expressions.syntax import CELError, parse_expression
from reconciler.model.expressions.values import DefaultingMap, Quantity, Version
from tests.examples import examples

GIB = 2**30 * 1000
DEVICE = {
    "driver": "gpu.example.com",
    "attributes": DefaultingMap(
        {
            "gpu.example.com": {"model": "a100", "index": 3, "mig": False,
                                "driverVersion": Version(535, 4, 1)},
            "resource.kubernetes.io": {"pcieRoot": "pci0000:00"},
        }
    ),
    "capacity": DefaultingMap({"gpu.example.com": {"memory": Quantity(40 * GIB)}}),
    "allowMultipleAllocations": False,
}  # fmt: skip
A = 'device.attributes["gpu.example.com"]'
C = 'device.capacity["gpu.example.com"]'


def value(text: str) -> object:
    return evaluate(parse_expression(text), {"device": DEVICE})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('device.driver == "gpu.example.com"', True),
        (f'{A}.model == "a100" && {A}.index >= 2', True),
        (f'{A}.model in ["h100", "a100"]', True),
        (f'{A}.model.startsWith("a") && !{A}.model.endsWith("1")', True),
        (f'{A}.model.matches("^a[0-9]+$")', True),
        (f'{A}.model.contains("00") ? {A}.index : 0', 3),
        (f'{C}.memory.compareTo(quantity("40Gi")) == 0', True),
        (f'{C}.memory.isGreaterThan(quantity("39Gi"))', True),
        (f'{C}.memory.isLessThan(quantity("1000M"))', False),
        (f'{A}.driverVersion.isGreaterThan(semver("535.4.0"))', True),
        (f'{A}.driverVersion.compareTo(semver("535.4.1")) == 0', True),
        ('semver("1.2.3-rc.1").isLessThan(semver("1.2.3"))', True),
        (f"{A}.driverVersion.major() == 535", True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot', "pci0000:00"),
        ('"other.com" in device.attributes', False),
        ('has(device.attributes["other.com"].x)', False),
        (f"has({A}.model)", True),
        ('device.attributes["other.com"].?x.orValue("none")', "none"),
        (f'cel.bind(a, {A}, a.model == "a100" && a.index == 3)', True),
        ("[1, 2, 3].all(n, n > 0) && [1, 2].exists(n, n == 2)", True),
        ("[1, 2, 3].filter(n, n != 2).map(n, n * 2)", [2, 6]),
        ("[1, 1].exists_one(n, n == 1)", False),
        ("7 / 2 + 7 % 4 - -1", 7),
        ("-7 / 2", -3),
        ('{"a": 1}["a"] == 1', True),
        ('isQuantity("10x") || isSemver("1.2")', False),
        ("1 == 1.0", True),
        ("true == 1", False),
        ("0x10 == 16 && 3u == 3", True),
        ("'it' + \"s\"", "its"),
        ("size([1, 2]) == 2 && size('abc') == 3", True),
        ("false && 1 / 0 == 1", False),
        ("1 / 0 == 1 && false", False),
        ("1 / 0 == 1 || true", True),
        ("!device.allowMultipleAllocations", True),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_that_kubernetes_gives_it(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{A}.missing == 1", "no such key: missing"),
        ('device.attributes["other.com"].x', "no such key: x"),
        ("1 / 0", "division by zero"),
        (f"{A}.model > 3", "not defined"),
        ("1 && true", "expected true or false"),
        ('quantity("10x")', "wrong arguments of quantity"),
        (f"{C}.memory.compareTo(3)", "compared"),
        ("9223372036854775807 * 4", "beyond 64 bits"),
        ('"a".matches("(?i)a")', "flags and named groups are not supported"),
        ('"a".matches("a**")', "a repetition of a repetition"),
        ('"a".matches("(a{100}){100}")', "it is too large"),
        (".".join(["device"] + ["driver"] * 60), "nested too deeply"),
        ("[" * 60 + "]" * 60, "nested too deeply"),
        ("device.", "expected a name"),
        ("device.driver ==", "unexpected"),
        ("1 2", 'unexpected "2"'),
        ("#", "unexpected character"),
        ("has(device)", "needs a field"),
        ("x" * 20_000, "longer than"),
    ],
)  # fmt: skip
def test_what_has_no_value_is_an_error(text: str, message: str) -> None:
    with pytest.raises(CELError, match=message):
        value(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('device.driver == "x"', None),
        ("[1].all(n, n > 0)", None),
        ("cel.bind(d, device, d.driver == 'x')", None),
        ("plan.cost > 1", 'unknown name "plan"'),
        ("open('x')", 'unknown function "open"'),
        ("device.driver.execute()", 'unknown method "execute"'),
        ("n > 0 && [1].all(n, n > 0)", 'unknown name "n"'),
    ],
)
def test_names_are_checked_without_a_device(text: str, problem: str | None) -> None:
    assert selector_problem(text) == problem


def test_the_steps_of_an_evaluation_are_limited() -> None:
    numbers = "[1,2,3,4,5,6,7,8,9,10]"
    nested = "true"
    for name in "abcdef":
        nested = f"{numbers}.all({name}, {nested})"

    with pytest.raises(CELError, match="too many steps"):
        value(nested)


@settings(max_examples=examples(100), deadline=None)
@given(st.text("()[]{}.?:&|!<>=+-*/%\"'0a device,", max_size=40))
def test_any_text_has_a_value_or_an_error(text: str) -> None:
    with suppress(CELError):
        value(text)
