"""What is valid and has no effect: limits and requirements that no instance type knows.

Karpenter accepts all of it: an unknown label of a requirement becomes a label of the nodes, and a
limit on an unknown resource is never reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import CAPACITY_TYPE
from reconciler.model.text.nearest import nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding

_LIMITABLE: Final = ("cpu", "memory", "ephemeral-storage", "pods", "nodes")
DEVICES: Final = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "vpc.amazonaws.com/efa",
    "vpc.amazonaws.com/pod-eni",
    "vpc.amazonaws.com/PrivateIPv4Address",
)
"""The extended resources that instance types have."""
_SIMILARITY_MIN: Final = 0.8


def check_limits(limits: Iterable[str], at: Pointer) -> Iterator[Finding]:
    """Yield a warning for each limit on a resource that no node has.

    Other extended resources may come from a NodeOverlay or a device plugin.
    """
    for name in limits:
        known: tuple[str, ...] = DEVICES if "/" in name else _LIMITABLE
        if name in known or name.startswith("hugepages-"):
            continue
        near = nearest(name, known, _SIMILARITY_MIN)
        if "/" in name and near is None:
            continue
        message = f"no node has the resource {quote_value(name)}, so this limits nothing"
        hint = f"did you mean {near}?" if near else f"one of {', '.join(known)}"
        yield Finding("idle-limit", (*at, name), message, hint, Severity.WARNING, of_key=True)


_MEMORY_LABELS: Final = (
    "karpenter.k8s.aws/instance-memory",
    "karpenter.k8s.aws/instance-gpu-memory",
)
_MEBIBYTES_MIN: Final = 512
"""The memory of the smallest instance types, in MiB; no GPU has less."""
_EKS: Final = "eks.amazonaws.com/"
_EKS_LABELS: Final = {"capacityType": CAPACITY_TYPE}
_EKS_INSTANCE: Final = "instance-"
"""How labels of EKS Auto Mode begin that have a counterpart of the same name in Karpenter."""


def check_requirements(requirements: Iterable[JsonDict], at: Pointer) -> Iterator[Finding]:
    """Yield a warning for each requirement that selects no instance type, or excludes all."""
    for index, entry in enumerate(requirements):
        here = (*at, index)
        if entry["key"].startswith(_EKS):
            yield _eks_finding(entry["key"], (*here, "key"))
        elif entry["key"] in _MEMORY_LABELS:
            yield from _memory_findings(entry, here)


def _eks_finding(key: str, at: Pointer) -> Finding:
    name = key.removeprefix(_EKS)
    meant = _EKS_LABELS.get(name)
    if meant is None and name.startswith(_EKS_INSTANCE):
        meant = f"karpenter.k8s.aws/{name}"
    message = (
        f"{quote_value(key)} selects no instance type: EKS sets this label on the nodes of its "
        "node groups and of EKS Auto Mode"
    )
    hint = f"did you mean {meant}?" if meant else "remove it"
    return Finding("eks-label", at, message, hint, Severity.WARNING)


def _memory_findings(entry: JsonDict, here: Pointer) -> Iterator[Finding]:
    for number, value in enumerate(entry.get("values") or ()):
        if value.isascii() and value.isdigit() and 0 < int(value) < _MEBIBYTES_MIN:
            message = f"{value} means {value} MiB; every instance type has more"
            hint = f"the unit is MiB: did you mean {int(value) * 1024}?"
            where = (*here, "values", number)
            yield Finding("memory-unit", where, message, hint, Severity.WARNING)
