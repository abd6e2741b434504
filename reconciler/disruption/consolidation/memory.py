"""Flap damping: consolidation does not return to an offering that it recently replaced.

Prices change. If two offerings cost about the same most of the time, each move from one to the
other saves a little and evicts all pods. The rule: for a period after consolidation launched a
node, the node is not replaced by an offering that it replaced. An offering is an instance type, a
zone and a capacity type. Offerings replaced earlier in the same lineage within the period count as
well, which prevents cycles of any length.

Replacement by several nodes returns to such an offering at most a few times in an hour, whatever
the settings. A plan expects each pod on one of the new nodes, but the scheduler of the cluster
decides. If pods take each other's places, another node is launched for the last of them, the nodes
are merged again, and the same command would follow.

The data is an annotation on the NodeClaim, in our records and on its node, and is deleted with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import PoolOption, Settings
from reconciler.placement.question import PlannedClaim

GAVE_UP: Final = "reconciler/gave-up"
"""Annotation of a NodeClaim that consolidation launched: the offerings that it replaced."""

_KEPT_MAX: Final = 32
_REPEATS: Final = 3
"""How often within an hour a lineage gives up an offering before no set returns to it."""
_HOUR: Final = timedelta(hours=1)
_LABELS: Final = (INSTANCE_TYPE, ZONE, CAPACITY_TYPE)


@dataclass(frozen=True, slots=True, order=True)
class AbandonedOffering:
    """An offering that consolidation replaced by a cheaper one, and when."""

    at: datetime
    instance_type: str
    zone: str
    capacity_type: str

    def __str__(self) -> str:
        return f"{self.instance_type} {self.capacity_type} in {self.zone}"


def given_up(claim: NodeClaim) -> tuple[AbandonedOffering, ...]:
    """Return the offerings that a node replaced, oldest first; invalid entries are ignored."""
    text = claim.metadata.annotations.get(GAVE_UP, "")
    return tuple(sorted(one for part in text.split() if (one := _read(part)) is not None))


def _read(text: str) -> AbandonedOffering | None:
    offering, _, moment = text.partition("@")
    parts = offering.split(",")
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return (
        AbandonedOffering(at, *parts)
        if len(parts) == len(_LABELS) and at.tzinfo is not None
        else None
    )


def remembered(
    claims: Sequence[NodeClaim], settings: Settings, now: datetime, *, several: bool = False
) -> str:
    """Return the annotation for a replacement of these claims, empty if nothing needs it.

    It contains the claims' own offerings and their recorded ones that still count. Flap damping
    needs it, and so do the rule about ``several`` replacements and the descendants of such.
    """
    periods = [undo_period(claim.node_pool, settings) for claim in claims]
    recent = [
        one
        for claim, period in zip(claims, periods, strict=True)
        for one in given_up(claim)
        if now - one.at < max(period, _HOUR)
    ]
    if not (several or recent or any(period > timedelta(0) for period in periods)):
        return ""
    found = dict.fromkeys(recent)
    for claim in claims:
        labels = claim.metadata.labels
        if all(key in labels for key in _LABELS):
            found[AbandonedOffering(now, *(labels[key] for key in _LABELS))] = None
    newest = sorted(found)[-_KEPT_MAX:]
    return " ".join(
        f"{one.instance_type},{one.zone},{one.capacity_type}@{one.at.isoformat()}" for one in newest
    )


def undo_period(node_pool: str, settings: Settings) -> timedelta:
    """Return for how long consolidation of the pool's nodes is not undone."""
    return settings.pool(node_pool).undo_period


def in_memory(claim: NodeClaim, settings: Settings) -> Iterator[tuple[AbandonedOffering, datetime]]:
    """Yield the offerings that must not replace a node, and until when."""
    period = undo_period(claim.node_pool, settings)
    if period > timedelta(0):
        yield from ((one, one.at + period) for one in given_up(claim))


def undoes(
    candidates: Sequence[Candidate], claim: PlannedClaim | None, settings: Settings, now: datetime
) -> CandidateRefusal | None:
    """Reject a replacement that may become an offering that one of the nodes replaced.

    All possible offerings count, because EC2 chooses among them.
    """
    if claim is None:
        return None
    found = [
        (until, candidate.name, one)
        for candidate in candidates
        for one, until in in_memory(candidate.claim, settings)
        if now < until and _may_become(claim, one)
    ]
    if not found:
        return None
    until, node, one = max(found)
    pool = next(c.pool.name for c in candidates if c.name == node)
    key = settings.key_of(pool, PoolOption.UNDO_PERIOD)
    text = (
        f"would undo a consolidation: {node} replaced {one} at {one.at:%Y-%m-%d %H:%M %Z},"
        f" and its replacement could be the same offering again ({key})"
    )
    return CandidateRefusal(BlockCode.UNDOES, text, until)


def returns(
    candidates: Sequence[Candidate], claims: Sequence[PlannedClaim], now: datetime
) -> CandidateRefusal | None:
    """Reject several replacements if one may become an offering that was given up again and again.

    Only what one of the nodes or its predecessors replaced within the last hour counts. No time is
    given at which that ends: nothing else would change by then.
    """
    for candidate in candidates:
        recent = [one for one in given_up(candidate.claim) if now - one.at < _HOUR]
        counts = Counter((one.instance_type, one.zone, one.capacity_type) for one in recent)
        for one in recent:
            times = counts[one.instance_type, one.zone, one.capacity_type]
            if times >= _REPEATS and any(_may_become(claim, one) for claim in claims):
                text = (
                    f"would repeat a consolidation: {one} was replaced by {candidate.name} or its "
                    f"predecessors {times} times within an hour, and one of {len(claims)} "
                    "replacements could be the same offering again"
                )
                return CandidateRefusal(BlockCode.UNDOES, text)
    return None


def _may_become(claim: PlannedClaim, one: AbandonedOffering) -> bool:
    kind = next((kind for kind in claim.types if kind.name == one.instance_type), None)
    if kind is None:
        return False
    return any(
        (o.zone, o.capacity_type) == (one.zone, one.capacity_type)
        and o.available
        and claim.requirements.intersects(o.requirements)
        for o in kind.offerings
    )
