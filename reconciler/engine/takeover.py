"""Adoption of instances that Karpenter launched, or that a lost state left behind.

Two owners of one node would revert each other's changes. So an instance is adopted only if no other
fleet owns it, it is not being terminated, and git has its NodePool and class. Adoption alone must
not cause drift. A claim that matched its NodePool in the cluster gets the hash that we compute for
that NodePool; a claim that had drifted stays drifted.

The claim of an adopted instance without a record is created from its tags. Drift and consolidation
then treat its node like any other. A pass never adopts by itself (decision 15).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from reconciler.engine.effects import intent_id
from reconciler.engine.ownership import CLAIM_TAG
from reconciler.engine.steps import lifecycle, provision
from reconciler.engine.steps.provision import TypeLookup
from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.model.json import JsonObject
from reconciler.model.karpenter.labels import (
    NODECLASS,
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    NODEPOOL,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.ownership import CLUSTER_TAG, FLEET_TAG, Owner
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Compute, Instance
from reconciler.ports.journal import Intent, IntentOutcome, Journal, Outcome, Verb
from reconciler.ports.state import StateStore

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
"""The names that a claim may have; a tag can hold any text."""


def claim_name(instance: Instance) -> str:
    """Return the name of an instance's claim: from its tag, or made from its NodePool and id.

    An instance of a batch gets that tag only after its node has joined.
    """
    made = f"{instance.tags.get(NODEPOOL, '')[:40]}-{instance.id.removeprefix('i-')}"
    named = instance.tags.get(CLAIM_TAG, "")
    return named if _NAME.fullmatch(named) else made


def make_claim(
    instance: Instance, name: str, pool: NodePool, types: provision.TypeLookup
) -> NodeClaim:
    """Return the claim that the current NodePool would have created for an instance."""
    template = pool.spec.template
    claim = NodeClaim(
        metadata=Metadata(name=name, labels=pool.labels(), creation_timestamp=instance.launched_at),
        spec=NodeClaimSpec(
            node_class_ref=template.spec.node_class_ref,
            requirements=template.spec.requirements,
            taints=template.spec.taints,
            startup_taints=template.spec.startup_taints,
            expire_after=template.spec.expire_after,
            termination_grace_period=template.spec.termination_grace_period,
        ),
    )
    kind = types(pool.name, instance.instance_type)
    return lifecycle.mark_launched(claim, instance, kind, instance.launched_at)


VersionedHash = tuple[str, str]


@dataclass(frozen=True, slots=True)
class AdoptionCandidate:
    """An instance that could be adopted, and the verdict.

    ``claim`` is the claim that would be recorded, None where ``rejection`` states why not.
    ``notes`` are hints for the person who decides. ``is_recorded`` is True if only its tags are
    missing.
    """

    instance: Instance
    claim: NodeClaim | None = None
    rejection: str = ""
    notes: tuple[str, ...] = ()
    is_recorded: bool = False


@dataclass(frozen=True, slots=True)
class AdoptionContext:
    """Our side of an adoption: the owner, the files in git, and the records.

    ``is_settled`` tells whether a journalled launch made an instance with our tags, so that a pass
    will handle it. ``hash_of`` returns the hash of an object in git by kind and name, ``rehash``
    that of an object in the cluster.
    """

    owner: Owner
    is_settled: Callable[[Instance], bool]
    pools: Mapping[str, NodePool]
    classes: frozenset[str]
    recorded: Sequence[NodeClaim]
    hash_of: Callable[[str, str], VersionedHash]
    rehash: Callable[[Mapping[str, object]], VersionedHash]
    types: TypeLookup


def _by_instance(claims: Iterable[NodeClaim]) -> dict[str, NodeClaim]:
    return {lifecycle.instance_id(c): c for c in claims if c.status.provider_id}


def _by_name(objects: Iterable[JsonObject]) -> dict[tuple[str, str], JsonObject]:
    return {(o["kind"], o.get("metadata", {}).get("name", "")): o for o in objects}


def evaluate_instances(
    instances: Iterable[Instance], snapshot: Snapshot | None, context: AdoptionContext
) -> tuple[AdoptionCandidate, ...]:
    """Return the verdict on each instance that does not belong to us yet, sorted by id.

    Without a ``snapshot`` of the cluster the claims are created from NodePools in git.
    """
    known = _by_instance(context.recorded)
    claims = _by_instance(snapshot.node_claims if snapshot else ())
    live = _by_name(snapshot.live if snapshot else ())
    candidates = []
    for instance in sorted(instances, key=lambda i: i.id):
        owner = instance.tags.get(FLEET_TAG, "")
        if context.owner.owns(instance.tags) and instance.id in known:
            continue
        refusal = _rejection(instance, owner, context)
        if refusal:
            candidates.append(AdoptionCandidate(instance, rejection=refusal))
        elif instance.id in known:
            candidates.append(AdoptionCandidate(instance, known[instance.id], is_recorded=True))
        elif snapshot is None or owner:
            candidates.append(_candidate_from_git(instance, context))
        else:
            candidates.append(
                _candidate_from_cluster(instance, claims.get(instance.id), live, context)
            )
    return _reject_duplicate_names(candidates, context)


def _rejection(instance: Instance, owner: str, context: AdoptionContext) -> str:
    """Return why an instance cannot be adopted, whatever its claim; empty if it can."""
    pool, node_class = instance.tags.get(NODEPOOL, ""), instance.tags.get(NODECLASS, "")
    if owner and owner != context.owner.fleet:
        return f"it belongs to fleet {owner}"
    if not context.owner.owns(_tags_after_adoption(instance, context.owner)):
        return f"its tags do not show that cluster {context.owner.cluster} owns it"
    if owner and context.is_settled(instance):
        return "this fleet launched it; the next pass records or terminates it"
    if instance.is_terminating:
        return f"it is {instance.state}"
    if pool not in context.pools:
        return f"git has no NodePool {pool}"
    if node_class and node_class not in context.classes:
        return f"git has no EC2NodeClass {node_class}"
    return ""


def _candidate_from_git(instance: Instance, context: AdoptionContext) -> AdoptionCandidate:
    """Return an instance with a claim as its current NodePool would create it."""
    pool = context.pools[instance.tags[NODEPOOL]]
    claim = make_claim(instance, claim_name(instance), pool, context.types)
    for kind, name, key, version_key in _hash_keys(claim):
        digest, version = context.hash_of(kind, name)
        claim = _with_annotations(claim, {key: digest, version_key: version})
    return AdoptionCandidate(
        instance,
        claim,
        notes=("created from git, because its original launch settings are unknown",),
    )


def _candidate_from_cluster(
    instance: Instance,
    claim: NodeClaim | None,
    live: Mapping[tuple[str, str], Mapping[str, object]],
    context: AdoptionContext,
) -> AdoptionCandidate:
    """Return an instance with its claim from the cluster, and hashes of our own version."""
    if claim is None:
        return AdoptionCandidate(instance, rejection="the snapshot has no NodeClaim for it")
    if claim.is_deleting:
        return AdoptionCandidate(
            instance, rejection=f"Karpenter is deleting NodeClaim {claim.name}"
        )
    notes = []
    for kind, name, key, version_key in _hash_keys(claim):
        digest, version = _own_hash(
            claim, key, live.get((kind, name)), context.hash_of(kind, name), context
        )
        if digest:
            claim = _with_annotations(claim, {key: digest, version_key: version})
        if digest and digest != context.hash_of(kind, name)[0]:
            notes.append(
                f"it will drift: {kind} {name} in git differs from the one it was created from"
            )
    status = replace(claim.status, provider_id=instance.provider_id)
    metadata = replace(
        claim.metadata, creation_timestamp=claim.metadata.creation_timestamp or instance.launched_at
    )
    claim = replace(claim, status=status, metadata=metadata)
    if not claim.is_true(lifecycle.LAUNCHED):
        kind_of = context.types(claim.node_pool, instance.instance_type)
        claim = lifecycle.mark_launched(claim, instance, kind_of, instance.launched_at)
    return AdoptionCandidate(instance, claim, notes=tuple(notes))


def _own_hash(
    claim: NodeClaim,
    key: str,
    live: JsonObject | None,
    in_git: VersionedHash,
    context: AdoptionContext,
) -> VersionedHash:
    """Return our hash, and its version, of the object that a claim was created from.

    If a claim has the hash of the object in the cluster, it was created from that object; Karpenter
    updates both when it is upgraded. If the snapshot lacks the object, a hash that differs from
    git counts as drift only if it has our version.
    """
    current, version = claim.metadata.annotations.get(key, ""), in_git[1]
    if not current or not version:
        return "", ""
    if live is not None:
        same = live.get("metadata", {}).get("annotations", {}).get(key) == current
        return (context.rehash(live)[0] if same else current), version
    is_comparable = claim.metadata.annotations.get(f"{key}-version") == version
    return (current if is_comparable or claim.is_true("Drifted") else in_git[0]), version


def _hash_keys(claim: NodeClaim) -> tuple[tuple[str, str, str, str], ...]:
    return (
        ("NodePool", claim.node_pool, NODEPOOL_HASH, NODEPOOL_HASH_VERSION),
        ("EC2NodeClass", claim.spec.node_class_ref.name, NODECLASS_HASH, NODECLASS_HASH_VERSION),
    )


def _with_annotations(claim: NodeClaim, more: Mapping[str, str]) -> NodeClaim:
    annotations = {**claim.metadata.annotations, **more}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def _reject_duplicate_names(
    candidates: Sequence[AdoptionCandidate], context: AdoptionContext
) -> tuple[AdoptionCandidate, ...]:
    """Refuse a claim whose name is taken by a recorded or an earlier claim."""
    taken = {claim.name for claim in context.recorded}
    checked = []
    for candidate in candidates:
        name = (
            candidate.claim.name
            if candidate.claim is not None and not candidate.is_recorded
            else ""
        )
        if name in taken:
            checked.append(
                AdoptionCandidate(
                    candidate.instance, rejection=f"another NodeClaim is named {name}"
                )
            )
            continue
        checked.append(candidate)
        if name:
            taken.add(name)
    return tuple(checked)


@dataclass(frozen=True, slots=True)
class AdoptionPorts:
    """The ports that an adoption writes to."""

    clock: Clock
    compute: Compute
    store: StateStore
    journal: Journal


def _tags_after_adoption(instance: Instance, owner: Owner) -> dict[str, str]:
    """Return the tags of an instance after its adoption.

    Karpenter adds the tag with the cluster's name only after the node has joined.
    """
    return {CLUSTER_TAG: owner.cluster, **instance.tags, FLEET_TAG: owner.fleet}


def _tag_instance(instance: Instance, claim: NodeClaim, ports: AdoptionPorts, owner: Owner) -> None:
    """Give an instance the tags that it lacks after its adoption."""
    tags = {**_tags_after_adoption(instance, owner), CLAIM_TAG: claim.name}
    missing = {key: value for key, value in tags.items() if instance.tags.get(key) != value}
    if missing:
        ports.compute.tag(instance.id, missing)


def adopt_instances(
    candidates: Iterable[AdoptionCandidate], ports: AdoptionPorts, owner: Owner, revision: str
) -> list[str]:
    """Record the claims, then tag their instances; return the failures.

    An interruption in between leaves records without tags, and running the same command again adds
    them. Until then tags and records disagree, so no pass launches or disrupts anything.
    """
    adopted = [(c, c.claim) for c in candidates if c.claim is not None]
    intents = [
        _tag_intent(candidate, claim, owner.fleet, revision, ports) for candidate, claim in adopted
    ]
    ports.journal.begin(intents)
    ports.store.put_node_claims([claim for _, claim in adopted])
    problems = []
    for (candidate, claim), intent in zip(adopted, intents, strict=True):
        outcome, message = Outcome.SUCCEEDED, candidate.instance.id
        try:
            _tag_instance(candidate.instance, claim, ports, owner)
        except LeaseLostError:
            raise
        except ReconcilerError as error:
            outcome, message = Outcome.FAILED, str(error)
            problems.append(f"{candidate.instance.id}: {error}")
        ports.journal.finish([IntentOutcome(intent.id, outcome, message)], ports.clock.now())
    return problems


def _tag_intent(
    candidate: AdoptionCandidate, claim: NodeClaim, fleet: str, revision: str, ports: AdoptionPorts
) -> Intent:
    parameters = {"instance": candidate.instance.id, FLEET_TAG: fleet}
    return Intent(
        id=intent_id("", 0, Verb.TAG, claim.name, parameters),
        verb=Verb.TAG,
        target=claim.name,
        at=ports.clock.now(),
        revision=revision,
        reason="TakenOver",
        parameters=parameters,
    )
