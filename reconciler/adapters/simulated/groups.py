"""Placement groups of an account, which moto lacks."""

from __future__ import annotations

from typing import Any, Final

from reconciler.adapters.simulated.wire import Answer, Request, error, nested, xml

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"


class PlacementGroups:
    """The groups, by their id."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def put(
        self, identity: str, name: str, strategy: str, partitions: int = 0, state: str = "available"
    ) -> None:
        """Make a group, or change the one of that id."""
        row: dict[str, Any] = {
            "groupId": identity,
            "groupName": name,
            "strategy": strategy,
            "state": state,
        }
        self._rows[identity] = {**row, **({"partitionCount": partitions} if partitions else {})}

    def answer(self, request: Request, request_id: str) -> Answer:
        """Return the answer of DescribePlacementGroups."""
        form = nested(request.form)
        ids, names = form.get("GroupId") or [], form.get("GroupName") or []
        rows = [r for r in self._rows.values() if r["groupId"] in ids or r["groupName"] in names]
        if len(rows) < len([*ids, *names]):
            text = f"The Placement Group '{[*ids, *names][0]}' is unknown."
            return error("ec2", 400, "InvalidPlacementGroup.Unknown", text, request_id)
        name = "DescribePlacementGroupsResponse"
        content = xml({"requestId": "request-id", "placementGroupSet": rows})
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Answer(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})
