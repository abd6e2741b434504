"""Pages of DescribeInstances: moto gives everything at once, EC2 does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.wire import Answer, Request

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"


def paged(request: Request, forward: Callable[[Request], Answer]) -> Answer:
    """Return the page that the call asks for; the token is the number of the next reservation."""
    form = dict(request.form)
    answer = forward(request)
    size = int(form.get("MaxResults", "0"))
    if not size or answer.status != 200:
        return answer
    ET.register_namespace("", _NAMESPACE)
    root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
    rows = root.find(f"{{{_NAMESPACE}}}reservationSet")
    if rows is None:
        return answer
    start = int(form.get("NextToken") or 0)
    every = list(rows)
    for row in (*every[:start], *every[start + size :]):
        rows.remove(row)
    if start + size < len(every):
        ET.SubElement(root, f"{{{_NAMESPACE}}}nextToken").text = str(start + size)
    return Answer(answer.status, ET.tostring(root, encoding="utf-8"), answer.headers)
