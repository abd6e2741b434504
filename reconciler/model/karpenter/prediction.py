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


class PredictionVerdict(StrEnum):
    """How a prediction compares with what Karpenter did.

    ``EXACT`` is the same. ``TIE`` differs only in what Karpenter chooses at random: nodes that are
    alike, or offerings of the same price. ``EQUIVALENT`` has as many nodes, and a cost within 1%.
    """

    EXACT = "exact"
    TIE = "tie"
    EQUIVALENT = "equivalent"
    WRONG = "wrong"


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


class Prediction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What Karpenter does next, as it was recorded at a time.

    ``sequence`` is its number in the record, 0 before it is recorded.
    """

    at: datetime
    launches: tuple[NodeFacts, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    sequence: int = 0

    def says_the_same(self, other: Prediction) -> bool:
        """Return whether both predict the same, whenever they were made."""
        return (self.launches, self.commands) == (other.launches, other.commands)


class KarpenterAction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What Karpenter did: a batch of launches, or a command. ``at`` is when it began."""

    at: datetime
    kind: KarpenterActionKind
    launches: tuple[NodeFacts, ...] = ()
    command: CommandFacts | None = None


class Score(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An action with the verdict on its prediction.

    ``prediction`` is the number of the prediction in force before the action. ``expected`` and
    ``actual`` are the hourly cost in USD of the launched nodes, or what a command saves; None if a
    price is unknown. ``cause`` is why the prediction is not exact.
    """

    action: KarpenterAction
    verdict: PredictionVerdict
    prediction: int
    expected: float | None = None
    actual: float | None = None
    cause: str = ""
    episode: str = ""
