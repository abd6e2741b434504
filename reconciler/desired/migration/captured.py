"""Objects of a cluster as they are kept in a file: without the environments of containers.

Environments, commands and probes may contain passwords, and nothing reads them, except for the
settings of Karpenter's own controller.
"""

from __future__ import annotations

from typing import Final

from reconciler.desired.migration.controller import is_controller, known_variables
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import LAST_APPLIED

_SPECS: Final = (("spec",), ("spec", "template", "spec"), ("template", "spec"))
"""Where objects have the spec of a pod."""
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_READ: Final = frozenset({"name", "resources", "ports", "restartPolicy"})
_COPIES: Final = "managedFields"


def without_environments(data: JsonDict) -> JsonDict:
    """Return an object without what its containers run with, and without copies of itself."""
    keeps_settings = is_controller(data)
    found = dict(data)
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        found["metadata"] = _without_copies(metadata)
    for pointer in _SPECS:
        _reduce_spec(found, pointer, keeps_settings=keeps_settings)
    return found


def _without_copies(metadata: JsonDict) -> JsonDict:
    """Return metadata without the text of the object that ``kubectl apply`` adds to it."""
    found = {name: value for name, value in metadata.items() if name != _COPIES}
    annotations = found.get("annotations")
    if isinstance(annotations, dict):
        found["annotations"] = {k: v for k, v in annotations.items() if k != LAST_APPLIED}
    return found


def _reduce_spec(data: JsonDict, pointer: tuple[str, ...], *, keeps_settings: bool) -> None:
    """Reduce the containers at a pointer; what is above them is copied first."""
    place = data
    for step in pointer:
        below = place.get(step)
        if not isinstance(below, dict):
            return
        copy = dict(below)
        place[step], place = copy, copy
    for name in _CONTAINERS:
        items = place.get(name)
        if isinstance(items, list):
            place[name] = [_container(item, keeps_settings=keeps_settings) for item in items]


def _container(item: object, *, keeps_settings: bool) -> object:
    if not isinstance(item, dict):
        return item
    found = {name: value for name, value in item.items() if name in _READ}
    if keeps_settings:
        found |= {"image": item.get("image", ""), "env": known_variables(item)}
    return found
