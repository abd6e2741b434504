"""What a change costs, by simulating it: the base until nothing is left to do, then the head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from reconciler.cli.simulation.report import DRAINING
from reconciler.model.duration import iso_duration
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.plan.make.costs import money
from reconciler.plan.value.costs import HOURS_A_MONTH, AtRest, FleetAtRest, StuckNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reconciler.catalog.catalog import Catalog
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.simulation.report import Report
    from reconciler.observed.snapshot import Snapshot

PASSES_MAX: Final = 2_000
"""The maximum number of passes of both sides; most changes take less than a hundred."""


@dataclass(frozen=True)
class SimulatedChange:
    """The change that a request with ``--base`` asks about, ready to be simulated.

    It starts at ``now`` from the ``snapshot``, or from no nodes where that is None.
    """

    request: FleetRequest
    now: datetime
    snapshot: Snapshot | None
    catalog: Catalog
    base_catalog: Catalog

    def __call__(self, *, has_effect: bool) -> AtRest | None:
        """Return what the change costs (``plan.make.inputs.ChangeSimulation``)."""
        from reconciler.cli.simulation.building import KnownInputs, built, read_simulation
        from reconciler.cli.simulation.driver import EndlessError
        from reconciler.cli.simulation.scenes import played
        from reconciler.cli.simulation.script import Script
        from reconciler.plan.make.decide import untimed

        request = replace(self.request, now=self.now)
        known = KnownInputs(self.snapshot, self.catalog, self.base_catalog)
        setting = built(read_simulation(request, untimed, known), Script())
        if not has_effect:
            setting = replace(setting, head=setting.base or setting.head)
        try:
            report = played(setting, None, passes_max=PASSES_MAX)
        except EndlessError:
            return None
        return at_rest_of(report)


def at_rest_of(report: Report) -> AtRest | None:
    """Return the cost of the change that was played, None if a side did not come to rest."""
    merge = report.merge
    if merge is None or not merge.base_converged or not report.converged:
        return None
    had = {life.node_claim for life in report.nodes if life.launched_at is None}
    has = {claim.node_claim for claim in report.fleet}
    change = money([merge.after, -merge.before])
    return AtRest(
        before=FleetAtRest(nodes=len(had), per_hour=merge.before),
        after=FleetAtRest(nodes=len(has), per_hour=merge.after),
        per_hour=change,
        per_month=money([change * HOURS_A_MONTH]),
        unschedulable=tuple(sorted(s.name for s in report.stuck if s.kind == "Pod")),
        replaced=min(len(had - has), len(has - had)),
        rollout=iso_duration(_last_action(report) - report.started_at),
        stuck=tuple(_stuck(report)),
    )


def _last_action(report: Report) -> datetime:
    """Return when the last node was ready or gone."""
    moments = (at for life in report.nodes for at in (life.ready_at, life.gone_at))
    return max([report.started_at, *(at for at in moments if at is not None)])


def _stuck(report: Report) -> Iterator[StuckNode]:
    """Yield the nodes that are still drifted or draining, by NodeClaim, with the reason to go."""
    nodes = {claim.node_claim: claim.node for claim in report.fleet}
    found = {s.name: s for s in reversed(report.stuck) if s.kind == "NodeClaim"}
    for name in sorted(found):
        one = found[name]
        yield StuckNode(
            node_claim=name,
            node=nodes.get(name) or None,
            node_pool=one.node_pool,
            reason=one.reason if one.reason == DRAINING else DisruptionReason.DRIFTED.value,
            message=one.message,
        )
