"""AWS' price list, as the Pricing API answers it: one product for each way to rent a type.

A real list has forty rows for a type: systems, tenancies, software, reserved capacity. A reader
that takes the wrong one plans with a wrong price, so the rows that are most often confused are
here, at prices of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final

from reconciler.adapters.simulated.moto.wire import Request, Response
from reconciler.model.json import JsonDict, JsonObject

_PAGE: Final = 100
_FAMILY: Final = "Compute Instance"
_METAL: Final = "Compute Instance (bare metal)"
_ROWS: Final = (
    ("Linux", "NA", "Used", 1.0),
    ("Linux", "NA", "UnusedCapacityReservation", 1.0),
    ("Linux", "NA", "AllocatedCapacityReservation", 0.0),
    ("Linux", "SQL Std", "Used", 3.5),
    ("Windows", "NA", "Used", 1.9),
)
"""System, software, what the row is about, and how many times the plain price it costs."""

OnDemand = Callable[[str], float | None]
"""USD an hour of an instance type on demand; None where it is not sold."""


def get_products(request: Request, region: str, types: Iterable[str], price: OnDemand) -> Response:
    """Return the page of products that all filters of the call accept."""
    asked: JsonDict = json.loads(request.body or b"{}")
    wanted = {f["Field"]: f["Value"] for f in asked.get("Filters", [])}
    rows = [row for row in _products(region, types, price) if _accepts(wanted, row)]
    size = min(int(asked.get("MaxResults", _PAGE)), _PAGE)
    start = int(asked.get("NextToken") or 0)
    body: JsonDict = {
        "FormatVersion": "aws_v1",
        "PriceList": [json.dumps(row) for row in rows[start : start + size]],
    }
    if start + size < len(rows):
        body["NextToken"] = str(start + size)
    return Response(200, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def _accepts(wanted: Mapping[str, str], row: JsonObject) -> bool:
    product = row["product"]
    facts = {
        **product["attributes"],
        "productFamily": product["productFamily"],
        "serviceCode": row["serviceCode"],
        "marketoption": "OnDemand",
    }
    folded = {key.lower(): value for key, value in facts.items()}
    return all(folded.get(field.lower()) == value for field, value in wanted.items())


def _products(region: str, types: Iterable[str], price: OnDemand) -> Iterator[JsonDict]:
    for name in sorted(types):
        amount = price(name)
        if amount is None:
            continue
        metal = "metal" in name
        for tenancy, factor in (("Dedicated", 1.0 if metal else 1.06), ("Shared", 1.0)):
            if metal and tenancy == "Shared":
                continue
            for system, software, status, share in _ROWS:
                yield _product(
                    name, region, (system, software, status, tenancy), amount * factor * share
                )


def _product(
    name: str, region: str, kind: tuple[str, str, str, str], amount: float
) -> dict[str, object]:
    system, software, status, tenancy = kind
    sku = sha256(repr((name, region, kind)).encode()).hexdigest()[:16].upper()
    term, dimension = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    return {
        "product": {
            "productFamily": _METAL if "metal" in name else _FAMILY,
            "attributes": {
                "instanceType": name,
                "regionCode": region,
                "operatingSystem": system,
                "preInstalledSw": software,
                "capacitystatus": status,
                "tenancy": tenancy,
                "servicecode": "AmazonEC2",
            },
            "sku": sku,
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                term: {
                    "priceDimensions": {
                        dimension: {"unit": "Hrs", "pricePerUnit": {"USD": f"{amount:.10f}"}}
                    },
                    "sku": sku,
                }
            }
        },
    }
