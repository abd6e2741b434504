"""Savings plans and reserved instances of an account, which moto lacks."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from reconciler.adapters.simulated.moto.wire import Request, Response, nested, xml
from reconciler.model.json import JsonDict

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Contracts:
    """What an account has bought."""

    def __init__(self) -> None:
        self._plans: list[dict[str, object]] = []
        self._reserved: list[JsonDict] = []

    def add_plan(self, identity: str, kind: str, commitment: str, end: str, **more: str) -> None:
        """Buy a savings plan; ``more`` are further members, as the API spells them."""
        row = {
            "savingsPlanId": identity,
            "savingsPlanType": kind,
            "commitment": commitment,
            "end": end,
            "state": "active",
            "currency": "USD",
        }
        self._plans.append({**row, **more})

    def reserve(
        self, identity: str, instance_type: str, count: int, end: datetime, **more: str
    ) -> None:
        """Buy reserved instances; ``more`` are further members, as the wire spells them."""
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
        self._reserved.append({**row, **more})

    def plans(self, request: Request, rows_a_page: int) -> Response:
        """Return a page of DescribeSavingsPlans."""
        asked = json.loads(request.body or b"{}")
        rows = [row for row in self._plans if row["state"] in asked.get("states", [row["state"]])]
        start, size = int(asked.get("nextToken") or 0), rows_a_page or 1000
        body: JsonDict = {"savingsPlans": rows[start : start + size]}
        if start + size < len(rows):
            body["nextToken"] = str(start + size)
        return Response(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def reserved(self, request: Request) -> Response:
        """Return the answer of DescribeReservedInstances, which has no pages."""
        filters = {f["Name"]: f["Value"] for f in nested(request.form).get("Filter") or []}
        states = filters.get("state")
        rows = [row for row in self._reserved if states is None or row["state"] in states]
        name = "DescribeReservedInstancesResponse"
        content = xml({"requestId": "request-id", "reservedInstancesSet": rows})
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})
