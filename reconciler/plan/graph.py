"""The dependency graph of a plan's actions: which one waits for which, and the wave of each.

networkx takes as long to import as the whole plan of a small fleet may take. So the graph is made
only for actions that wait for others; without dependencies there is one wave and nothing to sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from reconciler.plan.value.actions import Action

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class ActionGraph:
    """Actions by id, with an edge from each action to every action that waits for it.

    A cycle, a duplicate id and a dependency on an unknown action are defects of this program: they
    raise an AssertionError that names the actions.
    """

    actions: Mapping[str, Action]

    @classmethod
    def from_actions(cls, actions: Iterable[Action]) -> ActionGraph:
        """Return the graph of these actions; it keeps their order within a wave."""
        every = list(actions)
        by_id = {action.id: action for action in every}
        assert len(by_id) == len(every), f"duplicate ids among {[a.id for a in every]}"
        found = cls(by_id)
        assert len(found.order) == len(every), "each action is in one wave"
        return found

    @cached_property
    def edges(self) -> nx.DiGraph[str]:
        """The networkx graph; each node has the action's kind as its attribute ``verb``."""
        import networkx as nx

        edges: nx.DiGraph[str] = nx.DiGraph()
        for action in self.actions.values():
            edges.add_node(action.id, verb=action.kind)
        for action in self.actions.values():
            for before in action.depends_on:
                assert before in self.actions, (
                    f"{action.id} waits for {before}, which is not in the plan"
                )
                edges.add_edge(before, action.id)
        return edges

    @cached_property
    def waves(self) -> tuple[tuple[str, ...], ...]:
        """The ids by wave: an action is one wave after the last of those it waits for."""
        if not any(action.depends_on for action in self.actions.values()):
            return (tuple(self.actions),) if self.actions else ()
        import networkx as nx

        place = {name: number for number, name in enumerate(self.actions)}
        try:
            layers = [
                sorted(w, key=place.__getitem__) for w in nx.topological_generations(self.edges)
            ]
        except nx.NetworkXUnfeasible as error:
            cycle = [before for before, _ in nx.find_cycle(self.edges)]
            raise AssertionError(
                f"actions wait for each other: {' -> '.join([*cycle, cycle[0]])}"
            ) from error
        return tuple(tuple(layer) for layer in layers)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The ids in an order in which each comes after all that it waits for."""
        return tuple(name for wave in self.waves for name in wave)


def sort_into_waves(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return the actions with the number of their wave, ordered by wave, then by id."""
    graph = ActionGraph.from_actions(actions)
    numbered = [
        msgspec.structs.replace(graph.actions[name], wave=number)
        for number, wave in enumerate(graph.waves)
        for name in wave
    ]
    return tuple(sorted(numbered, key=lambda action: (action.wave, action.id)))
