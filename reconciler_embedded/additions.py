"""Long polls of SQS: moto waits within the call, and blocks all other calls meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.model.json import JsonDict, JsonObject
from reconciler_embedded.wire import Request, Response, encode_query, error, nest, xml

# The filter of DescribeInstances by instance profile, which moto lacks.


_FILTER: Final = "iam-instance-profile.arn"

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"

_NAMESPACE_HEALTH: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"

_POLL_S: Final = 0.02


def filter_by_profile(request: Request, forward: Callable[[Request], Response]) -> Response:
    """Return the answer with only the instances whose profile matches the filter of the call."""
    parameters = nest(request.form)
    filters = parameters.get("Filter") or []
    arns = {value for f in filters if f["Name"] == _FILTER for value in f["Value"]}
    if not arns:
        return forward(request)
    others = [f for f in filters if f["Name"] != _FILTER]
    body = encode_query({k: v for k, v in parameters.items() if k != "Filter"} | {"Filter": others})
    answer = forward(replace(request, body=body))
    if answer.status != 200:
        return answer
    root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
    ET.register_namespace("", root.tag[1:].partition("}")[0])
    for rows in root.findall(".//{*}instancesSet"):
        for row in list(rows):
            if row.findtext("{*}iamInstanceProfile/{*}arn") not in arns:
                rows.remove(row)
    return Response(answer.status, ET.tostring(root, encoding="utf-8"), answer.headers)


# Placement groups of an account, which moto lacks.


class PlacementGroups:
    """The groups, by their id."""

    def __init__(self) -> None:
        self._rows: dict[str, JsonDict] = {}

    def put(
        self, identity: str, name: str, strategy: str, partitions: int = 0, state: str = "available"
    ) -> None:
        """Create a group, or replace the one with that id."""
        row: dict[str, object] = {
            "groupId": identity,
            "groupName": name,
            "strategy": strategy,
            "state": state,
        }
        self._rows[identity] = {**row, **({"partitionCount": partitions} if partitions else {})}

    def answer(self, request: Request, request_id: str) -> Response:
        """Return the answer of DescribePlacementGroups."""
        form = nest(request.form)
        ids, names = form.get("GroupId") or [], form.get("GroupName") or []
        rows = [r for r in self._rows.values() if r["groupId"] in ids or r["groupName"] in names]
        if len(rows) < len([*ids, *names]):
            text = f"The Placement Group '{[*ids, *names][0]}' is unknown."
            return error("ec2", 400, "InvalidPlacementGroup.Unknown", text, request_id)
        name = "DescribePlacementGroupsResponse"
        content = xml({"requestId": "request-id", "placementGroupSet": rows})
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})


# The health of instances for DescribeInstanceStatus: in moto all instances are healthy.
#
# All running instances are healthy, except those that a test or a demo impairs.


class Health:
    """The health problems of an account's instances."""

    def __init__(self) -> None:
        self._impaired: dict[tuple[str, str], datetime] = {}
        self._events: dict[str, list[dict[str, str]]] = {}

    def impair(self, instance: str, since: datetime, *, check: str = "instance") -> None:
        """Fail a status check of an instance: ``instance`` or ``system``."""
        self._impaired[instance, check] = since

    def recover(self, instance: str) -> None:
        """Make all checks of an instance pass again, and cancel its events."""
        self._impaired = {k: v for k, v in self._impaired.items() if k[0] != instance}
        self._events.pop(instance, None)

    def announce(self, instance: str, code: str, not_before: datetime, text: str = "") -> None:
        """Schedule an event for an instance, such as ``instance-retirement``."""
        events = self._events.setdefault(instance, [])
        number = f"instance-event-{len(events):017x}"
        events.append(
            {
                "instanceEventId": number,
                "code": code,
                "description": text or f"The instance is due for {code}",
                "notBefore": _format_time(not_before),
            }
        )

    def answer(self, request: Request, running: Collection[str]) -> Response:
        """Return the answer about the running instances that all filters of a call accept."""
        filters = nest(request.form).get("Filter") or []
        rows = [
            self._row(instance)
            for instance in sorted(running)
            if all(self._matches_filter(instance, f) for f in filters)
        ]
        content = xml({"requestId": "request-id", "instanceStatusSet": rows})
        name = "DescribeInstanceStatusResponse"
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Response(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})

    def _matches_filter(self, instance: str, query: JsonObject) -> bool:
        name, values = query["Name"], query["Value"]
        if name == "event.code":
            return any(event["code"] in values for event in self._events.get(instance, ()))
        return self._status(instance, name.partition("-")[0]) in values

    def _status(self, instance: str, check: str) -> str:
        return "impaired" if (instance, check) in self._impaired else "ok"

    def _row(self, instance: str) -> JsonDict:
        return {
            "instanceId": instance,
            "instanceState": {"code": "16", "name": "running"},
            "eventsSet": self._events.get(instance, []),
            "instanceStatus": self._summary(instance, "instance"),
            "systemStatus": self._summary(instance, "system"),
        }

    def _summary(self, instance: str, check: str) -> dict[str, object]:
        since = self._impaired.get((instance, check))
        detail = {"name": "reachability", "status": "passed"}
        if since is not None:
            detail |= {"status": "failed", "impairedSince": _format_time(since)}
        return {"status": self._status(instance, check), "details": [detail]}


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.000Z"


def wait_for_messages(request: Request, has_messages: Callable[[str], bool]) -> Request:
    """Wait as long as a ReceiveMessage requests, and return the call without its wait time.

    ``has_messages`` returns whether the queue of a name has messages. The wait uses the machine's
    clock, as the caller does.
    """
    if request.operation != "ReceiveMessage":
        return request
    parameters = json.loads(request.body)
    name = str(parameters.get("QueueUrl", "")).rpartition("/")[2]
    deadline = time.monotonic() + int(parameters.get("WaitTimeSeconds") or 0)
    while time.monotonic() < deadline and not has_messages(name):
        time.sleep(_POLL_S)
    body = json.dumps({**parameters, "WaitTimeSeconds": 0}).encode()
    headers = {k: v for k, v in request.headers.items() if k.lower() != "content-length"}
    return replace(request, body=body, headers=headers)
