"""What packing keeps of a catalog: computed once, bounded, and separate for each catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import settings as how_often
from hypothesis import strategies as st

from reconciler.model.karpenter.requirements import Operator, Requirements, requirement
from reconciler.model.kubernetes.pod import HostPort
from reconciler.model.resources import CPU, MEMORY
from reconciler.model.settings import Packing, Settings
from reconciler.placement.nodes.space import Demand
from reconciler.placement.nodes.template import PoolTemplate, RemainingLimits
from reconciler.placement.packing.filling import Filler
from reconciler.placement.packing.goal import Effort, Goal
from reconciler.placement.packing.known import KnownPackings, PackingQuestion, packing_cache
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import AnswerCache, PackingMarket
from reconciler.placement.pods.cohort import CohortStage
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    ZONE,
    Object,
    a_daemon_set,
    a_pool,
    a_scheduler,
    placed,
    plan_of,
    wanted,
)
from tests.placement.test_laws import thorough
from tests.placement.test_packing import UNEVEN
from tests.placement.worlds import worlds


def test_an_equal_question_is_answered_once() -> None:
    known: AnswerCache[int] = AnswerCache()
    requested: list[str] = []
    for question in ("a", "b", "a"):
        known.get_or_compute(question, lambda: requested.append("computed") or len(requested))
    assert len(requested) == 2
    assert known.get_or_compute("a", lambda: 9) == 1


def test_answers_are_forgotten_before_they_are_too_many() -> None:
    known: AnswerCache[int] = AnswerCache(size_max=3)
    for number in range(10):
        known.get_or_compute(number, lambda: number)  # noqa: B023 - called at once
    assert len(known) <= 3


def packed(objects: list[Object]) -> Object:
    return plan_of(placed(objects, types=UNEVEN, packing=Packing.CHEAPEST))


def packed_afresh(objects: list[Object]) -> Object:
    packing_cache.cache_clear()
    return packed(objects)


@given(st.lists(worlds(), min_size=2, max_size=4))
@how_often(thorough, max_examples=examples(40))
def test_known_packings_change_no_result(found: list[list[Object]]) -> None:
    alone = [packed_afresh(world) for world in found]
    packing_cache.cache_clear()
    assert [packed(world) for world in (*found, *found)] == alone * 2


SPOT = (wanted(CAPACITY_TYPE, "In", "spot"),)


@dataclass(frozen=True)
class Packed:
    """A packing of units of two kinds in one NodePool; ``ports`` are a rule about other pods."""

    requests: dict[str, int] = field(default_factory=lambda: {CPU: 1500, MEMORY: 4096})
    units: int = 5
    capacity_types: tuple[str, ...] = ("spot",)
    is_tolerant: bool = True
    requirements: tuple[Object, ...] = SPOT
    limits: Mapping[str, str] = field(default_factory=dict)
    daemon: str = "100m"
    node_cost: float = 0.0
    values: tuple[float, float] = (1.0, 0.0)
    least: int = 100
    ceiling: float = 3.0
    ports: tuple[HostPort, ...] = ()

    def question(self) -> PackingQuestion | None:
        """Return the question whose packing may be known."""
        pool = a_pool("default", *self.requirements, limits=self.limits)
        scheduler, cluster = a_scheduler([pool, a_daemon_set("agent", self.daemon)], types=UNEVEN)
        template = scheduler.template("default")
        assert template is not None
        settings = Settings(per_node_cost=self.node_cost)
        limits = RemainingLimits([template], cluster.nodes, ())
        market = PackingMarket((CPU, MEMORY), limits, Goal.from_settings(settings), [template])
        lots = [
            self._lot(market, 0, self.requests, self.units),
            self._lot(market, 1, {CPU: self.least, MEMORY: 64}, 1),
        ]
        filler = Filler(market, lots, Effort(1_000))
        filler.set_values({lots[0]: self.values, lots[1]: (0.01, 0.0)})
        filler.reset({lots[0]: self.units})
        return KnownPackings(filler).question(self.ceiling)

    def _lot(self, market: PackingMarket, number: int, requests: dict[str, int], units: int) -> Lot:
        (template,) = market.templates
        demand = Demand(
            Requirements([requirement(CAPACITY_TYPE, Operator.IN, self.capacity_types)])
        )
        space = template.space.narrow(demand)
        assert space is not None
        shelves = ((market.shelf(template, space),),)
        stages = (cast("CohortStage", self),)
        of_cohort = ((number, 1),)
        return Lot(number, of_cohort, (demand,), stages, requests, shelves, units, ports=self.ports)

    def tolerates(self, _: PoolTemplate) -> bool:
        """Return whether the pods tolerate the taints of a NodePool."""
        return self.is_tolerant


PACKED = Packed()
OTHERS = {
    "requests": Packed(requests={CPU: 1500, MEMORY: 2048}),
    "units": Packed(units=4),
    "demand": Packed(capacity_types=("spot", "on-demand")),
    "tolerations": Packed(is_tolerant=False),
    "requirements": Packed(requirements=(*SPOT, wanted(ZONE, "In", "us-east-1a"))),
    "daemons": Packed(daemon="900m"),
    "cost of a node": Packed(node_cost=0.1),
    "value": Packed(values=(2.0, 0.0)),
    "minimum cost": Packed(values=(1.0, 0.5)),
    "other lots": Packed(least=50),
    "ceiling": Packed(ceiling=2.0),
}


def test_a_packing_is_known_for_equal_units() -> None:
    question, again = PACKED.question(), Packed().question()
    assert question is not None
    assert again is not None
    assert question.content == again.content


@pytest.mark.parametrize("name", OTHERS)
def test_a_packing_is_known_only_where_all_that_it_depends_on_is_equal(name: str) -> None:
    question, other = PACKED.question(), OTHERS[name].question()
    assert question is not None
    assert other is not None
    assert question.content != other.content


@pytest.mark.parametrize("name", ["limits", "rules"])
def test_no_packing_is_known_where_each_node_changes_what_is_left(name: str) -> None:
    limited, ruled = Packed(limits={"cpu": "12"}), Packed(ports=(HostPort("0.0.0.0", 80),))
    assert {"limits": limited, "rules": ruled}[name].question() is None


def test_a_known_packing_is_used_only_if_the_work_that_it_took_is_left() -> None:
    question = PACKED.question()
    assert question is not None
    question.keep(None, {}, 40)
    assert question.answer(40) is None
    assert question.answer(41) == (None, {})
