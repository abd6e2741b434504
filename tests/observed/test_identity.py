"""A Node that was checked is checked again as soon as anything about it has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from reconciler.model.karpenter.labels import INSTANCE_TYPE, NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.node import Node, NodeSpec, NodeStatus
from reconciler.observed.identity import CorrectNodes, identify_nodes
from reconciler.observed.snapshot import Snapshot

LABELS = {NODEPOOL: "general", INSTANCE_TYPE: "m7g.large"}
AMOUNTS: dict[str, Any] = {"cpu": "2", "memory": "8Gi"}
PROVIDER = "aws:///us-east-1a/i-0123456789abcdef0"


def a_snapshot() -> Snapshot:
    node = Node(
        Metadata(name="node-1", labels=dict(LABELS)),
        NodeSpec(provider_id=PROVIDER),
        NodeStatus(capacity=dict(AMOUNTS), allocatable=dict(AMOUNTS)),
    )
    status = NodeClaimStatus(provider_id=PROVIDER, capacity=dict(AMOUNTS))
    claim = NodeClaim(Metadata(name="claim-1", labels=dict(LABELS)), status=status)
    return replace(Snapshot(), nodes=(node,), node_claims=(claim,))


def with_label(snapshot: Snapshot) -> Snapshot:
    (node,) = snapshot.nodes
    metadata = with_fields(node.metadata, labels={**LABELS, NODEPOOL: "expensive"})
    return replace(snapshot, nodes=(with_fields(node, metadata=metadata),))


def with_processors(snapshot: Snapshot) -> Snapshot:
    (node,) = snapshot.nodes
    status = with_fields(node.status, allocatable={**AMOUNTS, "cpu": "64"})
    return replace(snapshot, nodes=(with_fields(node, status=status),))


def with_smaller_claim(snapshot: Snapshot) -> Snapshot:
    (claim,) = snapshot.node_claims
    status = with_fields(claim.status, capacity={"cpu": "1", "memory": "8Gi"})
    return replace(snapshot, node_claims=(with_fields(claim, status=status),))


def with_claim_of_another_pool(snapshot: Snapshot) -> Snapshot:
    (claim,) = snapshot.node_claims
    metadata = with_fields(claim.metadata, labels={**LABELS, NODEPOOL: "batch"})
    return replace(snapshot, node_claims=(with_fields(claim, metadata=metadata),))


CHANGES = [with_label, with_processors, with_smaller_claim, with_claim_of_another_pool]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_checked_node_or_its_claim_is_found(change: Any) -> None:
    before, correct = a_snapshot(), CorrectNodes()
    assert identify_nodes(before, correct=correct).findings == ()

    found = identify_nodes(change(before), correct=correct)

    assert found == identify_nodes(change(before))
    assert found.findings


def test_an_incorrect_node_stays_incorrect() -> None:
    snapshot, correct = with_processors(a_snapshot()), CorrectNodes()
    first = identify_nodes(snapshot, correct=correct)

    assert identify_nodes(snapshot, correct=correct) == first
    assert first.findings
    assert first.snapshot.nodes[0].status.allocatable["cpu"] != "64"
