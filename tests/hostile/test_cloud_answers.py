"""Answers of AWS, or of what stands at its endpoint, that no list has."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.adapters.aws.facts.commitments import read_commitments
from reconciler.model.errors import CloudError
from tests.hostile.threats import Threat, attack


class EndlessPlans:
    """Savings plans whose next page is always another one of two."""

    def __init__(self) -> None:
        self.calls = 0

    def describe_savings_plans(self, **_: object) -> dict[str, object]:
        self.calls += 1
        assert self.calls < 10
        return {"savingsPlans": [], "nextToken": f"page-{self.calls % 2}"}


@attack(Threat.EXHAUSTION, "pages of savings plans that lead to each other in a circle")
def test_a_list_of_savings_plans_ends() -> None:
    """Guard: ``known`` in ``_savings_plans``."""
    plans: Any = EndlessPlans()
    with pytest.raises(CloudError, match="the list does not end"):
        read_commitments(lambda *_: plans, "us-east-1")
