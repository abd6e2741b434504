"""On-demand prices by region: an older list, brought up to the newest prices of one region."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from reconciler.catalog.aws.bundle import Bundle, Region, Zone, load
from reconciler.catalog.aws.regional import Listed, read_listed, with_regional_prices
from reconciler.catalog.catalog import bundled_catalog
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.karpenter.labels import ON_DEMAND

NAMES = ("m7g.large", "m7g.xlarge", "p4d.24xlarge", "m8g.large", "x8g.large")
NEWEST = (0.08, 0.16, 20.0, 0.09, 0.2)
LISTED = Listed(
    "2025-05-28",
    {
        "us-east-1": {"m7g.large": 0.08, "m7g.xlarge": 0.16, "p4d.24xlarge": 30.0},
        "eu-west-1": {"m7g.large": 0.1, "m7g.xlarge": 0.2, "p4d.24xlarge": 36.0},
        "mx-central-1": {"m7g.large": 0.084},
    },
)
GOVERNMENT = {"us-gov-west-1": {"m7g.xlarge": 0.19}}


def a_bundle(**regions: Region) -> Bundle:
    """Return a bundle of the five types, with the newest prices of us-east-1."""
    _, shipped = load()
    by_name = {machine.name: machine for machine in shipped.machines}
    home = Region((Zone("us-east-1a", None),), bytes([1] * 5), NEWEST)
    named = {name.replace("_", "-"): region for name, region in regions.items()}
    machines = tuple(by_name[name] for name in NAMES)
    return Bundle(("test",), "us-east-1", machines, (), {"us-east-1": home} | named)


def away(*offered: int, **more: object) -> Region:
    region = Region((Zone("a", None),), bytes(offered))
    return msgspec.structs.replace(region, **more)


def test_a_price_is_listed_or_follows_from_the_newest_region() -> None:
    bundle = a_bundle(eu_west_1=away(1, 1, 1, 1, 1))
    priced = with_regional_prices(bundle, LISTED, {}).regions["eu-west-1"]
    assert priced.prices == (
        0.1,  # as listed, since it costs in us-east-1 what it cost
        0.2,
        24.0,  # 36, cut as from 30 to 20
        0.1125,  # 0.09, 1.25 times as in both sizes of m7g, the median of all types
        0.25,
    )
    assert priced.estimated == (2, 3, 4)
    assert priced.priced_at == "2025-05-28"


def test_a_type_that_a_region_does_not_offer_has_no_price() -> None:
    bundle = a_bundle(eu_west_1=away(1, 0, 1, 0, 0))
    priced = with_regional_prices(bundle, LISTED, {}).regions["eu-west-1"]
    assert priced.prices == (0.1, None, 24.0, None, None)
    assert priced.estimated == (2,)


@pytest.mark.parametrize(
    "region", [away(1, 1, 1, 1, 1, prices=NEWEST), away(1, 1, 0, 0, 0)], ids=["priced", "unlisted"]
)
def test_a_region_with_prices_or_without_a_list_stays_as_it_is(region: Region) -> None:
    name = "eu-west-1" if region.prices else "eu-west-9"
    bundle = a_bundle(**{name.replace("-", "_"): region})
    assert with_regional_prices(bundle, LISTED, {}).regions[name] == region


def test_a_region_without_recorded_offerings_offers_what_is_listed_in_every_zone() -> None:
    made = with_regional_prices(a_bundle(), LISTED, GOVERNMENT)
    region = made.regions["mx-central-1"]
    assert [zone.name for zone in region.zones] == [f"mx-central-1{zone}" for zone in "abc"]
    assert list(region.offered) == [7, 0, 0, 0, 0]
    assert region.prices[0] == 0.084
    assert region.assumes_zones
    government = made.regions["us-gov-west-1"]
    assert list(government.offered) == [0, 7, 0, 0, 0]
    assert (government.prices, government.estimated) == ((None, 0.19, None, None, None), ())
    assert (government.assumes_zones, government.priced_at) == (True, "")
    assert "ap-southeast-7" not in made.regions, "the list has no price there"
    assert "2025-05-28" in made.sources[-1]


CHINA = {"cn-north-1": {"m7g.large": 0.71, "m8g.large": 1.42}}


@pytest.mark.parametrize(
    ("name", "prices", "estimated", "like"),
    [
        ("cn-north-1", (0.1, None, None, 0.2, None), (), ""),
        ("cn-northwest-1", (0.1, None, None, 0.2, None), (0, 3), "cn-north-1"),
        ("ap-east-2", (0.11, None, None, None, None), (0,), "ap-southeast-7"),
        ("ap-southeast-6", (0.11, None, None, None, None), (0,), "ap-southeast-7"),
    ],
)
def test_a_region_without_a_list_has_the_types_and_prices_of_another(
    name: str, prices: tuple[float | None, ...], estimated: tuple[int, ...], like: str
) -> None:
    listed = Listed("2025-05-28", {**LISTED.prices, "ap-southeast-7": {"m7g.large": 0.11}})
    region = with_regional_prices(a_bundle(), listed, CHINA).regions[name]
    assert (region.prices, region.estimated, region.like) == (prices, estimated, like)
    assert region.assumes_zones
    assert region.priced_at == ("2024-11-06" if name.startswith("cn-") else "")


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("cn-north-1", ["are converted at 7.1 yuan for a dollar", "are those of 2024-11-06"]),
        ("cn-northwest-1", ["the instance types and prices of cn-north-1 are assumed", "yuan"]),
        ("ap-east-2", ["the instance types and prices of ap-southeast-7 are assumed"]),
        ("ap-southeast-6", ["the instance types and prices of ap-southeast-7 are assumed"]),
    ],
)
def test_a_plan_names_what_is_assumed_of_a_region(name: str, notes: list[str]) -> None:
    catalog = bundled_catalog(name)
    assert all(any(text in note for note in catalog.notes) for text in notes)
    assert not any("estimates from us-east-1" in note for note in catalog.notes)


def test_only_prices_of_linux_are_read(tmp_path: Path) -> None:
    item = {
        "instance_type": "m7g.large",
        "pricing": {
            "us-east-1": {"linux": {"ondemand": "0.08"}, "mswin": {"ondemand": "0.2"}},
            "eu-west-1": {"mswin": {"ondemand": "0.3"}},
            "eu-west-2": {"linux": {"ondemand": "0"}},
            "eu-west-3": {"linux": {}},
            "about": "text",
        },
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps([item]))
    assert read_listed(path, "2025-05-28").prices == {"us-east-1": {"m7g.large": 0.08}}


@pytest.mark.parametrize(
    ("region", "price"),
    [("eu-central-1", 0.12075), ("us-west-2", 0.1008), ("mx-central-1", 0.10584)],
)
def test_the_shipped_prices_are_those_of_the_region(region: str, price: float) -> None:
    """The price of m7i.large as AWS lists it there."""
    kind = bundled_catalog(region).get("m7i.large")
    assert kind is not None
    offers = [o for o in kind.offerings if o.capacity_type == ON_DEMAND]
    assert {(o.price, o.estimated) for o in offers} == {(price, False)}
    assert offers[0].origin == PriceOrigin("bundled", datetime(2025, 5, 28, tzinfo=UTC))


def test_the_notes_say_how_old_the_prices_are_and_how_many_are_estimates() -> None:
    notes = bundled_catalog("eu-central-1").notes
    assert "on-demand prices of eu-central-1 are those of 2025-05-28" in notes
    (counted,) = [note for note in notes if "estimates from us-east-1" in note]
    assert counted.startswith("on-demand prices of 379 instance types")
    assert not any("us-east-1" in note or "2025" in note for note in bundled_catalog().notes)
    assumed = "which zones of mx-central-1 offer a type is not known: every zone is assumed"
    assert any(note.startswith(assumed) for note in bundled_catalog("mx-central-1").notes)


def test_every_public_region_has_prices_but_the_newest() -> None:
    _, bundle = load()
    without = {name for name, region in bundle.regions.items() if not region.prices}
    assert without == set()
    for name, region in bundle.regions.items():
        sold = [price for price, mask in zip(region.prices, region.offered, strict=True) if mask]
        assert sum(price is not None for price in sold) >= 0.97 * len(sold), name
