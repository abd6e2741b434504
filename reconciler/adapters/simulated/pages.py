"""Pages: moto gives everything at once, AWS gives as much as it likes and says that there is more.

Each protocol has its own way to say so; the token is the number of the next row in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.wire import Answer, Request, encoded, nested

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

_WORDS: Final = ("MaxResults", "NextToken", "MaxItems", "Marker")

Forward = Callable[[Request], Answer]


def paged(request: Request, forward: Forward, most: int = 0) -> Answer:
    """Return the page that the call asks for, of at most ``most`` rows where that is not 0."""
    rows_of = _ROWS.get(request.operation)
    if rows_of is None:
        return forward(request)
    form = dict(request.form)
    asked = int(form.get("MaxResults") or form.get("MaxItems") or 0)
    size = min(filter(None, (asked, most)), default=0)
    answer = forward(_whole(request))
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
    for row in (*every[:start], *every[start + size :]):
        rows.remove(row)
    if start + size < len(every):
        _say_more(root, namespace, str(start + size))
    return Answer(answer.status, ET.tostring(root, encoding="utf-8"), answer.headers)


def _whole(request: Request) -> Request:
    """Return the call without its words about pages, some of which moto knows in its own way."""
    form = [pair for pair in request.form if pair[0] not in _WORDS]
    return (
        request
        if len(form) == len(request.form)
        else replace(request, body=urlencode(form).encode())
    )


def _say_more(root: ET.Element, namespace: str, token: str) -> None:
    """Put the token into the answer, as EC2 has it or as IAM has it."""
    result = root.find("./{*}ListInstanceProfilesResult")
    if result is None:
        ET.SubElement(root, f"{{{namespace}}}nextToken").text = token
        return
    truncated = result.find("{*}IsTruncated")
    if truncated is None:
        truncated = ET.SubElement(result, f"{{{namespace}}}IsTruncated")
    truncated.text = "true"
    ET.SubElement(result, f"{{{namespace}}}Marker").text = token


def smaller(request: Request, most: int) -> Request:
    """Return the call asking for no more than ``most`` rows: AWS may give less than is asked."""
    if not most:
        return request
    if request.service == "pricing":
        asked: dict[str, Any] = json.loads(request.body or b"{}")
        asked["MaxResults"] = min(int(asked.get("MaxResults", most)), most)
        return replace(request, body=json.dumps(asked).encode())
    form = nested(request.form)
    form["MaxResults"] = min(int(form.get("MaxResults") or most), most)
    return replace(request, body=encoded(form))
