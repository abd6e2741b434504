"""``reconciler snapshot``: capture what ``plan --snapshot`` reads from a live cluster.

Of a fleet that is named or recorded it captures what a plan of that fleet is made from: the
cluster as the engine observes it, our NodeClaims, and what else is recorded. Otherwise it captures
the objects of the cluster that the kubeconfig names, those of Karpenter among them. It only reads.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

_NAMING_A_FLEET: Final = ("path", "repo", "below", "ref", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the snapshot goes, and which fleet or cluster it is of."""
    from reconciler.cli.shared import operatorfile

    add = parser.add_argument
    add("path", nargs="?", default=None, metavar="PATH", help="fleet folder (default: .)")
    add("--repo", metavar="URL", help="fleet in a remote repository, without a checkout")
    add("--ref", metavar="REF", help="commit, branch or tag (default: the working tree)")
    add("--path", dest="below", metavar="DIR", help="fleet folder within the repository")
    add("--out", metavar="FILE", help="write to this file (default: stdout)")
    add("--context", metavar="NAME", help="context of the kubeconfig to use")
    add("--state", metavar="DIR|URL", help="state directory or database URL")
    add(
        "--set", action="append", default=[], dest="settings", metavar="KEY=VALUE",
        help="override a setting of reconciler.yaml",
    )  # fmt: skip
    operatorfile.add_argument(parser)
    add("--catalog", metavar="FILE", help="catalog of instance types (default: of the account)")
    add("--now", metavar="TIME", help="current time in RFC 3339 (default: the system clock)")
    add(
        "--kubectl",
        metavar="PROGRAM",
        help="use this kubectl instead of the API; records of a fleet are then left out",
    )
    parser.set_defaults(base=None, snapshot=None, allow_removal=[])


def run(args: argparse.Namespace) -> int:
    """Write one List of every object that a plan reads; all of them or nothing."""
    from reconciler.cli.shared.exitcode import DONE

    if args.context:
        args.settings = [*args.settings, f"kubernetes.context={args.context}"]
    items = captured(args)
    content = _encoded(items)
    if args.out is None:
        sys.stdout.write(content.decode())
        return DONE
    _save(content, args.out)
    print(f"{args.out}: {len(items)} objects", file=sys.stderr)
    return DONE


def captured(args: argparse.Namespace) -> Sequence[Any]:
    """Return the objects of the fleet or cluster that the arguments name.

    Raises:
        ReconcilerError: something could not be read; a part is never taken for the whole.
    """
    if args.kubectl is not None:
        from reconciler.adapters.kubernetes.kubectl import objects_of_cluster

        return objects_of_cluster(args.kubectl, args.context)
    from reconciler.cli.wiring import capturing

    if _names_fleet(args):
        return capturing.objects_of_fleet(args)
    return capturing.objects_of_cluster(args)


def _names_fleet(args: argparse.Namespace) -> bool:
    """Return whether a fleet is meant: an argument names one, or one is recorded for this folder.

    Without recorded state the nodes of the cluster are somebody else's, such as Karpenter's before
    they are adopted: then the objects of the cluster are wanted.
    """
    if any(getattr(args, name) is not None for name in _NAMING_A_FLEET):
        return True
    from reconciler.cli.shared.records import is_recorded

    return is_recorded(args)


def _encoded(items: Iterable[Any]) -> bytes:
    import msgspec

    whole = {"apiVersion": "v1", "kind": "List", "items": list(items)}
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
