"""``reconciler uninstall``: remove the finalizer of reconciler from the Nodes of a cluster.

Every registered Node has this finalizer. Without a daemon nothing removes it, and a deleted Node
would remain forever. Nodes, pods and instances are not touched.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.adapters.clock import SystemClock
from reconciler.cli.parser import inputs
from reconciler.model.errors import ClusterError, UsageError
from reconciler.options import add_options, option, switch

if TYPE_CHECKING:
    import argparse

    from reconciler.adapters.kubernetes.api import Api
    from reconciler.assembly.inputs.request import StateRequest

_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallRequest:
    """The cluster, how long to watch for a daemon that still runs, and whether to ask."""

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    is_approved: bool = switch("--auto-approve", "do not ask")
    settle: timedelta = option(
        "--settle",
        "DURATION",
        "how long to check that no finalizer comes back (default: 15s)",
        default=timedelta(seconds=15),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the cluster."""
    add_options(UninstallRequest, parser, then={"fleet": inputs.add_context})


request_of = partial(inputs.request_from, UninstallRequest)


def run(request: UninstallRequest) -> int:
    """Remove the finalizers, and make sure that no daemon puts them back."""
    from reconciler.assembly.cluster import api_of
    from reconciler.assembly.inputs import records

    clock = SystemClock()
    api = api_of(records.settings_of(request.fleet).settings, clock)
    if not request.is_approved and not _confirm(api):
        return exitcode.FAILED
    from reconciler.adapters.kubernetes.karpenter import release_claims
    from reconciler.adapters.kubernetes.nodes import release_nodes

    released, copies = set[str](), set[str]()
    for _ in range(_ROUNDS):
        found = release_nodes(api)
        copied = release_claims(api)
        copies.update(copied)
        if not found and not copied:
            print(f"Removed the finalizer from {len(released)} nodes of {api.access}.")
            if copies:
                print(f"Removed {len(copies)} NodeClaims that showed them.")
            return exitcode.DONE
        released.update(found)
        clock.wait(request.settle.total_seconds(), lambda: False)
    raise _still_running_error(found or copied)


def _confirm(api: Api) -> bool:
    """Ask whether to change the Nodes; only ``yes`` confirms.

    Raises:
        UsageError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for approval, because stdin is not a terminal",
            where="uninstall",
            remedy="pass --auto-approve",
        )
    print(f"Remove the finalizer of reconciler from every Node of {api.access}? Stop its daemon")
    print("first. Only `yes` is accepted: ", end="", flush=True)
    if sys.stdin.readline().strip() == "yes":
        return True
    print("Cancelled. Nothing was changed.")
    return False


def _still_running_error(nodes: list[str]) -> Exception:
    return ClusterError(
        f"the finalizer keeps coming back, now on {nodes[0]}: a daemon is still running",
        remedy="stop every `reconciler run` of this cluster, and repeat the command",
    )
