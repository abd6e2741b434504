"""Captures a fleet, or a cluster without one, as the objects of a snapshot, and plans from them.

On request, names are removed. A snapshot of a fleet contains the engine's records, so a plan made
from it equals the plan of the running fleet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from reconciler.adapters.database.location import may_exist
from reconciler.assembly.inputs import records, sources
from reconciler.assembly.inputs.files import CATALOG_BYTES_MAX, read_bytes
from reconciler.assembly.inputs.records import state_location
from reconciler.assembly.inputs.sources import read_source
from reconciler.desired.fleet import read_fleet
from reconciler.desired.settings.layers import DEFAULT
from reconciler.engine.ownership import foreign_findings, unread_claims_finding
from reconciler.engine.steps.lifecycle import PODS_SEEN, pods_digest
from reconciler.model.decode import decode_json
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.json import JsonDict
from reconciler.model.ownership import FLEET_TAG
from reconciler.model.settings import ClusterKind, DecisionRules
from reconciler.model.text.quoting import quote_value
from reconciler.observed.snapshot import CAPTURE_KIND, read_snapshot

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.kubernetes.api import Api
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.desired.settings.layers import Resolved
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.records import FleetRecords
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.observed.anonymization import Anonymizer
    from reconciler.observed.snapshot import Snapshot
    from reconciler.plan.make.inputs import Inputs

KEY_VARIABLE: Final = "RECONCILER_ANONYMIZE_KEY"

_VERSIONS: Final = {
    "NodeClaim": "karpenter.sh/v1",
    "EC2NodeClass": "karpenter.k8s.aws/v1",
}


def read_key() -> bytes | None:
    """Return the key of the environment, None without one.

    Raises:
        UsageError: it is too short to keep names secret.
    """
    from reconciler.observed.anonymization import KEY_BYTES_MIN

    text = os.environ.get(KEY_VARIABLE)
    if text is None:
        return None
    key = text.strip().encode()
    if len(key) < KEY_BYTES_MIN:
        raise UsageError(
            f"the key has {len(key)} bytes, fewer than {KEY_BYTES_MIN}",
            where=KEY_VARIABLE,
            remedy="use the output of `openssl rand -hex 32`, or unset it for a random key",
        )
    return key


def anonymize_objects(
    items: Iterable[object], fleet: FleetRequest, *, has_fleet: bool
) -> Sequence[JsonDict]:
    """Return captured objects without names, as ``anonymize_lists`` does it.

    Raises:
        UsageError: the key is too short.
        ReconcilerError: the fleet cannot be read.
    """
    (found,), _ = anonymize_lists([items], fleet, has_fleet=has_fleet)
    return found


def anonymize_lists(
    lists: Iterable[Iterable[object]],
    fleet: FleetRequest,
    *,
    has_fleet: bool,
    names: Iterable[str] = (),
) -> tuple[list[list[JsonDict]], Anonymizer]:
    """Return lists of captured objects without names, as ``observed.anonymization`` describes.

    Names in the files of the fleet are kept; without files, those of NodePools, NodeOverlays and
    EC2NodeClasses of the cluster, and the labels that the first two name. The result also has
    what replaces further ``names`` alike.

    Raises:
        UsageError: the key is too short.
        ReconcilerError: the fleet cannot be read.
    """
    import msgspec

    from reconciler.desired.nodehashes import carry_hashes
    from reconciler.observed.anonymization import Anonymizer
    from reconciler.observed.vocabulary import (
        numeric_label_keys,
        vocabulary_of,
        vocabulary_of_cluster,
    )

    key = read_key()
    snapshots = [
        read_snapshot(
            msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(items)}),
            "the captured objects",
        )
        for items in lists
    ]
    plain = [
        [decode_json(msgspec.json.encode(item), JsonDict) for item in objects_of_snapshot(snapshot)]
        for snapshot in snapshots
    ]
    objects = list(chain.from_iterable(plain))
    catalog = _custom_catalog(fleet)
    vocabulary = (
        vocabulary_of(_configuration_objects(fleet), catalog)
        if has_fleet
        else vocabulary_of_cluster(objects, catalog)
    )
    anonymizer = Anonymizer(
        key or os.urandom(32),
        vocabulary,
        numeric_label_keys(objects),
        in_order=key is None,
    )
    found = anonymizer.lists(plain, names)
    for items, snapshot in zip(found, snapshots, strict=True):
        _update_pod_digests(items, snapshot, anonymizer)
    if not has_fleet:
        carry_hashes(list(chain.from_iterable(found)), objects)
    return found, anonymizer


def _update_pod_digests(
    objects: Iterable[JsonDict], snapshot: Snapshot, anonymizer: Anonymizer
) -> None:
    """Replace the digest of the old pod names in NodeClaims with that of the new names.

    Otherwise the pods of every node would seem to have just changed, which defers consolidation.
    """
    nodes = {n.spec.provider_id: n.name for n in snapshot.nodes if n.spec.provider_id}
    holding = snapshot.indexed_pods.workload_names
    digests: dict[tuple[str, str], str] = {}
    for claim in snapshot.node_claims:
        pods = holding.get(nodes.get(claim.status.provider_id, ""), ())
        renamed = pods_digest(map(anonymizer.name, pods))
        digests[anonymizer.name(claim.name), pods_digest(pods)] = renamed
    for item in objects:
        if item["kind"] == "NodeClaim":
            name = item["metadata"]["name"]
            for condition in item.get("status", {}).get("conditions", ()):
                if condition["type"] == PODS_SEEN:
                    # of other pods: the digest still differs, and reveals nothing
                    condition["reason"] = digests.get((name, condition["reason"]), "other-pods")


def _configuration_objects(request: FleetRequest) -> list[JsonDict]:
    source = read_source(request)
    fleet, _ = read_fleet(
        source.files,
        unread=source.findings,
        any_class=True,
        allow_empty=True,
        karpenter=source.karpenter,
    )
    settings = {**fleet.config, "kind": "Configuration"}
    return [settings, *(resource.data for resource in fleet.resources)]


def _custom_catalog(request: FleetRequest) -> object:
    """Return the JSON of the user's own catalog, None without one."""
    import msgspec

    if request.catalog is None:
        return None
    try:
        found: object = decode_json(read_bytes(request.catalog, CATALOG_BYTES_MAX))
    except msgspec.DecodeError as error:
        raise UnreadableError(
            f"not JSON: {error}", where=request.catalog, remedy="pass a catalog in JSON"
        ) from error
    return found


def objects_of_fleet(request: FleetRequest) -> list[Any]:
    """Return the inputs of a plan of a fleet: its cluster, its NodeClaims, its records.

    Objects are reduced to the fields that decisions read, so environments and mounted files are
    omitted.

    Raises:
        ReconcilerError: EC2, the cluster or the state could not be read.
    """
    import msgspec

    from reconciler.assembly.assembly import observe_fleet
    from reconciler.engine.records import fleet_records

    source = sources.read_source(request)
    fleet, _ = sources.read_desired(source, any_class=True, allow_empty=True)
    beside = beside_karpenter(request, sources.settings_of(request, fleet)) or BesideKarpenter()
    if beside.objects is not None:
        return beside.objects
    found = observe_fleet(request, source=source)
    if found.settings.cluster == "none":
        raise _no_cluster_error()
    seen, desired, world = found.seen, found.desired, found.world
    facts = found.inputs()
    snapshot = replace(seen.snapshot, node_claims=seen.before.node_claims)
    records = fleet_records(
        world.store, world.journal, seen, found.settings.fleet, found.serial, facts.memory
    )
    classes = [_node_class_object(c) for c in desired.classes.values()]
    if beside.foreign or beside.findings:
        records = msgspec.structs.replace(
            records,
            foreign=tuple(sorted(claim["metadata"]["name"] for claim in beside.foreign)),
            findings=(*records.findings, *beside.findings),
        )
    others = [*beside.foreign, *beside.node_pools]
    return [*_api_objects(snapshot), *others, *classes, records]


def _node_class_object(node_class: EC2NodeClass) -> dict[str, Any]:
    """Return the status of a node class, and the selectors that it was looked up for."""
    import msgspec

    from reconciler.diff.nodeclass import selectors_of

    return {
        "apiVersion": _VERSIONS["EC2NodeClass"],
        "kind": "EC2NodeClass",
        "metadata": {"name": node_class.name},
        "spec": selectors_of(node_class),
        "status": msgspec.to_builtins(node_class.status),
    }


def _no_cluster_error() -> UsageError:
    return UsageError(
        "no cluster is configured",
        where="cluster",
        remedy="use --set cluster=kubeconfig, and --context to choose one",
    )


def _api_objects(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the objects of a snapshot in API form."""
    import msgspec

    from reconciler.adapters.kubernetes.kinds import OBSERVED
    from reconciler.desired.migration.captured import without_environments

    versions = {kind.kind: kind.api_version for kind in OBSERVED} | _VERSIONS
    for kind, item in snapshot.objects():
        data = {"apiVersion": versions[kind], "kind": kind, **msgspec.to_builtins(item)}
        yield without_environments(data)


def objects_of_snapshot(snapshot: Snapshot) -> Iterator[object]:
    """Yield all objects of a snapshot, without the fields that no decision reads."""
    from reconciler.engine.records import API_VERSION

    yield from _api_objects(snapshot)
    yield from snapshot.live
    yield from snapshot.other_classes
    if snapshot.records is not None:
        yield decode_json(snapshot.records.content)
    if snapshot.captured_at is not None:
        at = snapshot.captured_at
        yield {"apiVersion": API_VERSION, "kind": CAPTURE_KIND, "at": at}


def objects_of_cluster(request: FleetRequest) -> list[Any]:
    """Return the objects of the cluster that the kubeconfig names, Karpenter's among them.

    Kinds that the cluster does not have are omitted.

    Raises:
        ClusterError: the cluster could not be read.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.assembly.cluster import api_of

    api = api_of(records.settings_of(request).settings, SystemClock())
    return _objects_behind(api, request)


def _objects_behind(api: Api, request: FleetRequest) -> list[Any]:
    """Return the objects of a cluster, the node classes of every provider among them.

    They have no environments: they may be written to a file.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.adapters.kubernetes.api import read_objects
    from reconciler.adapters.kubernetes.kinds import NODE_POOL, OBSERVED, OF_KARPENTER
    from reconciler.adapters.kubernetes.nodeclasses import other_node_classes
    from reconciler.desired.migration.captured import without_environments
    from reconciler.engine.records import API_VERSION

    at = (request.now or SystemClock().now()).astimezone(UTC)
    capture = {"apiVersion": API_VERSION, "kind": CAPTURE_KIND, "at": at}
    objects = [
        without_environments(item)
        for kind in (*OBSERVED, *OF_KARPENTER)
        for item in read_objects(api, kind)
    ]
    pools = [item for item in objects if item["kind"] == NODE_POOL.kind]
    return [*objects, *other_node_classes(api, pools), capture]


@dataclass(frozen=True, slots=True)
class BesideKarpenter:
    """A cluster in which Karpenter has nodes.

    ``objects`` are those of the cluster, to plan from; None if this fleet has recorded NodeClaims
    of its own. Then ``foreign`` are the NodeClaims of others, ``node_pools`` the NodePools of the
    cluster, and ``findings`` name them.
    """

    objects: list[Any] | None = None
    foreign: tuple[JsonDict, ...] = ()
    node_pools: tuple[JsonDict, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def beside_karpenter(request: FleetRequest, resolved: Resolved) -> BesideKarpenter | None:
    """Return the cluster if Karpenter decides there, or has nodes there; None otherwise.

    Where Karpenter decides by our settings, or where this fleet has recorded no NodeClaim, the
    nodes of the cluster are the fleet. Otherwise the recorded NodeClaims are.

    Raises:
        ClusterError: the cluster could not be read.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.adapters.kubernetes.api import FORBIDDEN, ApiError, read_objects
    from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, NODE_POOL
    from reconciler.assembly.cluster import api_of

    settings = resolved.settings
    if settings.cluster != ClusterKind.KUBECONFIG:
        return None
    api = api_of(settings, SystemClock())
    if settings.decide is DecisionRules.KARPENTER:
        return BesideKarpenter(_objects_behind(api, request))
    recorded = _recorded_provider_ids(request, resolved)
    try:
        foreign = tuple(c for c in read_objects(api, NODE_CLAIM) if _is_foreign(c, recorded))
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return BesideKarpenter(findings=(unread_claims_finding(error.message),))
    if not foreign:
        return None
    if not recorded:
        return BesideKarpenter(_objects_behind(api, request))
    pools = tuple(read_objects(api, NODE_POOL))
    return BesideKarpenter(None, foreign, pools, foreign_findings(foreign))


def _is_foreign(claim: JsonDict, recorded: frozenset[str]) -> bool:
    """Return whether a NodeClaim of the cluster is neither a copy of ours nor adopted by us."""
    is_copy = FLEET_TAG in (claim["metadata"].get("labels") or {})
    return not is_copy and (claim.get("status") or {}).get("providerID", "") not in recorded


def _recorded_provider_ids(request: FleetRequest, resolved: Resolved) -> frozenset[str]:
    """Return the instances of the recorded NodeClaims; empty without a recorded state."""
    from reconciler.adapters.database.state import open_state

    location = state_location(request.path, resolved)
    if not may_exist(location):
        return frozenset()
    with open_state(location, resolved.settings.fleet, create=False) as state:
        return frozenset(c.status.provider_id for c in state.store.node_claims())


@dataclass(frozen=True)
class CapturedFleet:
    """A snapshot with the records in it."""

    snapshot: Snapshot
    records: FleetRecords

    def inputs(self, desired: PlannedFleet, now: datetime) -> Inputs:
        """Return the inputs of a plan: the engine's observation of the captured facts."""
        import msgspec

        from reconciler.adapters.kubernetes.cluster import ReadOnlyCluster
        from reconciler.adapters.simulated.captured import CapturedCluster, CapturedCompute
        from reconciler.adapters.simulated.conditions import SimulatedClock
        from reconciler.adapters.simulated.memory import MemoryJournal, MemoryStateStore
        from reconciler.assembly.assembly import observe_world
        from reconciler.assembly.inputs.watching import NullNotifier
        from reconciler.engine.records import restore
        from reconciler.engine.world import World

        records, store, journal = self.records, MemoryStateStore(), MemoryJournal()
        restore(records, self.snapshot.node_claims, store, journal)
        compute = CapturedCompute(records.instances)
        cluster = ReadOnlyCluster(CapturedCluster(self.snapshot))
        world = World(
            SimulatedClock(now),
            compute,
            cluster,
            store,
            journal,
            NullNotifier(),
            allows_karpenter=desired.settings.kube_allow_karpenter,
        )
        seen = observe_world(world, desired, desired.settings)
        seen = replace(seen, findings=(*records.findings, *seen.findings))
        facts = desired.inputs(
            seen, store.unavailable(seen.at), store.objects(), self.records.serial
        )
        return msgspec.structs.replace(
            facts, observation="snapshot", observed=desired.evidence(seen)
        )


def captured_fleet(snapshot: Snapshot) -> CapturedFleet | None:
    """Return the snapshot with its records, None if it was captured without any.

    Raises:
        UnreadableError: they are not records of this release.
    """
    if snapshot.records is None:
        return None
    from reconciler.engine.records import read_records

    records = read_records(snapshot.records)
    ours = tuple(c for c in snapshot.node_claims if c.name not in records.foreign)
    return CapturedFleet(replace(snapshot, node_claims=ours), records)


def settings_for(records: FleetRecords, resolved: Resolved) -> Settings:
    """Return the settings with the name of the fleet that the records belong to.

    If no setting names the fleet, the captured name is used: a checkout in CI is often in a folder
    with another name.

    Raises:
        UsageError: the settings name another fleet.
    """
    settings = resolved.settings
    if settings.fleet != records.fleet and resolved.origins["fleet"] != DEFAULT:
        raise UsageError(
            f"the snapshot has the records of fleet {quote_value(records.fleet, 80)}, "
            f"but this is fleet {quote_value(settings.fleet)}",
            where="--snapshot",
            remedy="pass the snapshot of this fleet, or --set fleet=NAME",
        )
    return replace(settings, fleet=records.fleet)
