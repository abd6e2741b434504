"""Each step that a cluster takes is done here, or named as not done."""

from __future__ import annotations

from pathlib import Path

from reconciler.desired.workloads.steps import CLUSTER_STEPS

ROOT = Path(__file__).resolve().parents[2]


def test_every_step_is_done_in_a_module_or_has_a_limit() -> None:
    for step in CLUSTER_STEPS:
        assert bool(step.done_in) != bool(step.limit), step
        assert not step.done_in or (ROOT / "reconciler" / step.done_in).is_file(), step
