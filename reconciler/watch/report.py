"""How often the predictions were right, what that means in money, and each one that was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

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
    verdicts_of,
)
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import format_seconds, format_time
from reconciler.model.text.visible import one_line
from reconciler.watch.scoring import cost_of


class KindScore(msgspec.Struct, frozen=True, rename="camel"):
    """The verdicts on one kind of action, and its hourly cost in USD.

    ``expected`` and ``actual`` add up the actions whose prices are all known; ``unpriced`` counts
    the others.
    """

    kind: KarpenterActionKind
    total: int
    verdicts: dict[PredictionVerdict, int]
    expected: float
    actual: float
    unpriced: int

    def share(self, *verdicts: PredictionVerdict) -> float:
        """Return the share of the actions with one of these verdicts, from 0 to 1."""
        found = sum(self.verdicts.get(v, 0) for v in verdicts)
        return found / self.total if self.total else 0.0

    @property
    def right(self) -> float:
        """The share of the predictions that were right, from 0 to 1."""
        return self.share(*_RIGHT)


_RIGHT = (PredictionVerdict.EXACT, PredictionVerdict.TIE, PredictionVerdict.INSIDE)


class WatchReport(msgspec.Struct, frozen=True, rename="camel"):
    """The scores since a time: by kind of action, and those that were wrong, oldest first."""

    since: datetime | None
    kinds: tuple[KindScore, ...]
    wrong: tuple[Score, ...]


def report_of(scores: Sequence[Score], since: datetime | None = None) -> WatchReport:
    """Return the report on scores."""
    kinds = (
        _kind_score(kind, [s for s in scores if s.action.kind is kind])
        for kind in KarpenterActionKind
    )
    wrong = (s for s in scores if s.verdict.is_wrong)
    return WatchReport(since, tuple(k for k in kinds if k.total), tuple(wrong))


def _kind_score(kind: KarpenterActionKind, scores: Sequence[Score]) -> KindScore:
    counted = Counter(score.verdict for score in scores)
    priced = [(s.expected, s.actual) for s in scores]
    known = [(e, a) for e, a in priced if e is not None and a is not None]
    return KindScore(
        kind,
        len(scores),
        {verdict: counted[verdict] for verdict in verdicts_of(kind)},
        round(sum(e for e, _ in known), 6),
        round(sum(a for _, a in known), 6),
        len(scores) - len(known),
    )


def render_report(report: WatchReport) -> str:
    """Return the report as text."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: WatchReport) -> Iterator[str]:
    if not report.kinds:
        yield from summary_lines(report)
        return
    yield f"What Karpenter did{_since(report)}, and what was predicted:"
    yield ""
    for kind, summary in zip(report.kinds, summary_lines(report), strict=True):
        parts = ", ".join(f"{number} {verdict}" for verdict, number in kind.verdicts.items())
        yield f"  {summary} ({parts})"
        unpriced = f"; {kind.unpriced} without a price" if kind.unpriced else ""
        what = _MONEY[kind.kind]
        yield f"    {what} ${kind.actual:.4f}/hour, predicted ${kind.expected:.4f}/hour{unpriced}"
    if report.wrong:
        yield ""
        yield f"{format_count(len(report.wrong), 'wrong prediction')}:"
        for score in report.wrong:
            yield f"  {format_seconds(score.action.at)} UTC  {describe_score(score)}"
            yield f"    {one_line(score.cause)}"
            if score.episode:
                yield f"    reconciler watch replay {one_line(score.episode)}"


def _since(report: WatchReport) -> str:
    return "" if report.since is None else f" since {format_time(report.since)}"


def summary_lines(report: WatchReport) -> list[str]:
    """Return how many actions of each kind were predicted, or that there were none."""
    if not report.kinds:
        return [f"Karpenter has done nothing{_since(report)} that was predicted."]
    return [
        f"{format_count(kind.total, _NOUNS[kind.kind], _PLURALS[kind.kind])}: "
        f"{kind.right:.1%} {_GOOD.get(kind.kind, 'exact or tied')}"
        for kind in report.kinds
    ]


_NOUNS = {
    KarpenterActionKind.LAUNCH: "launch",
    KarpenterActionKind.COMMAND: "command",
    KarpenterActionKind.END: "settled fleet",
}
_PLURALS = {
    KarpenterActionKind.LAUNCH: "launches",
    KarpenterActionKind.COMMAND: "commands",
    KarpenterActionKind.END: "settled fleets",
}
_MONEY = {
    KarpenterActionKind.LAUNCH: "nodes for",
    KarpenterActionKind.COMMAND: "saved",
    KarpenterActionKind.END: "fleets for",
}
_GOOD = {KarpenterActionKind.END: "inside the predicted range"}


def describe_score(score: Score) -> str:
    """Return what Karpenter did in one line, after the verdict."""
    return f"{score.verdict}: {describe_action(score.action)}"


def describe_miss(score: Score) -> str:
    """Return what Karpenter did in one line, and why that was not predicted."""
    return one_line(f"{describe_action(score.action)}: {score.cause}")


def describe_action(action: KarpenterAction) -> str:
    """Return what Karpenter did in one line."""
    if action.end is not None:
        return f"ended with {_describe_end(action.end)}"
    if action.command is None:
        return one_line(f"launched {_list_launches(action.launches)}")
    return _describe_command(action.command)


def _describe_end(end: FleetEnd) -> str:
    cost = "" if end.per_hour is None else f" (${end.per_hour:.4f}/hour)"
    return f"{format_count(end.nodes, 'node')}{cost}"


def describe_prediction(prediction: Prediction) -> tuple[str, ...]:
    """Return what Karpenter is expected to do next, one line for each action."""
    launches, commands = prediction.launches, prediction.commands
    found = [one_line(f"launch {_list_launches(launches)}")] if launches else []
    found += map(_describe_command, commands)
    if prediction.end is not None:
        found.append(f"end with {_describe_range(prediction.end)}")
    return tuple(found)


def _describe_range(end: EndRange) -> str:
    nodes = f"{end.nodes_low} to {format_count(end.nodes_high, 'node')}"
    if end.nodes_low == end.nodes_high:
        nodes = format_count(end.nodes_low, "node")
    cost = f"${end.per_hour_low:.4f}/hour to ${end.per_hour_high:.4f}/hour"
    if end.per_hour_low == end.per_hour_high:
        cost = f"${end.per_hour_low:.4f}/hour"
    return f"{nodes} ({cost})"


def _list_launches(launches: Sequence[NodeFacts]) -> str:
    types = Counter(n.instance_type or "unknown" for n in launches)
    listed = ", ".join(f"{number} × {kind}" for kind, number in sorted(types.items()))
    cost = cost_of(launches)
    return listed if cost is None else f"{listed} (${cost:.4f}/hour)"


def _describe_command(command: CommandFacts) -> str:
    nodes = ", ".join(node.name for node in command.nodes[:3])
    more = len(command.nodes) - 3
    rest = f" and {more} more" if more > 0 else ""
    if not command.replacements:
        return one_line(f"{command.reason}: remove {nodes}{rest}")
    into = format_count(len(command.replacements), "node")
    return one_line(f"{command.reason}: replace {nodes}{rest} with {into}")
