"""The rejections of consolidation, which are reused while their inputs are unchanged.

Every pod that is created or deleted leads to a new plan, and every plan evaluates every node.
Nearly all results are the rejections of the last plan: no node is cheaper, and no other node has
free capacity. A rejection is reused if the nodes, their pods, the nodes with free capacity for any
of these pods, the NodePools and the settings are unchanged (``placement.inputs``). Saved work
counts as done, so that the limits of a pass end it at the same point.

Rejections for pods that fit nowhere are not reused, because their messages contain more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.simulation import Simulation, SimulationEffort
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.resources import Resources
from reconciler.placement.inputs import PlacementInputs

_PASSES_MAX: Final = 16
"""The number of passes after which a rejection that none of them used is forgotten."""
_EACH_MAX: Final = 4
"""The maximum number of rejections of one set: nodes with room alternate between few states."""


class RemovedNode(msgspec.Struct, frozen=True):
    """The facts about one node of a set that its evaluation reads."""

    name: str
    node_pool: str
    kind: InstanceType | None
    price: float
    labels: Mapping[str, str]
    allocatable: Resources


class SetQuestion(msgspec.Struct, frozen=True):
    """Whether a set of nodes can be removed, and all inputs of the result.

    ``pod_values``, ``closed`` and ``least``, what each node has to save, are those of a set that
    several nodes may replace. ``pod_values`` is None if only one may.
    """

    removed_nodes: tuple[RemovedNode, ...]
    placement_inputs: PlacementInputs
    pod_values: Mapping[str, float] | None
    closed: frozenset[str]
    least: Mapping[str, float] | None

    @property
    def key(self) -> tuple[bool, tuple[str, ...]]:
        """The key that is looked up before anything is compared."""
        return self.pod_values is None, tuple(node.name for node in self.removed_nodes)


class RefusedSet(msgspec.Struct, frozen=True):
    """A rejection, the names of the nodes that remained in the set, and the work it took."""

    left: frozenset[str]
    refusal: CandidateRefusal
    effort: SimulationEffort


class _CachedRejection(msgspec.Struct, eq=False):
    """A rejection, its question, and the last pass that used it."""

    question: SetQuestion
    refused: RefusedSet
    last_pass: int


class RejectionCache:
    """The rejections of the last passes of one loop.

    Only passes that evaluate sets count. A pod that is created and deleted leaves most sets as they
    were some passes ago, so more than the last rejection of a set is kept.

    Comparing a set takes a third of the time of evaluating it. So a pass compares none if the last
    one that counts started commands, whose pods move to the nodes that the rejections are about.
    Nor does a pass that is not one of a loop (``is_kept``).
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self._is_kept = is_kept
        self._compares = is_kept
        self._refusals: dict[object, list[_CachedRejection]] = {}
        self._pass = 0
        self._has_evaluated = False

    def begin_pass(self) -> None:
        """Begin a pass, and forget rejections that recent passes did not use.

        A pass that evaluated no sets does not count.
        """
        if not self._has_evaluated:
            return
        self._has_evaluated = False
        self._pass += 1
        if self._pass % _PASSES_MAX == 0:
            oldest = self._pass - _PASSES_MAX
            recent = (
                (k, [r for r in kept if r.last_pass >= oldest])
                for k, kept in self._refusals.items()
            )
            self._refusals = {key: kept for key, kept in recent if kept}

    def end_pass(self, *, has_commands: bool) -> None:
        """End a pass, which may have started commands of consolidation."""
        if self._has_evaluated:
            self._compares = self._is_kept and not has_commands

    def compares(self) -> bool:
        """Return whether a set that this pass evaluates is compared with those of others."""
        self._has_evaluated = True
        return self._compares

    def find(self, question: SetQuestion) -> RefusedSet | None:
        """Return the rejection of an equal evaluation."""
        cached = self._refusals.get(question.key, ())
        for entry in cached:
            if entry.question == question:
                entry.last_pass = self._pass
                return entry.refused
        return None

    def store(self, question: SetQuestion, refused: RefusedSet) -> None:
        """Store a rejection; at the limit it replaces the least recently used one of its set."""
        if refused.refusal.code is BlockCode.UNSCHEDULABLE:
            return
        cached = self._refusals.setdefault(question.key, [])
        if len(cached) == _EACH_MAX:
            cached.remove(min(cached, key=lambda entry: entry.last_pass))
        cached.append(_CachedRejection(question, refused, self._pass))


def set_question(
    candidates: Sequence[Candidate],
    simulation: Simulation,
    pod_values: Mapping[str, float] | None = None,
    closed: Collection[str] = (),
    least: Mapping[str, float] | None = None,
) -> SetQuestion | None:
    """Return the inputs of removing some nodes, None if they cannot be compared."""
    inputs = simulation.placement_inputs(candidates)
    if inputs is None:
        return None
    own = (
        None
        if pod_values is None
        else {pod.key: pod_values.get(pod.key, 0.0) for pod in inputs.pods}
    )
    return SetQuestion(tuple(map(_removed_node, candidates)), inputs, own, frozenset(closed), least)


def _removed_node(candidate: Candidate) -> RemovedNode:
    node = candidate.node
    return RemovedNode(
        candidate.name,
        candidate.pool.name,
        candidate.kind,
        candidate.price,
        node.labels,
        node.allocatable,
    )
