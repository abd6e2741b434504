"""``reconciler snapshot``: capture what ``plan --snapshot`` reads from a live cluster.

It runs ``kubectl``, with the credentials and the context that this already has, and only ever
reads. Kinds that a cluster does not know, such as NodePools where Karpenter never was, are left
out.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the snapshot goes, and which cluster it is of."""
    parser.add_argument("--out", metavar="FILE", help="write to this file (default: stdout)")
    parser.add_argument("--context", metavar="NAME", help="kubectl context to use")
    parser.add_argument(
        "--kubectl",
        default="kubectl",
        metavar="PROGRAM",
        help=("kubectl executable (default: kubectl)"),
    )


def run(args: argparse.Namespace) -> int:
    """Write one List of every object that a plan reads; all of them or nothing."""
    from reconciler.cli.shared.exitcode import DONE

    items = [item for kind in KINDS for item in objects_of(kind, args)]
    content = _encoded(items)
    if args.out is None:
        sys.stdout.write(content.decode())
        return DONE
    _save(content, args.out)
    print(f"{args.out}: {len(items)} objects", file=sys.stderr)
    return DONE


def objects_of(kind: str, args: argparse.Namespace) -> Sequence[Any]:
    """Return every object of a kind, in all namespaces.

    Raises:
        ClusterError: kubectl is missing, or the cluster refused.
    """
    import subprocess

    import msgspec

    from reconciler.model.errors import ClusterError

    context = ["--context", args.context] if args.context else []
    command = [args.kubectl, *context, "get", kind, "--all-namespaces", "--output", "json"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        why = f"cannot run kubectl: {error.strerror}"
        remedy = "install kubectl, or pass its path with --kubectl"
        raise ClusterError(why, where=args.kubectl, remedy=remedy) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        if _UNKNOWN in said and kind.endswith(_OPTIONAL):
            return ()
        last = said.splitlines()[-1] if said else f"exit {done.returncode}"
        remedy = "run the same kubectl command by hand to see why"
        raise ClusterError(last, where=f"kubectl get {kind}", remedy=remedy)
    try:
        items: list[Any] = msgspec.json.decode(done.stdout)["items"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ClusterError("the output is not a List", where=f"kubectl get {kind}") from error
    return items


def _encoded(items: Sequence[Any]) -> bytes:
    import msgspec

    whole = {"apiVersion": "v1", "kind": "List", "items": items}
    return msgspec.json.encode(whole) + b"\n"


def _save(content: bytes, path: str) -> None:
    """Write the file whole or not at all; a snapshot may show secrets in its environment."""
    from reconciler.model.errors import UnreadableError

    draft = f"{path}.{os.getpid()}.tmp"
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.replace(draft, path)  # noqa: PTH105
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise UnreadableError(
            why, where=path, remedy="pass a file in an existing folder"
        ) from error
