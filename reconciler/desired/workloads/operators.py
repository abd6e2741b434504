"""The pod templates that operators make of their own kinds.

Most kinds contain a pod template. Others state parts of a pod: resources of a container, node
selectors, tolerations. What an operator adds by default is in the table (``kinds``).
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

from reconciler.desired.workloads.kinds import GroupEntry, PodGroup, PodShape, value_of
from reconciler.model.grouping import group_pairs
from reconciler.model.json import JsonDict, as_mapping, as_mappings
from reconciler.source.resource import Resource

_FIELDS: Final = (
    "affinity",
    "hostNetwork",
    "initContainers",
    "nodeSelector",
    "overhead",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
)
"""The fields of a pod spec that an operator copies from its own object."""

_MEMORY: Final = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[bkmgtp]?)b?", re.ASCII)
_UNITS: Final = {"": 2**20, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_OVERHEAD_MIN: Final = 384 * 2**20


def pod_template(group: PodGroup, entry: GroupEntry, resource: Resource) -> JsonDict | None:
    """Return the pod template of a group as plain data, None if the object has none."""
    data = entry.data
    found = _written_template(group, data)
    if found is None:
        return None
    template: JsonDict = dict(found)
    spec = dict(as_mapping(template.get("spec")))
    for path in group.pod:
        fields = as_mapping(value_of(data, path))
        spec |= {field: value for field, value in fields.items() if field in _FIELDS}
    if group.shape is PodShape.CLOUDNATIVEPG:
        spec.update(_cloudnativepg_affinity(resource))
    added = _added_containers(group, data)
    patches = [*as_mappings(spec.get("containers")), *_pod_containers(group, data)]
    if added or patches:
        spec["containers"] = _merge_containers(added, patches)
    if group.spread_over_hosts_by and "affinity" not in spec:
        spec["affinity"] = _prefers_own_host(group.spread_over_hosts_by, resource.name)
    template["spec"] = spec
    return template


def _pod_containers(group: PodGroup, data: object) -> list[JsonDict]:
    """Return the containers in the fields of a pod spec, such as those of a Prometheus."""
    found: list[JsonDict] = []
    for path in group.pod:
        found += as_mappings(value_of(data, f"{path}.containers"))
        found += as_mappings(value_of(data, f"{path}.sidecars"))
    return found


def _container(
    name: str, resources: object, defaults: tuple[tuple[str, str], ...], *, present: bool
) -> JsonDict:
    """Return a container with the resources that the object states, and the operator's defaults."""
    declared = dict(as_mapping(resources)) if present else {}
    limits, requests = as_mapping(declared.get("limits")), as_mapping(declared.get("requests"))
    missing = {n: amount for n, amount in defaults if n not in limits and n not in requests}
    if missing:
        declared["requests"] = {**missing, **requests}
    return {"name": name, "resources": declared}


def _written_template(group: PodGroup, data: object) -> JsonDict | None:
    """Return the template in an object: empty where its operator makes one, None for no pods."""
    path = f"{group.template}|{group.fallback}" if group.fallback else group.template
    found = value_of(data, path) if path else None
    if isinstance(found, dict):
        return found
    is_made = bool(group.pod or group.containers)
    return {} if found is None and is_made else None


def _added_containers(group: PodGroup, data: object) -> list[JsonDict]:
    """Return the containers that an operator adds to the pods of a group."""
    match group.shape:
        case PodShape.SPARK:
            return [_spark_container(group.suffix, data)]
        case PodShape.RAY_HEAD:
            cluster = group.template.partition(".headGroupSpec")[0]
            return _ray_autoscaler(value_of(data, cluster))
    return [
        _container(name, value_of(data, path), defaults, present=bool(path))
        for name, path, defaults in group.containers
    ]


def _merge_containers(added: list[JsonDict], patches: list[JsonDict]) -> list[JsonDict]:
    """Return the containers of an operator, changed by those of the same name in its object."""
    merged = {str(item.get("name")): item for item in added}
    unnamed: list[JsonDict] = []
    for patch in patches:
        name = patch.get("name")
        if name is None:
            unnamed.append({"name": f"container-{len(unnamed)}", **patch})
            continue
        known = merged.get(str(name), {}) if name else {}
        changed = {**known, **patch}
        if "resources" in known and not patch.get("resources"):
            changed["resources"] = known["resources"]
        merged[str(name)] = changed
    # A container that an operator adds comes after the object's own: the first one is the main one.
    names = {str(patch.get("name")) for patch in patches}
    by_owner = group_pairs((name in names, item) for name, item in merged.items())
    return [*by_owner.get(True, ()), *unnamed, *by_owner.get(False, ())]


def _prefers_own_host(
    label: str, value: str, *, required: bool = False, topology: str = ""
) -> JsonDict:
    """Return an anti-affinity between pods with a label, by host unless ``topology`` is given."""
    term = {
        "labelSelector": {"matchLabels": {label: value}},
        "topologyKey": topology or "kubernetes.io/hostname",
    }
    if required:
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _cloudnativepg_affinity(resource: Resource) -> JsonDict:
    """Return the scheduling fields of a PostgreSQL cluster.

    Instances prefer different hosts unless the object disables it, or they require it
    (CloudNativePG documentation, Scheduling).
    """
    own = as_mapping(value_of(resource.data, "spec.affinity"))
    affinity: JsonDict = {}
    if own.get("enablePodAntiAffinity") is not False:
        affinity = _prefers_own_host(
            "cnpg.io/cluster",
            resource.name,
            required=own.get("podAntiAffinityType") == "required",
            topology=str(own.get("topologyKey") or ""),
        )
    more = as_mapping(own.get("additionalPodAntiAffinity"))
    if more:
        known = affinity.setdefault("podAntiAffinity", {})
        for field, terms in more.items():
            known[field] = [*known.get(field, ()), *terms]
    if own.get("additionalPodAffinity"):
        affinity["podAffinity"] = own["additionalPodAffinity"]
    if own.get("nodeAffinity"):
        affinity["nodeAffinity"] = own["nodeAffinity"]
    found: JsonDict = {"affinity": affinity}
    for field in ("nodeSelector", "tolerations"):
        if own.get(field):
            found[field] = own[field]
    return found


def _ray_autoscaler(cluster: object) -> list[JsonDict]:
    """Return the autoscaler that KubeRay adds to the head pod of a cluster that it scales.

    It has the resources of ``autoscalerOptions``, which replace all of the default ones.
    """
    if value_of(cluster, "enableInTreeAutoscaling") is not True:
        return []
    resources = as_mapping(value_of(cluster, "autoscalerOptions.resources"))
    default = {"cpu": "500m", "memory": "512Mi"}
    return [{"name": "autoscaler", "resources": resources or {"requests": default}}]


def _spark_container(role: str, data: object) -> JsonDict:
    """Return the container of a Spark driver or executor.

    Its memory is that of the JVM and an overhead: by default a tenth, at least 384 MiB, and 40% for
    Python and R (Spark documentation, ``spark.kubernetes.memoryOverheadFactor``). ``coreRequest``
    takes precedence over ``cores``.
    """
    own = as_mapping(value_of(data, f"spec.{role}"))
    memory = _jvm_bytes(own.get("memory")) or 2**30
    overhead = _jvm_bytes(own.get("memoryOverhead"))
    if overhead is None:
        factor = _share(value_of(data, "spec.memoryOverheadFactor"))
        if factor is None:
            is_jvm = value_of(data, "spec.type") in (None, "Java", "Scala")
            factor = Decimal("0.1") if is_jvm else Decimal("0.4")
        share = (memory * factor).to_integral_value(ROUND_CEILING)
        overhead = max(int(share), _OVERHEAD_MIN)
    cores = own.get("coreRequest") or own.get("cores") or 1
    requests: JsonDict = {"cpu": str(cores), "memory": f"{-(-(memory + overhead) // 2**20)}Mi"}
    gpu = as_mapping(own.get("gpu"))
    limits: JsonDict = {}
    if gpu.get("name") and gpu.get("quantity"):
        limits[str(gpu["name"])] = gpu["quantity"]
    return {
        "name": f"spark-kubernetes-{role}",
        "resources": {"requests": requests, "limits": limits},
    }


def _jvm_bytes(text: object) -> int | None:
    """Return the bytes of a size as the JVM reads it: ``512m``, ``2g``; without a unit, MiB."""
    match = _MEMORY.fullmatch(str(text).lower()) if isinstance(text, (str, int)) else None
    return int(match["number"]) * _UNITS[match["unit"]] if match is not None else None


def _share(text: object) -> Decimal | None:
    if isinstance(text, (str, int, float)) and re.fullmatch(
        r"[0-9]{1,3}(\.[0-9]{1,6})?", str(text)
    ):
        return Decimal(str(text))
    return None
