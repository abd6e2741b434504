"""The answers of ``explain``, as values."""

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
    """The result of a NodePool for a pod if it were the only pending one.

    Either ``launch`` is the cheapest possible launch, or ``code`` and ``message`` are the first
    reason against one. ``nearest_type`` is the type that is closest to the pod's requests, and
    ``lacks`` are the missing resources.
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
    """The existing nodes: how many, how many match the pod, and which could run it."""

    total: int
    suited: int
    takers: tuple[str, ...] = ()


class ConstraintCost(_Part, frozen=True):
    """The savings without a constraint, computed by placing the same pods again.

    ``saves`` is USD an hour, ``nodes`` how many fewer there would be, ``placed`` how many more
    pods would have a place.
    """

    constraint: str
    saves: float
    nodes: int = 0
    placed: int = 0


class Explanation(Part, frozen=True, kw_only=True):
    """What a plan says about one thing.

    ``verdict`` is one sentence; ``facts`` are what will be done with it, and ``reasons`` what
    prevents more. The rest is known only if the inputs are available: ``nodes`` and ``pools`` are
    the alternatives of a pod; ``filters`` show how the types of a NodeClaim were selected,
    ``offerings`` are the cheapest of them, and ``constraints`` the cost of each constraint.
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
