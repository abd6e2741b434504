"""The Events about repairs that wait, as Karpenter names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import timedelta

from reconciler.ports.cluster import Announcement
from tests.engine.test_reboot import _break, _fleet
from tests.engine.world import Engine


@dataclass
class _Events:
    """Keeps what is announced."""

    kept: list[Announcement] = field(default_factory=list)

    def announce(self, announcements: Sequence[Announcement]) -> None:
        self.kept += announcements


def test_a_repair_that_waits_is_reported_on_the_node_its_claim_and_its_pool() -> None:
    world, faults = _fleet(budget="5")
    _break(world, faults)
    for claim in sorted(world.claims.values(), key=lambda c: c.name)[:2]:
        faults.broken[claim.status.provider_id] = ("*", world.clock.now() - timedelta(minutes=20))
    engine, events = world.engine(), _Events()

    Engine(with_fields(engine.ports, announcer=events), engine.source).run_once()

    found = [e for e in events.kept if e.reason == "NodeRepairBlocked"]
    assert {e.kind for e in found} == {"Node", "NodeClaim", "NodePool"}
    assert all(e.is_warning and "20% nodes are unhealthy" in e.message for e in found)
    assert {e.name for e in found if e.kind == "NodeClaim"} <= world.claims.keys()
