"""Values of pods that are kept once they were read: each can be as long as an object."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from reconciler.model.expressions.selectors import selector_problem
from reconciler.model.karpenter.requirements import requirement
from reconciler.model.kubernetes.pod import HostPort
from reconciler.observed.fingerprint import _shared_kind
from reconciler.observed.identity import _amounts_key, _parse_amounts
from reconciler.placement.nodes.ports import UsedPorts
from tests.hostile.threats import Threat, attack

READ = 600


def many_values(number: int) -> None:
    requirement("a", "In", [f"v{number}-{n}" for n in range(4_500)])


def some_values(number: int) -> None:
    requirement("a", "NotIn", [f"v{number}-{n}" for n in range(2_000)])


def a_long_value(number: int) -> None:
    requirement("a", "In", [f"{number}" + "v" * 500_000])


def a_long_key(number: int) -> None:
    requirement(f"{number}" + "k" * 500_000, "Exists")


def a_long_selector(number: int) -> None:
    terms = (f'device.attributes["a"].b{number}x{n} == {n}' for n in range(200))
    assert selector_problem(" && ".join(terms)) is None


def many_labels(number: int) -> None:
    _shared_kind("shop", frozenset((f"l{number}-{n}", "v") for n in range(2_000)))


def many_resources(number: int) -> None:
    _parse_amounts(_amounts_key({f"example.com/r{number}-{n}": "1" for n in range(2_000)}))


def a_long_address(number: int) -> None:
    UsedPorts([HostPort(f"{number}" + "1" * 500_000, 80, "TCP")])


@attack(
    Threat.EXHAUSTION, "pods that come and go, each with long conditions of its own, for memory"
)
@pytest.mark.parametrize(
    "read",
    [
        many_values,
        some_values,
        a_long_value,
        a_long_key,
        a_long_selector,
        many_labels,
        many_resources,
        a_long_address,
    ],
)
def test_what_is_kept_of_conditions_is_small(read: Callable[[int], None]) -> None:
    """Guards: what limits each cache beside the number of its entries."""
    read(READ)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(READ):
            read(number)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 60 * 2**20
