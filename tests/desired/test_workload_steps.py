"""``docs/workloads.md`` shows the steps that a cluster takes, each done here or named."""

from __future__ import annotations

from pathlib import Path

from reconciler.desired.workloads.steps import CLUSTER_STEPS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "workloads.md"


def test_the_page_lists_every_step_of_the_cluster() -> None:
    rows = [
        f"| {step.actor} | {step.effect} | "
        f"{f'`{step.done_in}`' if step.done_in else f'no: {step.limit}'} |"
        for step in CLUSTER_STEPS
    ]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


def test_every_step_is_done_in_a_module_or_has_a_limit() -> None:
    for step in CLUSTER_STEPS:
        assert bool(step.done_in) != bool(step.limit), step
        assert not step.done_in or (ROOT / "reconciler" / step.done_in).is_file(), step
