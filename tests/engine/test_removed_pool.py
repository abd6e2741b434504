"""Nodes of a NodePool that was removed from git stay, and the log, status and page say so."""

from __future__ import annotations

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.web.view import fleet_view
from tests.engine.world import TAGS, a_deployment, a_pool, a_world

KEPT = (
    "NodePool old was removed from git: 1 node stays until `--allow-removal old` allows the removal"
)


def test_the_log_and_the_page_say_once_that_nodes_wait_for_a_permission() -> None:
    world = a_world(
        a_pool("web"), a_pool("old"), a_deployment("web", "web", 1), a_deployment("old", "old", 1)
    )
    world.converge()
    instances = world.instances()
    world.git.commit(*(i for i in world.git.objects if i["metadata"]["name"] != "old"))
    engine = world.engine()
    passes: list[object] = []
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=1.0, quiet=30.0),
        stop=lambda: len(passes) >= 4,
        next_change=lambda _: None,
        observed=passes.append,
    )
    assert world.instances() == instances
    assert world.recorder.messages("AwaitingApproval") == [KEPT]
    assert fleet_view(engine.source.read(), engine.run_once()).removals == (KEPT,)

    world.git.allow_removal = frozenset({"old"})
    done = world.converge()
    assert len(world.instances()) == 1
    assert fleet_view(engine.source.read(), done).removals == ()
