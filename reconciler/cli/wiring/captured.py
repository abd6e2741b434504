"""The inputs of a plan from a snapshot that contains the records of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.desired.settings.layers import Resolved
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.records import FleetRecords
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.observed.snapshot import Snapshot
    from reconciler.plan.make.inputs import Inputs


@dataclass(frozen=True)
class Captured:
    """A snapshot with the records in it."""

    snapshot: Snapshot
    records: FleetRecords

    def inputs(self, desired: PlannedFleet, now: datetime) -> Inputs:
        """Return the inputs of a plan: the engine's observation of the captured facts."""
        import msgspec

        from reconciler.adapters.kubernetes.cluster import Onlooker
        from reconciler.adapters.simulated.captured import CapturedCluster, CapturedCompute
        from reconciler.adapters.simulated.conditions import SimulatedClock
        from reconciler.adapters.simulated.memory import MemoryJournal, MemoryStateStore
        from reconciler.cli.shared.watching import Silence
        from reconciler.cli.wiring.assembly import observed
        from reconciler.engine.records import restore
        from reconciler.engine.world import World

        records, store, journal = self.records, MemoryStateStore(), MemoryJournal()
        restore(records, self.snapshot.node_claims, store, journal)
        compute = CapturedCompute([i.instance for i in records.instances])
        cluster = Onlooker(CapturedCluster(self.snapshot))
        world = World(SimulatedClock(now), compute, cluster, store, journal, Silence())
        seen = observed(world, desired, desired.settings)
        seen = with_fields(seen, findings=(*records.findings, *seen.findings))
        facts = desired.inputs(
            seen, store.unavailable(seen.at), store.objects(), self.records.serial
        )
        return msgspec.structs.replace(
            facts, observation="snapshot", observed=desired.evidence(seen)
        )


def captured(snapshot: Snapshot) -> Captured | None:
    """Return the snapshot with its records, None if it was captured without any.

    Raises:
        UnreadableError: they are not records of this release.
    """
    if snapshot.records is None:
        return None
    from reconciler.engine.records import read_records

    return Captured(snapshot, read_records(snapshot.records))


def settings_for(records: FleetRecords, resolved: Resolved, place: str) -> Settings:
    """Return the settings with the name of the fleet that the records belong to.

    If no setting names the fleet, the captured name is used: a checkout in CI is often in a folder
    with another name.

    Raises:
        UsageError: the settings name another fleet.
    """
    from reconciler.desired.settings.layers import DEFAULT
    from reconciler.model.errors import UsageError

    settings = resolved.settings
    if settings.fleet != records.fleet and resolved.origins["fleet"] != DEFAULT:
        raise UsageError(
            f"the snapshot has the records of fleet {records.fleet[:80]!r}, "
            f"but this is fleet {settings.fleet!r}",
            where=place,
            remedy="pass the snapshot of this fleet, or --set fleet=NAME",
        )
    return with_fields(settings, fleet=records.fleet)


def classes_of(
    classes: Mapping[str, EC2NodeClass], snapshot: Snapshot
) -> Mapping[str, EC2NodeClass]:
    """Return node classes with what was found for them when the snapshot was captured."""
    import msgspec

    from reconciler.model.decode import decode
    from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus

    live = {
        o["metadata"]["name"]: o["status"]
        for o in snapshot.live
        if o.get("kind") == "EC2NodeClass" and o.get("status")
    }
    return {
        name: msgspec.structs.replace(known, status=decode(live[name], EC2NodeClassStatus))
        if name in live and known.status == EC2NodeClassStatus()
        else known
        for name, known in classes.items()
    }
