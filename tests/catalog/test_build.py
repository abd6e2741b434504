"""The script that writes the bundle: equal data gives equal bytes."""

import os
from pathlib import Path

import pytest

from reconciler.catalog.aws.build import (
    Answers,
    build,
    match_zone_ids,
    moto_resources,
    read_answers,
)
from reconciler.catalog.aws.bundle import encode, load

DATA = Path(os.environ.get("CATALOG_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(scope="module")
def current() -> Answers:
    pytest.importorskip("moto")
    if not DATA.is_dir():
        pytest.skip("the folder of prices, limits and bandwidths is not there")
    return read_answers(moto_resources(), "moto")


def test_building_twice_gives_the_same_bytes(current: Answers) -> None:
    first, second = (encode(*build(DATA, current)) for _ in range(2))
    assert first == second


def test_the_bundle_matches_the_installed_data(current: Answers) -> None:
    bundle, version = build(DATA, current)
    header, shipped = load()
    assert header.version == version
    assert {m.name for m in bundle.machines} <= {m.name for m in shipped.machines}
    assert bundle.regions.keys() <= shipped.regions.keys()


def test_withdrawn_types_are_retained_and_marked(current: Answers) -> None:
    gone = "m5.large"
    now = Answers(
        current.release,
        {name: body for name, body in current.bodies.items() if name != gone},
        {r: {z: t - {gone} for z, t in zones.items()} for r, zones in current.zones.items()},
        current.zone_ids,
    )
    bundle, _ = build(DATA, now, older=current)
    assert bundle.withdrawn == (gone,)
    index = [machine.name for machine in bundle.machines].index(gone)
    assert bundle.regions["us-east-1"].offered[index] != 0


def test_a_zone_has_an_id_only_if_it_is_unique() -> None:
    a, b, c = frozenset("a"), frozenset("ab"), frozenset("abc")
    by_zone = {"z1": a, "z2": b, "z3": c, "z4": c}
    assert match_zone_ids(by_zone, {"i1": c, "i2": b, "i3": a, "i4": c}) == {"z1": "i3", "z2": "i2"}
