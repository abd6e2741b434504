"""What Karpenter says about nodes that it keeps, in words."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import pytest

from reconciler.disruption.consolidation.proposal import NOT_CHEAPER
from reconciler.disruption.simulation import PODS_WITHOUT_PLACE
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.render.text import render_text
from reconciler.plan.render.wording import format_drift
from reconciler.plan.value.actions import BlockedNode
from tests.plan.builders import a_plan


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Can't remove without creating 2 candidates", "removing it would take 2 new nodes; one is allowed"),
        (NOT_CHEAPER.message, "no cheaper node can replace it"),
        ("pdb prevents pod evictions (PodDisruptionBudget=[shop/api])", "PodDisruptionBudget shop/api allows no eviction"),
        ('pod has "karpenter.sh/do-not-disrupt" annotation (Pod=shop/db-0)', "pod shop/db-0 is annotated karpenter.sh/do-not-disrupt"),
        ('NodePool "web" has consolidation policy WhenEmpty, but node is not empty', "consolidationPolicy of NodePool web is WhenEmpty, and the node has pods"),
        ('NodePool "web" has consolidation disabled', "consolidateAfter of NodePool web is Never"),
        ("nodepool not found (NodePool=web)", "NodePool web does not exist"),
        (f"{PODS_WITHOUT_PLACE}shop/api-1 => does not tolerate a=b:NoSchedule, shop/api-2 => does not tolerate a=b:NoSchedule",
         "not all of its pods can be scheduled: shop/api-* do not tolerate a=b:NoSchedule"),
        ("anything else", "anything else"),
    ],
)  # fmt: skip
def test_a_message_of_karpenter_is_a_phrase(message: str, words: str) -> None:
    assert refusal_in_words(message) == words


@pytest.mark.parametrize(
    ("reasons", "end"),
    [(3, "*: why 2"), (4, "*: why 3"), (5, "*: why 2; 2 more reasons for other pods")],
)
def test_reasons_that_are_not_shown_are_counted(reasons: int, end: str) -> None:
    """Those beyond the third were cut without a word."""
    pods = ", ".join(f"a/p-{n} => why {n}" for n in range(reasons))
    assert refusal_in_words(f"{PODS_WITHOUT_PLACE}{pods}").endswith(end)


def test_a_node_that_is_kept_from_two_methods_for_one_reason_is_listed_once() -> None:
    """A comment listed the same nodes and the same long reason twice."""
    blocked = tuple(
        BlockedNode(node=node, node_pool="web", reason=reason, code="X", message="why")
        for reason in ("Drifted", "Underutilized")
        for node in ("n1", "n2")
    )
    text = render_text(a_plan(blocked=blocked))
    assert text.count("why") == 1
    assert "n1, n2  Drifted, Underutilized  web" in text


@pytest.mark.parametrize(
    ("reason", "side", "words"),
    [
        ("NodeClassDrift", "git", "the EC2NodeClass changed in git"),
        ("AMIDrift", "world", "the image changed in AWS"),
        ("CloudProvider", "", "CloudProvider"),
        ("CloudProvider", "world", "CloudProvider (changed in AWS)"),
    ],
)
def test_a_drift_names_what_has_changed_and_where(reason: str, side: str, words: str) -> None:
    assert format_drift(reason, side) == words
