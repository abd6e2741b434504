"""Which objects of a folder are workloads that a plan counts, before they are validated.

A folder may be a dump of a cluster, or contain one. Objects that another object made are counted
with their owner, and pods that have ended are not counted. They are not validated either: an object
that nobody plans never makes a fleet invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from reconciler.desired.workloads.kinds import KindTable, value_of
from reconciler.model.json import JsonDict, as_list, as_mapping
from reconciler.source.objects import Entry
from reconciler.source.resource import group_of

_ENDED_STATES: Final = {
    ("", "Pod"): ("status.phase", ("Succeeded", "Failed")),
    ("sparkoperator.k8s.io", "SparkApplication"): (
        "status.applicationState.state",
        ("COMPLETED", "FAILED", "SUBMISSION_FAILED"),
    ),
    ("ray.io", "RayJob"): ("status.jobDeploymentStatus", ("Complete", "Failed")),
    ("batch.volcano.sh", "Job"): (
        "status.state.phase",
        ("Completed", "Failed", "Aborted", "Terminated"),
    ),
}
"""Where an object states that it has ended, and how, as the documentation of its project has it."""
_ENDING_GROUPS: Final = ("batch", "jobset.x-k8s.io", "kubeflow.org")
_ENDING_KINDS: Final = ("Job", "JobSet")
_ENDED_CONDITIONS: Final = ("Complete", "Completed", "Failed", "Succeeded")
"""The conditions of a Job, a JobSet and a training job that has ended."""
_NODE_OWNERS: Final = ("Node", "DaemonSet")
"""Owners whose pods belong to a node: mirror pods, and the pods of a DaemonSet."""

_RENDERED_GROUPS: Final = ("fluxcd.io", "argoproj.io")
"""Their objects have the values of charts; what is not rendered of them is a finding already."""
_POLICY_GROUPS: Final = frozenset(
    {
        "kyverno.io",
        "gatekeeper.sh",
        "apiextensions.k8s.io",
        "admissionregistration.k8s.io",
        "kubewarden.io",
        "kustomize.config.k8s.io",
        "resources.gatekeeper.sh",
    }
)
"""Groups whose objects contain parts of pods as patterns, not as templates."""

_DEPTH_MAX: Final = 12


def is_of_policies(group: str) -> bool:
    """Return whether the objects of a group contain parts of pods as patterns only."""
    return any(group == g or group.endswith(f".{g}") for g in _POLICY_GROUPS)


class WorkloadEntries(NamedTuple):
    """The objects to plan, named, and those that are counted with their owner or have ended."""

    planned: tuple[Entry, ...]
    left_out: tuple[Entry, ...]

    @property
    def left_out_kinds(self) -> str:
        """The number of objects of each kind that are left out, as text."""
        counts: dict[str, int] = {}
        for entry in self.left_out:
            counts[entry.kind] = counts.get(entry.kind, 0) + 1
        return ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))


def select_entries(entries: Iterable[Entry], table: KindTable) -> WorkloadEntries:
    """Return which workloads are planned, in their order; objects of other kinds are ignored."""
    every = [e for e in entries if table.reads(e.api_version, e.kind)]
    declared = {
        (group_of(e.api_version), e.kind, e.namespace, e.name)
        for e in every
        if table.workload(e.api_version, e.kind) is not None
    }
    planned: list[Entry] = []
    left_out: list[Entry] = []
    used: dict[str, int] = {}
    for entry in every:
        if _is_ended(entry) or _is_owned(entry, declared):
            left_out.append(entry)
        else:
            planned.append(_named(entry, used))
    return WorkloadEntries(tuple(planned), tuple(left_out))


def _is_ended(entry: Entry) -> bool:
    """Return whether an object of a cluster runs no pods any more."""
    if value_of(entry.data, "metadata.deletionTimestamp"):
        return True
    group = group_of(entry.api_version)
    if (group, entry.kind) in _ENDED_STATES:
        path, states = _ENDED_STATES[group, entry.kind]
        return value_of(entry.data, path) in states and not _keeps_cluster(entry)
    if group not in _ENDING_GROUPS or not entry.kind.endswith(_ENDING_KINDS):
        return False
    conditions = value_of(entry.data, "status.conditions")
    found = as_list(conditions)
    return any(
        isinstance(c, dict) and c.get("type") in _ENDED_CONDITIONS and c.get("status") == "True"
        for c in found
    )


def _keeps_cluster(entry: Entry) -> bool:
    """Return whether the pods of a RayJob outlive it, as they do unless it says otherwise."""
    spec = value_of(entry.data, "spec")
    return entry.kind == "RayJob" and value_of(spec, "shutdownAfterJobFinishes") is not True


def _is_owned(entry: Entry, declared: set[tuple[str, str, str, str]]) -> bool:
    """Return whether the object that made this one is in the folder as well."""
    for owner in _owners(entry):
        kind, name = str(owner.get("kind")), str(owner.get("name"))
        group = group_of(str(owner.get("apiVersion") or ""))
        if entry.kind == "Pod" and kind in _NODE_OWNERS:
            return True
        if (group, kind, entry.namespace, name) in declared:
            return True
        if kind == "ReplicaSet" and entry.kind == "Pod":
            above = name.rpartition("-")[0]  # a ReplicaSet has the name of its owner and a hash
            if any(
                (g, k, entry.namespace, above) in declared
                for g, k in (("apps", "Deployment"), ("argoproj.io", "Rollout"))
            ):
                return True
    return False


def _owners(entry: Entry) -> Iterator[JsonDict]:
    owners = value_of(entry.data, "metadata.ownerReferences")
    for owner in as_list(owners):
        if isinstance(owner, dict):
            yield owner


def _named(entry: Entry, used: dict[str, int]) -> Entry:
    """Return the entry with a name: that of ``generateName`` and a hash of the content."""
    prefix = value_of(entry.data, "metadata.generateName")
    if entry.name or not isinstance(prefix, str) or not prefix:
        return entry
    digest = blake2b(repr(entry.data).encode(), digest_size=16).hexdigest()
    number = used.get(digest, 0)
    used[digest] = number + 1
    if number:
        digest = blake2b(f"{digest}{number}".encode(), digest_size=16).hexdigest()
    metadata = {**entry.data["metadata"], "name": f"{prefix}{digest[:5]}"}
    return entry._replace(data={**entry.data, "metadata": metadata})


def pods_in(api_version: str, data: object) -> str:
    """Return what in an object of an unknown kind shows that it makes pods, empty if nothing does.

    It is a list of containers, or the CPU or memory that containers of an operator get.
    """
    group = group_of(api_version)
    if is_of_policies(group):
        return ""
    if _is_anywhere(data, _has_containers):
        return "a pod template"
    is_rendered = any(group == g or group.endswith(f".{g}") for g in _RENDERED_GROUPS)
    return (
        "" if is_rendered or not _is_anywhere(data, _states_resources) else "requests of containers"
    )


def _is_anywhere(data: object, states: Callable[[JsonDict], bool], depth: int = _DEPTH_MAX) -> bool:
    """Return whether ``states`` holds for an object within ``data``."""
    if depth == 0:
        return False
    if isinstance(data, list):
        return any(_is_anywhere(item, states, depth - 1) for item in data)
    if not isinstance(data, dict):
        return False
    return states(data) or any(_is_anywhere(value, states, depth - 1) for value in data.values())


def _has_containers(data: JsonDict) -> bool:
    found = data.get("containers")
    return isinstance(found, list) and any(_is_container(item) for item in found)


def _is_container(item: object) -> bool:
    """Return whether an item is a container, or changes one that an operator makes."""
    if not isinstance(item, dict):
        return False
    changes = isinstance(item.get("name"), str) and isinstance(item.get("resources"), dict)
    return isinstance(item.get("image"), str) or changes


def _states_resources(data: JsonDict) -> bool:
    """Return whether a mapping itself has the resources of a container, or of Spark's operator."""
    resources = as_mapping(data.get("resources"))
    for part in ("requests", "limits"):
        amounts = as_mapping(resources.get(part))
        if "cpu" in amounts or "memory" in amounts:
            return True
    return "memory" in data and isinstance(data.get("cores"), int)
