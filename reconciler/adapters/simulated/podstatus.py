"""Pods as the API server of a simulated cluster shows them, made from those of the workloads."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from reconciler.adapters.simulated.records import PodRecord
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodStatus


def running_pod(
    pod: Pod, node: Node, born: datetime, bound: tuple[datetime, datetime], now: datetime
) -> Pod:
    """Return a pod on a node; ``bound`` is when it was bound, and when its containers run."""
    at, started = bound
    ready = node.is_ready and now >= started
    return Pod(
        metadata=replace(pod.metadata, creation_timestamp=born),
        spec=replace(pod.spec, node_name=node.name),
        status=PodStatus(
            phase="Running" if now >= started else "Pending",
            conditions=(
                Condition("PodScheduled", "True", last_transition_time=at),
                Condition("Ready", "True" if ready else "False", last_transition_time=started),
            ),
            start_time=at,
        ),
    )


def named_pod(pod: Pod, record: PodRecord) -> Pod:
    """Return the present pod for a pod of the workloads."""
    return _with_name(pod, pod.namespace, record.name) if record.name else pod


def waiting_pod(pod: Pod, record: PodRecord) -> Pod:
    """Return the present pod for a pending one of the workloads, with its nomination."""
    named = named_pod(pod, record)
    return (
        replace(named, status=nominated_status(pod.status, record)) if record.nominated else named
    )


def nominated_status(status: PodStatus, record: PodRecord) -> PodStatus:
    """Return the status of a pending pod with the node where others make room for it, if any."""
    return replace(status, nominated_node_name=record.nominated) if record.nominated else status


def present_key(key: str, name: str) -> str:
    """Return ``namespace/name`` of the present pod for a key of the workloads; no name keeps it."""
    return f"{key.rpartition('/')[0]}/{name}" if name else key


def pod_of_template(template: Pod | None, key: str) -> Pod | None:
    """Return the pod ``namespace/name`` that is made as ``template`` is; None without one."""
    if template is None or template.key == key:
        return template
    namespace, _, name = key.rpartition("/")
    pod = _with_name(template, namespace, name)
    return pod if template.metadata.uid else replace(pod, metadata=replace(pod.metadata, uid=""))


def _with_name(pod: Pod, namespace: str, name: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, name=name, uid=f"{namespace}/{name}"))


def has_own_claims(pod: Pod) -> bool:
    """Return whether a pod has PersistentVolumeClaims that are named after it."""
    return any(volume.ephemeral is not None for volume in pod.spec.volumes)
