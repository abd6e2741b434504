"""The disruption cost of a node and its price, which determine the order of disruption.

The formulas are Karpenter's (``pkg/utils/disruption/disruption.go``, ``types.go``), in floats as
there: thresholds are compared without an epsilon, so the same arithmetic is needed for the same
results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode

BASE_COST: Final = 1.0
"""The disruption cost of a node without pods."""


def eviction_costs(pods: Iterable[Pod]) -> float:
    """Return the sum of the positive eviction costs."""
    return sum(max(0.0, pod.eviction_cost()) for pod in pods)


def reschedule_cost(pods: Iterable[Pod]) -> float:
    """Return the disruption cost of a node with these pods, at least ``BASE_COST``."""
    return BASE_COST + eviction_costs(pod for pod in pods if pod.is_reschedulable)


def is_empty(cost: float) -> bool:
    """Return whether a node with that cost has no pod with an eviction cost."""
    return cost <= BASE_COST


def savings_ratio(price: float, cost: float) -> float:
    """Return the savings in USD an hour for each unit of disruption cost."""
    return price / cost


def lifetime_remaining(expires_after: timedelta | None, age: timedelta) -> float:
    """Return the remaining share of a node's lifetime, from 0 to 1; 1 if it never expires."""
    if expires_after is None:
        return 1.0
    if expires_after <= timedelta(0):
        return 0.0
    return min(max((expires_after - age) / expires_after, 0.0), 1.0)


def scale_down_cost(pods: Iterable[Pod], claim: NodeClaim, now: datetime) -> float:
    """Return the cost by which a static pool chooses the nodes to remove.

    All pods count, and a node close to its expiry has a lower cost.
    """
    created = claim.metadata.creation_timestamp or now
    share = lifetime_remaining(claim.expires_after, now - created)
    return sum((pod.eviction_cost() for pod in pods), 0.0) * share


def node_price(node: StateNode, kind: InstanceType | None) -> float:
    """Return the price of a running node in USD an hour, 0 if it is not known.

    It is the first offering of its zone and capacity type, available or not; the part that a
    commitment has already paid for does not count.
    """
    if node.paid is not None:
        return node.paid
    if kind is None:
        return 0.0
    price = kind.price_of(node.labels.get(ZONE, ""), node.labels.get(CAPACITY_TYPE, ""))
    return known_price(price)


def known_price(price: float | None) -> float:
    """Return the price, or 0 if it is missing or not a number."""
    return 0.0 if price is None or math.isnan(price) else price
