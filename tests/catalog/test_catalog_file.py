"""Catalog files: their meaning, and the positions of errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.catalog.columns import columns_of
from reconciler.catalog.file import read_catalog
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.labels import CAPACITY_TYPE, WELL_KNOWN, ZONE, ZONE_ID
from reconciler.model.karpenter.requirements import equals, requirement

SHARED = Path(__file__).parents[3] / "shared" / "conformance" / "catalogs"


def a_type(**fields: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "capacity": {"cpu": "2", "memory": "8Gi", "pods": "29"},
        "overhead": {"cpu": "70m"},
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
        "offerings": [an_offering()],
        **fields,
    }


def an_offering(**fields: Any) -> dict[str, Any]:
    return {"zone": "z1", "capacityType": "spot", "price": 0.5, "available": True, **fields}


def text(*types: dict[str, Any]) -> bytes:
    return json.dumps(types, indent=1).encode()


def read(*types: dict[str, Any]) -> Any:
    return read_catalog(text(*types), "types.json")


def test_a_file_keeps_its_order_and_its_values() -> None:
    catalog = read(a_type(name="b"), a_type(name="a"))
    assert catalog.names == ("b", "a")
    kind = catalog.get("a")
    assert kind.allocatable == {"cpu": 1930, "memory": 8 * 2**30 * 1000, "pods": 29000}
    assert kind.requirements["kubernetes.io/arch"] == equals("kubernetes.io/arch", "arm64")
    assert "kubernetes.io/os" not in kind.requirements
    assert catalog.get("c") is None
    assert "a" in catalog
    assert catalog.source == "types.json"


def test_zone_and_capacity_type_follow_from_the_offerings() -> None:
    offerings = [an_offering(zone="z2"), an_offering(capacityType="on-demand", available=False)]
    kind = read(a_type(offerings=offerings)).types[0]
    assert kind.requirements[ZONE] == requirement(ZONE, "In", ("z1", "z2"))
    assert kind.requirements[CAPACITY_TYPE].values == {"spot", "on-demand"}


def test_zones_of_a_type_take_precedence() -> None:
    says = [{"key": ZONE, "operator": "In", "values": ["z9"]}]
    assert read(a_type(requirements=says)).types[0].requirements[ZONE] == equals(ZONE, "z9")


def test_a_type_without_offerings_has_no_zone() -> None:
    kind = read(a_type(offerings=[])).types[0]
    assert not kind.requirements[ZONE].values
    assert kind.cheapest_offering() is None


def test_labels_of_types_and_offerings_are_well_known() -> None:
    offering = an_offering(
        zoneId="id-1",
        requirements=[{"key": "example.com/rack", "operator": "In", "values": ["7"]}],
    )
    says = [{"key": "example.com/size", "operator": "DoesNotExist", "values": []}]
    catalog = read(a_type(requirements=says, offerings=[offering]))
    borne = {"example.com/rack", "example.com/size", ZONE_ID}
    assert catalog.well_known == WELL_KNOWN | borne


def test_an_offering_keeps_its_reservation() -> None:
    offering = an_offering(capacityType="reserved", reservationId="cr-1", reservationCapacity=3)
    [kept] = read(a_type(offerings=[offering])).types[0].offerings
    assert (kept.reservation_id, kept.reservation_capacity) == ("cr-1", 3)


def test_a_duplicate_name_is_noted_and_the_first_is_used() -> None:
    catalog = read(a_type(), a_type(capacity={"cpu": "9"}))
    assert len(catalog) == 2
    assert catalog.get("small").capacity["cpu"] == 2000
    assert "listed 2 times" in catalog.notes[0]


def test_the_digest_is_computed_from_the_content() -> None:
    assert read(a_type()).digest == read(a_type()).digest
    assert read(a_type()).digest != read(a_type(name="other")).digest


def broken(**fields: Any) -> bytes:
    return text(a_type(**fields))


BAD = {
    "empty": (b"", "1:1"),
    "truncated": (text(a_type())[:-20], r":\d+:\d+: not JSON"),
    "second line": (b"[\n{]", ":2:2: not JSON"),
    "not UTF-8": (b'[{"name": "\xff"}]', "not JSON"),
    "an object": (b"{}", "it is an object, not a list"),
    "null": (b"null", "it is nothing, not a list"),
    "deep": (b"[" * 100_000, "types.json"),
    "no name": (b"[{}]", r"\[0\]\.name is missing"),
    "name is a number": (broken(name=7), r"\[0\]\.name is a whole number, not text"),
    "empty name": (broken(name=""), r"\[0\]\.name must be text of length >= 1"),
    "unknown field": (broken(offering=[]), r"\[0\]\.offering is not known"),
    "unknown offering field": (
        broken(offerings=[an_offering(prize=1)]),
        r"\[0\]\.offerings\[0\]\.prize is not known",
    ),
    "negative quantity": (broken(capacity={"cpu": "-1"}), r"\$\[0\]\.capacity\.cpu: .*negative"),
    "not a quantity": (broken(overhead={"memory": "1GB"}), r"\$\[0\]\.overhead\.memory: not a q"),
    "boolean quantity": (broken(capacity={"cpu": True}), r"capacity"),
    "unknown operator": (
        broken(requirements=[{"key": "k", "operator": "Equals", "values": ["v"]}]),
        r"\[0\]\.requirements\[0\]\.operator cannot be 'Equals'",
    ),
    "bound is a word": (
        broken(requirements=[{"key": "k", "operator": "Gt", "values": ["many"]}]),
        r"\$\[0\]\.requirements\[0\]\.values: Gt needs an integer",
    ),
    "bound without value": (
        broken(offerings=[an_offering(requirements=[{"key": "k", "operator": "Lt"}])]),
        r"\$\[0\]\.offerings\[0\]\.requirements\[0\]\.values: Lt needs exactly one",
    ),
    "NaN price": (text(a_type()).replace(b"0.5", b"NaN"), "not JSON"),
    "endless price": (
        text(a_type()).replace(b"0.5", b"1e999"),
        "price is a number that is too large",
    ),
    "negative price": (broken(offerings=[an_offering(price=-0.1)]), r"offerings\[0\]\.price"),
    "price is text": (broken(offerings=[an_offering(price="1")]), r"offerings\[0\]\.price"),
    "no zone": (
        broken(offerings=[{"capacityType": "spot", "price": 1}]),
        r"offerings\[0\]\.zone is missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_file_is_rejected_with_the_position(name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(UnreadableError, match=message) as caught:
        read_catalog(content, "types.json")
    assert str(caught.value).startswith("types.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_catalog_or_rejected(content: bytes) -> None:
    try:
        catalog = read_catalog(content, "types.json")
    except UnreadableError:
        return
    assert list(catalog.types) is not None


@given(st.data())
def test_a_truncated_file_is_rejected(data: st.DataObject) -> None:
    content = text(a_type(), a_type(name="other"))
    end = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(UnreadableError):
        read_catalog(content[:end], "types.json")


@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_columns_and_objects_of_recorded_catalogs_are_equal(path: Path) -> None:
    catalog = read_catalog(path.read_bytes(), path.name)
    assert catalog.columns == columns_of(list(catalog.types))
