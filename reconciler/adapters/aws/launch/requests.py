"""The AWS requests of launches as values: ``plan -o requests`` prints what ``apply`` sends.

Launches that EC2 would accept, but Karpenter's provider would not request, are rejected here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from reconciler.adapters.aws.launch.fleet import (
    first_types,
    fleet_parameters,
    market_type,
    overrides,
    zonal_subnets,
)
from reconciler.adapters.aws.launch.launchtemplate import template_data
from reconciler.adapters.aws.nodeclass.images import Build, Types, build_of
from reconciler.adapters.aws.tags import shared_tags, tag_specification
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.settings import ClusterKind, FeatureGate, MinValuesPolicy, Settings
from reconciler.ports.cloud import Launch, LaunchOption

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        CreateFleetRequestTypeDef,
        CreateLaunchTemplateRequestTypeDef,
        RequestLaunchTemplateDataTypeDef,
    )

TEMPLATE_PREFIX: Final = "reconciler/"
"""The prefix of all launch template names."""


def lacks_service_cidr(node_class: EC2NodeClass, settings: Settings) -> bool:
    """Return whether nodes of the class could not find their cluster: nodeadm needs its CIDR.

    A simulated cluster has no CIDR, and its nodes do not need it.
    """
    return (
        node_class.ami_family == "AL2023"
        and not settings.cluster_cidr
        and settings.cluster == ClusterKind.KUBECONFIG
    )


class RequestRow(TypedDict):
    """One request as ``plan -o requests`` prints it."""

    service: str
    operation: str
    nodeClaim: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LaunchRequests:
    """The EC2 requests of a launch: its templates, then the fleet."""

    templates: tuple[CreateLaunchTemplateRequestTypeDef, ...]
    fleet: CreateFleetRequestTypeDef


def launch_requests(
    launch: Launch, types: Types, settings: Settings, count: int = 1
) -> LaunchRequests:
    """Return the calls of a launch of ``count`` equal instances, in boto3's form.

    Raises:
        CloudError: the class cannot launch nodes, too few types are left for ``minValues``, or none
            of the options has both an image and a subnet (the message says which is missing).
    """
    assert launch.options, "a launch without options cannot succeed"
    return _LaunchPlan(launch, types, settings).requests(count)


@dataclass(frozen=True, slots=True)
class _LaunchPlan:
    """A launch, and what its calls are made from."""

    launch: Launch
    types: Types
    settings: Settings

    def requests(self, count: int) -> LaunchRequests:
        launch, settings = self.launch, self.settings
        claim, node_class = launch.node_claim.name, launch.node_class
        options = first_types(launch.options)
        self._check(options)
        subnets = zonal_subnets(node_class, settings.subnet_free_addresses)
        groups = self._builds(options)
        if not groups:
            raise CloudError(
                (
                    f"NodeClaim {claim}: no image of EC2NodeClass {node_class.name} is compatible "
                    f"with {_first_names((o.instance_type for o in options))}"
                ),
                remedy="check spec.amiSelectorTerms and the architectures that the NodePool allows",
            )
        templates: dict[str, CreateLaunchTemplateRequestTypeDef] = {}
        configs = []
        for build, group in groups.items():
            rows = overrides(group, build.image, subnets)
            if rows:
                template = self._template(template_data(launch, build, settings))
                templates.setdefault(template["LaunchTemplateName"], template)
                configs.append((template["LaunchTemplateName"], rows))
        if not configs:
            raise CloudError(
                f"NodeClaim {claim}: EC2NodeClass {node_class.name} has no subnet in "
                f"{_first_names(o.zone for o in options)}",
                remedy="check spec.subnetSelectorTerms and the zones that the NodePool allows",
            )
        fleet = fleet_parameters(launch, configs, settings, count)
        return LaunchRequests(tuple(templates.values()), fleet)

    def _check(self, options: Sequence[LaunchOption]) -> None:
        """Check the launch before it is requested; ``options`` are the remaining ones."""
        if lacks_service_cidr(self.launch.node_class, self.settings):
            name = self.launch.node_class.name
            raise CloudError(
                f"EC2NodeClass {name}: AL2023 nodes need the cluster's service CIDR",
                where=f"NodeClaim {self.launch.node_claim.name}",
                remedy="set clusterCIDR",
            )
        if self.settings.min_values_policy == MinValuesPolicy.STRICT:
            self._check_min_values(options)

    def _check_min_values(self, options: Sequence[LaunchOption]) -> None:
        claim = self.launch.node_claim
        requirements = requirements_of(claim.spec.requirements)
        with_min_values = [r for r in requirements.values() if r.min_values is not None]
        if not with_min_values:
            return
        names = dict.fromkeys(option.instance_type for option in options)
        kinds = [kind for kind in map(self.types, names) if kind is not None]
        for requirement in with_min_values:
            values = _values_in(kinds, requirement)
            assert requirement.min_values is not None
            if len(values) < requirement.min_values:
                raise CloudError(
                    (
                        f"only {len(values)} values of {requirement.key} remain among {len(kinds)} "
                        f"instance types, but minValues is {requirement.min_values}"
                    ),
                    where=f"NodeClaim {claim.name}",
                    remedy="lower minValues, or allow more instance types",
                )

    def _builds(self, options: Sequence[LaunchOption]) -> dict[Build, list[LaunchOption]]:
        """Return the options by the template that they need, both in the order of the options.

        Options with an unknown type, or without a matching image of the class, are left out.
        """
        expressions = self.settings.gate(FeatureGate.NODE_CLASS_CEL)
        known: dict[tuple[str, str, str], Build | None] = {}
        groups: dict[Build, list[LaunchOption]] = {}
        for option in options:
            key = (option.instance_type, option.reservation_id, market_type(option))
            if key not in known:
                kind = self.types(option.instance_type)
                known[key] = (
                    build_of(self.launch, kind, *key[1:], expressions=expressions)
                    if kind is not None
                    else None
                )
            build = known[key]
            if build is not None:
                groups.setdefault(build, []).append(option)
        return groups

    def _template(
        self, data: RequestLaunchTemplateDataTypeDef
    ) -> CreateLaunchTemplateRequestTypeDef:
        """Return the call that creates a template, named after its content."""
        launch = self.launch
        tags = shared_tags(launch.node_claim, launch.node_class, self.settings.cluster_name)
        specifications = [tag_specification("launch-template", tags)]
        content = {"LaunchTemplateData": data, "TagSpecifications": specifications}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:20]
        return {
            "LaunchTemplateName": f"{TEMPLATE_PREFIX}{digest}",
            "LaunchTemplateData": data,
            "TagSpecifications": specifications,
        }


def request_rows(launch: Launch, types: Types, settings: Settings) -> list[RequestRow]:
    """Return the requests of one launch, its templates before the fleet that uses them.

    Raises:
        CloudError: the launch would fail before its first request.
    """
    requests = launch_requests(launch, types, settings)
    templates = [_row("CreateLaunchTemplate", launch, t) for t in requests.templates]
    return [*templates, _row("CreateFleet", launch, requests.fleet)]


def unique_requests(rows: Iterable[RequestRow]) -> list[RequestRow]:
    """Return the requests without duplicate templates."""
    known: set[object] = set()
    unique = []
    for row in rows:
        name = row["parameters"].get("LaunchTemplateName")
        if name is None or name not in known:
            known.add(name)
            unique.append(row)
    return unique


def _row(operation: str, launch: Launch, parameters: Mapping[str, object]) -> RequestRow:
    return {
        "service": "ec2",
        "operation": operation,
        "nodeClaim": launch.node_claim.name,
        "parameters": parameters,
    }


def _first_names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - 3} more" if len(unique) > 3 else ""
    return ", ".join(unique[:3]) + more


def _values_in(kinds: Iterable[InstanceType], requirement: Requirement) -> set[str]:
    """Return the values of a label that the types have, and the requirement allows."""
    return {
        value
        for kind in kinds
        for value in kind.requirements.requirement_on(requirement.key).values
        if requirement.has(value)
    }
