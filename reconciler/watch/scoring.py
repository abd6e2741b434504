"""Compares what Karpenter did with what was predicted before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.prediction import (
    CommandFacts,
    EndRange,
    FleetEnd,
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    PredictionVerdict,
    Score,
)
from reconciler.model.text.counting import format_count

_ALIKE: Final = 0.01
"""The relative difference in cost of two results that count as equivalent."""
_SAME: Final = 1e-9
"""The relative difference of equal prices: sums of floats differ in the last digits."""

_ORDER: Final = (
    PredictionVerdict.WRONG,
    PredictionVerdict.EQUIVALENT,
    PredictionVerdict.TIE,
    PredictionVerdict.EXACT,
)


class Comparison(NamedTuple):
    """A verdict with its cause, and the costs that were compared."""

    verdict: PredictionVerdict
    cause: str = ""
    expected: float | None = None
    actual: float | None = None


def score_action(action: KarpenterAction, prediction: Prediction) -> Score:
    """Return the score of the prediction that was in force before an action."""
    if action.kind is KarpenterActionKind.LAUNCH:
        found = compare_launches(prediction.launches, action.launches)
    elif action.kind is KarpenterActionKind.END:
        assert prediction.end is not None
        assert action.end is not None
        found = compare_end(prediction.end, action.end)
    else:
        assert action.command is not None
        found = compare_command(prediction.commands, action.command)
    return Score(
        action, found.verdict, prediction.sequence, found.expected, found.actual, found.cause
    )


def compare_end(expected: EndRange, actual: FleetEnd) -> Comparison:
    """Return whether a fleet is in the predicted range; without a price, only its nodes count."""
    low, high, real = expected.per_hour_low, expected.per_hour_high, actual.per_hour
    causes = []
    if not expected.nodes_low <= actual.nodes <= expected.nodes_high:
        span = _span(str(expected.nodes_low), str(expected.nodes_high))
        causes.append(f"{format_count(actual.nodes, 'node')}, {span} predicted")
    if real is not None and not low * (1 - _SAME) - _SAME <= real <= high * (1 + _SAME) + _SAME:
        span = _span(f"${low:.4f}/hour", f"${high:.4f}/hour")
        causes.append(f"${real:.4f}/hour, {span} predicted")
    verdict = PredictionVerdict.OUTSIDE if causes else PredictionVerdict.INSIDE
    return Comparison(verdict, "; ".join(causes), (low + high) / 2, real)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def compare_launches(expected: Sequence[NodeFacts], actual: Sequence[NodeFacts]) -> Comparison:
    """Return how predicted launches compare with those of one batch.

    Equal prices are a tie: EC2 and Karpenter then choose without a rule.
    """
    forecast, real = cost_of(expected), cost_of(actual)
    if Counter(map(_offering, expected)) == Counter(map(_offering, actual)):
        return Comparison(PredictionVerdict.EXACT, "", forecast, real)
    if not expected:
        return Comparison(PredictionVerdict.WRONG, "no launch was predicted", forecast, real)
    if len(expected) != len(actual):
        predicted = format_count(len(expected), "node")
        cause = f"{predicted} predicted, {len(actual)} launched"
        return Comparison(PredictionVerdict.WRONG, cause, forecast, real)
    cause = _difference(expected, actual)
    if forecast is None or real is None:
        return Comparison(PredictionVerdict.WRONG, f"{cause}; prices are unknown", forecast, real)
    if _prices_by_node_pool(expected) == _prices_by_node_pool(actual):
        return Comparison(PredictionVerdict.TIE, cause, forecast, real)
    if abs(forecast - real) <= _ALIKE * max(real, _SAME):
        return Comparison(PredictionVerdict.EQUIVALENT, cause, forecast, real)
    return Comparison(PredictionVerdict.WRONG, cause, forecast, real)


def compare_command(expected: Sequence[CommandFacts], actual: CommandFacts) -> Comparison:
    """Return how the predicted commands compare with one that Karpenter started.

    A part of the predicted empty nodes is exact, since a budget may allow no more at that moment.
    So is the first of several commands for drift: Karpenter starts one for each node, many within
    a second, and the NodeClaims do not tell them apart.
    """
    real = _savings(actual)
    alike = [c for c in expected if c.reason == actual.reason]
    exact = _compare_exactly(alike, actual, real)
    if exact is not None:
        return exact
    if not alike:
        others = ", ".join(dict.fromkeys(c.reason for c in expected)) or "no command"
        return Comparison(
            PredictionVerdict.WRONG, f"{others} predicted, not {actual.reason}", None, real
        )
    return max((_compare_alike(c, actual, real) for c in alike), key=_rank)


def _compare_exactly(
    alike: Sequence[CommandFacts], actual: CommandFacts, real: float | None
) -> Comparison | None:
    """Return the comparison of a command that was predicted for these nodes, None if none was."""
    names = _node_names(actual)
    for command in alike:
        if _node_names(command) == names and _replaces_alike(command, actual):
            return Comparison(PredictionVerdict.EXACT, "", _savings(command), real)
    return _compare_in_part(alike, actual, real)


def _compare_in_part(
    alike: Sequence[CommandFacts], actual: CommandFacts, real: float | None
) -> Comparison | None:
    """Return the comparison where a budget or the next command ended one early, else None."""
    names = _node_names(actual)
    if actual.reason == DisruptionReason.EMPTY and not actual.replacements:
        deletions = (_node_names(command) for command in alike if not command.replacements)
        if names <= set[str]().union(*deletions):
            return Comparison(PredictionVerdict.EXACT, "", real, real)
    if actual.reason == DisruptionReason.DRIFTED:
        for command in alike:
            if _node_names(command) < names:
                return Comparison(PredictionVerdict.EXACT, "", _savings(command), _savings(command))
    return None


def _node_names(command: CommandFacts) -> set[str]:
    return {node.name for node in command.nodes}


def _compare_alike(command: CommandFacts, actual: CommandFacts, real: float | None) -> Comparison:
    """Return how a command for the same reason compares with one for other nodes."""
    forecast = _savings(command)
    if not _replaces_alike(command, actual) or len(command.nodes) != len(actual.nodes):
        cause = f"{_shape(command)} predicted, {_shape(actual)} done"
        return Comparison(PredictionVerdict.WRONG, cause, forecast, real)
    cause = "other nodes were selected"
    if Counter(map(_offering, command.nodes)) == Counter(map(_offering, actual.nodes)):
        return Comparison(PredictionVerdict.TIE, f"{cause}, which are alike", forecast, real)
    if forecast is None or real is None:
        return Comparison(PredictionVerdict.WRONG, f"{cause}; prices are unknown", forecast, real)
    if abs(forecast - real) <= _ALIKE * max(abs(real), _SAME):
        return Comparison(PredictionVerdict.EQUIVALENT, cause, forecast, real)
    return Comparison(PredictionVerdict.WRONG, cause, forecast, real)


def _rank(comparison: Comparison) -> int:
    return _ORDER.index(comparison.verdict)


def cost_of(nodes: Iterable[NodeFacts]) -> float | None:
    """Return the hourly cost of nodes in USD, None if a price is unknown."""
    total = 0.0
    for node in nodes:
        if node.price is None:
            return None
        total += node.price
    return total


def _savings(command: CommandFacts) -> float | None:
    before, after = cost_of(command.nodes), cost_of(command.replacements)
    return None if before is None or after is None else before - after


def _offering(node: NodeFacts) -> tuple[str, str, str, str]:
    return node.node_pool, node.instance_type, node.zone, node.capacity_type


def _prices_by_node_pool(nodes: Iterable[NodeFacts]) -> Counter[tuple[str, str, float]]:
    """Return how many nodes of each pool and capacity type have which price."""
    return Counter((n.node_pool, n.capacity_type, round(n.price or 0.0, 9)) for n in nodes)


def _replaces_alike(one: CommandFacts, other: CommandFacts) -> bool:
    return len(one.replacements) == len(other.replacements)


def _shape(command: CommandFacts) -> str:
    """Return what a command does in words: ``3 nodes replaced by 1``."""
    nodes = format_count(len(command.nodes), "node")
    if not command.replacements:
        return f"{nodes} removed"
    return f"{nodes} replaced by {len(command.replacements)}"


def _difference(expected: Sequence[NodeFacts], actual: Sequence[NodeFacts]) -> str:
    """Return the first property in which launches differ, with its values."""
    for what, field in (
        ("NodePool", "node_pool"),
        ("capacity type", "capacity_type"),
        ("instance type", "instance_type"),
        ("zone", "zone"),
    ):
        forecast = Counter(getattr(n, field) for n in expected)
        real = Counter(getattr(n, field) for n in actual)
        if forecast != real:
            only, instead = (
                sorted((forecast - real).elements()),
                sorted((real - forecast).elements()),
            )
            return f"{what} {', '.join(only)} predicted, {', '.join(instead)} launched"
    return "the same values in other combinations"
