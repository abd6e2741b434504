"""The cost of evicting a pod, by its annotations and priority (Karpenter's ``EvictionCost``)."""

from __future__ import annotations

import pytest

from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import Pod

OWN = "karpenter.sh/disruption-cost"
DELETION = "controller.kubernetes.io/pod-deletion-cost"
FULL = 2**27


@pytest.mark.parametrize(
    ("annotations", "cost"),
    [
        ({}, 1.0),
        ({OWN: str(FULL)}, 2.0),
        ({OWN: str(-FULL)}, 0.0),
        ({OWN: f"+{FULL}"}, 2.0),
        ({DELETION: str(FULL)}, 2.0),
        ({OWN: "0", DELETION: str(FULL)}, 1.0),
        ({OWN: "much", DELETION: str(FULL)}, 1.0),
        ({OWN: "1.5"}, 1.0),
        ({OWN: str(2**31)}, 1.0),
        ({OWN: str(2**31 - 1)}, 10.0),
        ({OWN: ""}, 1.0),
        ({OWN: "١"}, 1.0),
    ],
)
def test_the_disruption_cost_counts_before_the_deletion_cost(
    annotations: dict[str, str], cost: float
) -> None:
    assert Pod(Metadata(annotations=annotations)).eviction_cost() == pytest.approx(cost)
