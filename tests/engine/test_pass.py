"""A pass is a table of steps: each reads only what an earlier step wrote."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from reconciler.engine.desired import Desired
from reconciler.engine.reconcile import INITIAL_FACTS, STEPS, Mandate, Pass, Step
from reconciler.engine.world import World
from reconciler.plan.plancache import PlanCache

TYPES = dict(zip(INITIAL_FACTS, (World, Desired, Mandate, PlanCache), strict=True))


def named(step: Step) -> str:
    return step.name


def earlier(step: Step) -> dict[str, object]:
    """Return the facts that exist when a step starts, with their types."""
    before = STEPS[: STEPS.index(step)]
    return TYPES | {s.writes: get_type_hints(s.run)["return"] for s in before if s.writes}


@pytest.mark.parametrize("step", STEPS, ids=named)
def test_a_step_reads_only_what_an_earlier_step_wrote(step: Step) -> None:
    known, hints = earlier(step), get_type_hints(step.run)
    assert set(step.reads) <= known.keys()
    parameters = inspect.signature(step.run).parameters
    assert [known[name] for name in step.reads] == [hints[name] for name in parameters]


@pytest.mark.parametrize("step", STEPS, ids=named)
def test_a_step_writes_a_fact_once_and_a_later_step_reads_it(step: Step) -> None:
    returns = get_type_hints(step.run)["return"]
    assert (returns is type(None)) == (not step.writes)
    if step.writes:
        assert step.writes not in earlier(step)
        after = STEPS[STEPS.index(step) + 1 :]
        assert any(step.writes in s.reads for s in after) or step is STEPS[-1]


def test_the_last_step_writes_the_result_of_the_pass() -> None:
    assert (STEPS[-1].writes, get_type_hints(STEPS[-1].run)["return"]) == ("result", Pass)
    assert len({step.name for step in STEPS}) == len(STEPS)
