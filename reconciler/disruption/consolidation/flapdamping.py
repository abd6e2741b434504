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
from reconciler.model.decision.waiting import WaitRule
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import PoolOption, Settings
from reconciler.model.text.times import format_time
from reconciler.placement.question import PlannedClaim

GAVE_UP: Final = "reconciler/gave-up"
"""Annotation of a NodeClaim that consolidation launched: the offerings that it replaced."""

_OFFERINGS_MAX: Final = 32
_REPEATS: Final = 3
"""An offering that a lineage gave up this often within an hour is no longer a replacement."""
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


def abandoned_offerings(claim: NodeClaim) -> tuple[AbandonedOffering, ...]:
    """Return the offerings that a node replaced, oldest first; invalid entries are ignored."""
    text = claim.metadata.annotations.get(GAVE_UP, "")
    return tuple(
        sorted(offering for part in text.split() if (offering := _parse_offering(part)) is not None)
    )


def _parse_offering(text: str) -> AbandonedOffering | None:
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


def gave_up_annotation(
    claims: Sequence[NodeClaim], settings: Settings, now: datetime, *, several: bool = False
) -> str:
    """Return the annotation for a replacement of these claims, empty if nothing needs it.

    It contains the claims' own offerings, and those of their annotations that still count. Flap
    damping needs it. So does the rule about ``several`` replacements, also for later generations.
    """
    periods = [undo_period(claim.node_pool, settings) for claim in claims]
    recent = [
        offering
        for claim, period in zip(claims, periods, strict=True)
        for offering in abandoned_offerings(claim)
        if now - offering.at < max(period, _HOUR)
    ]
    if not (several or recent or any(period > timedelta(0) for period in periods)):
        return ""
    offerings = dict.fromkeys(recent)
    for claim in claims:
        labels = claim.metadata.labels
        if all(key in labels for key in _LABELS):
            offerings[AbandonedOffering(now, *(labels[key] for key in _LABELS))] = None
    newest = sorted(offerings)[-_OFFERINGS_MAX:]
    return " ".join(
        f"{offering.instance_type},{offering.zone},{offering.capacity_type}@{offering.at.isoformat()}"
        for offering in newest
    )


def undo_period(node_pool: str, settings: Settings) -> timedelta:
    """Return for how long consolidation of the pool's nodes is not undone."""
    return settings.pool(node_pool).undo_period


def avoided_offerings(
    claim: NodeClaim, settings: Settings
) -> Iterator[tuple[AbandonedOffering, datetime]]:
    """Yield the offerings that must not replace a node, and until when."""
    period = undo_period(claim.node_pool, settings)
    if period > timedelta(0):
        yield from ((offering, offering.at + period) for offering in abandoned_offerings(claim))


def undo_refusal(
    candidates: Sequence[Candidate], claim: PlannedClaim | None, settings: Settings, now: datetime
) -> CandidateRefusal | None:
    """Reject a replacement that may become an offering that one of the nodes replaced.

    All possible offerings count, because EC2 chooses among them.
    """
    if claim is None:
        return None
    found = [
        (until, candidate.name, offering)
        for candidate in candidates
        for offering, until in avoided_offerings(candidate.claim, settings)
        if now < until and _may_match(claim, offering)
    ]
    if not found:
        return None
    until, node, offering = max(found)
    pool = next(c.pool.name for c in candidates if c.name == node)
    key = settings.key_of(pool, PoolOption.UNDO_PERIOD)
    text = (
        f"would undo a consolidation: {node} replaced {offering} at"
        f" {format_time(offering.at)}, and its replacement could be the same offering again"
        f" ({key})"
    )
    return CandidateRefusal(BlockCode.UNDOES, text, until, WaitRule.UNDO_PERIOD)


def repeat_refusal(
    candidates: Sequence[Candidate], claims: Sequence[PlannedClaim], now: datetime
) -> CandidateRefusal | None:
    """Reject several replacements if one may become an offering that was given up again and again.

    Only offerings that one of the nodes or its predecessors replaced within the last hour count.
    The rejection has no end time, because nothing else would have changed by then.
    """
    for candidate in candidates:
        recent = [
            offering
            for offering in abandoned_offerings(candidate.claim)
            if now - offering.at < _HOUR
        ]
        counts = Counter(
            (offering.instance_type, offering.zone, offering.capacity_type) for offering in recent
        )
        for offering in recent:
            times = counts[offering.instance_type, offering.zone, offering.capacity_type]
            if times >= _REPEATS and any(_may_match(claim, offering) for claim in claims):
                text = (
                    f"would repeat a consolidation: {offering} was replaced by {candidate.name} "
                    f"or its predecessors {times} times within an hour, and one of {len(claims)} "
                    "replacements could be the same offering again"
                )
                return CandidateRefusal(BlockCode.UNDOES, text)
    return None


def _may_match(claim: PlannedClaim, offering: AbandonedOffering) -> bool:
    kind = next((kind for kind in claim.types if kind.name == offering.instance_type), None)
    if kind is None:
        return False
    return any(
        (o.zone, o.capacity_type) == (offering.zone, offering.capacity_type)
        and o.is_launchable
        and claim.requirements.intersects(o.requirements)
        for o in kind.offerings
    )
