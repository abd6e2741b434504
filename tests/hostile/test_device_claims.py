"""Attacks by which whoever may create a ResourceClaim keeps the planner busy."""

from __future__ import annotations

import pytest

from reconciler.model.expressions.evaluation import evaluate
from reconciler.model.expressions.syntax import parse_expression
from reconciler.model.settings import KarpenterVersion
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon
from tests.placement.builders import TYPES, Object, a_pod, a_pool, placed
from tests.placement.devices import (
    DRIVER,
    a_claim_template,
    a_class,
    a_gpu_type,
    a_request,
    a_template,
    an_alternative,
    gpus,
)

BIG = a_gpu_type("g-big", 64, 30.0, a_template(gpus(16)))
INDEX = f'device.attributes["{DRIVER}"].index == {{}}'
TEXT = '"' + "a" * 900 + '"'


def plan_with(*requests: Object) -> str:
    """Return the code of the reason why a pod with these requests is not placed."""
    pod = a_pod("app-0")
    pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": "t"}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
    objects = [a_pool(), a_class(), a_claim_template("t", *requests), pod]
    found = placed(objects, types=(*TYPES, BIG), karpenter=KarpenterVersion.V1_15)
    return found.unschedulable["default/app-0"][0].code


@attack(Threat.EXHAUSTION, "a pattern in the selector of a device that backtracks without end")
@pytest.mark.parametrize(
    "pattern",
    ["a*a*a*b", "(a|a)" * 40 + "b", "a?" * 80 + "a" * 80 + "b", "(a+)+b"],
)
def test_no_pattern_of_a_device_selector_backtracks(pattern: str) -> None:
    with soon():
        assert plan_with(a_request("gpu", 1, f'{TEXT}.matches("{pattern}")'))
        nested = (
            f'[1,2,3,4,5,6,7,8].exists(a, [1,2,3,4,5,6,7,8].exists(b, {TEXT}.matches("{pattern}")))'
        )
        assert plan_with(a_request("gpu", 1, nested))


@attack(Threat.EXHAUSTION, "requests for devices with more alternatives than can ever be tried")
@pytest.mark.parametrize("mode", ["All", "ExactCount"])
def test_a_search_for_devices_ends_at_its_limit(mode: str) -> None:
    def request(number: int) -> Object:
        choices = [
            an_alternative(f"a{k}", 1, INDEX.format((number + k) % 16), allocationMode=mode)
            for k in range(8)
        ]
        for choice in choices:
            if mode == "All":
                del choice["count"]
        return {"name": f"r{number}", "firstAvailable": choices}

    none = a_request("none", 1, f'device.attributes["{DRIVER}"].model == "none"')
    with soon():
        assert plan_with(*map(request, range(14)), none)


def bound(levels: int, body: str) -> str:
    """Return an expression in which each of two variables is a list of 60 times the one before."""
    names = [f"{side}{level}" for level in range(levels) for side in "ab"]
    lists = ["[" + ",".join("1" * 50) + "]"] * 2
    lists += ["[" + ",".join([name] * 60) + "]" for name in names[:-2]]
    for name, value in zip(reversed(names), reversed(lists), strict=True):
        body = f"cel.bind({name}, {value}, {body})"
    return body


EXPRESSIONS = {
    "a chain of sums": "1" + " + 1" * 2_000 + " > 0",
    "a chain of comparisons": "1" + " == 1" * 2_000,
    "a chain of calls": "'a'" + ".size()" * 1_000 + " == 1",
    "nested parentheses": "(" * 4_000 + "true" + ")" * 4_000,
    "negations": "!" * 8_000 + "true",
    "chains in parentheses": "(" * 45 + "1" + (" + 1" * 45 + ")") * 45 + " > 0",
    "lists of lists that are compared": bound(6, "a5 == b5"),
    "lists of lists that are searched": bound(6, "[a5] == [b5] || a5 in [b5]"),
    "lists of lists as optional values": bound(6, "optional.of(a5) == optional.of(b5)"),
    "lists of lists that are joined": bound(6, "a5.join('') == ''"),
    "texts that are joined": "cel.bind(x, 'a'.replace('a', "
     "'" + "a" * 4_000 + "'), x.split('').map(i, x.split('').map(j, x).join(x)).size() > 0)",
    "a text that is replaced by longer ones": "cel.bind(x, '" + "a" * 8_000 + "', "
    "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, x.replace('a', x).size())).size() > 0)",
    "numbers that are squared": "cel.bind(a, 99999, "
    + "".join(f"cel.bind(a{i}, a{i - 1 if i else ''}*a{i - 1 if i else ''}, " for i in range(40))
    + "a39 > 0" + ")" * 41,
}  # fmt: skip


@attack(Threat.EXHAUSTION, "a selector of a device that is deep, or whose values grow")
@pytest.mark.parametrize("text", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_no_selector_of_a_device_takes_long_or_fails(text: str) -> None:
    """Guards: the depth of the tree, the steps of what a value contains, lengths before joining."""
    assert len(text) <= 10 * 1024
    with soon():
        assert plan_with(a_request("gpu", 1, text))


@attack(Threat.EXHAUSTION, "a selector with hundreds of alternatives in a row")
def test_many_alternatives_of_a_selector_are_evaluated() -> None:
    """Guard: the balanced tree. As a chain, it would be refused for its depth."""
    chain = " || ".join(["false"] * 900)
    assert plan_with(a_request("gpu", 1, chain)) == plan_with(a_request("gpu", 1, "false"))
    node = parse_expression(f"{chain} || true")
    assert evaluate(node, {}) is True
