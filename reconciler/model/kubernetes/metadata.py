"""Metadata of Kubernetes objects: name, labels and owners; and label selectors.

The objects of the model are msgspec Structs in the API's own spelling. A cluster of a hundred
thousand pods is therefore decoded in one pass in C, and readers who know Kubernetes recognize the
types. Only the fields that decisions depend on are declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The owner of an object; ``api_version`` and ``kind`` compare as text."""

    kind: str
    name: str = ""
    api_version: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Names, labels and annotations of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generate_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    generation: int | None = None
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the object, None if there is none."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    def is_owned_by(self, api_version: str, kind: str) -> bool:
        """Return whether any owner is of that kind, controller or not."""
        for owner in self.owner_references:  # a loop: this is called for a hundred thousand pods
            if owner.kind == kind and owner.api_version == api_version:
                return True
        return False


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition of an object's status; only the status ``True`` is true."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int | None = None


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of that type, or None."""
    for known in conditions:  # a loop: this is called ten times for each of ten thousand nodes
        if known.type == kind:
            return known
    return None


def is_true(conditions: tuple[Condition, ...], kind: str) -> bool:
    """Return whether the condition exists and is True."""
    for known in conditions:  # not by ``condition``: this is called even more often
        if known.type == kind:
            return known.status == "True"
    return False


def true_types(conditions: tuple[Condition, ...]) -> frozenset[str]:
    """Return the types of the conditions that are True."""
    statuses = {c.type: c.status for c in reversed(conditions)}  # of equal types the first counts
    return frozenset([kind for kind, status in statuses.items() if status == "True"])


class SelectorExpression(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One expression of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether ``labels`` satisfy it; ``NotIn`` holds for a missing label."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False


class LabelSelector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A label selector; an empty one matches everything, a missing one (None) nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[SelectorExpression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether every pair and every expression matches."""
        for key, value in self.match_labels.items():
            if labels.get(key) != value:
                return False
        return all(expression.matches(labels) for expression in self.match_expressions)


class HasMetadata(Protocol):
    """An object of Kubernetes, of whatever kind."""

    @property
    def metadata(self) -> Metadata: ...
