"""What Karpenter is expected to do next, what it did, and how the two compare."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE


class KarpenterActionKind(StrEnum):
    """What Karpenter does that is predicted."""

    LAUNCH = "launch"
    COMMAND = "command"
    END = "end"


class PredictionVerdict(StrEnum):
    """How a prediction compares with what Karpenter did.

    ``EXACT`` is the same. ``TIE`` differs only in what Karpenter chooses at random: nodes that are
    alike, or offerings of the same price. ``EQUIVALENT`` has as many nodes, and a cost within 1%.
    The fleet at the end is ``INSIDE`` or ``OUTSIDE`` of the predicted range.
    """

    EXACT = "exact"
    TIE = "tie"
    EQUIVALENT = "equivalent"
    WRONG = "wrong"
    INSIDE = "inside"
    OUTSIDE = "outside"

    @property
    def is_wrong(self) -> bool:
        """Whether the prediction was wrong."""
        return self in (PredictionVerdict.WRONG, PredictionVerdict.OUTSIDE)


_OF_RANGES = (PredictionVerdict.INSIDE, PredictionVerdict.OUTSIDE)


def verdicts_of(kind: KarpenterActionKind) -> tuple[PredictionVerdict, ...]:
    """Return the verdicts that predictions of a kind can have, the best first."""
    if kind is KarpenterActionKind.END:
        return _OF_RANGES
    return tuple(verdict for verdict in PredictionVerdict if verdict not in _OF_RANGES)


class NodeFacts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node by what it costs: ``price`` is USD an hour, None if it is unknown.

    ``name`` is that of the Node, empty for one that does not exist yet.
    """

    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price: float | None = None
    name: str = ""


def offering_of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the instance type, the zone and the capacity type in the labels of a NodeClaim."""
    return labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, "")


class CommandFacts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Nodes that are disrupted together for one reason, and what replaces them."""

    reason: str
    nodes: tuple[NodeFacts, ...]
    replacements: tuple[NodeFacts, ...] = ()


class EndRange(msgspec.Struct, frozen=True, rename="camel"):
    """The fleets that ``seeds`` simulations end with: nodes, and their cost in USD an hour."""

    nodes_low: int
    nodes_high: int
    per_hour_low: float
    per_hour_high: float
    seeds: int


class FleetEnd(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A fleet with nothing left to do; ``per_hour`` is USD, None if a price is unknown."""

    nodes: int
    per_hour: float | None = None


class Prediction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What Karpenter does next, as it was recorded at a time.

    ``end`` is the range of the fleet once nothing is left to do; such a prediction has nothing
    else. ``sequence`` is its number in the record, 0 before it is recorded.
    """

    at: datetime
    launches: tuple[NodeFacts, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    sequence: int = 0
    end: EndRange | None = None

    def says_the_same(self, other: Prediction) -> bool:
        """Return whether both predict the same, whenever they were made."""
        return (self.launches, self.commands) == (other.launches, other.commands)


class KarpenterAction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What Karpenter did: a batch of launches, a command, or the fleet that it ended with.

    ``at`` is when it began, or since when nothing was left to do.
    """

    at: datetime
    kind: KarpenterActionKind
    launches: tuple[NodeFacts, ...] = ()
    command: CommandFacts | None = None
    end: FleetEnd | None = None


class Score(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An action with the verdict on its prediction.

    ``prediction`` is the number of the prediction in force before the action. ``expected`` and
    ``actual`` are USD an hour: what the launched nodes cost, what a command saves, or what the
    fleet costs at the end, of which the middle of the range is expected. They are None if a price
    is unknown. ``cause`` is why the prediction is not exact.
    """

    action: KarpenterAction
    verdict: PredictionVerdict
    prediction: int
    expected: float | None = None
    actual: float | None = None
    cause: str = ""
    episode: str = ""
