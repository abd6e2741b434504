"""The bundled catalog: its content, the effect of node classes, and errors."""

import gc
import weakref
from pathlib import Path

import msgspec
import pytest

from reconciler.catalog.aws.bundle import PATH, decode, encode, load
from reconciler.catalog.catalog import (
    DEFAULT_FACTS,
    RESOLVED_MAX,
    BundledCatalog,
    bundled_catalog,
    bundled_data,
)
from reconciler.catalog.classfacts import ClassFacts, DeviceMapping, Interface, Reservation
from reconciler.catalog.columns import columns_of
from reconciler.catalog.regions import REGIONS
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.karpenter.instancetype import InstanceType, PriceOrigin
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    ON_DEMAND,
    OS,
    RESERVED,
    SPOT,
    WINDOWS_BUILD,
    ZONE,
    ZONE_ID,
)
from reconciler.model.karpenter.requirements import Requirements, equals, requirement
from reconciler.model.resources import parse_quantity

CATALOG = bundled_catalog()
AWS = "karpenter.k8s.aws/"


def a_type(name: str = "m5.large", **facts: object) -> InstanceType:
    kind = CATALOG.for_node_class(ClassFacts(**facts)).get(name)  # type: ignore[arg-type]
    assert kind is not None
    return kind


@pytest.mark.parametrize(
    ("name", "facts", "volumes"),
    [
        ("m7i.8xlarge", {}, 31),
        ("m7i.48xlarge", {}, 127),
        ("m5.large", {}, 26),
        ("g5.48xlarge", {}, 8),
        ("m7i.8xlarge", {"family": "Bottlerocket"}, 30),
        ("m7i.8xlarge", {"volumes": tuple(DeviceMapping(d, None) for d in "abc")}, 29),
    ],
)
def test_a_type_attaches_as_many_volumes_as_ec2_states_minus_its_own(
    name: str, facts: dict[str, object], volumes: int
) -> None:
    assert a_type(name, **facts).volume_limit == volumes


def test_every_region_is_bundled_and_types_are_sorted_by_name() -> None:
    assert len(bundled_data()[1].regions) == 38
    assert len(CATALOG) > 1300
    assert list(CATALOG.names) == sorted(CATALOG.names)
    assert [kind.name for kind in CATALOG.types] == list(CATALOG.names)


def test_the_file_is_small_and_contains_its_version() -> None:
    header, _ = load()
    assert Path(PATH).stat().st_size < 1_500_000
    assert (
        Path(PATH)
        .read_bytes()
        .startswith(f"reconciler-catalogue 1 {header.version} {header.digest}\n".encode())
    )
    assert CATALOG.version == header.version
    assert CATALOG.source == f"bundled aws {header.version} us-east-1"


def test_the_file_reads_back_as_it_was_written() -> None:
    header, bundle = load()
    content = encode(bundle, header.version)
    assert decode(content) == (header, bundle)
    assert encode(decode(content)[1], header.version) == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"reconciler-catalogue 2 2030-01-01 abc\n",
        b"reconciler-catalogue 1 2030-01-01 abc\nnot zlib",
        Path(PATH).read_bytes()[:-100],
        Path(PATH).read_bytes().partition(b"\n")[0] + b"\n" + b"x\x9c\x03\x00\x00\x00\x00\x01",
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(content: bytes) -> None:
    with pytest.raises(UnreadableError, match=r"aws\.catalog"):
        decode(content)


def test_an_unknown_region_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r'"mars-north-1".*eu-west-1'):
        bundled_catalog("mars-north-1")
    with pytest.raises(UsageError, match=r'"eu-west1" \(did you mean eu-west-1\?\)'):
        bundled_catalog("eu-west1")


@pytest.mark.parametrize("region", sorted(REGIONS - set(bundled_data()[1].regions)))
def test_a_region_that_is_not_bundled_states_how_to_plan_there(region: str) -> None:
    with pytest.raises(UsageError) as caught:
        bundled_catalog(region)
    assert f'does not know the region "{region}"' in str(caught.value)
    for way in ("--set aws.instanceTypes=live --set aws.prices=live", "--catalog FILE"):
        assert way in str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "facts",
    [
        ClassFacts(),
        ClassFacts(zones=(("us-east-1a", "use1-az9"), ("us-east-1e", ""))),
        ClassFacts(
            reservations=(
                Reservation("cr-1", "m5.large", "us-east-1a", remaining=2),
                Reservation("cr-2", "m5.large", "us-east-1b", interruptible=True),
            )
        ),
        ClassFacts(placement_group="pg-1", strategy="partition", partitions=2),
        ClassFacts(family="Windows2022"),
    ],
)
def test_columns_and_objects_are_equal(facts: ClassFacts) -> None:
    catalog = bundled_catalog("us-east-1", facts)
    columns, objects = catalog.columns, columns_of(list(catalog.types))
    assert columns.names == objects.names
    assert dict(columns.requirements) == objects.requirements
    assert columns.allocatable == objects.allocatable
    assert columns.capacity == objects.capacity
    assert columns.offerings == objects.offerings


def test_equal_facts_give_the_same_catalog_and_others_another_digest() -> None:
    facts = ClassFacts(max_pods=20)
    assert CATALOG.for_node_class(facts) is CATALOG.for_node_class(ClassFacts(max_pods=20))
    digests = {
        CATALOG.digest,
        CATALOG.for_node_class(facts).digest,
        bundled_catalog("eu-west-1").digest,
    }
    assert len(digests) == 3
    assert bundled_catalog("us-east-1", facts).digest == CATALOG.for_node_class(facts).digest


def test_without_a_list_of_the_region_the_prices_of_another_are_estimates() -> None:
    header, bundle = load()
    region = msgspec.structs.replace(bundle.regions["eu-west-1"], prices=(), estimated=())
    regions = bundle.regions | {"eu-west-1": region}
    bundle = msgspec.structs.replace(bundle, regions=regions)
    catalog = BundledCatalog(header, bundle, "eu-west-1", DEFAULT_FACTS)
    home, away = a_type(), catalog.get("m5.large")
    assert away is not None
    assert {o.estimated for o in home.offerings if o.capacity_type == ON_DEMAND} == {False}
    assert {o.estimated for o in away.offerings} == {True}
    assert {o.price for o in away.offerings if o.capacity_type == ON_DEMAND} == {0.096}
    assert catalog.price_origin == PriceOrigin("estimate")
    assert any("estimates from us-east-1" in note for note in catalog.notes)


def test_spot_is_an_estimate_below_on_demand_that_differs_by_zone() -> None:
    for kind in CATALOG.types:
        usual = {o.zone: o.price for o in kind.offerings if o.capacity_type == ON_DEMAND}
        for offering in kind.offerings:
            if offering.capacity_type == SPOT and offering.available:
                assert offering.estimated
                assert 0 < offering.price < usual[offering.zone]
    assert len({o.price for o in a_type().offerings if o.capacity_type == SPOT}) > 1
    assert CATALOG.spot_is_estimated


def test_a_type_that_cannot_be_launched_has_a_reason() -> None:
    reasons = {name: CATALOG.launch_rejection(name) for name in CATALOG.names}
    for kind in CATALOG.types:
        assert (reasons[kind.name] is None) == any(o.available for o in kind.offerings)
    assert reasons["a1.large"] == "AL2023 has no image for a1"
    assert reasons["g4ad.xlarge"] == "EC2 no longer offers it"
    assert "no price is known" in reasons.values()
    assert reasons["m5.large"] is None


def test_zones_without_a_subnet_are_closed_but_keep_their_price() -> None:
    kind = a_type(zones=(("us-east-1b", "use1-az7"),))
    assert kind.requirements[ZONE] == equals(ZONE, "us-east-1b")
    assert kind.requirements[ZONE_ID] == equals(ZONE_ID, "use1-az7")
    assert {o.zone for o in kind.offerings if o.available} == {"us-east-1b"}
    assert {o.zone_id for o in kind.offerings if o.zone == "us-east-1b"} == {"use1-az7"}
    assert kind.price_of("us-east-1a", ON_DEMAND) == 0.096


def test_a_reservation_is_an_offering_with_a_price_near_zero() -> None:
    kind = a_type(reservations=(Reservation("cr-1", "m5.large", "us-east-1a", remaining=0),))
    [reserved] = [o for o in kind.offerings if o.capacity_type == RESERVED]
    assert (reserved.reservation_id, reserved.price) == ("cr-1", 0.096 / 10_000_000)
    assert not reserved.is_launchable
    assert kind.requirements[CAPACITY_TYPE].has(RESERVED)
    wants = Requirements([equals(AWS + "capacity-reservation-id", "cr-1")])
    assert [o.capacity_type for o in kind.offerings if o.satisfies(wants)] == [RESERVED]
    other = a_type("m5.xlarge", reservations=(Reservation("cr-1", "m5.large", "us-east-1a"),))
    assert not other.requirements[CAPACITY_TYPE].has(RESERVED)
    assert not other.requirements.is_compatible(wants)


MI, GI = 2**20 * 1000, 2**30 * 1000


@pytest.mark.parametrize(
    ("name", "facts", "pods"),
    [
        ("m5.large", {}, 29),
        ("m5.large", {"max_pods": 7}, 7),
        ("m5.large", {"max_pods": 0}, 0),
        ("m5.large", {"pods_per_core": 4}, 8),
        ("m5.large", {"pods_per_core": 400}, 29),
        ("m5.large", {"pods_per_core": 4, "max_pods": 5}, 5),
        ("m5.large", {"pods_per_core": 4, "family": "Bottlerocket"}, 29),
        ("m5.large", {"family": "Windows2022"}, 110),
        ("m5.large", {"family": "Windows2022", "pods_per_core": 4}, 8),
        ("m5.large", {"reserved_enis": 1}, 20),
        ("m5.large", {"reserved_enis": 9}, 0),
        ("m5.24xlarge", {}, 737),
        ("m5.24xlarge", {"interfaces": (Interface(0, 0), Interface(0, 1, True))}, 688),
    ],
)
def test_pods(name: str, facts: dict[str, object], pods: int) -> None:
    assert a_type(name, **facts).capacity["pods"] == pods * 1000


@pytest.mark.parametrize(
    ("facts", "storage"),
    [
        ({}, "20Gi"),
        ({"family": "Windows2019"}, "50Gi"),
        ({"volumes": (DeviceMapping("/dev/xvda", parse_quantity("100Gi")),)}, "100Gi"),
        ({"volumes": (DeviceMapping("/dev/xvdb", parse_quantity("100Gi")),)}, "20Gi"),
        ({"volumes": (DeviceMapping("/dev/xvda", None),)}, "20Gi"),
        (
            {
                "volumes": (
                    DeviceMapping("/dev/xvda", parse_quantity("1G")),
                    DeviceMapping("/dev/sdx", parse_quantity("2G"), is_root=True),
                )
            },
            "2G",
        ),
        ({"family": "Custom"}, "20Gi"),
        (
            {
                "family": "Custom",
                "volumes": (
                    DeviceMapping("/dev/a", parse_quantity("1G")),
                    DeviceMapping("/dev/b", 3000),
                ),
            },
            "3",
        ),
        (
            {
                "family": "Bottlerocket",
                "volumes": (DeviceMapping("/dev/xvdb", parse_quantity("8Gi")),),
            },
            "8Gi",
        ),
        ({"raid0": True}, "20Gi"),
    ],
)
def test_storage(facts: dict[str, object], storage: str) -> None:
    assert a_type(**facts).capacity["ephemeral-storage"] == parse_quantity(storage)


def test_raid0_makes_the_instance_store_the_volume() -> None:
    assert a_type("m5d.large", raid0=True).capacity["ephemeral-storage"] == parse_quantity("75G")


@pytest.mark.parametrize(
    ("facts", "resource", "overhead"),
    [
        ({}, "memory", (11 * 29 + 255 + 100) * MI),
        ({"max_pods": 7}, "memory", (11 * 29 + 255 + 100) * MI),
        ({"family": "Bottlerocket", "max_pods": 7}, "memory", (11 * 7 + 255 + 100) * MI),
        ({"reserved_enis": 1}, "memory", (11 * 29 + 255 + 100) * MI),
        ({}, "cpu", 70),
        ({"kube_reserved": (("cpu", "1"),)}, "cpu", 1000),
        ({"kube_reserved": (("cpu", "1"),), "system_reserved": (("cpu", "50m"),)}, "cpu", 1050),
        ({"kube_reserved": (("memory", "1Mi"),)}, "memory", 101 * MI),
        (
            {"kube_reserved": (("memory", "0"),), "eviction_hard": (("memory.available", "1Gi"),)},
            "memory",
            GI,
        ),
        (
            {"kube_reserved": (("memory", "0"),), "eviction_hard": (("memory.available", "100%"),)},
            "memory",
            0,
        ),
        ({}, "ephemeral-storage", 3 * GI),
        ({"eviction_hard": (("nodefs.available", "50%"),)}, "ephemeral-storage", 11 * GI),
    ],
)
def test_overhead(facts: dict[str, object], resource: str, overhead: int) -> None:
    assert a_type(**facts).overhead[resource] == overhead


def test_the_memory_overhead_percentage_is_a_setting() -> None:
    assert a_type(vm_memory_overhead_percent=0.0).capacity["memory"] == 8 * GI
    assert a_type(vm_memory_overhead_percent=0.075).capacity["memory"] == 7577 * MI


def test_windows_runs_on_amd64_only_and_offers_addresses() -> None:
    kind = a_type(family="Windows2022")
    assert kind.requirements[OS] == equals(OS, "windows")
    assert kind.requirements[WINDOWS_BUILD] == equals(WINDOWS_BUILD, "10.0.20348")
    assert kind.capacity["vpc.amazonaws.com/PrivateIPv4Address"] == 9000
    arm = a_type("m6g.large", family="Windows2022")
    assert arm.requirements[OS] == requirement(OS, "DoesNotExist")


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        ("a1.large", {}, "AL2023"),
        ("a1.large", {"family": "AL2"}, None),
        ("m5.large", {"nested_virtualization": True}, "nested virtualization"),
        ("m8i.large", {"nested_virtualization": True}, None),
        ("t3.large", {"nitro_enclaves": True}, "Nitro Enclaves"),
        ("m5.xlarge", {"nitro_enclaves": True}, None),
        ("t3.large", {"strategy": "cluster", "placement_group": "pg-1"}, "placement group"),
        ("m5.large", {"strategy": "cluster", "placement_group": "pg-1"}, None),
        ("m4.large", {"connection_tracking": True}, "nitro"),
        ("m5.large", {"interfaces": (Interface(1, 0),)}, "uses network card 1"),
        ("m5.large", {"interfaces": (Interface(0, 3),)}, "no device 3"),
        ("m5.large", {"interfaces": (Interface(0, 0), Interface(0, 1, True))}, "0 EFA"),
        ("c3.large", {"interfaces": (Interface(0, 0),)}, "require ENA"),
    ],
)
def test_a_class_rejects_types_without_its_features(
    name: str, facts: dict[str, object], reason: str | None
) -> None:
    why = CATALOG.for_node_class(ClassFacts(**facts)).launch_rejection(name)  # type: ignore[arg-type]
    assert (reason in (why or "")) if reason else (why is None)


def test_types_are_cached_only_for_facts_in_use() -> None:
    header, bundle = bundled_data()
    catalog = BundledCatalog(header, bundle, "us-east-1", DEFAULT_FACTS)
    first = weakref.ref(catalog.for_node_class(ClassFacts(max_pods=1)))
    used = catalog.for_node_class(ClassFacts(max_pods=2))
    for pods in range(3, RESOLVED_MAX + 3):
        latest = catalog.for_node_class(ClassFacts(max_pods=pods))
        assert latest.for_node_class(ClassFacts(max_pods=2)) is used
        assert latest.for_node_class(DEFAULT_FACTS) is catalog
    gc.collect()
    assert first() is None
