"""The steps of a migration that are the same for objects of any kind.

It removes what a cluster has added, and notes what it changed or could not change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import LAST_APPLIED
from reconciler.source.document import Pointer

_METADATA: Final = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "managedFields", "selfLink", "ownerReferences", "finalizers"),
)
_ANNOTATIONS: Final = (
    LAST_APPLIED,
    "karpenter.sh/nodepool-hash",
    "karpenter.sh/nodepool-hash-version",
    "karpenter.sh/provisioner-hash",
    "karpenter.sh/stored-version-migrated",
    "karpenter.k8s.aws/ec2nodeclass-hash",
    "karpenter.k8s.aws/ec2nodeclass-hash-version",
    "karpenter.k8s.aws/nodetemplate-hash",
    "deployment.kubernetes.io/revision",
)
_PREFIX: Final = "compatibility.karpenter"


class Note(NamedTuple):
    """A remark on one object.

    ``pointer`` is the field as it was written before. An INFO is a change that keeps the meaning, a
    WARNING a removed field without a successor, and an ERROR something that a person has to
    complete.
    """

    severity: Severity
    pointer: Pointer
    message: str
    hint: str = ""


def change_note(pointer: Pointer, message: str) -> Note:
    """Return the note on a change that keeps the meaning."""
    return Note(Severity.INFO, pointer, message)


def removal_note(pointer: Pointer, message: str, hint: str = "") -> Note:
    """Return the note on a field that has no successor."""
    return Note(Severity.WARNING, pointer, message, hint)


def incomplete_note(pointer: Pointer, message: str, hint: str) -> Note:
    """Return the note on something that a person has to complete."""
    return Note(Severity.ERROR, pointer, message, hint)


def remove_live_fields(data: JsonDict) -> bool:
    """Remove status and bookkeeping from an object; return whether there was any."""
    found = data.pop("status", None) is not None
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        return found
    for key in _METADATA:
        found = metadata.pop(key, None) is not None or found
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        for key in [k for k in annotations if k in _ANNOTATIONS or k.startswith(_PREFIX)]:
            del annotations[key]
            found = True
        if not annotations:
            del metadata["annotations"]
    return found
