"""The event of EC2 that interrupts a node is shown wherever the node is."""

from __future__ import annotations

import json

from reconciler.plan.explain.reasons import explain_node
from reconciler.plan.render.text import render_text
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.plan import Plan, from_json, to_json
from tests.plan.builders import a_plan, an_action

WORD = "spot interruption warning at 2026-03-02T09:14:03Z"


def interrupted(**fields: str) -> Plan:
    command = PlannedCommand(
        id="interrupted-1",
        reason="Interrupted",
        decision="delete",
        nodes=("node-1",),
        node_claims=("web-1",),
        forceful=True,
        **fields,
    )
    action = an_action(
        "terminate/web-1",
        kind="terminate",
        node_claim="web-1",
        node="node-1",
        node_pool="web",
        command="interrupted-1",
        reason="Interrupted",
    )
    return a_plan(commands=(command,), actions=(action,))


def test_explain_names_the_event() -> None:
    explanation = explain_node(interrupted(message=WORD), "node-1", "web-1")
    assert explanation.verdict.startswith("to be disrupted for interruption")
    assert any(fact.endswith(f"(interrupted by {WORD})") for fact in explanation.facts)


def test_the_text_of_a_plan_names_the_event() -> None:
    assert f"Interrupted (forceful): {WORD}" in render_text(interrupted(message=WORD))


def test_a_plan_with_an_event_is_read_back_unchanged() -> None:
    plan = interrupted(message=WORD)
    assert from_json(to_json(plan)) == plan


def test_a_command_without_an_event_omits_the_field() -> None:
    (command,) = json.loads(to_json(interrupted()))["commands"]
    assert "message" not in command
    assert "the cloud provider is reclaiming the instance" in render_text(interrupted())
