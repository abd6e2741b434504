"""Requests by people: cordon, uncordon or drain a node, delete a NodeClaim.

A request is an intent in the journal that has no outcome yet. The process that acts for the fleet
executes it, in the first pass that reads it, and journals the outcome. A drain takes many passes;
its request stays open until the node is empty or uncordoned.

No disruption budget applies: a person has decided. PodDisruptionBudgets and grace periods do. Only
nodes of recorded NodeClaims whose instance is ours (decision 15) are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from reconciler.engine.effects import Effect, Effects, intent_id
from reconciler.engine.observation import Observation, Observed
from reconciler.engine.steps import lifecycle
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.labels import INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.ports.calls import Call
from reconciler.ports.cluster import Cluster
from reconciler.ports.journal import REQUESTED, Intent, Journal, Outcome, Verb
from reconciler.ports.progress import EventKind

BY_PERSON: Final = "Requested"
"""The reason of a termination that a person asked for."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The NodeClaim that a request names, and its Node; ``problem`` is why nothing can be done."""

    claim: NodeClaim | None
    node: Node | None
    problem: str = ""


def advance(effects: Effects, seen: Observed) -> frozenset[str]:
    """Execute the open requests, as much as possible now; return the ids of blocked ones."""
    entries = effects.world.journal.in_doubt()
    intents = [e.intent for e in entries if e.intent.verb in REQUESTED]
    cancelled = {i.target for i in intents if i.verb is Verb.UNCORDON}
    cordons: list[Effect] = []
    drains: list[tuple[Intent, Node]] = []
    for intent in intents:
        target = _target(intent, seen)
        if target.problem:
            _finish(effects, intent, Outcome.FAILED, target.problem)
        elif intent.verb is Verb.DELETE_CLAIM:
            _delete_claim(effects, intent, target.claim, seen)
        elif target.node is None:
            gone = "the node has not joined the cluster, or is gone"
            _finish(effects, intent, Outcome.FAILED, gone)
        elif intent.verb is not Verb.DRAIN_NODE:
            cordons.append(([intent], _cordon_call(effects.world.cluster, intent, target.node)))
        elif intent.target in cancelled:
            _finish(effects, intent, Outcome.FAILED, "cancelled: the node is uncordoned")
        else:
            drains.append((intent, target.node))
    _execute_cordons(effects, cordons)
    return _drain_nodes(effects, drains, seen)


def _cordon_call(cluster: Cluster, intent: Intent, node: Node) -> Call:
    change = cluster.cordon if intent.verb is Verb.CORDON else cluster.uncordon
    return partial(change, node.name)


def _execute_cordons(effects: Effects, cordons: Sequence[Effect]) -> None:
    done = effects.execute_all(cordons)
    for (intents, _), is_done in zip(cordons, done, strict=True):
        if is_done:
            what = f"{intents[0].target}: {intents[0].verb}ed, as requested"
            effects.world.notify(EventKind.REQUEST_DONE, what)


def _target(intent: Intent, seen: Observation) -> _Target:
    """Return what a request is about: by the name of a Node, or of a NodeClaim."""
    claim = find_claim(seen.claims, intent.target)
    if claim is None:
        return _Target(None, None, f"no node of this fleet is named {intent.target}")
    node = seen.nodes().get(claim.status.provider_id) if claim.status.provider_id else None
    instance = seen.instance_of(claim)
    if instance is not None and not seen.owner.owns(instance.tags):
        return _Target(claim, node, f"instance {instance.id} is not tagged as one of this fleet")
    if claim.name in seen.disputed:
        return _Target(claim, node, f"several Nodes claim to be the one of {claim.name}")
    return _Target(claim, node)


def find_claim(claims: Sequence[NodeClaim], name: str) -> NodeClaim | None:
    """Return the NodeClaim of that name, or of the Node of that name."""
    return next((c for c in claims if name in (c.name, c.status.node_name)), None)


def _delete_claim(
    effects: Effects, intent: Intent, claim: NodeClaim | None, seen: Observation
) -> None:
    """Mark a claim as deleted; it is drained, and its instance terminated, by later steps."""
    assert claim is not None, "a target without a problem has a claim"
    effects.world.store.put_node_claims(
        [lifecycle.delete_with_reason(claim, seen.at, BY_PERSON, intent.reason or BY_PERSON)]
    )
    _finish(effects, intent, Outcome.SUCCEEDED, f"{claim.name} is drained and terminated")


def _drain_nodes(
    effects: Effects, drains: Sequence[tuple[Intent, Node]], seen: Observation
) -> frozenset[str]:
    """Cordon the nodes that are to be drained, then take the next step of each drain.

    Returns the ids of the requests whose drain is blocked.
    """
    world = effects.world
    calls = {
        f"cordon {node.name}": partial(world.cluster.cordon, node.name)
        for _, node in drains
        if not node.spec.unschedulable
    }
    world.confirm()
    answers = world.calls.call_all(calls)
    blocked = set()
    for intent, node in drains:
        cordon = answers.get(f"cordon {node.name}")
        if cordon is not None and cordon.error is not None:
            world.notify(EventKind.FAILED, str(cordon.error))
            continue
        try:
            step = world.cluster.drain(node.name, None, seen.at)
        except ClusterError as error:
            world.notify(EventKind.FAILED, str(error))
            continue
        if step is not None and step.is_blocked:
            blocked.add(intent.id)
        if step is not None and step.is_done and node.spec.unschedulable:
            _finish(effects, intent, Outcome.SUCCEEDED, "the node is empty and stays cordoned")
    return frozenset(blocked)


def _finish(effects: Effects, intent: Intent, outcome: Outcome, message: str) -> None:
    effects.finish([intent], outcome, message)
    kind = EventKind.REQUEST_DONE if outcome is Outcome.SUCCEEDED else EventKind.FAILED
    effects.world.notify(kind, f"{intent.verb} {intent.target}: {message}")


def describe_request(verb: Verb, claim: NodeClaim) -> str:
    """Return what the request does, as a sentence without a period."""
    labels = claim.metadata.labels
    node = claim.node_or_claim_name
    place = " in ".join(filter(None, (labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""))))
    about = f"NodeClaim {claim.name} of NodePool {claim.node_pool}" + (
        f", {place}" if place else ""
    )
    what = {
        Verb.CORDON: f"Cordon node {node}: no new pods are scheduled to it",
        Verb.UNCORDON: f"Uncordon node {node}: pods are scheduled to it again",
        Verb.DRAIN_NODE: f"Drain node {node}: cordon it, and evict its pods as their budgets allow",
        Verb.DELETE_CLAIM: f"Delete {claim.name}: drain node {node}, then terminate its instance",
    }[verb]
    return f"{what} ({about})"


def record_request(
    journal: Journal, now: datetime, verb: Verb, claim: NodeClaim, reason: str = ""
) -> Intent:
    """Write the request to the journal, unless the same one is open."""
    is_deletion = verb is Verb.DELETE_CLAIM
    target = claim.name if is_deletion else claim.node_or_claim_name
    for entry in journal.in_doubt():
        if (entry.intent.verb, entry.intent.target) == (verb, target):
            return entry.intent
    facts = {"requested": now.isoformat()}
    intent = Intent(
        id=intent_id("", 0, verb, target, facts),
        verb=verb,
        target=target,
        at=now,
        reason=reason or BY_PERSON,
        parameters=facts,
    )
    journal.begin([intent])
    return intent
