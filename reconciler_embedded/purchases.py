"""What an account has bought, which moto lacks: savings plans, reserved instances, reservations."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.model.json import JsonDict
from reconciler_embedded.wire import Request, Response, error, nest, xml

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Contracts:
    """The commitments of an account."""

    def __init__(self) -> None:
        self._plans: list[dict[str, object]] = []
        self._reserved: list[JsonDict] = []

    def add_plan(self, identity: str, kind: str, commitment: str, end: str, **extra: str) -> None:
        """Buy a savings plan; ``extra`` are further members, in the names of the API."""
        row = {
            "savingsPlanId": identity,
            "savingsPlanType": kind,
            "commitment": commitment,
            "end": end,
            "state": "active",
            "currency": "USD",
        }
        self._plans.append({**row, **extra})

    def reserve(
        self, identity: str, instance_type: str, count: int, end: datetime, **extra: str
    ) -> None:
        """Buy reserved instances; ``extra`` are further members, in the names of the API."""
        row = {
            "reservedInstancesId": identity,
            "instanceType": instance_type,
            "instanceCount": count,
            "end": f"{end:%Y-%m-%dT%H:%M:%S}.000Z",
            "state": "active",
            "scope": "Region",
            "productDescription": "Linux/UNIX",
            "instanceTenancy": "default",
        }
        self._reserved.append({**row, **extra})

    def savings_plans(self, request: Request, rows_a_page: int) -> Response:
        """Return a page of DescribeSavingsPlans."""
        query = json.loads(request.body or b"{}")
        rows = [row for row in self._plans if row["state"] in query.get("states", [row["state"]])]
        start, size = int(query.get("nextToken") or 0), rows_a_page or 1000
        body: JsonDict = {"savingsPlans": rows[start : start + size]}
        if start + size < len(rows):
            body["nextToken"] = str(start + size)
        return Response(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def reserved_instances(self, request: Request) -> Response:
        """Return the answer of DescribeReservedInstances, which has no pages."""
        filters = {f["Name"]: f["Value"] for f in nest(request.form).get("Filter") or []}
        states = filters.get("state")
        rows = [row for row in self._reserved if states is None or row["state"] in states]
        name = "DescribeReservedInstancesResponse"
        content = xml({"requestId": "request-id", "reservedInstancesSet": rows})
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})


@dataclass(frozen=True, slots=True)
class SimulatedReservation:
    """A reservation of a number of instances of one type in a zone."""

    id: str
    instance_type: str
    zone: str
    count: int
    kind: str = "default"
    criteria: str = "targeted"
    interruptible: bool = False
    end: datetime | None = None
    state: str = "active"
    owner: str = "123456789012"
    tags: Mapping[str, str] = field(default_factory=dict)


class EmbeddedReservations:
    """The reservations of an account, and the instances that run in them."""

    def __init__(self) -> None:
        self._known: dict[str, SimulatedReservation] = {}
        self._used: dict[str, str] = {}

    def put(self, reserved: SimulatedReservation) -> None:
        """Create a reservation, or replace the one with that id."""
        self._known[reserved.id] = reserved

    def cancel(self, identity: str) -> None:
        """Cancel a reservation; its instances continue to run."""
        del self._known[identity]
        self._used = {i: r for i, r in self._used.items() if r != identity}

    def free_count(self, identity: str, running: Collection[str]) -> int:
        """Return the number of free instances of a reservation."""
        known = self._known.get(identity)
        if known is None:
            return 0
        return known.count - sum(1 for i, r in self._used.items() if r == identity and i in running)

    def use(self, identity: str, instances: Collection[str]) -> None:
        """Record that instances were launched into a reservation."""
        self._used |= dict.fromkeys(instances, identity)

    def names(self) -> Collection[str]:
        """Return the ids of the reservations."""
        return self._known.keys()

    def answer(self, request: Request, running: Collection[str], request_id: str) -> Response:
        """Return the answer of DescribeCapacityReservations."""
        form = nest(request.form)
        ids = form.get("CapacityReservationId") or []
        unknown = [identity for identity in ids if identity not in self._known]
        if unknown:
            text = f"The capacity reservation {unknown[0]} does not exist"
            return error("ec2", 400, "InvalidCapacityReservationId.NotFound", text, request_id)
        rows = [
            self._row(r, running)
            for _, r in sorted(self._known.items())
            if not ids or r.id in ids
            if all(_matches_filter(r, f["Name"], f["Value"]) for f in form.get("Filter") or [])
        ]
        name = "DescribeCapacityReservationsResponse"
        content = xml({"requestId": "request-id", "capacityReservationSet": rows})
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})

    def _row(self, known: SimulatedReservation, running: Collection[str]) -> JsonDict:
        row: dict[str, object] = {
            "capacityReservationId": known.id,
            "ownerId": known.owner,
            "instanceType": known.instance_type,
            "availabilityZone": known.zone,
            "totalInstanceCount": known.count,
            "availableInstanceCount": self.free_count(known.id, running),
            "state": known.state,
            "instanceMatchCriteria": known.criteria,
            "reservationType": known.kind,
            "interruptible": str(known.interruptible).lower(),
            "tagSet": [{"key": k, "value": v} for k, v in sorted(known.tags.items())],
        }
        if known.end is not None:
            row["endDate"] = f"{known.end:%Y-%m-%dT%H:%M:%S}.000Z"
        return row

    def add_to_instances(self, answer: Response) -> Response:
        """Return DescribeInstances with the reservation that each instance runs in."""
        if answer.status != 200 or not self._used:
            return answer
        root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
        namespace = root.tag.partition("}")[0].lstrip("{")
        ET.register_namespace("", namespace)
        for row in root.findall(".//{*}instancesSet/{*}item"):
            identity = self._used.get(row.findtext("{*}instanceId") or "")
            if identity is None:
                continue
            ET.SubElement(row, f"{{{namespace}}}capacityReservationId").text = identity
            specification = ET.SubElement(row, f"{{{namespace}}}capacityReservationSpecification")
            preference = ET.SubElement(
                specification, f"{{{namespace}}}capacityReservationPreference"
            )
            preference.text = "capacity-reservations-only"
        return replace(answer, body=ET.tostring(root, encoding="utf-8"))


def _matches_filter(known: SimulatedReservation, name: str, values: Collection[str]) -> bool:
    """Return whether a filter of a call accepts a reservation."""
    if name == "tag-key":
        return bool(known.tags.keys() & set(values))
    if name.startswith("tag:"):
        return known.tags.get(name.removeprefix("tag:")) in values
    facts = {
        "state": known.state,
        "owner-id": known.owner,
        "instance-match-criteria": known.criteria,
    }
    return facts[name] in values
