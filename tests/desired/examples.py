"""Valid objects with dull defaults, as plain data: a test names only what it is about."""

from __future__ import annotations

import copy
import json
from typing import Any

from reconciler.desired.fleet import SourceFile

Data = dict[str, Any]

REF = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}


def a_pool(name: str = "general", **spec: Any) -> Data:
    """Return a NodePool; ``spec`` overrides the parts of its spec."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"nodeClassRef": dict(REF), "requirements": []}},
            "disruption": {"consolidateAfter": "0s"},
            **copy.deepcopy(spec),
        },
    }


def a_pool_requiring(*requirements: Data, **template: Any) -> Data:
    """Return a NodePool with these requirements; ``template`` overrides its template's spec."""
    spec = {"nodeClassRef": dict(REF), "requirements": list(requirements), **template}
    return a_pool(template={"spec": spec})


def a_class(name: str = "default", **spec: Any) -> Data:
    """Return an EC2NodeClass."""
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "spec": {
            "role": "nodes",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"tags": {"cluster": "web"}}],
            "securityGroupSelectorTerms": [{"tags": {"cluster": "web"}}],
            **copy.deepcopy(spec),
        },
    }


def an_overlay(name: str = "cheap-arm", **spec: Any) -> Data:
    """Return a NodeOverlay."""
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": name},
        "spec": {"requirements": [], **copy.deepcopy(spec)},
    }


def a_buffer(name: str = "web", **spec: Any) -> Data:
    """Return a CapacityBuffer for pods like those of a Deployment."""
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1beta1",
        "kind": "CapacityBuffer",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": name},
            **copy.deepcopy(spec),
        },
    }


def a_claim(name: str = "general-abc", **spec: Any) -> Data:
    """Return a NodeClaim."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name},
        "spec": {"nodeClassRef": dict(REF), "requirements": [], **copy.deepcopy(spec)},
    }


def a_file(*objects: Data, path: str = "fleet.json") -> SourceFile:
    """Return a file that holds the objects, as one JSON document each."""
    return SourceFile(path, "\n---\n".join(json.dumps(o) for o in objects).encode())
