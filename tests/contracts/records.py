"""Records with defaults: a test names only what it is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.ports.journal import Intent, Verb
from reconciler.ports.state import (
    CommandPhase,
    RecordedObject,
    RecordedPlan,
    RunningCommand,
    Unavailable,
)

NOW = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_claim(name: str, *, pool: str = "general", node: str = "", **labels: str) -> NodeClaim:
    instance = f"aws:///eu-central-1a/i-{name}" if node else ""
    return NodeClaim(
        metadata=Metadata(
            name=name,
            labels={"karpenter.sh/nodepool": pool, **labels},
            creation_timestamp=NOW,
        ),
        status=NodeClaimStatus(
            provider_id=instance,
            node_name=node,
            capacity={"cpu": "4", "memory": "16Gi", "pods": 58},
            conditions=(Condition("Launched", "True", last_transition_time=after(1.5)),),
        ),
    )


def an_intent(name: str, target: str = "general-1", **fields: object) -> Intent:
    defaults: dict[str, object] = {"verb": Verb.LAUNCH, "at": NOW, "revision": "4f2c9e1"}
    return Intent(id=name, target=target, **{**defaults, **fields})


def a_command(
    name: str, phase: CommandPhase = CommandPhase.MARKED, **fields: object
) -> RunningCommand:
    defaults: dict[str, object] = {
        "reason": "Drifted",
        "decision": "replace",
        "node_claims": ("general-1",),
        "replacements": ("general-2",),
        "started_at": NOW,
        "savings": 0.25,
    }
    return RunningCommand(id=name, phase=phase, **{**defaults, **fields})


def an_object(name: str, kind: str = "NodePool", **fields: object) -> RecordedObject:
    defaults: dict[str, object] = {
        "hash": "123",
        "data": {"kind": kind, "metadata": {"name": name}, "spec": {"weight": 10, "ratio": 0.5}},
    }
    return RecordedObject(kind=kind, name=name, **{**defaults, **fields})


def a_plan(digest: str, **fields: object) -> RecordedPlan:
    defaults: dict[str, object] = {
        "revision": "4f2c9e1",
        "at": NOW,
        "serial": 1,
        "body": b'{"kind":"Plan"}',
    }
    return RecordedPlan(digest=digest, **{**defaults, **fields})


def an_unavailable(zone: str = "eu-central-1a", **fields: object) -> Unavailable:
    defaults: dict[str, object] = {
        "instance_type": "m7g.large",
        "capacity_type": "spot",
        "until": after(180),
        "code": "InsufficientInstanceCapacity",
    }
    return Unavailable(zone=zone, **{**defaults, **fields})
