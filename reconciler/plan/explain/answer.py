"""What ``explain`` answers about one thing, as values."""

from __future__ import annotations

from typing import ClassVar

from reconciler.plan.explain.decisions import Decision, Subject
from reconciler.plan.value.nodes import LaunchOffering
from reconciler.plan.value.part import Part


class _Part(Part, frozen=True, kw_only=True, omit_defaults=True):
    pass


class FilterCount(_Part, frozen=True):
    """How many instance types were left after a filter."""

    filter: str
    types: int


class PoolAnswer(_Part, frozen=True):
    """What a NodePool would make of a pod that is asked for alone.

    Either ``launch`` is the cheapest that it would launch, or ``code`` and ``message`` are the
    first «no». ``nearest_type`` is the type that comes nearest to what the pod requests, ``lacks``
    what it is short of.
    """

    node_pool: str
    filters: tuple[FilterCount, ...] = ()
    code: str = ""
    message: str = ""
    nearest_type: str = ""
    lacks: str = ""
    launch: LaunchOffering | None = None

    parts: ClassVar = ("launch",)


class NodesAnswer(_Part, frozen=True):
    """The nodes that are there: how many, how many suit the pod, and which would take it."""

    total: int
    suited: int
    takers: tuple[str, ...] = ()


class ConstraintCost(_Part, frozen=True):
    """What would be saved without a constraint, found by placing the same pods again.

    ``saves`` is USD an hour, ``nodes`` how many fewer there would be, ``placed`` how many more
    pods would have a place.
    """

    constraint: str
    saves: float
    nodes: int = 0
    placed: int = 0


class Explanation(Part, frozen=True, kw_only=True):
    """What a plan says about one thing.

    ``verdict`` is one sentence; ``facts`` are what will be done with it, ``reasons`` what stands
    against more. What follows is known only where the inputs are at hand: ``nodes`` and ``pools``
    are what else a pod could have; ``filters`` tell how the types of a NodeClaim became what they
    are, ``offerings`` the cheapest of them, and ``constraints`` what each constraint costs.
    """

    kind: Subject
    name: str
    verdict: str
    facts: tuple[str, ...] = ()
    reasons: tuple[Decision, ...] = ()
    nodes: NodesAnswer | None = None
    pools: tuple[PoolAnswer, ...] = ()
    filters: tuple[FilterCount, ...] = ()
    offerings: tuple[LaunchOffering, ...] = ()
    constraints: tuple[ConstraintCost, ...] = ()

    parts: ClassVar = ("pools", "offerings")
