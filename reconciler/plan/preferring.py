"""The preferences that NodePools bear as annotations, as the NodeOverlays that they mean.

They need no gate and no object in the cluster: who writes one wants it. An overlay of the same name
in git, as Veneer would have written it, says the same and stands in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from reconciler.catalog.preference import (
    ANNOTATION,
    Preference,
    adjustment_text,
    is_admitted,
    overlay_name,
    overlay_of,
    parse_preferences,
)
from reconciler.model.nodeoverlay import NodeOverlay
from reconciler.model.nodepool import NodePool
from reconciler.plan.plan import Finding

_WEIGHT_MAX = 10_000


def preferred(
    pools: Iterable[NodePool], stated: Collection[str]
) -> tuple[list[NodeOverlay], list[Finding]]:
    """Return the overlays that preferences mean, and what was wrong with others.

    ``stated`` are the names of the NodeOverlays in git.
    """
    overlays: dict[str, NodeOverlay] = {}
    findings: list[Finding] = []
    for pool in pools:
        found, errors = parse_preferences(pool.name, pool.metadata.annotations)
        findings += (_refused(pool.name, f"{e.annotation}: {e.message}") for e in errors)
        for preference in found:
            name = overlay_name(pool.name, preference.number)
            if name in stated:
                continue
            why = _objection(preference, is_taken=name in overlays)
            if why:
                findings.append(_refused(pool.name, f"{ANNOTATION}{preference.number}: {why}"))
                continue
            overlays[name] = overlay_of(preference)
            findings += _rounded(preference)
    return list(overlays.values()), findings


def _objection(preference: Preference, *, is_taken: bool) -> str:
    """Return why a preference cannot become an overlay, nothing where it can."""
    if is_taken:
        return "duplicate number"
    if preference.number > _WEIGHT_MAX:
        return f"the number must be at most {_WEIGHT_MAX}"
    if not is_admitted(adjustment_text(preference.adjustment)):
        return "the adjustment must not be 0% or below -100%"
    return ""


def _refused(pool: str, why: str) -> Finding:
    message = f"NodePool {pool}: a preference is not applied: {why}"
    return Finding(severity="warning", code="preference-invalid", message=message)


def _rounded(preference: Preference) -> Iterator[Finding]:
    text = adjustment_text(preference.adjustment)
    if float(text.removesuffix("%")) != preference.adjustment:
        yield Finding(
            severity="info",
            code="preference-rounded",
            message=f"NodePool {preference.node_pool}: {ANNOTATION}{preference.number} is rounded"
            f" to {text}, because preferences are whole percentages",
        )
