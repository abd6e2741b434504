"""The parts of AWS' wire formats that the simulation reads and changes.

The EC2 protocol sends nested parameters as ``A.1.B.2.C=value`` and answers in XML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

from reconciler.model.json import JsonDict

# The AWS SDK as the simulation uses it: with one session, which reads the API models only once.

_JSON: Final = ("ssm", "sqs", "eks", "pricing", "service-quotas", "servicequotas", "savingsplans")
_CLUSTER: Final = re.compile(r"/clusters/[^/]+")


@cache
def session() -> Any:
    """Return the boto3 session for all clients of the simulation."""
    import boto3

    return boto3.session.Session()


def service_model(service: str) -> Any:
    """Return botocore's model of a service."""
    return session()._session.get_service_model(service)  # noqa: SLF001 - boto3 gives no other way


@dataclass(frozen=True, slots=True)
class Request:
    """A call as it arrives; ``service`` is AWS' endpoint prefix, such as ``ec2``."""

    service: str
    region: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """The name of the call, such as ``CreateFleet``."""
        if self.service == "eks" and self.method == "GET" and _CLUSTER.fullmatch(self.path):
            return "DescribeCluster"  # EKS names its operations by method and path
        if self.service == "savingsplans":
            return self.path.strip("/")  # and so does this one
        target = next((v for k, v in self.headers.items() if k.lower() == "x-amz-target"), "")
        return target.rpartition(".")[2] or dict(self.form).get("Action", "")

    @property
    def form(self) -> list[tuple[str, str]]:
        """The parameters of a query protocol, in order."""
        return parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True)


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a call."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def nest(form: Sequence[tuple[str, str]]) -> JsonDict:
    """Return flat parameters as maps and lists."""
    tree: JsonDict = {}
    for name, value in form:
        here = tree
        *parents, last = name.split(".")
        for step in parents:
            here = here.setdefault(step, {})
        here[last] = value
    lists: JsonDict = _to_lists(tree)
    return lists


def _to_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [_to_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _to_lists(item) for key, item in value.items()}


def flatten(value: object, name: str = "") -> list[tuple[str, str]]:
    """Return maps and lists as flat parameters."""
    if isinstance(value, dict):
        items = [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{name}.{number}", item) for number, item in enumerate(value, 1)]
    else:
        return [(name, str(value))]
    return [pair for key, item in items for pair in flatten(item, key)]


def encode_query(value: Mapping[str, object]) -> bytes:
    """Return parameters as the body of a query call."""
    return urlencode(flatten(dict(value))).encode()


def error(service: str, status: int, code: str, message: str, request_id: str) -> Response:
    """Return an error in the format of a service: EC2 has its own, some use JSON."""
    if service in _JSON:
        body = json.dumps({"__type": code, "message": message})
        return Response(status, body.encode(), {"x-amzn-RequestId": request_id})
    details = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if service == "ec2":
        body = (
            f"<Response><Errors><Error>{details}</Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    else:
        body = (
            f"<ErrorResponse><Error>{details}</Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return Response(status, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})


def xml(value: object) -> str:
    """Return maps, lists and texts as EC2's XML; the entries of a list are ``item``."""
    if isinstance(value, dict):
        return "".join(f"<{key}>{xml(item)}</{key}>" for key, item in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{xml(item)}</item>" for item in value)
    return escape(str(value))
