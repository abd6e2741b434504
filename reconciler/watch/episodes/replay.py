"""Predicts the actions of episodes again, to see whether the planner now agrees with Karpenter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from reconciler.model.karpenter.prediction import (
    FleetEnd,
    KarpenterAction,
    KarpenterActionKind,
    Prediction,
)
from reconciler.watch.episodes.file import actions_of, facts_of_row, objects_at_start
from reconciler.watch.predicting import prediction_of
from reconciler.watch.scoring import cost_of, score_action

if TYPE_CHECKING:
    from reconciler.catalog.catalog import Catalog
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.prediction import NodeFacts, Score
    from reconciler.watch.end.quiet import Simulate
    from reconciler.watch.episodes.file import EpisodeFile
    from reconciler.watch.session import PlannedCluster

Predict = Callable[["Sequence[JsonDict]", datetime], "PlannedCluster"]


def replay(
    episode: EpisodeFile, predict: Predict, simulate: Simulate | None = None
) -> Iterator[Score]:
    """Yield the score of each action in an episode, and of its end if ``simulate`` is given.

    Raises:
        ReconcilerError: the objects in it cannot be planned or simulated.
    """
    for found in actions_of(episode):
        planned = predict(found.objects, found.now)
        made = prediction_of(planned.plan, found.claims, {})
        action = _with_prices(found.action, planned.catalog)
        commands = tuple(
            msgspec.structs.replace(
                command, nodes=tuple(_with_price(n, planned.catalog) for n in command.nodes)
            )
            for command in made.commands
        )
        yield score_action(action, msgspec.structs.replace(made, commands=commands))
    if simulate is not None and episode.rested:
        yield from _end_score(episode, predict, simulate)


def _end_score(episode: EpisodeFile, predict: Predict, simulate: Simulate) -> Iterator[Score]:
    """Yield the score of the fleet at the end, unless a simulation does not come to rest."""
    objects = objects_at_start(episode)
    planned = predict(objects, episode.now)
    span = None if planned.inputs is None else simulate(objects, planned.inputs)
    if span is None:
        return
    fleet = [_with_price(facts_of_row(row), planned.catalog) for row in episode.after]
    end = FleetEnd(len(fleet), cost_of(fleet))
    action = KarpenterAction(episode.now, KarpenterActionKind.END, end=end)
    yield score_action(action, Prediction(episode.now, end=span))


def _with_prices(action: KarpenterAction, catalog: Catalog) -> KarpenterAction:
    launches = tuple(_with_price(node, catalog) for node in action.launches)
    command = action.command
    if command is not None:
        nodes = tuple(_with_price(node, catalog) for node in command.nodes)
        command = msgspec.structs.replace(command, nodes=nodes)
    return msgspec.structs.replace(action, launches=launches, command=command)


def _with_price(node: NodeFacts, catalog: Catalog) -> NodeFacts:
    kind = catalog.get(node.instance_type) if node.price is None else None
    if kind is None:
        return node
    return msgspec.structs.replace(node, price=kind.price_of(node.zone, node.capacity_type))
