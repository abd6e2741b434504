"""The NodeOverlays that express a fleet's preferences and commitments.

They are written once as files of a folder, or repeatedly for a Karpenter that launches the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reconciler.adapters.writing import make_folder, write_file
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.timings import current_time
from reconciler.assembly.inputs.watching import stop_on_signal
from reconciler.catalog.commitments.overlays import document
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.errors import ReconcilerError, UnreadableError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.times import timestamp
from reconciler.model.text.visible import one_line
from reconciler.source.plainyaml import dump

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reconciler.adapters.kubernetes.api import Api
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.commitments.overlays import DesiredOverlay
    from reconciler.desired.fleet import Fleet
    from reconciler.model.karpenter.nodepool import NodePool
    from reconciler.model.settings import Settings
    from reconciler.observed.snapshot import Snapshot
    from reconciler.ports.clock import Clock

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
"""A name of a Kubernetes object (RFC 1123), which is also a safe name of a file."""


@dataclass(frozen=True, slots=True)
class FleetOverlays:
    """The overlays that a fleet should have, and what is wrong with annotations or commitments."""

    fleet: str
    wanted: Sequence[DesiredOverlay]
    findings: Sequence[PlanFinding]


def settings_of(request: FleetRequest) -> Settings:
    """Return the effective settings of the fleet that the request names."""
    return sources.settings_of(request, _fleet(request)).settings


def desired_overlays(
    request: FleetRequest, api: Api | None, *, disabled: bool = False
) -> FleetOverlays:
    """Return the overlays of the fleet that the request names.

    Nodes use commitments. They are those of the cluster behind ``api``, else those of
    ``--snapshot``; without either no node does. NodePools come from git; where git has none, from
    the cluster.

    Raises:
        ReconcilerError: an input cannot be read, or is wrong.
    """
    from reconciler.assembly.comparison import read_types
    from reconciler.catalog.commitments.overlays import fleet_overlays
    from reconciler.desired.objects import node_overlays, node_pools
    from reconciler.observed.identity import identify_nodes
    from reconciler.observed.state import cluster_state
    from reconciler.plan.make.costs import commitment_coverage, commitment_findings
    from reconciler.plan.make.pools import preference_overlays

    fleet = _fleet(request)
    resolved = sources.settings_of(request, fleet)
    settings = resolved.settings
    snapshot = identify_nodes(_snapshot(request, api)).snapshot
    live_pools = _pools(snapshot)
    pools = node_pools(fleet) or tuple(live_pools)
    preferences, findings = preference_overlays(pools, {o.name for o in node_overlays(fleet)})
    coverage = None
    if settings.commitments is not None:
        catalog = read_types(request, resolved, fleet.lock)
        coverage = commitment_coverage(
            settings, cluster_state(snapshot), catalog, current_time(request.now)
        )
    if coverage is not None:
        findings += commitment_findings(coverage)
    owners = {pool.name: pool.metadata.uid for pool in live_pools if pool.metadata.uid}
    covers = coverage.covers if coverage is not None else ()
    wanted = fleet_overlays(preferences, covers, settings.fleet, owners=owners, disabled=disabled)
    for item in wanted:
        _expect_valid_name(item.overlay.name, item.reason)
    return FleetOverlays(settings.fleet, wanted, findings)


def _expect_valid_name(name: str, reason: str) -> None:
    """Refuse a name that could lead elsewhere as a part of a path.

    Raises:
        UsageError: Kubernetes does not allow the name.
    """
    if _NAME.fullmatch(name) is None:
        from reconciler.model.errors import UsageError

        raise UsageError(
            f"the NodeOverlay would have the invalid name {quote_value(name, 80)}",
            where=reason[:80],
            remedy="correct the instance type, family, zone or NodePool that it contains",
        )


def _fleet(request: FleetRequest) -> Fleet:
    return sources.desired_fleet(request, any_class=True, allow_empty=True)


def _snapshot(request: FleetRequest, api: Api | None) -> Snapshot:
    from reconciler.observed.snapshot import Snapshot, read_snapshot

    if api is not None:
        return read_snapshot(_list_cluster(api), str(api.access))
    if request.snapshot is not None:
        from reconciler.assembly.snapshots import read_snapshot_at

        return read_snapshot_at(request.snapshot, request)
    return Snapshot()


def _list_cluster(api: Api) -> bytes:
    """Return the nodes and the NodePools of a cluster as a List."""
    import msgspec

    from reconciler.adapters.kubernetes.api import read_objects
    from reconciler.adapters.kubernetes.kinds import NODE, NODE_POOL

    items = [item for kind in (NODE, NODE_POOL) for item in read_objects(api, kind)]
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})


def _pools(snapshot: Snapshot) -> Iterable[NodePool]:
    """Return the NodePools of a cluster, with only their metadata."""
    from reconciler.model.decode import decode
    from reconciler.model.karpenter.nodepool import NodePool

    return [
        decode({"metadata": item["metadata"]}, NodePool)
        for item in snapshot.live
        if item["kind"] == "NodePool"
    ]


HEAD: Final = "# Generated by `reconciler overlays`. Changes are overwritten.\n"


def write_files(wanted: Iterable[DesiredOverlay], folder: str) -> dict[str, list[str]]:
    """Write the generated files of a folder, and remove those that are no longer wanted.

    Returns:
        The names of the files that were ``written``, ``removed`` and left ``unchanged``.

    Raises:
        UnreadableError: the folder cannot be written, or a file in it is not a generated one; then
            nothing is written.
    """
    contents = {
        f"{one.overlay.name}.yaml": HEAD + dump(document(one.overlay), sort_keys=False)
        for one in wanted
    }
    make_folder(folder, remedy="pass a folder to write to")
    home = Path(folder)
    try:
        present = {
            path.name: path.read_text(encoding="utf-8", errors="replace")
            for path in home.glob("*.yaml")
        }
        for name in sorted(contents.keys() & present.keys()):
            if not present[name].startswith(HEAD):
                raise UnreadableError(
                    "the file was not generated by this command",
                    where=str(home / name),
                    remedy="move it away, or pass another folder to --out",
                )
        generated = {name for name, text in present.items() if text.startswith(HEAD)}
        done = {
            "written": sorted(n for n in contents if present.get(n) != contents[n]),
            "removed": sorted(generated - contents.keys()),
            "unchanged": sorted(n for n in contents if present.get(n) == contents[n]),
        }
        for name in done["written"]:
            write_file(str(home / name), contents[name].encode())
        for name in done["removed"]:
            (home / name).unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise UnreadableError(why, where=folder, remedy="pass a folder to write to") from error
    return done


Round = Callable[[], tuple[list[str], list[str]]]
"""Writes once; returns the changes and the problems."""


def repeat(write: Round, interval: timedelta, clock: Clock) -> None:
    """Write at every interval until a signal.

    Every change is printed. A problem is printed when it begins and when it has ended. A failed
    round does not affect the next one.
    """
    known: list[str] = []
    with stop_on_signal() as is_stopped:
        while not is_stopped():
            try:
                changed, problems = write()
            except ReconcilerError as error:
                changed, problems = [], [str(error)]
            for line in changed:
                _log(clock, "info", line)
            for line in problems:
                if line not in known:
                    _log(clock, "warning", line)
            for line in known:
                if line not in problems:
                    _log(clock, "info", f"no longer: {line}")
            known = problems
            clock.wait(interval.total_seconds(), is_stopped)


def _log(clock: Clock, level: str, text: str) -> None:
    print(one_line(f"{timestamp(clock.now())} {level} {text}"), flush=True)
