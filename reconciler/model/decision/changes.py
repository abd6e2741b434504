"""What git changes, and the NodeClaims that no longer match it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from reconciler.model.decision.part import Part

ChangeKind = Literal["create", "update", "delete"]


class FieldChange(Part, frozen=True):
    """One field that differs; ``old`` or ``new`` is None if it is not set on that side.

    ``drifts`` is whether nodes launched before the change have to be replaced.
    """

    path: str
    old: Any = msgspec.field(default=None, name="from")
    new: Any = msgspec.field(default=None, name="to")
    drifts: bool = False


class Change(Part, frozen=True):
    """One object that git creates, updates or deletes, with its ``file`` and ``line``.

    ``drifted`` are the NodeClaims that no longer match because of it.
    """

    op: ChangeKind
    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fields: tuple[FieldChange, ...] = ()
    drifted: tuple[str, ...] = ()

    @property
    def drifts(self) -> bool:
        """Whether running nodes have to be replaced because of it."""
        return any(field.drifts for field in self.fields)


class Side(StrEnum):
    """The side that changed since the last agreed state."""

    GIT = "git"
    WORLD = "world"
    US = "us"


class DriftedClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim that has to be replaced, and why.

    The hashes are those of the object in the reason, None unless a hash differs; ``fields`` are the
    fields of that object that are known to differ. ``side`` is the side that changed.
    """

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[FieldChange, ...] = ()
    side: Side = Side.GIT
