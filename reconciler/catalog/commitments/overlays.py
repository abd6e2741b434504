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
MANAGER_NAME: Final = "reconciler"
SOURCE_LABEL: Final = "reconciler/source"
POOL_LABEL: Final = "reconciler/nodepool"
NUMBER_LABEL: Final = "reconciler/preference"
DISABLED_LABEL: Final = "reconciler/disabled"
COVERED: Final = "-99.99999%"
"""The adjustment for prepaid capacity (``coverage.PAID_SHARE``)."""


class DesiredOverlay(msgspec.Struct, frozen=True):
    """An overlay to write, and the annotation or commitment that it stands for."""

    overlay: NodeOverlay
    reason: str


def fleet_overlays(
    preferences: Iterable[NodeOverlay],
    covers: Iterable[Cover],
    fleet: str,
    *,
    owners: Mapping[str, str],
    disabled: bool = False,
) -> list[DesiredOverlay]:
    """Return the overlays of a fleet, by name.

    ``preferences`` are the overlays of annotations (``plan.make.pools.preference_overlays``).
    ``owners`` are the uids of the cluster's NodePools, which own the overlays of their preferences.
    ``disabled`` overlays require a label that no node has, so they can be inspected without an
    effect.
    """
    found = [
        _preference_overlay(overlay, fleet, owners, disabled=disabled) for overlay in preferences
    ]
    found += [_cover_overlay(cover, fleet, disabled=disabled) for cover in covers]
    return sorted(found, key=lambda desired: desired.overlay.name)


def _preference_overlay(
    overlay: NodeOverlay, fleet: str, owners: Mapping[str, str], *, disabled: bool
) -> DesiredOverlay:
    preference_labels = overlay.metadata.labels
    pool, number = preference_labels[SOURCE], preference_labels[NUMBER]
    labels = {SOURCE_LABEL: "preference", POOL_LABEL: pool, NUMBER_LABEL: number}
    uid = owners.get(pool)
    owner = OwnerReference("NodePool", pool, "karpenter.sh/v1", uid) if uid else None
    managed = _managed_overlay(
        overlay.name, overlay.spec, {FLEET_TAG: fleet, **labels}, owner, disabled=disabled
    )
    adjustment = overlay.spec.price_adjustment
    return DesiredOverlay(managed, f"NodePool {pool}, {ANNOTATION}{number}: {adjustment}")


def _cover_overlay(cover: Cover, fleet: str, *, disabled: bool) -> DesiredOverlay:
    decision = cover.decision
    spec = NodeOverlaySpec(
        requirements=decision.requirements, price_adjustment=COVERED, weight=decision.weight
    )
    labels = {FLEET_TAG: fleet, SOURCE_LABEL: decision.kind.label}
    return DesiredOverlay(
        _managed_overlay(decision.name, spec, labels, None, disabled=disabled), cover.note
    )


def _managed_overlay(
    name: str,
    spec: NodeOverlaySpec,
    labels: Mapping[str, str],
    owner: OwnerReference | None,
    *,
    disabled: bool,
) -> NodeOverlay:
    all_labels = {MANAGED_BY: MANAGER_NAME, **labels}
    if disabled:
        all_labels[DISABLED_LABEL] = "true"
        never = NodeSelectorRequirement(DISABLED_LABEL, Operator.IN, ("true",))
        spec = msgspec.structs.replace(spec, requirements=(never, *spec.requirements))
    owners = (owner,) if owner is not None else ()
    return NodeOverlay(Metadata(name=name, labels=all_labels, owner_references=owners), spec)


class OverlayAction(StrEnum):
    """The action for an overlay. A skipped one is managed by somebody else."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    SKIP = "skip"
    UNCHANGED = "unchanged"


class OverlayRow(msgspec.Struct, frozen=True):
    """An overlay and what happens to it.

    ``overlay`` is the desired one, or the present one if it is deleted; ``present`` is the one in
    the cluster, None if there is none.
    """

    action: OverlayAction
    overlay: NodeOverlay
    reason: str
    present: NodeOverlay | None = None


def overlay_rows(
    desired: Sequence[DesiredOverlay], present: Iterable[NodeOverlay], fleet: str
) -> list[OverlayRow]:
    """Return the action for each overlay that is desired or ours, by name.

    Ours are those with the labels of this fleet, whatever their names. Labels that others have
    added to them do not count as a difference.
    """
    present_by_name = {overlay.name: overlay for overlay in present}
    rows = [_overlay_row(item, present_by_name.get(item.overlay.name), fleet) for item in desired]
    names = {item.overlay.name for item in desired}
    rows += [
        OverlayRow(OverlayAction.DELETE, overlay, "no longer needed", overlay)
        for overlay in present_by_name.values()
        if overlay.name not in names and is_ours(overlay, fleet)
    ]
    return sorted(rows, key=lambda row: row.overlay.name)


def _overlay_row(desired: DesiredOverlay, present: NodeOverlay | None, fleet: str) -> OverlayRow:
    if present is None:
        return OverlayRow(OverlayAction.CREATE, desired.overlay, desired.reason)
    if not is_ours(present, fleet):
        owner = present.metadata.labels.get(MANAGED_BY) or "nobody"
        of_fleet = present.metadata.labels.get(FLEET_TAG, "")
        manager = f"fleet {of_fleet}" if owner == MANAGER_NAME else owner
        return OverlayRow(OverlayAction.SKIP, desired.overlay, f"managed by {manager}", present)
    labels = present.metadata.labels
    is_same = desired.overlay.metadata.labels.items() <= labels.items()
    same = is_same and present.spec == desired.overlay.spec
    action = OverlayAction.UNCHANGED if same else OverlayAction.UPDATE
    return OverlayRow(action, desired.overlay, desired.reason, present)


def is_ours(overlay: NodeOverlay, fleet: str) -> bool:
    """Return whether an overlay has the labels of this fleet."""
    labels = overlay.metadata.labels
    return labels.get(MANAGED_BY) == MANAGER_NAME and labels.get(FLEET_TAG) == fleet


def document(overlay: NodeOverlay) -> dict[str, object]:
    """Return an overlay as the API spells it, without its status."""
    whole: dict[str, object] = msgspec.to_builtins(overlay)
    whole.pop("status", None)
    return {"apiVersion": API_VERSION, "kind": KIND, **whole}
