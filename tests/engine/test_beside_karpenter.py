"""While Karpenter runs in the same cluster, nothing is launched, disrupted or terminated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reconciler.engine.ownership import KARPENTER, UnknownInstancesError
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from tests.engine.world import Engine, World, a_deployment, a_pool, a_world


def karpenter() -> dict[str, Any]:
    made = a_deployment("karpenter", "elsewhere", 1)
    labels = {"app": "karpenter", "app.kubernetes.io/name": "karpenter"}
    made["spec"]["template"]["metadata"]["labels"] = labels
    return made


def a_guarded_engine(world: World, *, allows: bool = False) -> Engine:
    engine = world.engine()
    return Engine(replace(engine.ports, allows_karpenter=allows), engine.source)


def run_once(engine: Engine) -> Pass:
    return reconcile(engine.ports, engine.source.read(), Mandate(engine.tags))


@pytest.mark.parametrize(("allows", "launched"), [(False, 0), (True, 1)])
def test_nothing_is_launched_unless_the_operator_allows_it(allows: bool, launched: int) -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1), karpenter())
    done = run_once(a_guarded_engine(world, allows=allows))
    assert len(world.instances()) == launched
    found = [d for d in done.plan.diagnostics if d.code == KARPENTER]
    assert bool(found) is not allows
    if found:
        assert "pod default/karpenter-" in found[0].message
        assert "kubernetes.allowKarpenter=true" in (found[0].hint or "")


def test_apply_ends_with_an_error_that_says_what_to_do() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1), karpenter())
    engine = a_guarded_engine(world)
    with pytest.raises(UnknownInstancesError, match="Karpenter runs in this cluster") as caught:
        engine.converge()
    assert "scale Karpenter to zero" in caught.value.remedy
    assert world.instances() == {}


def test_a_running_fleet_stays_as_it_is_until_karpenter_is_gone() -> None:
    web = a_deployment("web", "web", 1)
    world = a_world(a_pool("web"), web)
    world.converge()
    kept = world.instances()
    only_class = world.git.objects[0]
    world.git.commit(only_class, a_pool("web"), karpenter())
    engine = a_guarded_engine(world)
    for _ in range(3):
        run_once(engine)
        world.clock.advance(60)
    assert world.instances() == kept, "its empty node stays"
    world.git.commit(only_class, a_pool("web"))
    engine.converge()
    assert world.instances() == {}
