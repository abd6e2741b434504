"""Read AWS prices: the on-demand price list and the current spot prices.

A region's list is served by one of a few endpoints, and has dozens of rows for a type. The filters
are those of Karpenter's provider (``pkg/providers/pricing``). A price that is zero or invalid is
ignored: nothing is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.errors import translate_errors
from reconciler.catalog.regions import has_yuan_prices, in_dollars
from reconciler.model.errors import CloudError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import SpotPriceTypeDef
    from mypy_boto3_pricing.client import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef as PricingFilterTypeDef


_PRODUCTS: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
_SPOT_A_PAGE: Final = 1000
_PRODUCTS_A_PAGE: Final = 100
_FAMILIES: Final = (("Shared", "Compute Instance"), ("Dedicated", "Compute Instance (bare metal)"))


def pricing_region(region: str) -> str:
    """Return the region of the Pricing API endpoint that serves a region's prices."""
    if region.startswith("ap-"):
        return "ap-south-1"
    if region.startswith("cn-"):
        return "cn-northwest-1"
    return "eu-central-1" if region.startswith("eu-") else "us-east-1"


def has_price_list(region: str) -> bool:
    """Return whether the Pricing API covers a region at all."""
    return not region.startswith("us-gov")


def currency_of(region: str) -> str:
    """Return the currency of a region's list."""
    return "CNY" if has_yuan_prices(region) else "USD"


def on_demand_prices(pricing: PricingClient, region: str) -> dict[str, float]:
    """Return the on-demand price of each type, USD an hour.

    Shared and bare-metal machines are in two lists, and a region has both.

    Raises:
        TransientCloudError, CloudError: a page failed, or the shared list is empty.
    """
    call = "pricing:GetProducts"
    prices: dict[str, float] = {}
    for tenancy, family in _FAMILIES:
        with translate_errors(call):
            pages = pricing.get_paginator("get_products").paginate(
                ServiceCode="AmazonEC2",
                Filters=_filters(region, tenancy, family),
                PaginationConfig={"PageSize": _PRODUCTS_A_PAGE},
            )
            texts = [text for page in pages for text in page["PriceList"]]
        found = {
            name: in_dollars(amount, region)
            for name, amount in _parse_price_list(texts, currency_of(region))
        }
        if not found:
            raise CloudError(
                f"the price list of {region} has no {family.lower()} for {tenancy} tenancy",
                where=call,
            )
        prices |= found
    return dict(sorted(prices.items()))


def _filters(region: str, tenancy: str, family: str) -> list[PricingFilterTypeDef]:
    fields = {
        "regionCode": region,
        "serviceCode": "AmazonEC2",
        "preInstalledSw": "NA",
        "operatingSystem": "Linux",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "tenancy": tenancy,
        "productFamily": family,
    }
    return [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in fields.items()]


def _parse_price_list(texts: Iterable[str], currency: str) -> Iterator[tuple[str, float]]:
    """Yield the types of a list with their prices; invalid rows are skipped."""
    for text in texts:
        try:
            row = json.loads(text)
            name = row["product"]["attributes"]["instanceType"]
            terms = row["terms"]["OnDemand"].values()
            amounts = [
                float(dimension["pricePerUnit"][currency])
                for term in terms
                for dimension in term["priceDimensions"].values()
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        real = [amount for amount in amounts if 0 < amount < float("inf")]
        if real:
            yield str(name), max(real)


def spot_prices(ec2: EC2Client, now: datetime) -> dict[str, dict[str, float]]:
    """Return the spot prices at ``now``, by type and zone, USD an hour.

    Raises:
        TransientCloudError, CloudError: a page failed, or no page had a price.
    """
    call = "ec2:DescribeSpotPriceHistory"
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    with translate_errors(call):
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            ProductDescriptions=list(_PRODUCTS),
            StartTime=now,
            PaginationConfig={"PageSize": _SPOT_A_PAGE},
        )
        for page in pages:
            for row in page["SpotPriceHistory"]:
                _keep_newest(newest, row)
    if not newest:
        raise CloudError("EC2 returned no spot prices", where=call)
    prices: dict[str, dict[str, float]] = {}
    for (name, zone), (_, amount) in sorted(newest.items()):
        prices.setdefault(name, {})[zone] = in_dollars(amount, zone)
    return prices


def _keep_newest(
    newest: dict[tuple[str, str], tuple[datetime, float]], row: SpotPriceTypeDef
) -> None:
    """Retain the newest price of each type and zone; a simulated EC2 may ignore the filter."""
    if row.get("ProductDescription") not in _PRODUCTS:
        return
    try:
        amount = float(row["SpotPrice"])
    except ValueError:
        return
    key = row["InstanceType"], row["AvailabilityZone"]
    known = newest.get(key)
    if 0 < amount < float("inf") and (known is None or row["Timestamp"] > known[0]):
        newest[key] = (row["Timestamp"], amount)
