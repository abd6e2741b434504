"""What can stop a command between its decision and the removal of its nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.decide import objection
from reconciler.model.settings import Settings
from tests.disruption.builders import NOW, a_cluster, a_node, a_pod, stamp

PROTECTED = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}


def objection_to(
    reason: str, *objects: Any, settings: Settings | None = None, later: timedelta = timedelta(0)
) -> str | None:
    nodes = a_cluster(*objects).nodes
    return objection(reason, nodes, settings or Settings(), NOW + later)


@pytest.mark.parametrize("reason", ["Empty", "Drifted", "Underutilized", "Removed"])
def test_a_command_without_objections_continues(reason: str) -> None:
    assert objection_to(reason, a_node("n1"), a_node("n2")) is None


def test_a_new_pod_blocks_only_the_removal_of_an_empty_node() -> None:
    fleet = [a_node("n1"), a_node("n2"), a_pod("p", "n2", "3")]
    assert objection_to("Empty", *fleet) == "node n2 is no longer empty"
    assert objection_to("Underutilized", *fleet) is None


@pytest.mark.parametrize("reason", ["Drifted", "Underutilized"])
def test_a_protected_pod_blocks_the_command(reason: str) -> None:
    fleet = [a_node("n1"), a_pod("p", "n1", metadata=PROTECTED)]
    assert objection_to(reason, *fleet) == "pod default/p is annotated karpenter.sh/do-not-disrupt"


def test_a_grace_period_overrides_pod_protection_against_drift() -> None:
    fleet = [
        a_node("n1", claim={"terminationGracePeriod": "1h"}),
        a_pod("p", "n1", metadata=PROTECTED),
    ]
    assert objection_to("Drifted", *fleet) is None
    assert objection_to("Underutilized", *fleet) is not None


def test_an_annotated_node_stays() -> None:
    node = a_node("n1", annotations={"karpenter.sh/do-not-disrupt": "true"})
    assert objection_to("Drifted", node) == "node n1 is annotated karpenter.sh/do-not-disrupt"


@pytest.mark.parametrize("reason", ["Drifted", "Removed"])
def test_a_suspension_blocks_the_command_while_it_lasts(reason: str) -> None:
    suspension = {"owner": "platform-team", "until": stamp(NOW + timedelta(hours=1))}
    config = {"disruption": {"suspend": [suspension]}}
    settings = resolve(config, {}).settings
    assert "platform-team suspended disruption of NodePool default for drift" in (
        objection_to(reason, a_node("n1"), settings=settings) or ""
    )
    assert objection_to(reason, a_node("n1"), settings=settings, later=timedelta(hours=2)) is None
