"""The objects of a cluster as kubectl prints them, with kubectl's credentials.

Kinds that a cluster does not have, such as NodePools without Karpenter, are omitted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from reconciler.model.errors import ClusterError
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
    "deviceclasses.resource.k8s.io",
    "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io",
    "resourceslices.resource.k8s.io",
    "daemonsets",
    "namespaces",
    "priorityclasses",
    "capacitybuffers.autoscaling.x-k8s.io",
    "podtemplates",
    "deployments.apps",
    "statefulsets.apps",
    "services",
)
_OPTIONAL: Final = ("karpenter.sh", "karpenter.k8s.aws", "autoscaling.x-k8s.io", "resource.k8s.io")
_MESSAGE_MAX: Final = 2**16
_UNKNOWN: Final = "the server doesn't have a resource type"


def read_cluster_objects(kubectl: str, context: str | None) -> Sequence[JsonDict]:
    """Return every object that a plan reads.

    Raises:
        ClusterError: kubectl is missing, or the cluster refused.
    """
    from reconciler.adapters.processes import find_program

    program = find_program(kubectl)
    if program is None:
        raise _missing_error(kubectl, "not found in PATH")
    return [item for kind in KINDS for item in _read_objects(kind, program, context)]


def _missing_error(kubectl: str, why: str) -> ClusterError:
    remedy = "install kubectl, or omit --kubectl"
    return ClusterError(f"cannot run kubectl: {why}", where=kubectl, remedy=remedy)


def _read_objects(kind: str, kubectl: str, context: str | None) -> Sequence[JsonDict]:
    import msgspec

    from reconciler.model.decode import decode_json

    flags = ["--context", context] if context else []
    command = [kubectl, *flags, "get", kind, "--all-namespaces", "--output", "json"]
    status, output, message = _run(command)
    if status:
        if _UNKNOWN in message and kind.endswith(_OPTIONAL):
            return ()
        last = message.splitlines()[-1] if message else f"exit {status}"
        remedy = "run the same kubectl command by hand to see why"
        raise ClusterError(last, where=f"kubectl get {kind}", remedy=remedy)
    try:
        items: list[JsonDict] = decode_json(output, JsonDict)["items"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise ClusterError("the output is not a List", where=f"kubectl get {kind}") from error
    return items


def _run(command: Sequence[str]) -> tuple[int, bytes, str]:
    """Return the exit status of kubectl, its output, and its messages."""
    from reconciler.adapters import processes

    variables = processes.environment()
    if "KUBECONFIG" in variables:
        files = variables["KUBECONFIG"].split(os.pathsep)
        variables["KUBECONFIG"] = os.pathsep.join(os.path.abspath(f) for f in files if f)
    with processes.private_folder() as folder:
        path = os.path.join(folder, "messages")
        with open(path, "w+b") as messages:
            try:
                process = processes.start(
                    command,
                    cwd=folder,
                    variables=variables,
                    stdin=processes.INHERITED,  # a credential plugin may ask the user
                    stderr=messages,
                    new_session=False,
                )
            except OSError as error:
                raise _missing_error(command[0], str(error.strerror)) from error
            try:
                output, _ = process.communicate()
            finally:
                processes.end(process)
            messages.seek(0)
            text = messages.read(_MESSAGE_MAX).decode(errors="replace").strip()
    return process.returncode, output, text
