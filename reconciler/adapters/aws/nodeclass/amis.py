"""Find the images of a class: aliases by SSM parameter, others by query; newest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.conversion import tag_filters
from reconciler.adapters.aws.errors import (
    Failure,
    boto_errors,
    failure_of,
    our_error,
    translate_errors,
)
from reconciler.adapters.aws.launch.profiles import is_simulated_account
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.labels import ARCH, OS, WINDOWS_BUILD
from reconciler.model.karpenter.nodeclass import AMI, EC2NodeClass, SelectorTerm
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import (
        DescribeImagesRequestPaginateTypeDef,
        FilterTypeDef,
        ImageTypeDef,
    )


_GPUS: Final = "karpenter.k8s.aws/instance-gpu-count"
_ACCELERATORS: Final = "karpenter.k8s.aws/instance-accelerator-count"

Needs = tuple[NodeSelectorRequirement, ...]

STANDARD: Final[Needs] = (
    NodeSelectorRequirement(_GPUS, Operator.DOES_NOT_EXIST),
    NodeSelectorRequirement(_ACCELERATORS, Operator.DOES_NOT_EXIST),
)
NVIDIA: Final[Needs] = (NodeSelectorRequirement(_GPUS, Operator.EXISTS),)
NEURON: Final[Needs] = (NodeSelectorRequirement(_ACCELERATORS, Operator.EXISTS),)
_WINDOWS_BUILDS: Final = {"2019": "10.0.17763", "2022": "10.0.20348", "2025": "10.0.26100"}

ATTEMPTS: Final = 5

_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_STAND_IN: Final = "al2023-ami-2023*"


@dataclass(frozen=True, slots=True)
class AliasPath:
    """An SSM parameter that contains an image id, and the types that the image supports."""

    path: str
    variants: tuple[Needs, ...]


def alias_paths(alias: str, kubernetes: str) -> list[AliasPath]:
    """Return the parameters of an alias for a minor version of Kubernetes (aws reference 4.2).

    ``alias`` is ``family@version``; an unknown family has none.
    """
    family, _, version = alias.partition("@")
    match family.lower():
        case "al2":
            return _al2(version, kubernetes)
        case "al2023":
            return _al2023(version, kubernetes)
        case "bottlerocket":
            return _bottlerocket(version.removeprefix("v"), kubernetes)
        case "windows2019" | "windows2022" | "windows2025":
            return _windows(family.lower().removeprefix("windows"), kubernetes)
    return []


def _al2(version: str, kubernetes: str) -> list[AliasPath]:
    def path(flavour: str, image: str) -> str:
        name = "recommended" if version == "latest" else f"{image}-{kubernetes}-{version}"
        return f"/aws/service/eks/optimized-ami/{kubernetes}/{flavour}/{name}/image_id"

    return [
        AliasPath(path("amazon-linux-2", "amazon-eks-node"), (STANDARD,)),
        AliasPath(path("amazon-linux-2-arm64", "amazon-eks-arm64-node"), (STANDARD,)),
        AliasPath(path("amazon-linux-2-gpu", "amazon-eks-gpu-node"), (NEURON, NVIDIA)),
    ]


def _al2023(version: str, kubernetes: str) -> list[AliasPath]:
    base = f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023"
    flavours = {
        "x86_64": {"standard": STANDARD, "nvidia": NVIDIA, "neuron": NEURON},
        "arm64": {"standard": STANDARD, "nvidia": NVIDIA},
    }
    rows = []
    for arch, variants in flavours.items():
        for variant, needs in variants.items():
            name = (
                "recommended"
                if version == "latest"
                else f"amazon-eks-node-al2023-{arch}-{variant}-{kubernetes}-{version}"
            )
            rows.append(AliasPath(f"{base}/{arch}/{variant}/{name}/image_id", (needs,)))
    return rows


def _bottlerocket(version: str, kubernetes: str) -> list[AliasPath]:
    base = f"/aws/service/bottlerocket/aws-k8s-{kubernetes}"
    return [
        AliasPath(f"{base}/x86_64/{version}/image_id", (STANDARD, NEURON)),
        AliasPath(f"{base}/arm64/{version}/image_id", (STANDARD,)),
        AliasPath(f"{base}-nvidia/x86_64/{version}/image_id", (NVIDIA,)),
        AliasPath(f"{base}-nvidia/arm64/{version}/image_id", (NVIDIA,)),
    ]


def _windows(year: str, kubernetes: str) -> list[AliasPath]:
    name = f"Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}"
    needs = (
        NodeSelectorRequirement(OS, Operator.IN, ("windows",)),
        NodeSelectorRequirement(WINDOWS_BUILD, Operator.IN, (_WINDOWS_BUILDS[year],)),
    )
    return [AliasPath(f"/aws/service/ami-windows-latest/{name}/image_id", (needs,))]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An image as EC2 describes it, with the requirements of its types."""

    row: ImageTypeDef
    needs: Needs

    def is_deprecated(self, now: datetime) -> bool:
        text: str = self.row.get("DeprecationTime", "")
        return bool(text) and datetime.fromisoformat(text) <= now

    def preference(self, now: datetime) -> tuple[bool, str, str]:
        """A sort key with the best last: not deprecated, newest, greatest name."""
        created = self.row.get("CreationDate", "")
        return (not self.is_deprecated(now), created, self.row.get("Name", ""))

    def ami(self, now: datetime) -> AMI:
        return AMI(
            self.row["ImageId"],
            self.row.get("Name", ""),
            deprecated=self.is_deprecated(now),
            requirements=self.needs,
        )


class ImageFinder:
    """Finds the images of a class."""

    def __init__(self, ec2: EC2Client, connect: Connect, settings: Settings, clock: Clock) -> None:
        self._ec2 = ec2
        self._connect = connect
        self._settings = settings
        self._clock = clock

    def find(self, node_class: EC2NodeClass) -> tuple[list[AMI], str]:
        """Return the images, newest first, and the reason if there are none.

        Raises:
            TransientCloudError, CloudError: a look-up failed.
        """
        terms = node_class.spec.ami_selector_terms
        alias = next((term.alias for term in terms if term.alias), "")
        now = self._clock.now()
        if alias:
            candidates = self._images_of_alias(alias)
            problem = f"no image is published for alias {alias}"
        else:
            candidates = self._images_of_terms(terms)
            problem = "no image matches spec.amiSelectorTerms"
        chosen: dict[Needs, _Candidate] = {}
        for candidate in candidates:
            best = chosen.get(candidate.needs)
            if best is None or candidate.preference(now) > best.preference(now):
                chosen[candidate.needs] = candidate
        newest = sorted(chosen.values(), key=lambda c: c.row["ImageId"])
        newest.sort(key=lambda c: c.row.get("CreationDate", ""), reverse=True)
        return [candidate.ami(now) for candidate in newest], problem

    def _images_of_alias(self, alias: str) -> list[_Candidate]:
        if is_simulated_account(self._settings):
            return self._simulated_images()
        variants: dict[str, tuple[Needs, ...]] = {}
        for row in alias_paths(alias, self._kubernetes_version()):
            image = self._read_parameter(row.path)
            if image:
                variants[image] = (*variants.get(image, ()), *row.variants)
        return [
            _Candidate(row, (arch, *needs))
            for row, arch in self._describe_images(
                [{"Name": "image-id", "Values": sorted(variants)}]
            )
            for needs in variants[row["ImageId"]]
        ]

    def _simulated_images(self) -> list[_Candidate]:
        """Return the Amazon Linux 2023 image of each architecture with the greatest name.

        Simulated accounts do not have the images of EKS, and none of their images boots. Some give
        all images the same creation time, or a new one at each call.
        """
        best: dict[NodeSelectorRequirement, ImageTypeDef] = {}
        filters: list[FilterTypeDef] = [{"Name": "name", "Values": [_STAND_IN]}]
        for row, arch in self._describe_images(filters, owners=["amazon"]):
            if arch not in best or row.get("Name", "") > best[arch].get("Name", ""):
                best[arch] = row
        return [_Candidate({**row, "CreationDate": ""}, (arch,)) for arch, row in best.items()]

    def _images_of_terms(self, terms: Sequence[SelectorTerm]) -> list[_Candidate]:
        ids = self._ids_of_terms(terms)
        found: list[_Candidate] = []
        if ids:
            rows = self._describe_images([{"Name": "image-id", "Values": sorted(ids)}])
            found += [_Candidate(row, (arch,)) for row, arch in rows]
        for term in terms:
            filters = tag_filters(term.tags)
            if term.name:
                filters.append({"Name": "name", "Values": [term.name]})
            if term.id or term.ssm_parameter or not filters:
                continue
            rows = self._describe_images(filters, owners=_owners_of(term))
            found += [_Candidate(row, (arch,)) for row, arch in rows]
        return found

    def _ids_of_terms(self, terms: Sequence[SelectorTerm]) -> set[str]:
        """Return the images that terms name, themselves or by an SSM parameter."""
        parameters = (term.ssm_parameter for term in terms if not term.id)
        stored = {self._read_parameter(path) for path in parameters if path}
        return {term.id for term in terms if term.id} | {
            image for image in stored if image.startswith("ami-")
        }

    def _describe_images(
        self, filters: list[FilterTypeDef], owners: Sequence[str] = ()
    ) -> Iterable[tuple[ImageTypeDef, NodeSelectorRequirement]]:
        """Yield the available images with the architecture that they require."""
        query: DescribeImagesRequestPaginateTypeDef = {
            "Filters": [*filters, {"Name": "state", "Values": ["available"]}],
            "IncludeDeprecated": True,
        }
        if owners:
            query["Owners"] = list(owners)
        with translate_errors("ec2:DescribeImages"):
            rows = [
                row
                for page in self._ec2.get_paginator("describe_images").paginate(**query)
                for row in page["Images"]
            ]
        for row in rows:
            arch = _ARCHITECTURES.get(row.get("Architecture", ""))
            if arch is not None:
                yield row, NodeSelectorRequirement(ARCH, Operator.IN, (arch,))

    def _read_parameter(self, path: str) -> str:
        """Return the value of an SSM parameter, empty if it does not exist."""
        try:
            answer = self._connect("ssm", ATTEMPTS).get_parameter(Name=path)
        except boto_errors() as error:
            if failure_of(error) is Failure.NOT_FOUND:
                return ""
            raise our_error("ssm:GetParameter", error) from error
        value: str = answer["Parameter"]["Value"]
        return value

    def _kubernetes_version(self) -> str:
        """Return the cluster's minor version from EKS."""
        name = self._settings.cluster_name
        try:
            answer = self._connect("eks", ATTEMPTS).describe_cluster(name=name)
        except boto_errors() as error:
            failed = our_error("eks:DescribeCluster", error)
            is_denied = failure_of(error) is Failure.UNAUTHORIZED
            if is_denied or isinstance(failed, TransientCloudError):
                raise failed from error
            raise CloudError(
                failed.message,
                where=failed.where,
                remedy=(
                    f"an image alias needs the Kubernetes version of cluster {name}; set "
                    "clusterName, or select images by id or ssmParameter"
                ),
            ) from error
        version: str = answer["cluster"]["version"]
        return version


def _owners_of(term: SelectorTerm) -> list[str]:
    """Return whose images count: anybody may give an image a name that others use."""
    if term.owner:
        return [term.owner]
    return ["self", "amazon"] if term.name else []
