"""Builders of objects for dynamic resource allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.placement.builders import Object, a_pod, a_type

DRIVER = "gpu.example.com"
GROUP = "resource.k8s.io/v1"


def a_device(
    name: str,
    attributes: Mapping[str, str | int | bool] | None = None,
    capacity: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Object:
    """Return a device; amounts of capacity may have a policy."""
    kinds = {str: "string", int: "int", bool: "bool"}
    return {
        "name": name,
        "attributes": {k: {kinds[type(v)]: v} for k, v in (attributes or {}).items()},
        "capacity": {
            k: v if isinstance(v, dict) else {"value": v} for k, v in (capacity or {}).items()
        },
        **fields,
    }


def gpus(count: int, model: str = "a10", memory: str = "24Gi", **fields: Any) -> list[Object]:
    """Return GPUs of one model."""
    return [
        a_device(f"gpu-{i}", {"model": model, "index": i}, {"memory": memory}, **fields)
        for i in range(count)
    ]


def a_template(devices: Sequence[Object], driver: str = DRIVER, **fields: Any) -> Object:
    """Return the devices of a driver on the nodes of an instance type."""
    return {"driver": driver, "pool": "template", "devices": list(devices), **fields}


def a_gpu_type(name: str, cpu: int, price: float, *templates: Object, **more: Any) -> Object:
    """Return an instance type whose nodes have devices."""
    return {**a_type(name, cpu, price, **more), "devices": list(templates)}


def a_class(name: str = "gpu", *expressions: str) -> Object:
    """Return a DeviceClass, by default of the driver."""
    texts = expressions or (f'device.driver == "{DRIVER}"',)
    selectors = [{"cel": {"expression": text}} for text in texts]
    return {
        "apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": selectors},
    }  # fmt: skip


def a_request(name: str = "gpu", count: int = 1, *expressions: str, **fields: Any) -> Object:
    """Return a request for exactly some devices."""
    return {"name": name, "exactly": an_alternative("", count, *expressions, **fields)}


def an_alternative(name: str, count: int = 1, *expressions: str, **fields: Any) -> Object:
    """Return one alternative of a request; without a name, its content."""
    found: Object = {"deviceClassName": "gpu", "count": count, **fields}
    if name:
        found["name"] = name
    if expressions:
        found["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    return found


def a_claim_spec(*requests: Object, constraints: Sequence[Object] = ()) -> Object:
    """Return the spec of a claim."""
    return {"devices": {"requests": list(requests or (a_request(),)), "constraints": constraints}}


def a_claim_template(name: str = "one-gpu", *requests: Object, **fields: Any) -> Object:
    """Return a ResourceClaimTemplate."""
    return {
        "apiVersion": GROUP, "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": a_claim_spec(*requests, **fields)},
    }  # fmt: skip


def a_claim(name: str, *requests: Object, status: Object | None = None, **fields: Any) -> Object:
    """Return a ResourceClaim."""
    return {
        "apiVersion": GROUP, "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": a_claim_spec(*requests, **fields), "status": status or {},
    }  # fmt: skip


def allocated(
    node: str, *devices: str, driver: str = DRIVER, pods: Sequence[str] = (), **fields: Any
) -> Object:
    """Return the status of a claim that has devices of a node, used by pods."""
    results = [
        {"request": "gpu", "driver": driver, "pool": node, "device": device, **fields}
        for device in devices
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "allocation": {
            "devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]},
        },
        "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
    }  # fmt: skip


def a_slice(
    node: str, devices: Sequence[Object], *, driver: str = DRIVER, name: str = "", **spec: Any
) -> Object:
    """Return the ResourceSlice of a node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    content = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {
        "apiVersion": GROUP, "kind": "ResourceSlice",
        "metadata": {
            "name": name or f"{node}-{driver}",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node}],
        },
        "spec": {**content, **spec},
    }  # fmt: skip


def a_claiming_pod(name: str, *templates: str, claims: Sequence[str] = (), **fields: Any) -> Object:
    """Return a pod with claims from templates, and claims that exist."""
    own = [{"name": f"t{i}", "resourceClaimTemplateName": t} for i, t in enumerate(templates)]
    named = [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    return a_pod(name, resourceClaims=[*own, *named], **fields)
