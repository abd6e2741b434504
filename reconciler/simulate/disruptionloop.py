"""When a running Karpenter decides and acts: one command at a time, checked again after 15 seconds.

Karpenter's disruption controller is a single loop (``pkg/controllers/disruption/controller.go``).
A command of consolidation or emptiness is computed, the loop waits, and the command starts if it is
still right. Then the loop continues at once, while replacements start and pods move: which command
comes next depends on that moment. Without a command, the next attempt follows ten seconds later, so
a change meets the loop at any moment of these ten seconds.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.settings import DecisionRules
from reconciler.plan.make.decide import Phase, ignore_phase
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.plancache import PlanCache, SharedPlans
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.plan import Plan

VALIDATED_AFTER: Final = timedelta(seconds=15)
CONTINUES_AFTER: Final = timedelta(seconds=1)
POLLED_AFTER: Final = timedelta(seconds=10)
_VALIDATED: Final = (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)


class LoopPlans(PlanCache):
    """Makes the plans of a simulation; where Karpenter's rules decide, at Karpenter's times.

    ``due`` is when the loop continues, None if it has evaluated the present fleet and waits for
    nothing. It first evaluates the share ``offset`` of a period after the first pass.
    """

    due: datetime | None = None
    _held: frozenset[str] = frozenset()
    _polled_at: datetime | None = None

    def __init__(self, shared: SharedPlans | None = None, offset: float = 0.0) -> None:
        super().__init__(shared)
        self._offset = offset * POLLED_AFTER

    def plan(self, inputs: Inputs, phase: Phase = ignore_phase) -> Plan:
        """Return what is done now: launches, and the command that starts now."""
        if inputs.settings.decide is not DecisionRules.KARPENTER:
            return super().plan(inputs, phase)
        if self.due is None:
            self.due = self._next_poll(inputs.now)
        if inputs.now < self.due:
            return self._plan_for(inputs, frozenset(), phase)
        held, self._held, self.due = self._held, frozenset(), None
        if held:
            plan = self._plan_for(inputs, held, phase)
            if any(map(_waits, plan.commands)):
                return self._started(inputs, plan)
        plan = super().plan(inputs, phase)
        self._polled_at = inputs.now
        found = next(filter(_waits, plan.commands), None)
        if found is None:
            return self._started(inputs, plan) if plan.commands else plan
        self._held, self.due = frozenset(found.node_claims), inputs.now + VALIDATED_AFTER
        return self._plan_for(inputs, frozenset(), phase)

    def _next_poll(self, now: datetime) -> datetime:
        """Return when an idle loop evaluates next."""
        if self._polled_at is None:
            return now + self._offset
        periods = -((self._polled_at - now) // POLLED_AFTER)
        return self._polled_at + max(periods, 1) * POLLED_AFTER

    def _started(self, inputs: Inputs, plan: Plan) -> Plan:
        self.due = inputs.now + CONTINUES_AFTER
        return plan

    def _plan_for(self, inputs: Inputs, checked: frozenset[str], phase: Phase) -> Plan:
        """Return the plan that disrupts none but these NodeClaims, in one command."""
        every = {node.claim.name for node in inputs.cluster.nodes if node.claim is not None}
        nominated = frozenset(inputs.nominated) | (every - checked)
        return super().plan(replace(inputs, nominated=nominated, checked=checked), phase)


def _waits(command: PlannedCommand) -> bool:
    return command.reason in _VALIDATED
