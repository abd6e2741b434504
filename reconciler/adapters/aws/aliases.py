"""Where AWS publishes the images that an alias such as ``al2023@latest`` means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconciler.model.labels import OS, WINDOWS_BUILD
from reconciler.model.nodepool import NodeSelectorRequirement
from reconciler.model.requirement import Operator

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


@dataclass(frozen=True, slots=True)
class AliasPath:
    """An SSM parameter that holds an image id, and the variants of types that the image serves."""

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
