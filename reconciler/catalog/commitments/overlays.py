"""The NodeOverlays that preferences and commitments amount to, for clusters that keep Karpenter.

Karpenter reads prices from NodeOverlays only. What this fleet's own planner takes from annotations
and from ``commitments`` is therefore written as objects. Their names are Veneer's, so that both
never reduce a price twice; their labels are ours. A covered offering costs a ten-millionth
of its price and not nothing, so that the cheaper of two covered types is still preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.catalog.adjusted.preference import ANNOTATION, NUMBER, SOURCE
from reconciler.catalog.commitments.coverage import Cover
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference
from reconciler.model.ownership import FLEET_TAG

API_VERSION: Final = "karpenter.sh/v1alpha1"
KIND: Final = "NodeOverlay"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "reconciler"
SOURCE_LABEL: Final = "reconciler/source"
POOL_LABEL: Final = "reconciler/nodepool"
NUMBER_LABEL: Final = "reconciler/preference"
DISABLED_LABEL: Final = "reconciler/disabled"
COVERED: Final = "-99.99999%"
"""The adjustment for prepaid capacity (``coverage.PAID_SHARE``)."""


class WantedOverlay(msgspec.Struct, frozen=True):
    """An overlay to write, and the annotation or commitment that it stands for."""

    overlay: NodeOverlay
    reason: str


def wanted_overlays(
    preferences: Iterable[NodeOverlay],
    covers: Iterable[Cover],
    fleet: str,
    *,
    owners: Mapping[str, str],
    disabled: bool = False,
) -> list[WantedOverlay]:
    """Return the overlays of a fleet, by name.

    ``preferences`` are the overlays of annotations (``plan.make.pools.preference_overlays``).
    ``owners`` are the uids of the cluster's NodePools, which own the overlays of their preferences.
    ``disabled`` overlays require a label that no node has, so they can be inspected without an
    effect.
    """
    found = [_of_preference(overlay, fleet, owners, disabled=disabled) for overlay in preferences]
    found += [_of_cover(cover, fleet, disabled=disabled) for cover in covers]
    return sorted(found, key=lambda one: one.overlay.name)


def _of_preference(
    overlay: NodeOverlay, fleet: str, owners: Mapping[str, str], *, disabled: bool
) -> WantedOverlay:
    given = overlay.metadata.labels
    pool, number = given[SOURCE], given[NUMBER]
    labels = {SOURCE_LABEL: "preference", POOL_LABEL: pool, NUMBER_LABEL: number}
    uid = owners.get(pool)
    owner = OwnerReference("NodePool", pool, "karpenter.sh/v1", uid) if uid else None
    made = _ours(overlay.name, overlay.spec, {FLEET_TAG: fleet, **labels}, owner, disabled=disabled)
    adjustment = overlay.spec.price_adjustment
    return WantedOverlay(made, f"NodePool {pool}, {ANNOTATION}{number}: {adjustment}")


def _of_cover(cover: Cover, fleet: str, *, disabled: bool) -> WantedOverlay:
    decision = cover.decision
    spec = NodeOverlaySpec(
        requirements=decision.requirements, price_adjustment=COVERED, weight=decision.weight
    )
    labels = {FLEET_TAG: fleet, SOURCE_LABEL: decision.kind.label}
    return WantedOverlay(_ours(decision.name, spec, labels, None, disabled=disabled), cover.note)


def _ours(
    name: str,
    spec: NodeOverlaySpec,
    labels: Mapping[str, str],
    owner: OwnerReference | None,
    *,
    disabled: bool,
) -> NodeOverlay:
    named = {MANAGED_BY: OURS, **labels}
    if disabled:
        named[DISABLED_LABEL] = "true"
        never = NodeSelectorRequirement(DISABLED_LABEL, Operator.IN, ("true",))
        spec = msgspec.structs.replace(spec, requirements=(never, *spec.requirements))
    owners = (owner,) if owner is not None else ()
    return NodeOverlay(Metadata(name=name, labels=named, owner_references=owners), spec)


class OverlayAction(StrEnum):
    """What happens to an overlay. A skipped one belongs to somebody else."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    SKIP = "skip"
    UNCHANGED = "unchanged"


class OverlayRow(msgspec.Struct, frozen=True):
    """An overlay and what happens to it.

    ``overlay`` is the wanted one, or the present one if that is deleted; ``present`` is the one in
    the cluster, None if there is none.
    """

    action: OverlayAction
    overlay: NodeOverlay
    reason: str
    present: NodeOverlay | None = None


def overlay_rows(
    wanted: Sequence[WantedOverlay], present: Iterable[NodeOverlay], fleet: str
) -> list[OverlayRow]:
    """Return what happens to each overlay that is wanted or ours, by name.

    Ours are those with the labels of this fleet, whatever their names. Labels that others have
    added to them do not count as a difference.
    """
    there = {overlay.name: overlay for overlay in present}
    rows = [_row(one, there.get(one.overlay.name), fleet) for one in wanted]
    names = {one.overlay.name for one in wanted}
    rows += [
        OverlayRow(OverlayAction.DELETE, overlay, "no longer needed", overlay)
        for overlay in there.values()
        if overlay.name not in names and is_ours(overlay, fleet)
    ]
    return sorted(rows, key=lambda row: row.overlay.name)


def _row(one: WantedOverlay, present: NodeOverlay | None, fleet: str) -> OverlayRow:
    if present is None:
        return OverlayRow(OverlayAction.CREATE, one.overlay, one.reason)
    if not is_ours(present, fleet):
        owner = present.metadata.labels.get(MANAGED_BY) or "nobody"
        of_fleet = present.metadata.labels.get(FLEET_TAG, "")
        whose = f"fleet {of_fleet}" if owner == OURS else owner
        return OverlayRow(OverlayAction.SKIP, one.overlay, f"managed by {whose}", present)
    labels = present.metadata.labels
    is_same = one.overlay.metadata.labels.items() <= labels.items()
    same = is_same and present.spec == one.overlay.spec
    action = OverlayAction.UNCHANGED if same else OverlayAction.UPDATE
    return OverlayRow(action, one.overlay, one.reason, present)


def is_ours(overlay: NodeOverlay, fleet: str) -> bool:
    """Return whether an overlay has the labels of this fleet."""
    labels = overlay.metadata.labels
    return labels.get(MANAGED_BY) == OURS and labels.get(FLEET_TAG) == fleet


def document(overlay: NodeOverlay) -> dict[str, object]:
    """Return an overlay as the API spells it, without its status."""
    whole: dict[str, object] = msgspec.to_builtins(overlay)
    whole.pop("status", None)
    return {"apiVersion": API_VERSION, "kind": KIND, **whole}
