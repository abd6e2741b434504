"""The objects of a cluster as kubectl prints them, with kubectl's credentials.

Kinds that a cluster does not have, such as NodePools without Karpenter, are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.json import JsonDict

KINDS: Final = (
    "nodepools.karpenter.sh",
    "nodeclaims.karpenter.sh",
    "nodeoverlays.karpenter.sh",
    "ec2nodeclasses.karpenter.k8s.aws",
    "nodes",
    "pods",
    "poddisruptionbudgets",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "csinodes",
    "daemonsets",
    "namespaces",
    "priorityclasses",
    "capacitybuffers.autoscaling.x-k8s.io",
    "podtemplates",
    "deployments.apps",
    "statefulsets.apps",
    "services",
)
_OPTIONAL: Final = ("karpenter.sh", "karpenter.k8s.aws", "autoscaling.x-k8s.io")
_UNKNOWN: Final = "the server doesn't have a resource type"


def read_cluster_objects(kubectl: str, context: str | None) -> Sequence[object]:
    """Return every object that a plan reads.

    Raises:
        ClusterError: kubectl is missing, or the cluster refused.
    """
    return [item for kind in KINDS for item in _read_objects(kind, kubectl, context)]


def _read_objects(kind: str, kubectl: str, context: str | None) -> Sequence[object]:
    import subprocess

    import msgspec

    from reconciler.model.errors import ClusterError

    flags = ["--context", context] if context else []
    command = [kubectl, *flags, "get", kind, "--all-namespaces", "--output", "json"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - no shell
    except OSError as error:
        what = f"cannot run kubectl: {error.strerror}"
        remedy = "install kubectl, or omit --kubectl"
        raise ClusterError(what, where=kubectl, remedy=remedy) from error
    message = result.stderr.decode(errors="replace").strip()
    if result.returncode:
        if _UNKNOWN in message and kind.endswith(_OPTIONAL):
            return ()
        last = message.splitlines()[-1] if message else f"exit {result.returncode}"
        remedy = "run the same kubectl command by hand to see why"
        raise ClusterError(last, where=f"kubectl get {kind}", remedy=remedy)
    try:
        items: list[JsonDict] = msgspec.json.decode(result.stdout)["items"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ClusterError("the output is not a List", where=f"kubectl get {kind}") from error
    return items
