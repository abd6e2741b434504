"""NodeClaims and predictions for tests of ``watch``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.karpenter.prediction import CommandFacts, NodeFacts
from reconciler.model.kubernetes.metadata import Condition, Metadata

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PRICES = {
    ("m5.large", "a", "on-demand"): 0.096,
    ("m5.large", "b", "on-demand"): 0.096,
    ("m5.xlarge", "a", "on-demand"): 0.192,
    ("c5.large", "a", "on-demand"): 0.085,
}


def after(seconds: float) -> datetime:
    """Return a time after the start."""
    return START + timedelta(seconds=seconds)


def claim(
    name: str,
    kind: str = "m5.large",
    zone: str = "a",
    *,
    at: float = -3600,
    disrupted: tuple[str, float] | None = None,
) -> NodeClaim:
    """Return a NodeClaim that was created at ``at``, and disrupted for a reason at a time."""
    labels = {NODEPOOL: "web", CAPACITY_TYPE: "on-demand"}
    if kind:
        labels |= {INSTANCE_TYPE: kind, ZONE: zone}
    conditions: tuple[Condition, ...] = ()
    if disrupted is not None:
        reason, since = disrupted
        conditions = (Condition("DisruptionReason", "True", reason, "", after(since)),)
    metadata = Metadata(name=name, labels=labels, creation_timestamp=after(at))
    status = NodeClaimStatus(node_name=f"node-{name}", conditions=conditions)
    return NodeClaim(metadata, status=status)


def node(
    kind: str = "m5.large",
    zone: str = "a",
    name: str = "",
    price: float | None = -1,
    pool: str = "web",
) -> NodeFacts:
    """Return a node with the price of its offering."""
    found = PRICES.get((kind, zone, "on-demand")) if price == -1 else price
    return NodeFacts(pool, kind, zone, "on-demand", found, name)


def command(
    reason: str, *names: str, replaced_by: tuple[NodeFacts, ...] = (), kind: str = "m5.large"
) -> CommandFacts:
    """Return a command for the nodes of those names."""
    return CommandFacts(reason, tuple(node(kind, name=name) for name in names), replaced_by)
