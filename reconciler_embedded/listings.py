"""The lists of AWS for a region: instance types, their zones, and their prices."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.market import CapacityMarket
from reconciler.model.json import JsonDict, JsonObject
from reconciler_embedded.wire import Request, Response, encode_query, nest, service_model, xml

_PAGE: Final = 100
_FAMILY: Final = "Compute Instance"
_METAL: Final = "Compute Instance (bare metal)"
_PRICED_ROWS: Final = (
    ("Linux", "NA", "Used", 1.0),
    ("Linux", "NA", "UnusedCapacityReservation", 1.0),
    ("Linux", "NA", "AllocatedCapacityReservation", 0.0),
    ("Linux", "SQL Std", "Used", 3.5),
    ("Windows", "NA", "Used", 1.9),
)
"""System, software, capacity status, and the factor of the base price."""

OnDemand = Callable[[str], float | None]
"""USD an hour of an instance type on demand; None if it is not sold."""

_ROWS: Final = {
    "DescribeCapacityReservations": "capacityReservationSet",
    "DescribeImages": "imagesSet",
    "DescribeInstances": "reservationSet",
    "DescribeInstanceStatus": "instanceStatusSet",
    "DescribeLaunchTemplates": "launchTemplates",
    "DescribeSecurityGroups": "securityGroupInfo",
    "DescribeSubnets": "subnetSet",
    "ListInstanceProfiles": "InstanceProfiles",
}
"""The operations that answer by pages, with the element that holds the rows."""

_ALL: Final = 1_000_000
_PAGE_PARAMETERS: Final = ("MaxResults", "NextToken", "MaxItems", "Marker")

_UNPAGED: Final = {
    "DescribeInstances": "MaxResults",
    "DescribeLaunchTemplates": "MaxResults",
    "ListInstanceProfiles": "MaxItems",
}
"""The operations of which moto returns 15 or 100 rows if the call requests no other number."""

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"
_PRODUCTS: Final = (("Linux/UNIX", 1.0), ("Windows", 1.8), ("SUSE Linux", 1.3))
_DAY: Final = timedelta(days=1)

_PRODUCT: Final = "ProductDescription"


def get_products(request: Request, region: str, types: Iterable[str], price: OnDemand) -> Response:
    """Return the page of products that all filters of the call accept."""
    query: JsonDict = json.loads(request.body or b"{}")
    filters = {f["Field"]: f["Value"] for f in query.get("Filters", [])}
    rows = [row for row in _products(region, types, price) if _matches_filters(filters, row)]
    size = min(int(query.get("MaxResults", _PAGE)), _PAGE)
    start = int(query.get("NextToken") or 0)
    body: JsonDict = {
        "FormatVersion": "aws_v1",
        "PriceList": [json.dumps(row) for row in rows[start : start + size]],
    }
    if start + size < len(rows):
        body["NextToken"] = str(start + size)
    return Response(200, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def _matches_filters(filters: Mapping[str, str], row: JsonObject) -> bool:
    product = row["product"]
    facts = {
        **product["attributes"],
        "productFamily": product["productFamily"],
        "serviceCode": row["serviceCode"],
        "marketoption": "OnDemand",
    }
    folded = {key.lower(): value for key, value in facts.items()}
    return all(folded.get(field.lower()) == value for field, value in filters.items())


def _products(region: str, types: Iterable[str], price: OnDemand) -> Iterator[JsonDict]:
    for name in sorted(types):
        amount = price(name)
        if amount is None:
            continue
        metal = "metal" in name
        for tenancy, factor in (("Dedicated", 1.0 if metal else 1.06), ("Shared", 1.0)):
            if metal and tenancy == "Shared":
                continue
            for system, software, status, share in _PRICED_ROWS:
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


# Pages: moto returns everything at once, AWS returns a page and a token for the next one.
#
# Each protocol has its own format for it; the token is the number of the next row in all of them.


Forward = Callable[[Request], Response]


def paginate(request: Request, forward: Forward, rows_max: int = 0) -> Response:
    """Return the requested page, of at most ``rows_max`` rows unless that is 0."""
    rows_of = _ROWS.get(request.operation)
    if rows_of is None:
        return forward(request)
    form = dict(request.form)
    requested = int(form.get("MaxResults") or form.get("MaxItems") or 0)
    size = min(filter(None, (requested, rows_max)), default=0)
    answer = forward(_unpaged_request(request))
    if not size or answer.status != 200:
        return answer
    root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
    namespace = root.tag.partition("}")[0].lstrip("{")
    ET.register_namespace("", namespace)
    rows = root.find(f".//{{*}}{rows_of}")
    if rows is None:
        return answer
    start = int(form.get("NextToken") or form.get("Marker") or 0)
    every = list(rows)
    if start == 0 and len(every) <= size:
        return answer
    for row in (*every[:start], *every[start + size :]):
        rows.remove(row)
    if start + size < len(every):
        _add_token(root, namespace, str(start + size))
    return Response(answer.status, ET.tostring(root, encoding="utf-8"), answer.headers)


def _unpaged_request(request: Request) -> Request:
    """Return the call for all rows, which moto would otherwise paginate in its own way."""
    form = [pair for pair in request.form if pair[0] not in _PAGE_PARAMETERS]
    word = _UNPAGED.get(request.operation)
    if word is not None and not any(key.startswith("InstanceId.") for key, _ in form):
        form.append((word, str(_ALL)))
    return replace(request, body=urlencode(form).encode())


def _add_token(root: ET.Element, namespace: str, token: str) -> None:
    """Add the token to the answer, in the format of EC2 or of IAM."""
    result = root.find("./{*}ListInstanceProfilesResult")
    if result is None:
        ET.SubElement(root, f"{{{namespace}}}nextToken").text = token
        return
    truncated = result.find("{*}IsTruncated")
    if truncated is None:
        truncated = ET.SubElement(result, f"{{{namespace}}}IsTruncated")
    truncated.text = "true"
    ET.SubElement(result, f"{{{namespace}}}Marker").text = token


def limit_rows(request: Request, rows_max: int) -> Request:
    """Return the call limited to ``rows_max`` rows: AWS may return fewer than requested."""
    if not rows_max:
        return request
    if request.service == "pricing":
        query: JsonDict = json.loads(request.body or b"{}")
        query["MaxResults"] = min(int(query.get("MaxResults", rows_max)), rows_max)
        return replace(request, body=json.dumps(query).encode())
    form = nest(request.form)
    form["MaxResults"] = min(int(form.get("MaxResults") or rows_max), rows_max)
    return replace(request, body=encode_query(form))


class Listings:
    """The lists of one region; ``types`` are those that it sells, by default all."""

    def __init__(
        self, region: str, market: CapacityMarket, types: Collection[str] | None = None
    ) -> None:
        self._region = region
        self._market = market
        self._types = types

    @cached_property
    def names(self) -> list[str]:
        """The types that are sold here, sorted."""
        return sorted({name for name, _ in self.offered_pairs})

    @cached_property
    def offered_pairs(self) -> list[tuple[str, str]]:
        """The pairs of type and zone that are sold, sorted."""
        return [
            pair
            for pair in _offered_pairs(self._region)
            if self._types is None or pair[0] in self._types
        ]

    def instance_types(self, request: Request) -> Response:
        """Return a page of DescribeInstanceTypes."""
        form = nest(request.form)
        named = frozenset(form.get("InstanceType", ()))
        bodies = _instance_type_bodies()
        rows = [
            bodies[name]
            for name in self.names
            if (not named or name in named) and _is_selected(bodies[name], form)
        ]
        return _page(form, "DescribeInstanceTypes", rows)

    def offerings(self, request: Request) -> Response:
        """Return a page of DescribeInstanceTypeOfferings by zone."""
        form = nest(request.form)
        rows = [
            {"InstanceType": name, "LocationType": "availability-zone", "Location": zone}
            for name, zone in self.offered_pairs
        ]
        return _page(form, "DescribeInstanceTypeOfferings", rows)

    def spot_prices(self, request: Request, now: datetime) -> Response:
        """Return a page of DescribeSpotPriceHistory: current and earlier prices."""
        form = nest(request.form)
        products = frozenset(form.get("ProductDescription", ()))
        rows = [row for row in self._spot_rows(now) if not products or row[_PRODUCT] in products]
        return _page(form, "DescribeSpotPriceHistory", rows)

    def _spot_rows(self, now: datetime) -> Iterator[dict[str, object]]:
        for name, zone in self.offered_pairs:
            price = self._market.price(name, zone, "spot")
            if price is None:
                continue
            for product, factor in _PRODUCTS:
                for before, then in ((_DAY, 1.25), (_DAY / 24, 1.0)):
                    yield {
                        "AvailabilityZone": zone,
                        "InstanceType": name,
                        _PRODUCT: product,
                        "SpotPrice": f"{price * factor * then:.6f}",
                        "Timestamp": f"{now - before:%Y-%m-%dT%H:%M:%S}.000Z",
                    }


_FILTERS: Final = {
    "supported-virtualization-type": lambda b: b.get("SupportedVirtualizationTypes", ()),
    "processor-info.supported-architecture": lambda b: b["ProcessorInfo"]["SupportedArchitectures"],
}


def _is_selected(body: Mapping[str, object], form: JsonObject) -> bool:
    """Return whether every filter accepts the type."""
    return all(set(f["Value"]) & set(_FILTERS[f["Name"]](body)) for f in form.get("Filter", ()))


def _page(form: JsonObject, operation: str, rows: Sequence[Mapping[str, object]]) -> Response:
    """Return the requested page; the token is the number of the next row."""
    size = int(form.get("MaxResults") or 0) or len(rows)
    start = int(form.get("NextToken") or 0)
    shape = _output_shape(operation)
    content: dict[str, object] = {"requestId": "request-id"}
    content |= _to_wire_names(shape, {_rows_member(operation): list(rows[start : start + size])})
    if start + size < len(rows):
        content["nextToken"] = str(start + size)
    name = f"{operation}Response"
    body = f'<{name} xmlns="{_NAMESPACE}">{xml(content)}</{name}>'
    return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})


def _rows_member(operation: str) -> str:
    members: list[str] = list(_output_shape(operation).members)
    return next(name for name in members if name != "NextToken")


def _to_wire_names(shape: Any, value: Any) -> Any:
    """Return a value with the wire names of its members."""
    if shape.type_name == "structure":
        members = shape.members
        return {
            members[name].serialization.get("name", name): _to_wire_names(members[name], item)
            for name, item in value.items()
            if name in members
        }
    if shape.type_name == "list":
        return [_to_wire_names(shape.member, item) for item in value]
    return str(value).lower() if isinstance(value, bool) else value


@lru_cache(maxsize=8)
def _output_shape(operation: str) -> Any:
    """Return botocore's own model of an answer."""
    return service_model("ec2").operation_model(operation).output_shape


def _resources_folder() -> Path:
    spec = find_spec("moto")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "ec2" / "resources"


def _read_json(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


@lru_cache(maxsize=1)
def _instance_type_bodies() -> JsonDict:
    bodies: dict[str, object] = _read_json(_resources_folder() / "instance_types.json.gz")
    return bodies


@lru_cache(maxsize=4)
def _offered_pairs(region: str) -> list[tuple[str, str]]:
    path = (
        _resources_folder() / "instance_type_offerings" / "availability-zone" / f"{region}.json.gz"
    )
    return sorted((row["InstanceType"], row["Location"]) for row in _read_json(path))
