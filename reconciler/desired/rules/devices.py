"""The rules of claims on devices that a schema cannot express.

They are those of the API server (Kubernetes ``pkg/apis/resource/validation``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.expressions.selectors import selector_problem
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import GPU_SHARING
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding

_MODES: Final = ("", "disabled", "memory", "unlimited")


def device_findings(kind: str, spec: JsonDict) -> Iterator[Finding]:
    """Yield the errors in the spec of a DeviceClass, ResourceClaim or ResourceClaimTemplate."""
    if kind == "DeviceClass":
        yield from _selectors(spec, ("spec",))
    elif kind == "ResourceClaim":
        yield from _claim(spec, ("spec",))
    elif kind == "ResourceClaimTemplate":
        yield from _claim(spec["spec"], ("spec", "spec"))


def check_sharing(data: JsonDict) -> Iterator[Finding]:
    """Yield a finding on an EC2NodeClass whose mode of sharing GPUs the driver does not have.

    Karpenter launches no nodes for such a class (``nodeclass/validation.go``).
    """
    mode = (data.get("metadata", {}).get("annotations") or {}).get(GPU_SHARING)
    if not isinstance(mode, str) or mode in _MODES:
        return
    if mode.isascii() and mode.isdecimal() and int(mode[:19]) > 0:
        return
    at = ("metadata", "annotations", GPU_SHARING)
    message = f"{quote_value(mode)} is not a mode in which the NVIDIA driver shares GPUs"
    yield Finding("gpu-sharing", at, message, "disabled, memory, unlimited, or a number of shares")


def _claim(spec: JsonDict, at: Pointer) -> Iterator[Finding]:
    devices = spec.get("devices", {})
    names: set[str] = set()
    for index, request in enumerate(devices.get("requests", ())):
        here = (*at, "devices", "requests", index)
        if request["name"] in names:
            message = f"two requests are named {request['name']}"
            yield Finding("device-request", (*here, "name"), message, "rename one of them")
        names.add(request["name"])
        names.update(f"{request['name']}/{a['name']}" for a in request.get("firstAvailable", ()))
        yield from _request(request, here)
    for index, constraint in enumerate(devices.get("constraints", ())):
        here = (*at, "devices", "constraints", index)
        yield from _constraint(constraint, names, here)


def _request(request: JsonDict, at: Pointer) -> Iterator[Finding]:
    forms = [f for f in ("exactly", "firstAvailable", "deviceClassName") if f in request]
    if len(forms) != 1:
        message = "needs either exactly or firstAvailable"
        yield Finding("device-request", at, message, "keep one of them")
    for index, part in enumerate(request.get("firstAvailable", ())):
        yield from _devices(part, (*at, "firstAvailable", index))
    if "exactly" in request:
        yield from _devices(request["exactly"], (*at, "exactly"))
    if "deviceClassName" in request:
        yield from _devices(request, at)


def _devices(part: JsonDict, at: Pointer) -> Iterator[Finding]:
    yield from _selectors(part, at)
    if part.get("allocationMode") == "All" and "count" in part:
        message = "cannot be set with allocationMode: All"
        yield Finding("device-request", (*at, "count"), message, "remove it", of_key=True)


def _selectors(part: JsonDict, at: Pointer) -> Iterator[Finding]:
    for index, selector in enumerate(part.get("selectors", ())):
        problem = selector_problem(selector["cel"]["expression"])
        if problem is not None:
            here = (*at, "selectors", index, "cel", "expression")
            message = f"is not a CEL expression on device: {problem}"
            yield Finding("device-selector", here, message, "correct the expression")


def _constraint(constraint: JsonDict, names: set[str], at: Pointer) -> Iterator[Finding]:
    if len({"matchAttribute", "distinctAttribute"} & constraint.keys()) != 1:
        message = "needs either matchAttribute or distinctAttribute"
        yield Finding("device-constraint", at, message, "keep one of them")
    for index, name in enumerate(constraint.get("requests", ())):
        if name not in names:
            here = (*at, "requests", index)
            message = f"names the request {name}, which does not exist"
            yield Finding("device-constraint", here, message, "name a request of this claim")
