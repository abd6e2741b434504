"""What an approval of a plan covers: a fingerprint for each fact that the plan was made from.

They are the facts that were observed, and our records as the observation found them. What an
observation itself records follows from these facts and from its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from reconciler.engine.observation import Observation
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.observed.fingerprint import (
    FingerprintRecall,
    Fingerprints,
    fingerprint,
    fingerprints,
    node_class_facts,
)
from reconciler.ports.cloud import Instance
from reconciler.ports.state import RunningCommand

_OWNERSHIP: Final = ("reconciler/", "karpenter.sh/", "eks:eks-cluster-name")
"""Prefixes of the tags that name the owner of an instance and the launch that made it."""


def evidence(
    seen: Observation, classes: Mapping[str, EC2NodeClass], recall: FingerprintRecall | None = None
) -> Fingerprints:
    """Return the fingerprints of an observation and of what node classes select in the account.

    ``recall`` holds the fingerprints of the last observation of the same loop.
    """
    snapshot = replace(seen.snapshot, node_claims=seen.before.node_claims)
    found = dict(fingerprints(snapshot) if recall is None else recall.of(snapshot))
    for instance in seen.instances:
        if not instance.is_going:
            found[f"Instance {instance.id}"] = fingerprint(_instance(instance))
    for command in seen.before.commands:
        found[f"Command {command.id}"] = fingerprint(_command(command))
    for rollout in seen.history.rollouts:
        found[f"Rollout {rollout.node_pool}"] = fingerprint(
            (rollout.wave, rollout.stopped_at is not None)
        )
    for name, node_class in classes.items():
        found[f"EC2NodeClass {name}"] = fingerprint(node_class_facts(node_class.status))
    return found


def _instance(instance: Instance) -> object:
    """Return the facts of a live instance that decide about drift, price and ownership."""
    return (
        instance.instance_type,
        instance.zone,
        instance.capacity_type,
        instance.image_id,
        instance.subnet_id,
        sorted(instance.security_groups),
        instance.reservation_id,
        instance.tenancy,
        {key: value for key, value in instance.tags.items() if key.startswith(_OWNERSHIP)},
    )


def _command(command: RunningCommand) -> object:
    return (command.phase, command.node_claims, command.replacements)
