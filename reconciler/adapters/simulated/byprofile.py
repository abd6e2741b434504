"""The filter of DescribeInstances by instance profile, which moto lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.wire import Answer, Request, encoded, nested

_FILTER: Final = "iam-instance-profile.arn"


def by_profile(request: Request, forward: Callable[[Request], Answer]) -> Answer:
    """Return the answer with the instances alone that have a profile which the call names."""
    parameters = nested(request.form)
    filters = parameters.get("Filter") or []
    wanted = {value for f in filters if f["Name"] == _FILTER for value in f["Value"]}
    if not wanted:
        return forward(request)
    others = [f for f in filters if f["Name"] != _FILTER]
    body = encoded({k: v for k, v in parameters.items() if k != "Filter"} | {"Filter": others})
    answer = forward(replace(request, body=body))
    if answer.status != 200:
        return answer
    root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
    ET.register_namespace("", root.tag[1:].partition("}")[0])
    for rows in root.findall(".//{*}instancesSet"):
        for row in list(rows):
            if row.findtext("{*}iamInstanceProfile/{*}arn") not in wanted:
                rows.remove(row)
    return Answer(answer.status, ET.tostring(root, encoding="utf-8"), answer.headers)
