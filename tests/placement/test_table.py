"""Bit tables give the same results as evaluating every type separately."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.catalog.catalog import bundled_catalog
from reconciler.catalog.table import TypeTable, bits, indices, mask_of_flags
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.requirements import Requirements, requirement
from reconciler.model.resources import fits
from tests.examples import examples
from tests.placement.builders import ARCH, CAPACITY_TYPE, TYPES, ZONE, a_catalog

CATALOG = bundled_catalog()
TABLE = TypeTable(CATALOG)
KINDS: list[InstanceType] = list(CATALOG.types)
AWS = "karpenter.k8s.aws/"
quick = settings(max_examples=examples(300), deadline=None, derandomize=True)


def _entry(key: str, *values: str) -> st.SearchStrategy[tuple[str, str, tuple[str, ...]]]:
    chosen = st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)
    listed = st.tuples(st.just(key), st.sampled_from(["In", "NotIn"]), chosen.map(tuple))
    bare = st.tuples(st.just(key), st.sampled_from(["Exists", "DoesNotExist"]), st.just(()))
    return st.one_of(listed, bare)


_numbers = st.tuples(
    st.sampled_from([AWS + "instance-cpu", AWS + "instance-memory", AWS + "instance-gpu-count"]),
    st.sampled_from(["Gt", "Lt", "Gte", "Lte"]),
    st.sampled_from([("1",), ("8",), ("16384",)]),
)
_requirements = st.lists(
    st.one_of(
        _entry(ARCH, "amd64", "arm64", "mips"),
        _entry(ZONE, "us-east-1a", "us-east-1b", "mars"),
        _entry(CAPACITY_TYPE, "spot", "on-demand", "reserved"),
        _entry(AWS + "instance-family", "m5", "c7g", "p5", "none"),
        _entry(AWS + "instance-gpu-name", "t4", "a100"),
        _entry("example.org/team", "red"),
        _numbers,
    ),
    max_size=4,
).map(lambda entries: Requirements(requirement(*entry) for entry in entries))


def _those(kinds: Iterable[bool]) -> list[int]:
    return [index for index, holds in enumerate(kinds) if holds]


@given(_requirements)
@quick
def test_types_that_meet_requirements(wanted: Requirements) -> None:
    expected = _those(kind.requirements.intersects(wanted) for kind in KINDS)
    assert indices(TABLE.types_meeting(wanted)) == expected


@pytest.mark.exhaustive
@given(_requirements)
@quick
def test_offerings_and_their_price_order(wanted: Requirements) -> None:
    offers = TABLE.offers(wanted)
    available = 0
    for offering in offers:
        available |= offering.mask
    cheapest = [kind.cheapest_offering(wanted) for kind in KINDS]
    assert indices(available) == _those(offering is not None for offering in cheapest)
    prices = [float("inf") if o is None else o.price for o in cheapest]
    order = sorted(range(len(KINDS)), key=lambda i: (prices[i], KINDS[i].name))
    assert TABLE.order_by_price(offers) == order
    assert TABLE.cheapest_price(offers, TABLE.all) == min(prices)


@given(
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "example.org/unknown"]),
        st.sampled_from([0, 1, 4_000, 64_000, 17_179_869_184_000, 10**18]),
    )
)
@quick
def test_types_with_room(amounts: dict[str, int]) -> None:
    expected = _those(fits(amounts, kind.allocatable) for kind in KINDS)
    assert indices(TABLE.fitting_types(amounts)) == expected
    for name in amounts:
        most = max((KINDS[i].allocatable.get(name, 0) for i in expected), default=0)
        assert TABLE.most_allocatable(name, bits(expected)) == most


def test_zones_and_capacity_types_follow_from_available_offerings() -> None:
    table = TypeTable(a_catalog(TYPES))
    assert indices(table.types_matching(requirement(ZONE, "In", ("zone-b",)))) == [0, 1, 2, 3, 4]
    assert set(table.values(CAPACITY_TYPE)) == {"on-demand", "spot"}


@given(st.sets(st.integers(0, 700)))
def test_sets_of_positions_keep_their_members_in_order(members: set[int]) -> None:
    mask = bits(members)
    assert indices(mask) == sorted(members)
    assert mask_of_flags(i in members for i in range(701)) == mask
