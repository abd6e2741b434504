"""The last plan of a loop, which is reused while nothing has changed.

Planning is a function of ``Inputs``. Later inputs have the same plan if everything in them is equal
to the earlier ones, object by object, and no time has passed at which a rule can have another
result (``steady_until``). Then the previous plan is returned with the new time; otherwise a new
plan is made. Nothing is inferred from identity, counters or elapsed time.

One ``PlanCache`` belongs to one pass loop and ends with it. It keeps one set of inputs and its
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from reconciler.catalog.adjusted.discovered import REMEMBERED_FOR, Discoveries
from reconciler.catalog.catalog import Catalog
from reconciler.desired.objects import node_pools
from reconciler.diff.drift import type_check_due_at
from reconciler.disruption.calendar import next_decision_change
from reconciler.plan.make.decide import Phase, ignore_phase
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.findings import drift_deadline, initialization_deadline
from reconciler.plan.make.gather import deleted_pools
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.planning import plan_of
from reconciler.plan.value.plan import Plan, digest_of

_APART: Final = ("now", "catalog", "memory")
"""The fields that are compared in a special way."""
_NAMING: Final = ("serial", "digests")
"""The fields that a plan only repeats; beyond that, only the names of new nodes depend on them."""
_EQUAL: Final = sorted(
    (name for name in Inputs.__struct_fields__ if name not in (*_APART, *_NAMING)),
    key=lambda name: (name == "cluster", name),
)
"""The fields that are compared as they are, the most expensive comparison last."""

_SHARED_MAX: Final = 6
"""How many plans runs share; later ones differ, and each keeps a complete cluster in memory."""

_NEXT_MOMENT: Final = timedelta.resolution


@dataclass(frozen=True)
class _Answer:
    """Inputs and their plan."""

    inputs: Inputs
    plan: Plan

    @cached_property
    def until(self) -> datetime | None:
        """The first time at which another plan may be right, None if time changes nothing.

        Only found when inputs are equal otherwise, which is rare while a fleet changes.
        """
        return steady_until(self.inputs)

    def holds_for(self, inputs: Inputs) -> bool:
        """Return whether ``inputs`` lead to the same plan."""
        planned_at = self.inputs.now
        if inputs.now < planned_at or inputs.now.utcoffset() != planned_at.utcoffset():
            return False
        names_nodes = self.plan.actions or self.plan.node_claims
        if names_nodes and any(getattr(inputs, n) != getattr(self.inputs, n) for n in _NAMING):
            return False
        if not are_equal_except_time(inputs, self.inputs):
            return False
        return self.until is None or inputs.now < self.until

    def plan_at(self, inputs: Inputs) -> Plan:
        """Return the plan for ``inputs``, which are equal to these."""
        digests = inputs.digests
        return replace(
            self.plan,
            at=inputs.now,
            serial=inputs.serial,
            inputs=digests,
            inputs_digest=digest_of(digests),
        )


class SharedPlans:
    """The first plans of runs that begin in the same state and then take different courses.

    The first run records its plans. Each later run follows them while its inputs are equal.
    """

    def __init__(self) -> None:
        self._answers: list[_Answer] = []
        self._is_recorded = False
        self._followed: int | None = 0

    def begin(self) -> None:
        """Begin another run."""
        self._is_recorded = self._is_recorded or bool(self._answers)
        self._followed = 0

    def answer_for(self, inputs: Inputs) -> _Answer | None:
        """Return the next recorded plan if it is right for ``inputs``; otherwise the run is apart.

        A plan that lasted for several of the earlier run's passes may last for several here.
        """
        at = self._followed
        if not self._is_recorded or at is None:
            return None
        for number in range(at, min(at + 2, len(self._answers))):
            if self._answers[number].holds_for(inputs):
                self._followed = number
                return self._answers[number]
        self._followed = None
        return None

    def record(self, answer: _Answer) -> None:
        """Add the next plan of the first run."""
        if not self._is_recorded and len(self._answers) < _SHARED_MAX:
            self._answers.append(answer)


class PlanCache:
    """Makes plans one after another, and reuses the last one while it is certain to be the same.

    The plans of a run that begins like others may be ``shared``. ``alive`` is called at each phase
    and each placement of a plan.
    """

    def __init__(
        self, shared: SharedPlans | None = None, alive: Callable[[], object] = lambda: None
    ) -> None:
        self._alive = alive
        self._last: _Answer | None = None
        self._facts = FactsCache()
        self._shared = shared
        if shared is not None:
            shared.begin()

    @property
    def disruption_work(self) -> int:
        """The work of all plans that were made so far, in evaluated nodes."""
        return self._facts.disruption_work

    def plan(self, inputs: Inputs, phase: Phase = ignore_phase) -> Plan:
        """Return what ``plan_of`` returns for ``inputs``, byte for byte."""
        last = self._last
        if last is not None:
            inputs = replace(inputs, cluster=inputs.cluster.with_shared_nodes(last.inputs.cluster))
            if last.holds_for(inputs):
                return last.plan_at(inputs)
        found = self._shared.answer_for(inputs) if self._shared is not None else None
        if found is not None:
            self._last = found
            return found.plan_at(inputs)
        self._last = last = None  # release the old plan before the work, which needs most memory

        def report_alive(name: str) -> AbstractContextManager[None]:
            self._alive()
            return phase(name)

        plan = plan_of(inputs, report_alive, self._facts)
        self._last = _Answer(inputs, plan)
        if self._shared is not None:
            self._shared.record(self._last)
        return plan


def are_equal_except_time(inputs: Inputs, other: Inputs) -> bool:
    """Return whether two inputs are equal except for the time.

    Serial and digests are not compared: they decide nothing but names.
    """
    if not _same_catalog(inputs.catalog, other.catalog) or not _same_memory(
        inputs.memory, other.memory
    ):
        return False
    return all(getattr(inputs, name) == getattr(other, name) for name in _EQUAL)


def _same_catalog(catalog: Catalog, other: Catalog) -> bool:
    """Return whether two catalogs have the same types and the same description."""
    if catalog is other:
        return True
    facts = [
        (c.digest, c.source, c.version, c.region, c.notes, c.warnings) for c in (catalog, other)
    ]
    return type(catalog) is type(other) and facts[0] == facts[1]


def _same_memory(memory: Discoveries, other: Discoveries) -> bool:
    """Return whether the same amounts are recorded for the same types, confirmed no earlier."""
    if memory == other:
        return True
    if _amounts(memory) != _amounts(other):
        return False
    return all(
        m.seen_at >= other[key][n].seen_at for key, row in memory.items() for n, m in row.items()
    )


def _amounts(memory: Discoveries) -> dict[tuple[str, str], int]:
    return {(key, name): m.amount for key, row in memory.items() for name, m in row.items()}


def steady_until(inputs: Inputs) -> datetime | None:
    """Return the first time after ``now`` at which the same facts can lead to another plan.

    None if time alone changes nothing in them. Where evictions have a price, what a move saves
    until its nodes are no longer needed changes all the time.
    """
    desired = node_pools(inputs.fleet)
    pools = (*desired, *deleted_pools(inputs.known_before, desired))
    if any(inputs.settings.pool(pool.name).eviction_cost for pool in pools):
        return inputs.now + _NEXT_MOMENT
    moments = [
        next_decision_change(inputs.cluster, pools, inputs.settings, inputs.now, inputs.history),
        *_deadlines(inputs),
    ]
    if inputs.against is not None:
        moments.append(steady_until(inputs.against))
    return min((m for m in moments if m is not None and m > inputs.now), default=None)


def _deadlines(inputs: Inputs) -> Iterator[datetime | None]:
    """Yield the ends of what holds for nodes, of what is remembered, and of commitments."""
    yield from map(initialization_deadline, inputs.cluster.nodes)
    for node in inputs.cluster.nodes:
        if node.claim is not None:
            yield type_check_due_at(node.claim)
            yield drift_deadline(node.claim, inputs.settings)
    for row in inputs.memory.values():
        yield from (memory.seen_at + REMEMBERED_FOR for memory in row.values())
    if inputs.settings.commitments is not None:
        yield from inputs.settings.commitments.ends
