"""Pods of deleting nodes: which of them need another node, and which are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.placement.builders import Object, a_node, a_pod, a_pool, placed

LABELS = {"app": "web"}


def _budget(name: str = "b", **spec: Any) -> Object:
    selector = {"matchLabels": LABELS}
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector, **spec},
    }


def _moved(*others: Object, **pod: Any) -> bool:
    """Return whether the one pod of a deleting node gets another node."""
    running = a_pod("app-0", node="n-1", labels=LABELS, owner=pod.pop("owner", ("apps/v1", "RS")))
    for part, fields in pod.items():
        running[part] |= fields
    placement = placed([a_pool(), *a_node("n-1", deleting=True), running, *others])
    return bool(placement.claims)


@pytest.mark.parametrize(
    "budgets",
    [
        [_budget(maxUnavailable=0)],
        [_budget(maxUnavailable="0%")],
        [_budget(minAvailable="100%")],
        [_budget("b", maxUnavailable=9), _budget("c", maxUnavailable=9)],
    ],
)
def test_a_pod_whose_budgets_block_permanently_needs_no_other_node(budgets: list[Object]) -> None:
    assert not _moved(*budgets)


@pytest.mark.parametrize(
    "budgets",
    [
        [],
        [_budget(maxUnavailable=1)],
        [_budget(minAvailable=1)],
        [_budget(maxUnavailable="10%")],
        [{**_budget(maxUnavailable=0), "metadata": {"name": "b", "namespace": "other"}}],
    ],
)
def test_a_budget_that_blocks_temporarily_does_not_exclude_a_pod(budgets: list[Object]) -> None:
    assert _moved(*budgets)


def test_an_unready_pod_is_evictable_if_the_budget_policy_allows_it() -> None:
    budget = _budget(maxUnavailable=0, unhealthyPodEvictionPolicy="AlwaysAllow")
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    unready = {"conditions": [{"type": "Ready", "status": "False"}]}

    assert _moved(budget, status=unready)
    assert not _moved(budget, status=ready)


@pytest.mark.parametrize(
    ("pod", "moved"),
    [
        ({"status": {"phase": "Succeeded"}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"metadata": {"deletionTimestamp": "2026-03-01T11:59:59Z"}}, False),
        (
            {
                "metadata": {"deletionTimestamp": "2026-03-01T11:59:59Z"},
                "owner": ("apps/v1", "StatefulSet"),
            },
            True,
        ),
        ({"owner": ("apps/v1", "DaemonSet")}, False),
        ({"owner": ("v1", "Node")}, False),
        ({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}, False),
        ({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "soon"}}}, True),
    ],
)
def test_only_a_pod_that_comes_back_needs_another_node(pod: dict[str, Any], moved: bool) -> None:
    assert _moved(**pod) is moved
