"""Consolidation waits only for its own commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reconciler.engine.steps.commands import SETTLES_WITHIN, unsettled_claims
from reconciler.ports.state import CommandPhase, RunningCommand

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_command(
    phase: CommandPhase = CommandPhase.WAITING,
    reason: str = "Underutilized",
    age: timedelta = timedelta(minutes=1),
) -> RunningCommand:
    return RunningCommand("c", reason, "replace", ("old",), ("new",), phase, NOW - age)


@pytest.mark.parametrize(
    "phase", [CommandPhase.MARKED, CommandPhase.WAITING, CommandPhase.TERMINATING]
)
def test_consolidation_waits_for_a_running_consolidation(phase: CommandPhase) -> None:
    assert unsettled_claims([a_command(phase)], NOW) == {"old"}


@pytest.mark.parametrize("phase", [CommandPhase.DONE, CommandPhase.ROLLED_BACK])
def test_consolidation_does_not_wait_for_completed_commands(phase: CommandPhase) -> None:
    assert unsettled_claims([a_command(phase)], NOW) == frozenset()


@pytest.mark.parametrize("reason", ["Drifted", "Empty", "Expired"])
def test_consolidation_does_not_wait_for_other_disruption(reason: str) -> None:
    """A rollout may take days, and consolidation must continue in the meantime."""
    assert unsettled_claims([a_command(reason=reason)], NOW) == frozenset()


@pytest.mark.parametrize("age", [SETTLES_WITHIN, timedelta(days=2), -SETTLES_WITHIN])
def test_a_drain_that_is_blocked_does_not_stop_consolidation(age: timedelta) -> None:
    """Nor does a command from the future: the clock was set back."""
    assert unsettled_claims([a_command(CommandPhase.TERMINATING, age=age)], NOW) == frozenset()
