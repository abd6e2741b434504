"""Types and prices from AWS: read completely or not at all, cached, and refreshed when old."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from reconciler.adapters.aws.facts.latest import AccountFacts, Folder, cache_folder, cache_times
from reconciler.adapters.aws.facts.prices import currency_of, on_demand_prices, pricing_region
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.catalog.catalog import bundled_data
from reconciler.model.settings import Settings
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.listings import Listings

TYPES = ("m5.large", "m5.metal", "c7g.large", "t3.nano")
PRICES = {"m5.large": 0.1, "m5.metal": 4.8, "c7g.large": 0.08}
HALF_A_DAY = timedelta(hours=12)


def price(name: str, zone: str, capacity_type: str) -> float | None:
    if name not in PRICES:
        return None
    return PRICES[name] * (0.4 if capacity_type == "spot" else 1.0) + ord(zone[-1]) / 1e6


class Account:
    """An account with a small market, and its facts."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.clock = SimulatedClock()
        self.cloud = EmbeddedEC2(self.clock, prices=price, types=TYPES)
        self.folder = Folder(folder)
        self.settings = Settings(**settings)
        self.facts = self.refresh()

    def refresh(self) -> AccountFacts:
        """The facts of another process."""
        return AccountFacts(
            self.cloud.connect,
            self.settings,
            self.clock,
            self.folder,
            max_age=HALF_A_DAY,
            bundle=bundled_data()[1],
        )

    def calls(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.cloud.calls)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


def test_types_come_with_the_zones_that_offer_them(account: Account) -> None:
    known = account.facts.instance_types()
    assert known.value is not None
    assert [m.name for m in known.value.machines] == sorted(TYPES)
    assert "m5.large" in known.value.zones["us-east-1a"]
    assert known.problem == ""


def test_the_price_is_that_of_shared_linux_without_software(account: Account) -> None:
    """Rows for Windows, SQL, dedicated tenancy and reservations have other prices."""
    listed = account.facts.on_demand().value
    assert listed is not None
    assert listed["m5.large"] == pytest.approx(0.1, abs=1e-3)
    assert listed["m5.metal"] == pytest.approx(4.8, abs=1e-3)
    assert "t3.nano" not in listed


def test_the_newest_spot_price_of_linux_counts_in_each_zone(account: Account) -> None:
    quoted = account.facts.spot().value
    assert quoted is not None
    assert quoted["m5.large"]["us-east-1a"] == pytest.approx(0.040097, abs=1e-6)
    assert quoted["m5.large"]["us-east-1b"] == pytest.approx(0.040098, abs=1e-6)


def test_an_answer_is_cached_across_processes_until_it_expires(account: Account) -> None:
    first = account.facts.spot()
    account.clock.advance(HALF_A_DAY.total_seconds() - 1)
    assert account.refresh().spot() == first
    assert account.calls("DescribeSpotPriceHistory") == 1
    assert cache_times(account.folder) == {"spot": first.at}
    account.clock.advance(1)
    later = account.refresh().spot()
    assert later.at is not None
    assert first.at is not None
    assert later.at > first.at


@pytest.mark.parametrize("call", ["DescribeInstanceTypes", "DescribeInstanceTypeOfferings"])
def test_a_failed_read_replaces_nothing_and_is_reported(account: Account, call: str) -> None:
    before = account.facts.instance_types()
    account.clock.advance(HALF_A_DAY.total_seconds())
    account.cloud.faults.add(call, Fault.SERVER_ERROR, times=None)
    after = account.facts.instance_types()
    assert (after.value, after.at) == (before.value, before.at)
    assert f"ec2:{call} (request 0" in after.problem
    requested = account.calls(call)
    account.clock.advance(599)
    account.facts.instance_types()
    assert account.calls(call) == requested, "it is not asked again at once"
    account.clock.advance(1)
    account.cloud.faults.clear()
    assert account.facts.instance_types().problem == ""


def test_a_failed_page_discards_the_list(tmp_path: Path) -> None:
    account = Account(tmp_path)
    account.cloud.faults.add("GetProducts", Fault.SERVER_ERROR, times=None, skip=1)
    known = account.facts.on_demand()
    assert known.value is None
    assert "pricing:GetProducts" in known.problem


def test_an_answer_without_most_of_its_entries_counts_as_truncated(account: Account) -> None:
    before = account.facts.spot()
    account.cloud.market.price = lambda n, z, c: price(n, z, c) if n == "m5.metal" else None
    account.clock.advance(HALF_A_DAY.total_seconds())
    after = account.facts.spot()
    assert after.value == before.value
    assert "it is not used" in after.problem


def test_a_market_without_prices_is_an_error(tmp_path: Path) -> None:
    account = Account(tmp_path)
    account.cloud.market.price = lambda *_: 0.0
    assert account.facts.spot().value is None
    assert "no spot price" in account.facts.spot().problem
    assert account.facts.on_demand().value is None


def test_a_missing_permission_names_the_call_and_the_action_to_allow(account: Account) -> None:
    account.cloud.faults.add("GetProducts", Fault.DENIED, times=None)
    known = account.facts.on_demand()
    assert known.value is None
    assert "allow pricing:GetProducts" in known.problem


@pytest.mark.parametrize("settings", [{"isolated_vpc": True}, {"region": "us-gov-west-1"}])
def test_the_price_list_is_not_requested_where_there_is_none(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    account = Account(tmp_path, **settings)
    known = account.facts.on_demand()
    assert known.value is None
    assert "cannot read the price list" in known.problem
    assert account.cloud.calls == []


def test_a_damaged_cache_file_is_replaced(account: Account) -> None:
    account.facts.spot()
    for file in account.folder.path.glob("spot*"):
        file.write_bytes(b"\0broken")
    assert account.refresh().spot().value is not None
    assert account.calls("DescribeSpotPriceHistory") == 2


def test_another_region_or_endpoint_is_another_market(tmp_path: Path) -> None:
    places = {
        cache_folder(settings, str(tmp_path)).path
        for settings in (
            Settings(),
            Settings(region="eu-west-1"),
            Settings(endpoint_url="http://127.0.0.1:1"),
            Settings(fleet="other"),
        )
    }
    assert len(places) == 4


@pytest.mark.parametrize(
    ("region", "endpoint", "currency"),
    [
        ("us-west-2", "us-east-1", "USD"),
        ("sa-east-1", "us-east-1", "USD"),
        ("ap-southeast-5", "ap-south-1", "USD"),
        ("eu-north-1", "eu-central-1", "USD"),
        ("cn-north-1", "cn-northwest-1", "CNY"),
    ],
)
def test_a_price_list_is_requested_at_its_endpoint(
    region: str, endpoint: str, currency: str
) -> None:
    assert (pricing_region(region), currency_of(region)) == (endpoint, currency)


def test_prices_in_yuan_are_converted() -> None:
    row = {"product": {"attributes": {"instanceType": "m5.large"}}}
    terms = {"t": {"priceDimensions": {"d": {"pricePerUnit": {"CNY": "1.42"}}}}}
    page = {"PriceList": [json.dumps({**row, "terms": {"OnDemand": terms}})]}
    client = boto3.client(
        "pricing", "cn-northwest-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    with Stubber(client) as stubber:
        for _ in range(2):  # shared and bare-metal machines
            stubber.add_response("get_products", page)
        assert on_demand_prices(client, "cn-north-1") == {"m5.large": pytest.approx(0.2)}


def test_a_type_is_removed_only_after_two_answers_without_it(account: Account) -> None:
    """Nodes of a type that EC2 does not list drift: one truncated answer must not cause that."""
    assert account.facts.instance_types().value is not None
    account.clock.advance(HALF_A_DAY.total_seconds())
    market = account.cloud.market

    def caught_up(operation: str) -> None:
        if operation == "DescribeInstanceTypeOfferings":
            account.cloud._listings = Listings("us-east-1", market, TYPES)

    account.cloud._listings = Listings("us-east-1", market, TYPES[:-1])
    account.cloud.after_call = caught_up
    known = account.facts.instance_types()
    assert known.value is not None
    assert len(known.value.machines) == len(TYPES), "what was known before holds"
    assert "two consecutive responses" in known.problem
    assert account.facts.instance_types().value == known.value


def test_a_type_missing_in_two_answers_is_removed(account: Account) -> None:
    assert account.facts.instance_types().value is not None
    account.clock.advance(HALF_A_DAY.total_seconds())
    account.cloud._listings = Listings("us-east-1", account.cloud.market, TYPES[:-1])
    known = account.facts.instance_types()
    assert known.value is not None
    assert known.problem == ""
    assert [m.name for m in known.value.machines] == sorted(TYPES[:-1])
