"""Which image a type boots, and which types can share a launch template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.model.instancetype import InstanceType
from reconciler.model.labels import WELL_KNOWN_AWS
from reconciler.model.nodeclass import AMI, EC2NodeClass
from reconciler.model.nodepool import requirements_of
from reconciler.model.quantity import MILLI
from reconciler.model.resources import PODS, parse_resources
from reconciler.ports import Launch, LaunchOption

Types = Callable[[str], InstanceType | None]
"""Finds an instance type of the catalogue by its name."""

EFA: Final = "vpc.amazonaws.com/efa"


@dataclass(frozen=True, slots=True, order=True)
class Build:
    """What distinguishes one launch template of a claim from another: the machine's make."""

    image: str
    max_pods: int
    efa_interfaces: int = 0


def image_for(amis: Iterable[AMI], kind: InstanceType) -> AMI | None:
    """Return the first image whose requirements the type meets; the status lists newest first."""
    return next(
        (
            ami
            for ami in amis
            if kind.requirements.compatible(requirements_of(ami.requirements), WELL_KNOWN_AWS)
        ),
        None,
    )


def builds(
    launch: Launch, options: Iterable[LaunchOption], types: Types
) -> dict[Build, list[LaunchOption]]:
    """Return the options grouped by the template they need, both in the order of the options.

    Options whose type the catalogue does not know, or that no image of the class fits, are left
    out.
    """
    efa = parse_resources(launch.node_claim.spec.resources.requests).get(EFA, 0) > 0
    known: dict[str, Build | None] = {}
    groups: dict[Build, list[LaunchOption]] = {}
    for option in options:
        name = option.instance_type
        if name not in known:
            known[name] = _build(launch.node_class, types(name), efa=efa)
        build = known[name]
        if build is not None:
            groups.setdefault(build, []).append(option)
    return groups


def _build(node_class: EC2NodeClass, kind: InstanceType | None, *, efa: bool) -> Build | None:
    if kind is None:
        return None
    ami = image_for(node_class.status.amis, kind)
    if ami is None:
        return None
    return Build(ami.id, _count(kind.capacity, PODS), _count(kind.capacity, EFA) if efa else 0)


def _count(capacity: Mapping[str, int], name: str) -> int:
    return capacity.get(name, 0) // MILLI
