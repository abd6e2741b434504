"""What the files of Terraform state about the cluster: its name, and the region of AWS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.desired.terraform.expressions import attribute_value
from reconciler.desired.terraform.hcl import HclBlock
from reconciler.desired.terraform.scope import ModuleScope


def stated_settings(
    modules: Mapping[str, Mapping[str, HclBlock]], scopes: Mapping[str, ModuleScope]
) -> dict[str, str]:
    """Return the name of the EKS cluster and the region of the provider, where they are stated."""
    settings: dict[str, str] = {}
    for folder, blocks in modules.items():
        for file in blocks.values():
            for key, value in _facts(file, scopes[folder]):
                settings.setdefault(key, value)
    return settings


def _facts(file: HclBlock, scope: ModuleScope) -> Iterator[tuple[str, str]]:
    for block in file.blocks:
        key, name = _stated_fact(block)
        value = attribute_value(block, name, scope) if name else None
        if isinstance(value, str) and value and "${" not in value:
            yield key, value


def _stated_fact(block: HclBlock) -> tuple[str, str]:
    """Return the setting that a block states, and its attribute with the value; "" for none."""
    match block.type, block.labels:
        case "provider", ("aws",):
            return "aws.region", "region"
        case "resource", ("aws_eks_cluster", *_):
            return "clusterName", "name"
        case "module", _ if "eks/aws" in (source := block.text_of("source")):
            is_named = "cluster_name" in block.attributes or "//" in source
            return "clusterName", "cluster_name" if is_named else "name"
    return "", ""
