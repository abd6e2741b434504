"""What git changes, and which NodeClaims no longer match it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from reconciler.plan.value.part import Part

ChangeKind = Literal["create", "update", "delete"]


class PlannedFieldChange(Part, frozen=True, kw_only=True):
    """A field that differs; ``drifts`` means that running nodes no longer match it."""

    path: str
    old: Any = msgspec.field(default=None, name="from")
    new: Any = msgspec.field(default=None, name="to")
    drifts: bool = False


class PlannedChange(Part, frozen=True, kw_only=True):
    """An object that git creates, updates or deletes; ``drifted`` are the affected NodeClaims."""

    op: ChangeKind
    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fields: tuple[PlannedFieldChange, ...] = ()
    drifted: tuple[str, ...] = ()


class DriftedClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim that no longer matches git; ``side`` is the side that changed."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[PlannedFieldChange, ...] = ()
    side: str = ""
