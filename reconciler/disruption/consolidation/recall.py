"""The rejections of consolidation, which are reused while their inputs are unchanged.

Every pod that is created or deleted leads to a new plan, and every plan evaluates every node.
Nearly all results are the rejections of the last plan: no node is cheaper, and no other node has
free capacity. A rejection is reused if the nodes, their pods, the nodes with free capacity for any
of these pods, the NodePools and the settings are unchanged (``placement.footing``). Saved work
counts as done, so that the limits of a pass end it at the same point.

Rejections for pods that fit nowhere are not reused, because their messages contain more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.simulation import Simulation, Toll
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.resources import Resources
from reconciler.placement.footing import Footing


class Leaver(msgspec.Struct, frozen=True):
    """What the evaluation of a set reads of one of its nodes."""

    name: str
    node_pool: str
    kind: InstanceType | None
    price: float
    labels: Mapping[str, str]
    allocatable: Resources


class SetQuestion(msgspec.Struct, frozen=True):
    """Whether a set of nodes can be removed, and all inputs of the result.

    ``worth`` and ``closed`` are those of a set that several nodes may replace; ``worth`` is None if
    only one may.
    """

    leavers: tuple[Leaver, ...]
    footing: Footing
    worth: Mapping[str, float] | None
    closed: frozenset[str]

    @property
    def key(self) -> tuple[bool, tuple[str, ...]]:
        """The key that is looked up before anything is compared."""
        return self.worth is None, tuple(leaver.name for leaver in self.leavers)


class RefusedSet(msgspec.Struct, frozen=True):
    """A rejection, the names of the nodes that remained in the set, and the work it took."""

    left: frozenset[str]
    refusal: CandidateRefusal
    toll: Toll


class RefusalRecall:
    """The rejections of the last passes of one loop.

    It keeps only those that the last pass with such evaluations used.
    """

    def __init__(self) -> None:
        self._now: dict[object, tuple[SetQuestion, RefusedSet]] = {}
        self._before: dict[object, tuple[SetQuestion, RefusedSet]] = {}

    def begin(self) -> None:
        """Begin a pass: forget the rejections that the last one did not use, if it used any."""
        if self._now:
            self._before, self._now = self._now, {}

    def known(self, question: SetQuestion) -> RefusedSet | None:
        """Return the rejection of an equal evaluation."""
        key = question.key
        found = self._now.get(key) or self._before.get(key)
        if found is None or found[0] != question:
            return None
        self._now[key] = found
        return found[1]

    def keep(self, question: SetQuestion, refused: RefusedSet) -> None:
        """Keep a rejection."""
        if refused.refusal.code is not BlockCode.UNSCHEDULABLE:
            self._now[question.key] = (question, refused)


def set_question(
    candidates: Sequence[Candidate],
    simulation: Simulation,
    worth: Mapping[str, float] | None = None,
    closed: Collection[str] = (),
) -> SetQuestion | None:
    """Return the inputs of removing some nodes, None if they cannot be compared."""
    footing = simulation.footing(candidates)
    if footing is None:
        return None
    own = None if worth is None else {pod.key: worth.get(pod.key, 0.0) for pod in footing.pods}
    return SetQuestion(tuple(map(_leaver, candidates)), footing, own, frozenset(closed))


def _leaver(candidate: Candidate) -> Leaver:
    node = candidate.node
    return Leaver(
        candidate.name,
        candidate.pool.name,
        candidate.kind,
        candidate.price,
        node.labels,
        node.allocatable,
    )
