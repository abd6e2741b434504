"""Which Node belongs to which NodeClaim, and which of a Node's own data is used.

A Node is written by its kubelet, and anybody who controls a machine can write anything into its
Node: another instance's providerID, another pool's labels, a thousand CPUs. Decisions about *other*
nodes must not depend on that. The recorded NodeClaim takes precedence over the Node, and a Node
that contradicts it is a finding. Pure: a function from a snapshot to the one that decisions use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Final

import msgspec

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INITIALIZED,
    INSTANCE_TYPE,
    NODECLASS,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node, NodeStatus
from reconciler.model.resources import format_resources, parse_resources
from reconciler.model.text.quoting import quote_value
from reconciler.observed.snapshot import Snapshot

PROVIDER_ID: Final = "node-provider-id"
LABELS: Final = "node-labels"
CAPACITY: Final = "node-capacity"
"""Codes of the findings."""

_CLAIM_LABELS: Final = (NODEPOOL, NODECLASS, INSTANCE_TYPE, ZONE, CAPACITY_TYPE)
"""Labels that are taken only from the record: budgets, prices and drift depend on them."""

_MEASURED: Final = ("cpu", "memory")
_TOLERANCE: Final = 1.25
"""How much more a machine may have than was computed, because its memory is an estimate."""

_DEVICES: Final = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
    "vpc.amazonaws.com/efa",
    "vpc.amazonaws.com/pod-eni",
)
"""Hardware: an instance type has it or not, whatever a device plugin says."""

_LARGEST: Final[Mapping[str, float]] = {"cpu": 4096 * 1000, "memory": 64 * 2**40 * 1000}
"""More than any machine has, in thousandths: twice the largest type of EC2."""

_VALUE_MAX: Final = 63
_KEY_MAX: Final = 253 + 1 + 63
_EC2_NAME: Final = re.compile(r"(ip-\d{1,3}(-\d{1,3}){3}|i-[0-9a-f]{8,17})(\.|$)")


@dataclass(frozen=True, slots=True)
class IdentifiedNodes:
    """A snapshot in which every Node agrees with its NodeClaim.

    Nodes that claim another identity are excluded. ``disputed`` are the NodeClaims whose own Node
    cannot be identified for that reason: they are neither drained nor terminated.
    """

    snapshot: Snapshot
    findings: tuple[Diagnostic, ...] = ()
    disputed: frozenset[str] = frozenset()


class CorrectNodes:
    """The Nodes of the last snapshot whose own data was correct, which are not checked again.

    Between two passes most Nodes are the same objects, with claims of the same labels and capacity.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, ...]] = {}
        self._current: dict[str, tuple[object, ...]] = {}

    def begin(self) -> None:
        """Begin another snapshot; Nodes that the last one did not have are forgotten."""
        self._last, self._current = self._current, {}

    def has(self, node: Node, claim: NodeClaim | None) -> bool:
        """Return whether a Node was correct with these facts of its claim."""
        known, facts = self._last.get(node.name), _compared_facts(node, claim)
        if known is None or any(old is not new for old, new in zip(known, facts, strict=True)):
            return False
        self._current[node.name] = known
        return True

    def add(self, node: Node, claim: NodeClaim | None) -> None:
        """Remember a correct Node."""
        self._current[node.name] = _compared_facts(node, claim)


def _compared_facts(node: Node, claim: NodeClaim | None) -> tuple[object, ...]:
    """Return the objects that ``_correct_node`` reads; a claim only replaces what is incorrect."""
    if claim is None:
        return node, None, None
    return node, claim.metadata.labels, claim.status.capacity


def identify_nodes(
    snapshot: Snapshot,
    host_names: Mapping[str, str] | None = None,
    correct: CorrectNodes | None = None,
    *,
    trusts_initialized: bool = False,
) -> IdentifiedNodes:
    """Return the snapshot to decide from, and the contradictions in it.

    ``host_names`` are the private DNS names that EC2 has for instances, by instance id. ``correct``
    are the nodes that an earlier call has checked. With ``trusts_initialized`` the amounts of an
    initialized Node count as it states them, as they do for Karpenter.
    """
    claims = {instance_id_of(c.status.provider_id): c for c in snapshot.node_claims}
    claims.pop("", None)
    certain, conflicting, findings = _certain_nodes(snapshot.nodes, claims, host_names or {})
    correct = correct or CorrectNodes()
    correct.begin()
    fresh = [
        _correct_node(n, claims, findings, correct, trusts_initialized=trusts_initialized)
        for n in certain
    ]
    with_node = {instance_id_of(n.spec.provider_id) for n in fresh}
    disputed = {claims[i].name for i in conflicting if i in claims and i not in with_node}
    if not findings:
        return IdentifiedNodes(snapshot)
    return IdentifiedNodes(
        replace(snapshot, nodes=tuple(fresh)), tuple(findings), frozenset(disputed)
    )


def _certain_nodes(
    nodes: Sequence[Node], claims: Mapping[str, NodeClaim], host_names: Mapping[str, str]
) -> tuple[list[Node], set[str], list[Diagnostic]]:
    """Return the Nodes whose instance is certain, the instances of all others, and findings."""
    claims_by_node_name = {c.status.node_name: c for c in claims.values() if c.status.node_name}
    findings: list[Diagnostic] = []
    conflicting: set[str] = set()
    consistent: list[Node] = []
    for node in nodes:
        why = _contradiction(node, claims, claims_by_node_name, host_names)
        if why:
            findings.append(_identity_finding(PROVIDER_ID, node, why))
            conflicting.add(instance_id_of(node.spec.provider_id))
            conflicting.add(_instance_of_node_name(node, claims_by_node_name))
        else:
            consistent.append(node)
    shared = _nodes_of_shared_instances(consistent)
    for alike in shared.values():
        findings += [_shared_instance_finding(node, alike) for node in alike]
    dropped = {node.name for node in chain.from_iterable(shared.values())}
    certain = [node for node in consistent if node.name not in dropped]
    return certain, conflicting | shared.keys(), findings


def _nodes_of_shared_instances(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Return the instances that several Nodes name as theirs, with those Nodes."""
    by_instance = group_by(nodes, lambda node: instance_id_of(node.spec.provider_id))
    by_instance.pop("", None)
    return {identity: alike for identity, alike in by_instance.items() if len(alike) > 1}


def _shared_instance_finding(node: Node, alike: Sequence[Node]) -> Diagnostic:
    others = ", ".join(other.name for other in alike if other is not node)
    provider_id = format_untrusted(node.spec.provider_id)
    why = f"its providerID {provider_id} is also that of {others}"
    return _identity_finding(PROVIDER_ID, node, why)


def instance_id_of(provider_id: str) -> str:
    """Return the instance id in a provider id, empty for none."""
    return provider_id.rpartition("/")[2]


def format_untrusted(text: str) -> str:
    """Return a text from a Node for display, short and without control characters."""
    return quote_value(text.encode("ascii", "backslashreplace").decode(), 80)


def _contradiction(
    node: Node,
    claims: Mapping[str, NodeClaim],
    claims_by_node_name: Mapping[str, NodeClaim],
    host_names: Mapping[str, str],
) -> str:
    """Return why a Node cannot be the node of the instance that it names, empty if it can."""
    provider_id = node.spec.provider_id
    if not provider_id:
        return ""
    identity = instance_id_of(provider_id)
    claim, named = claims.get(identity), claims_by_node_name.get(node.name)
    if named is not None and named is not claim:
        return (
            f"its name is that of NodeClaim {named.name}, "
            f"but its providerID is {format_untrusted(provider_id)}"
        )
    if claim is None:
        return ""
    if claim.status.provider_id != provider_id and claim.status.provider_id.startswith("aws:///"):
        return f"its providerID {format_untrusted(provider_id)} is not {claim.status.provider_id}"
    if named is claim:
        return ""
    return _name_contradiction(node, claim, host_names.get(identity, ""))


def _name_contradiction(node: Node, claim: NodeClaim, host: str) -> str:
    """Return why a Node cannot be that of a claim which does not record its name yet.

    ``host`` is the private DNS name of the instance, empty if it is not known.
    """
    provider_id = node.spec.provider_id
    owner = f"its providerID {format_untrusted(provider_id)} is that of NodeClaim {claim.name}"
    if claim.status.node_name:
        return f"{owner}, whose Node is {claim.status.node_name}"
    if host and not _may_have_name(node.name, instance_id_of(provider_id), host):
        return f"{owner}, whose instance EC2 calls {host}"
    return ""


def _instance_of_node_name(node: Node, claims_by_node_name: Mapping[str, NodeClaim]) -> str:
    """Return the instance of the claim whose Node has that name, empty if there is none."""
    claim = claims_by_node_name.get(node.name)
    return instance_id_of(claim.status.provider_id) if claim is not None else ""


def _may_have_name(name: str, identity: str, host: str) -> bool:
    """Return whether a Node of that name may run on an instance.

    EKS lets a kubelet write only the Node with the name of its instance. Elsewhere nodes may have
    other names; a name in EC2's form still identifies an instance.
    """
    if name == host or name.partition(".")[0] == host.partition(".")[0] or identity in name:
        return True
    return _EC2_NAME.match(name) is None


def _correct_node(
    observed: Node,
    claims: Mapping[str, NodeClaim],
    findings: list[Diagnostic],
    correct: CorrectNodes,
    *,
    trusts_initialized: bool,
) -> Node:
    """Return a Node with the values of its claim where the two differ; add findings about that."""
    claim = claims.get(instance_id_of(observed.spec.provider_id))
    if correct.has(observed, claim):
        return observed
    trusts_amounts = trusts_initialized and (observed.metadata.labels.get(INITIALIZED) == "true")
    found = len(findings)
    node = _correct_labels(observed, claim, findings)
    status = _correct_amounts(node, claim, findings, trusts_amounts=trusts_amounts)
    if status is not node.status:
        node = msgspec.structs.replace(node, status=status)
    if node is observed and len(findings) == found and not trusts_amounts:
        correct.add(node, claim)
    return node


def _correct_labels(node: Node, claim: NodeClaim | None, findings: list[Diagnostic]) -> Node:
    observed = node.metadata.labels
    invalid = _invalid_labels(observed)
    for key, value in invalid.items():
        label = f"{format_untrusted(key)} with the value {format_untrusted(value)}"
        why = f"its label {label} is not a valid label"
        findings.append(_identity_finding(LABELS, node, why))
    differing = _differing_labels(node, claim, findings) if claim is not None else {}
    findings += (
        _identity_finding(LABELS, node, f"its taint {format_untrusted(str(taint))} is not valid")
        for taint in node.spec.taints
        if _has_invalid_label({taint.key: taint.value or ""})
    )
    if not invalid and not differing:
        return node
    labels = {k: v for k, v in observed.items() if k not in invalid} | differing
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    return msgspec.structs.replace(node, metadata=metadata)


def _invalid_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are not valid; all are checked together first, as nodes have many."""
    if not _has_invalid_label(labels):
        return {}
    return {key: value for key, value in labels.items() if _has_invalid_label({key: value})}


def _differing_labels(node: Node, claim: NodeClaim, findings: list[Diagnostic]) -> dict[str, str]:
    """Return the values of the claim for labels in which its Node has others."""
    differing: dict[str, str] = {}
    for key in _CLAIM_LABELS:
        ours, theirs = claim.metadata.labels.get(key), node.metadata.labels.get(key)
        if not ours or theirs is None or theirs == ours:
            continue
        differing[key] = ours
        if (key, theirs, ours) != (CAPACITY_TYPE, RESERVED, ON_DEMAND):
            why = (
                f"its label {key} is {format_untrusted(theirs)}, but NodeClaim {claim.name} "
                f"has {quote_value(ours)}"
            )
            findings.append(_identity_finding(LABELS, node, why))
    return differing


def _has_invalid_label(labels: Mapping[str, str]) -> bool:
    text = "".join(labels) + "".join(labels.values())
    return (
        not (text.isascii() and text.isprintable())
        or max(map(len, labels.values()), default=0) > _VALUE_MAX
        or max(map(len, labels), default=0) > _KEY_MAX
    )


def _correct_amounts(
    node: Node,
    claim: NodeClaim | None,
    findings: list[Diagnostic],
    *,
    trusts_amounts: bool,
) -> NodeStatus:
    """Return the status with amounts that the machine can have.

    Otherwise pods of other nodes would be planned onto capacity that does not exist.
    """
    corrected = {}
    limits = _LARGEST if claim is None else _maximum_amounts(_amounts_key(claim.status.capacity))
    if trusts_amounts:
        limits = {}
    for kind in ("capacity", "allocatable"):
        own = _parse_amounts(_amounts_key(getattr(node.status, kind)))
        if own is None:
            findings.append(
                _identity_finding(CAPACITY, node, f"its {kind} contains invalid quantities")
            )
            corrected[kind] = dict[str, str | int | float]()
            continue
        exceeding = {name: own[name] for name in sorted(own) if own[name] > limits.get(name, inf)}
        if exceeding:
            findings.append(_excess_finding(node, claim, kind, exceeding))
            capped = {**own, **_claimed_amounts(claim, kind, exceeding)}
            corrected[kind] = dict(format_resources(capped))
    return msgspec.structs.replace(node.status, **corrected) if corrected else node.status


def _excess_finding(
    node: Node, claim: NodeClaim | None, kind: str, exceeding: Mapping[str, int]
) -> Diagnostic:
    amounts = format_resources(exceeding).items()
    listed = ", ".join(f"{name} {amount}" for name, amount in amounts)
    whose = f"NodeClaim {claim.name}" if claim is not None else "any EC2 instance"
    return _identity_finding(CAPACITY, node, f"its {kind} has {listed}: more than {whose} has")


def _claimed_amounts(claim: NodeClaim | None, kind: str, names: Iterable[str]) -> dict[str, int]:
    """Return the claim's amounts of some resources, zero where it has none."""
    claimed = None
    if claim is not None:
        claimed = _parse_amounts(_amounts_key(getattr(claim.status, kind)))
    return {name: (claimed or {}).get(name, 0) for name in names}


_RESOURCES_MAX: Final = 50

_Key = tuple[tuple[str, str | int | float], ...]


def _amounts_key(amounts: Mapping[str, str | int | float]) -> _Key:
    return tuple(amounts.items())


def _parse_amounts(key: _Key) -> Mapping[str, int] | None:
    """Return amounts in thousandths, None if one is not a quantity; many nodes have the same.

    Those of a node with more resources than any are not kept: a node states its own.
    """
    return _kept_amounts(key) if len(key) <= _RESOURCES_MAX else _read_amounts(key)


def _read_amounts(key: _Key) -> Mapping[str, int] | None:
    try:
        return parse_resources(dict(key))
    except (ValueError, OverflowError):
        return None


_kept_amounts = lru_cache(maxsize=4096)(_read_amounts)


@lru_cache(maxsize=4096)
def _maximum_amounts(capacity: _Key) -> Mapping[str, float]:
    """Return the maximum amounts of a Node that can be checked against its claim's capacity."""
    known = _parse_amounts(capacity)
    if not known:
        return {}
    limits = {name: known[name] * _TOLERANCE for name in _MEASURED if known.get(name)}
    return limits | {name: 0.0 for name in _DEVICES if not known.get(name)}


def _identity_finding(code: str, node: Node, why: str) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        code,
        f"Node {format_untrusted(node.name)[1:-1]}: {why}",
        hint="the recorded state is used; check what modifies this Node",
    )
