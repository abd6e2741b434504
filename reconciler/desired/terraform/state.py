"""Reads what `terraform show -json` prints of a plan or a state: objects, and the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.json import JsonDict, as_text
from reconciler.source.plainyaml import dump
from reconciler.source.schema import value_at

_VERSION: Final = "terraform_version"
_YAML: Final = ("yaml_body", "yaml_incluster", "content")
_OBJECTS: Final = ("manifest", "object", "yaml_body_parsed")
_TYPES: Final = ("kubectl_manifest", "kubernetes_manifest", "k8s_manifest", "kubernetes_yaml")
_DEPTH_MAX: Final = 40


@dataclass
class ShownState:
    """The texts of objects by the address of their resource, and settings by dotted key.

    ``unknown`` are the addresses of manifests whose content is known only after an apply.
    """

    texts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def is_shown_state(data: object) -> bool:
    """Return whether data is the output of `terraform show -json`."""
    return isinstance(data, dict) and _VERSION in data and "format_version" in data


def read_shown_state(data: JsonDict) -> ShownState:
    """Return the Kubernetes objects of a plan or a state; of a plan, those after it is applied."""
    found = ShownState()
    for at in (("planned_values", "root_module"), ("values", "root_module")):
        for resource in _resources(value_at(data, at), 0):
            _read_resource(resource, found)
    return found


def _resources(module: object, depth: int) -> Iterator[JsonDict]:
    if not isinstance(module, dict) or depth > _DEPTH_MAX:
        return
    for resource in module.get("resources") or ():
        if isinstance(resource, dict) and isinstance(resource.get("values"), dict):
            yield resource
    for child in module.get("child_modules") or ():
        yield from _resources(child, depth + 1)


def _manifest_in(values: JsonDict) -> str | None:
    """Return the objects that a resource applies as YAML, None if they are not known yet."""
    for name in _YAML:
        if as_text(values.get(name)).strip():
            return as_text(values[name])
    for name in _OBJECTS:
        if isinstance(values.get(name), dict):
            return dump(values[name], sort_keys=False)
    return None


def _read_resource(resource: JsonDict, found: ShownState) -> None:
    kind, values = resource.get("type"), resource["values"]
    address = str(resource.get("address", kind))
    if kind in _TYPES:
        text = _manifest_in(values)
        if text is None:
            found.unknown.append(address)
        else:
            found.texts[address] = text
    elif kind == "aws_eks_cluster":
        if isinstance(values.get("name"), str):
            found.settings.setdefault("clusterName", values["name"])
        arn = str(values.get("arn") or "").split(":")
        if len(arn) > 3 and arn[3]:
            found.settings.setdefault("aws.region", arn[3])
    elif kind == "aws_region" and isinstance(values.get("name"), str):
        found.settings.setdefault("aws.region", values["name"])
