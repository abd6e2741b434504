"""What is valid and has no effect: limits, requirements, selectors, annotations and versions.

Karpenter accepts all of it: an unknown label of a requirement becomes a label of the nodes, a limit
on an unknown resource is never reached, other annotations are not read, and for a version that no
image has, the EC2NodeClass is never ready.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.duration import parse_duration
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    HOSTNAME,
    INITIALIZED,
    NODEPOOL,
    REGISTERED,
    WELL_KNOWN_AWS,
    is_restricted,
    normalize_label,
)
from reconciler.model.text.nearest import nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

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

_DEVICE_SIMILARITY_MIN: Final = 0.93
"""Below it are other devices: nvidia.com/gpu.shared, amd.com/gpu beside nvidia.com/gpu."""
_REPLACED_ANNOTATIONS: Final = {
    "karpenter.sh/do-not-evict": "nothing reads it any more",
    "karpenter.sh/do-not-consolidate": "nothing reads it any more",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "only Cluster Autoscaler reads it",
}

_ON_NODES: Final = frozenset({REGISTERED, INITIALIZED})
"""Labels of Karpenter that no NodePool can promise, and that its nodes have once they run."""
_SELECTING: Final = ("In", "Exists", "Gt", "Lt")
_REPLACED_LABELS: Final = {"karpenter.sh/provisioner-name": NODEPOOL}

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

_PUBLIC_DOMAINS: Final = ("kubernetes.io", "k8s.io", "k8s.aws", "amazonaws.com")
_NAME_SIMILARITY_MIN: Final = 0.85
_TELLING: Final = ("capacity-type",)
"""Names that nobody gives to a label of another meaning; "zone" or "os" may be such a one."""

_DATED: Final = re.compile(r"v\d{8}")
_IMAGE_VERSIONS: Final = {
    "al2": (_DATED, "v20250610"),
    "al2023": (_DATED, "v20250610"),
    "bottlerocket": (re.compile(r"v?\d+\.\d+\.\d+(?:-[0-9a-f]+)?"), "v1.40.0"),
}
"""The forms of the versions in the parameters that AWS publishes, and an example."""


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


def check_device(name: str, at: Pointer) -> Iterator[Finding]:
    """Yield a warning if the requested resource is almost the name of a known device."""
    near = None if name in DEVICES else nearest(name, DEVICES, _DEVICE_SIMILARITY_MIN)
    if near is not None:
        message = f"no known device plugin offers {quote_value(name)}, so its pods get no node"
        hint = f"did you mean {near}?"
        yield Finding("unknown-device", at, message, hint, Severity.WARNING, of_key=True)


def _idle_annotation(key: str, value: str) -> tuple[str, str]:
    """Return why an annotation does not protect a pod, and a hint; both empty for any other."""
    if key == DO_NOT_DISRUPT:
        if _may_protect(value):
            return "", ""
        return f"{quote_value(value)} protects no pod", 'write "true", or a duration such as 2h'
    if key in _REPLACED_ANNOTATIONS:
        if (value == "true") is key.endswith("safe-to-evict"):
            return "", ""
        message = f"{_REPLACED_ANNOTATIONS[key]}, so it protects no pod"
        return message, f'write {DO_NOT_DISRUPT}: "true"'
    if key != DO_NOT_REPAIR and nearest(key, (DO_NOT_DISRUPT,), _SIMILARITY_MIN):
        message = "nothing reads this annotation, so it protects no pod"
        return message, f"did you mean {DO_NOT_DISRUPT}?"
    return "", ""


def check_pod_metadata(metadata: JsonDict, at: Pointer) -> Iterator[Finding]:
    """Yield a warning for each annotation that is meant to protect a pod and does not.

    Source: ``IsDoNotDisruptActive`` of Karpenter 1.14 (``pkg/utils/pod/scheduling.go``).
    """
    for key, value in (metadata.get("annotations") or {}).items():
        message, hint = _idle_annotation(key, value)
        if message:
            here = (*at, "annotations", key)
            yield Finding("idle-annotation", here, message, hint, Severity.WARNING)
    if DO_NOT_DISRUPT in (metadata.get("labels") or {}):
        here, message = (*at, "labels", DO_NOT_DISRUPT), "this label protects no pod"
        hint = "write it as an annotation"
        yield Finding("idle-annotation", here, message, hint, Severity.WARNING, of_key=True)


def _may_protect(value: str) -> bool:
    """Return whether Karpenter understands the value: "false" means no protection."""
    if value in ("true", "false"):
        return True
    try:
        return parse_duration(value) > timedelta(0)
    except ValueError:
        return False


def check_node_selection(spec: JsonDict, at: Pointer) -> Iterator[Finding]:
    """Yield a warning for each label that a pod requires of its node and that no node gets.

    Labels in Karpenter's own domains cannot be set in a NodePool, so only the well-known ones
    exist. Labels of EKS are on nodes of its node groups, of Fargate and of EKS Auto Mode; there a
    pod may be meant to run.
    """
    for here, key, values in _required_labels(spec, at):
        if key.startswith(_EKS):
            yield _selected_eks_label(key, values, here)
        elif is_restricted(key) and key != HOSTNAME and key not in _ON_NODES:
            known = sorted(WELL_KNOWN_AWS)
            near = _REPLACED_LABELS.get(key) or nearest(key, known, _SIMILARITY_MIN)
            message = (
                f"no node has the label {quote_value(key)}, and no NodePool may set it, so its "
                "pods get no node"
            )
            hint = f"did you mean {near}?" if near else "remove it"
            yield Finding("idle-selector", here, message, hint, Severity.WARNING)


def _required_labels(spec: JsonDict, at: Pointer) -> Iterator[tuple[Pointer, str, tuple[str, ...]]]:
    """Yield the labels that a pod requires its node to have, with their places and values."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        yield (*at, "nodeSelector", key), key, (str(value),)
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = (value_at(spec, path) or {}).get("nodeSelectorTerms") or ()
    for number, term in enumerate(terms):
        for index, entry in enumerate(term.get("matchExpressions") or ()):
            if entry["operator"] in _SELECTING:
                here = (*at, *path, "nodeSelectorTerms", number, "matchExpressions", index, "key")
                yield here, entry["key"], tuple(map(str, entry.get("values") or ()))


def _selected_eks_label(key: str, values: tuple[str, ...], at: Pointer) -> Finding:
    """Return a finding on a label of EKS; one of Auto Mode was probably meant for Karpenter."""
    name = key.removeprefix(_EKS)
    is_of_auto_mode = name.startswith(_EKS_INSTANCE) or "auto" in values
    message = (
        f"EKS sets {quote_value(key)} on nodes of its node groups, of Fargate and of EKS Auto "
        "Mode, so its pods get no node of a NodePool"
    )
    meant = f"karpenter.k8s.aws/{name}" if name.startswith(_EKS_INSTANCE) else ""
    hint = f"did you mean {meant}?" if meant else "remove it if its pods are to run on a NodePool"
    severity = Severity.WARNING if is_of_auto_mode else Severity.INFO
    return Finding("eks-label", at, message, hint, severity)


def check_requirements(requirements: Iterable[JsonDict], at: Pointer) -> Iterator[Finding]:
    """Yield a warning for each requirement that selects no instance type, or excludes all."""
    for index, entry in enumerate(requirements):
        here = (*at, index)
        if entry["key"].startswith(_EKS):
            yield _eks_finding(entry["key"], (*here, "key"))
        elif entry["key"] in _MEMORY_LABELS:
            yield from _memory_findings(entry, here)
        elif (meant := _meant_label(entry["key"])) is not None:
            message = (
                f"{quote_value(entry['key'])} limits no instance type: none has this label, so it "
                "only becomes a label of the nodes"
            )
            hint = f"did you mean {meant}?"
            yield Finding("idle-requirement", (*here, "key"), message, hint, Severity.WARNING)


def _meant_label(key: str) -> str | None:
    """Return the label of instance types that was probably meant, None for a label of one's own.

    Its name is right and its domain is not, or it is misspelled in a domain of Kubernetes or AWS.
    """
    if normalize_label(key) in WELL_KNOWN_AWS or is_restricted(key):
        return None
    domain, _, name = key.rpartition("/")
    labels = {label.rpartition("/")[2]: label for label in sorted(WELL_KNOWN_AWS)}
    if any(domain == known or domain.endswith(f".{known}") for known in _PUBLIC_DOMAINS):
        near = nearest(name, labels, _NAME_SIMILARITY_MIN)
        return labels[near] if near is not None else None
    return labels.get(name) if name.startswith(_EKS_INSTANCE) or name in _TELLING else None


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


def check_image_version(data: JsonDict) -> Iterator[Finding]:
    """Yield the alias whose version has not the form of its family's releases."""
    name = f"EC2NodeClass {value_at(data, ('metadata', 'name'))}"
    for index, term in enumerate(data["spec"].get("amiSelectorTerms") or ()):
        alias = str(term.get("alias") or "")
        family, _, version = alias.partition("@")
        form, example = _IMAGE_VERSIONS.get(family, (None, ""))
        if form is None or version == "latest" or form.fullmatch(version):
            continue
        yield Finding(
            "image-version",
            ("spec", "amiSelectorTerms", index, "alias"),
            f"{name} is never ready, and no node of it is launched: no image of {family} has the "
            f"version {quote_value(version)}",
            f"a release such as {family}@{example}",
            Severity.WARNING,
        )
