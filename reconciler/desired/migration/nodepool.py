"""NodePools of ``v1beta1`` and Provisioners of ``v1alpha5`` as NodePools of ``v1``.

An object is changed in place, so that comments stay where the caller's mappings keep them. The
kubelet settings are returned, because they now belong to the EC2NodeClass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from reconciler.desired.migration.objects import Note, change_note, incomplete_note, removal_note
from reconciler.model.json import JsonDict, as_list, as_mappings
from reconciler.source.document import Pointer
from reconciler.source.schema import value_at

VERSION: Final = "karpenter.sh/v1"
CLASS_GROUP: Final = "karpenter.k8s.aws"
CLASS_KIND: Final = "EC2NodeClass"

_POOL_LABEL: Final = ("karpenter.sh/provisioner-name", "karpenter.sh/nodepool")
_FORMER_PROTECTIONS: Final = ("karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate")
_DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
_UNSUPPORTED_KUBELET: Final = ("containerRuntime",)
_REASONS: Final = {"underutilized": "Underutilized", "empty": "Empty", "drifted": "Drifted"}
_FORMER_DEFAULTS: Final = (
    ("karpenter.sh/capacity-type", ("karpenter.sh/capacity-type",), "In", ["on-demand"]),
    ("kubernetes.io/os", ("kubernetes.io/os",), "In", ["linux"]),
    ("kubernetes.io/arch", ("kubernetes.io/arch",), "In", ["amd64"]),
)
_TYPE_PREFIX: Final = "karpenter.k8s.aws/instance-"
_TYPE_KEYS: Final = ("node.kubernetes.io/instance-type",)

_LABELS: Final[Pointer] = ("spec", "template", "metadata", "labels")
_OWN: Final = "karpenter.sh/nodepool"


class MigrationResult(NamedTuple):
    """The results of a migration besides the object: notes, kubelet settings, inline provider."""

    notes: list[Note]
    kubelet: JsonDict | None = None
    provider: JsonDict | None = None


def ensure_mapping(parent: JsonDict, key: str) -> JsonDict:
    """Return the mapping under a key, which is created if it is missing or not a mapping."""
    value = parent.get(key)
    if not isinstance(value, dict):
        value = {}
        parent[key] = value
    return value


def migrate_node_pool(data: JsonDict) -> MigrationResult:
    """Turn a NodePool of ``v1beta1``, or one with spellings of it, into one of ``v1``."""
    notes: list[Note] = []
    if data.get("apiVersion") != VERSION:
        notes.append(change_note(("apiVersion",), f"{data.get('apiVersion')} → {VERSION}"))
        is_beta = True
        data["apiVersion"] = VERSION
    else:
        is_beta = False
    spec = ensure_mapping(data, "spec")
    claim = ensure_mapping(ensure_mapping(spec, "template"), "spec")
    at: Pointer = ("spec", "template", "spec")
    notes += _migrate_class_reference(claim, at)
    notes += _migrate_disruption(spec, claim, is_beta=is_beta)
    notes += _migrate_limits(spec)
    notes += _migrate_labels(spec, at)
    notes += _remove_own_label(data)
    kubelet = _pop_kubelet(claim, "kubelet", (*at, "kubelet"), notes)
    return MigrationResult(notes, kubelet)


def _migrate_limits(spec: JsonDict) -> list[Note]:
    """Lift the limits out of ``resources``, where ``v1alpha5`` had them."""
    limits = spec.get("limits")
    if isinstance(limits, dict) and isinstance(limits.get("resources"), dict):
        spec["limits"] = limits["resources"]
        return [change_note(("spec", "limits", "resources"), "moved to spec.limits")]
    if limits is None:
        spec.pop("limits", None)
    return []


def _remove_own_label(data: JsonDict) -> list[Note]:
    """Remove the label with the name of the NodePool from the template: Karpenter sets it."""
    labels = value_at(data, _LABELS)
    name = value_at(data, ("metadata", "name"))
    if isinstance(labels, dict) and name and labels.get(_OWN) == name:
        del labels[_OWN]
        return [change_note((*_LABELS, _OWN), "is removed, since every node has it")]
    return []


def _pop_set(data: JsonDict, *keys: str) -> JsonDict:
    """Remove and return those of the fields that are set to something."""
    return {key: data.pop(key) for key in keys if data.get(key)}


def migrate_provisioner(data: JsonDict) -> MigrationResult:
    """Turn a Provisioner of ``v1alpha5`` into a NodePool of ``v1`` with the same behaviour."""
    notes = [change_note(("kind",), f"Provisioner {data.get('apiVersion')} → NodePool {VERSION}")]
    data["apiVersion"], data["kind"] = VERSION, "NodePool"
    old = ensure_mapping(data, "spec")
    provider = old.pop("provider", None)
    claim: JsonDict = {}
    template: JsonDict = {"spec": claim}
    spec: JsonDict = {"template": template}
    metadata = _pop_set(old, "labels", "annotations")
    if metadata:
        template["metadata"] = metadata
    claim["nodeClassRef"] = _class_of_provisioner(data, old, provider, notes)
    claim["requirements"] = _migrate_requirements(old.pop("requirements", None), notes)
    claim |= _pop_set(old, "taints", "startupTaints")
    kubelet = _pop_kubelet(old, "kubeletConfiguration", ("spec", "kubeletConfiguration"), notes)
    claim["expireAfter"] = _format_seconds(old.pop("ttlSecondsUntilExpired", None))
    spec["disruption"] = _migrate_consolidation(old, notes)
    spec["limits"] = old.pop("limits", None)
    notes += _migrate_limits(spec)
    spec |= _pop_set(old, "weight")
    unread = sorted(k for k, v in old.items() if v not in (None, {}, []))
    notes += [removal_note(("spec", key), "has no successor in v1") for key in unread]
    data["spec"] = spec
    notes += _migrate_labels(spec, ("spec",))
    return MigrationResult(notes, kubelet, provider if isinstance(provider, dict) else None)


def _class_of_provisioner(
    data: JsonDict, old: JsonDict, provider: object, notes: list[Note]
) -> JsonDict:
    """Return the class reference of a Provisioner: its template, or the one of its provider."""
    reference = old.pop("providerRef", None)
    name = reference.get("name") if isinstance(reference, dict) else None
    if name is None and provider is not None:
        name = ensure_mapping(data, "metadata").get("name")
        notes.append(change_note(("spec", "provider"), f"became EC2NodeClass {name}"))
    if name is None:
        name = "default"
        message = "names no AWSNodeTemplate; EC2NodeClass default is assumed"
        notes.append(incomplete_note(("spec", "providerRef"), message, "check the name"))
    return {"group": CLASS_GROUP, "kind": CLASS_KIND, "name": name}


def _former_defaults(keys: set[str]) -> list[JsonDict]:
    """Return the requirements that Karpenter added to a Provisioner with these keys."""
    added: list[JsonDict] = [
        {"key": key, "operator": operator, "values": values}
        for key, any_of, operator, values in _FORMER_DEFAULTS
        if not keys & set(any_of)
    ]
    if not any(key.startswith(_TYPE_PREFIX) or key in _TYPE_KEYS for key in keys):
        category, generation = f"{_TYPE_PREFIX}category", f"{_TYPE_PREFIX}generation"
        added += [
            {"key": category, "operator": "In", "values": ["c", "m", "r"]},
            {"key": generation, "operator": "Gt", "values": ["2"]},
        ]
    return added


def _migrate_requirements(found: object, notes: list[Note]) -> list[JsonDict]:
    """Return the requirements, with those that Karpenter added by default to a Provisioner."""
    known = as_mappings(found)
    keys = {str(r.get("key")) for r in known}
    added = _former_defaults(keys)
    if added:
        names = ", ".join(r["key"] for r in added)
        message = f"Karpenter's former defaults are written out: {names}"
        notes.append(change_note(("spec", "requirements"), message))
    for requirement in known:
        if requirement.get("key") == _POOL_LABEL[0]:
            requirement["key"] = _POOL_LABEL[1]
    return [*known, *added]


def _migrate_consolidation(old: JsonDict, notes: list[Note]) -> JsonDict:
    """Return the disruption of a Provisioner, which removed nothing by default."""
    empty_for = old.pop("ttlSecondsAfterEmpty", None)
    consolidation = old.pop("consolidation", None)
    if isinstance(consolidation, dict) and consolidation.get("enabled") is True:
        found = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}
        notes.append(change_note(("spec", "consolidation"), "became WhenEmptyOrUnderutilized"))
    else:
        found = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": _format_seconds(empty_for)}
        what = "nodes are never consolidated" if empty_for is None else "only empty nodes go"
        at: Pointer = ("spec", "ttlSecondsAfterEmpty")
        notes.append(change_note(at, f"became consolidationPolicy WhenEmpty: {what}, as before"))
    return found


def _format_seconds(value: object) -> str:
    return f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else "Never"


def _migrate_class_reference(claim: JsonDict, at: Pointer) -> Iterator[Note]:
    """Write the group of a class where older versions wrote its apiVersion."""
    reference = claim.get("nodeClassRef")
    if not isinstance(reference, dict):
        return
    here = (*at, "nodeClassRef")
    version = reference.pop("apiVersion", None)
    group = reference.get("group")
    if group is None:
        written = version if isinstance(version, str) else CLASS_GROUP
        reference["group"] = written.partition("/")[0]
        yield change_note(here, f"apiVersion became group: {reference['group']}")
    elif isinstance(group, str) and "/" in group:
        reference["group"] = group.partition("/")[0]
        message = f'"{group}" is a group with a version; corrected to {reference["group"]}'
        yield change_note((*here, "group"), message)
    if reference.get("kind") is None:
        reference["kind"] = CLASS_KIND
        yield change_note(here, f"kind {CLASS_KIND} is written out")


def _migrate_disruption(spec: JsonDict, claim: JsonDict, *, is_beta: bool) -> Iterator[Note]:
    disruption = spec.get("disruption")
    if not isinstance(disruption, dict):
        return
    at: Pointer = ("spec", "disruption")
    if disruption.get("consolidationPolicy") == "WhenUnderutilized":
        disruption["consolidationPolicy"] = "WhenEmptyOrUnderutilized"
        message = "WhenUnderutilized → WhenEmptyOrUnderutilized"
        yield change_note((*at, "consolidationPolicy"), message)
    if "expireAfter" in disruption:
        claim.setdefault("expireAfter", disruption.pop("expireAfter"))
        yield change_note((*at, "expireAfter"), "moved to spec.template.spec.expireAfter")
    if is_beta and disruption.get("consolidateAfter") is None:
        disruption["consolidateAfter"] = "0s"
        yield change_note((*at, "consolidateAfter"), "0s is written out, which v1 requires")
    for budget in as_mappings(disruption.get("budgets")):
        reasons = as_list(budget.get("reasons"))
        reasons[:] = [_REASONS.get(r, r) if isinstance(r, str) else r for r in reasons]


def _migrate_labels(spec: JsonDict, at: Pointer) -> Iterator[Note]:
    """Rename the labels and annotations that are spelled differently today."""
    template = ensure_mapping(spec, "template")
    claim = ensure_mapping(template, "spec")
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    for old in _FORMER_PROTECTIONS:
        if isinstance(annotations, dict) and old in annotations:
            annotations[_DO_NOT_DISRUPT] = annotations.pop(old)
            yield change_note(
                ("spec", "template", "metadata", "annotations", old), (f"became {_DO_NOT_DISRUPT}")
            )
    requirements = claim.get("requirements")
    for number, requirement in enumerate(as_list(requirements)):
        if isinstance(requirement, dict) and requirement.get("key") == _POOL_LABEL[0]:
            requirement["key"] = _POOL_LABEL[1]
            yield change_note((*at, "requirements", number), f"key became {_POOL_LABEL[1]}")


def _pop_kubelet(parent: JsonDict, key: str, at: Pointer, notes: list[Note]) -> JsonDict | None:
    """Remove the kubelet settings from a pool and return them; they now belong to its class."""
    kubelet = parent.pop(key, None)
    if not isinstance(kubelet, dict):
        return None
    notes += [
        removal_note((*at, old), "was removed; nodes run containerd")
        for old in _UNSUPPORTED_KUBELET
        if kubelet.pop(old, None) is not None
    ]
    if not kubelet:
        return None
    notes.append(change_note(at, "moved to spec.kubelet of the EC2NodeClass"))
    return kubelet
