"""Turns the findings of the search into proposals with their risks and confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.advise.changes import changed_files, format_patch
from reconciler.advise.evaluating import Judge
from reconciler.advise.result import Advice, AdviceBacktest, Level, saving_range
from reconciler.advise.search import JudgedChanges
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.text.counting import format_count
from reconciler.plan.rest.exposure import Exposure

COMBINATION: Final = "combination"
_SPOT_HIGH: Final = 25.0
"""The risk is high if the share of pods on spot nodes rises by this many percentage points."""
_ZONE_MEDIUM: Final = 10.0
"""It is a risk if the share of pods in the largest zone rises by this many percentage points."""
_NOISE_PERCENT: Final = 2.0
"""Prices change by more than this: a smaller saving is not certain."""
_KEPT: Final = 0.5
"""A backtest that saves less than this share of the predicted saving lowers the confidence."""


def make_proposal(
    judge: Judge, found: JudgedChanges, rank: int, backtest: AdviceBacktest | None = None
) -> Advice:
    """Return advice for candidates that save, alone or together."""
    verdict = found.verdict
    assert verdict.at_rest is not None, "advice has been carried to rest"
    assert verdict.exposure is not None, "advice has been carried to rest"
    change, members = verdict.at_rest, found.members
    risk, risks = _risk(judge.exposure, found)
    confidence, reasons = _confidence(judge, found, backtest)
    bounds = change.bounds
    is_one = len(members) == 1
    percent = _percent(found, backtest)
    return Advice(
        id=members[0].id if is_one else COMBINATION,
        rank=rank,
        topic=members[0].topic.value if is_one else COMBINATION,
        title=members[0].title if is_one else f"Make {len(members)} changes together",
        per_month=found.per_month,
        percent=percent,
        bounds=None if bounds is None else _monthly_bounds(bounds),
        range=saving_range(change),
        risk=risk,
        risks=risks,
        confidence=confidence,
        reasons=reasons,
        nodes=change.after.nodes,
        replaced=change.replaced,
        rollout=change.rollout,
        exposure=verdict.exposure,
        warnings=verdict.warnings,
        parts=tuple(member.id for member in members),
        backtest=backtest,
        files=tuple(new.path for _, new in changed_files(judge.files, verdict.files)),
        patch=format_patch(judge.files, verdict.files),
    )


def _percent(found: JudgedChanges, backtest: AdviceBacktest | None) -> float:
    """Return the change in percent of the cost at rest, or of the cost over the time of a trace.

    The latter if the change has an effect only over time.
    """
    change = found.verdict.at_rest
    assert change is not None, "advice has been carried to rest"
    part, whole = change.per_hour, change.before.per_hour
    if found.over_time is not None:
        assert backtest is not None, "a change with an effect only over time has been replayed"
        part, whole = backtest.per_month, backtest.base.dollars_per_month
    return round(100 * part / whole, 2) if whole else 0.0


def _monthly_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    return round(low * HOURS_A_MONTH, 6), round(high * HOURS_A_MONTH, 6)


def _risk(now: Exposure, found: JudgedChanges) -> tuple[Level, tuple[str, ...]]:
    """Return how much the change requires of the workloads, and what that is."""
    then = found.verdict.exposure
    assert then is not None, "advice has been carried to rest"
    stated = dict.fromkeys(member.risk for member in found.members if member.risk)
    risks = [*stated, *_exposure_risks(now, then)]
    fresh = set(then.architectures) - set(now.architectures) if now.architectures else set()
    if fresh or then.spot_percent - now.spot_percent >= _SPOT_HIGH:
        return "high", tuple(risks)
    return ("medium" if risks else "low"), tuple(risks)


def _exposure_risks(now: Exposure, then: Exposure) -> Iterator[str]:
    if then.spot_percent > now.spot_percent:
        yield (
            f"{then.spot_percent:.0f}% of the pods run on spot nodes, "
            f"{now.spot_percent:.0f}% without the change"
        )
    if then.largest_zone_percent - now.largest_zone_percent >= _ZONE_MEDIUM:
        yield (
            f"{then.largest_zone_percent:.0f}% of the pods run in one zone, "
            f"{now.largest_zone_percent:.0f}% without the change"
        )
    if then.zones < now.zones:
        yield f"pods run in {format_count(then.zones, 'zone')}, {now.zones} without the change"


def _confidence(
    judge: Judge, found: JudgedChanges, backtest: AdviceBacktest | None
) -> tuple[Level, tuple[str, ...]]:
    """Return how certain the saving is, one level lower for each reason against it."""
    reasons = tuple(_confidence_reasons(judge, found, backtest))
    levels: tuple[Level, ...] = ("high", "medium", "low")
    return levels[min(len(reasons), 2)], reasons


def _confidence_reasons(
    judge: Judge, found: JudgedChanges, backtest: AdviceBacktest | None
) -> Iterator[str]:
    change = found.verdict.at_rest
    assert change is not None, "advice has been carried to rest"
    if judge.inputs.observation == "workloads":
        yield "no running fleet was observed, only the workloads in the folder"
    if found.verdict.is_estimated:
        yield "it is an estimate of one run: only the best changes are computed as in a plan"
    if change.bounds is not None:
        yield "the search reached its work limit"
    if -_percent(found, backtest) < _NOISE_PERCENT:
        yield f"it saves less than {_NOISE_PERCENT:.0f}%, and prices change by more"
    if change.difference is not None and not change.difference.beyond_chance:
        yield "not every run with another seed saves"
    if change.rollout is None and not judge.request.has_new_nodes:
        yield "the fleet does not reach a steady state within 30 days"
    if backtest is not None and backtest.per_month > found.per_month * _KEPT:
        yield "the backtest saves less than half of it"
