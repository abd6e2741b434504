"""The order of a plan's actions: who waits for whom, and in which wave each may start.

The waves come from the standard library's ``graphlib``: networkx takes as long to import as a
whole plan of a small fleet may take. ``graph`` offers the same edges as a networkx graph to those
who ask more of it than an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import msgspec

from reconciler.plan.value.actions import Action
from reconciler.plan.value.plan import Plan

if TYPE_CHECKING:
    import networkx as nx


def waves(depends_on: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the wave of each action: 0 for those that wait for none, else one after the last.

    A cycle or an edge to an action that is not there is a bug of ours, and asserted.
    """
    sorter = TopologicalSorter(depends_on)
    try:
        order = tuple(sorter.static_order())
    except CycleError as error:
        raise AssertionError(
            f"actions wait for each other: {' -> '.join(error.args[1])}"
        ) from error
    wave: dict[str, int] = {}
    for action in order:
        assert action in depends_on, f"an action waits for {action}, which is not in the plan"
        wave[action] = max((wave[before] + 1 for before in depends_on[action]), default=0)
    return wave


def in_waves(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return the actions with their waves, in the order in which they may start, then by id."""
    every = list(actions)
    depends_on = {action.id: action.depends_on for action in every}
    assert len(depends_on) == len(every), f"duplicate ids among {[a.id for a in every]}"
    wave = waves(depends_on)
    numbered = [msgspec.structs.replace(action, wave=wave[action.id]) for action in every]
    return tuple(sorted(numbered, key=lambda a: (a.wave, a.id)))


def graph(plan: Plan) -> nx.DiGraph[str]:
    """Return the actions as a graph; its edges run from an action to what waits for it."""
    import networkx as nx

    edges: nx.DiGraph[str] = nx.DiGraph()
    for action in plan.actions:
        edges.add_node(action.id, action=action)
    edges.add_edges_from((before, a.id) for a in plan.actions for before in a.depends_on)
    assert len(edges) == len(plan.actions), "an action waits for one that is not in the plan"
    assert nx.is_directed_acyclic_graph(edges), nx.find_cycle(edges)
    return edges
