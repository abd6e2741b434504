"""Who costs what, for the dashboard and the metrics, by the rule of ``docs/cost-allocation.md``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from reconciler.model.grouping import BY_NAMESPACE, Grouping
from reconciler.observed.allocation import GroupCost, WorkloadCost, group_costs
from reconciler.web.view import FleetView

OTHER: Final = "(other)"
"""The group of the cheapest ones where there are too many."""
ROWS_SHOWN: Final = 200
_LABELS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class CostsView:
    """The groups of a grouping, the most expensive first; ``others`` is how many more there are.

    ``choices`` are the groupings that the pods of the fleet have. Money is USD an hour.
    """

    by: Grouping
    choices: tuple[str, ...]
    groups: tuple[GroupCost, ...]
    others: int
    per_hour: float
    idle_per_hour: float

    @property
    def title(self) -> str:
        """What the groups are."""
        if self.by.label is not None:
            return f"Label {self.by.label}"
        return "Workload" if self.by.by_workload else "Namespace"


def costs_view(rows: Sequence[WorkloadCost], by: Grouping) -> CostsView:
    """Return the cost of each group of a fleet."""
    groups = group_costs(rows, by)
    labels = sorted({key for row in rows for key, _ in row.labels})
    choices = ["namespace", "workload", *(f"label={key}" for key in islice(labels, _LABELS_MAX))]
    if str(by) not in choices:
        choices.append(str(by))
    shown = limit_groups(groups, ROWS_SHOWN)
    return CostsView(
        by=by,
        choices=tuple(choices),
        groups=shown,
        others=len(groups) - len(shown),
        per_hour=fsum(group.per_hour for group in groups),
        idle_per_hour=fsum(group.idle_per_hour for group in groups),
    )


def limit_groups(groups: Sequence[GroupCost], most: int) -> tuple[GroupCost, ...]:
    """Return at most ``most`` groups; the last is the sum of the cheapest ones if there are more.

    The sums stay exact.
    """
    if len(groups) <= most:
        return tuple(groups)
    rest = groups[most - 1 :]
    other = GroupCost(
        OTHER,
        sum(group.pods for group in rest),
        sum(group.nanodollars for group in rest),
        sum(group.idle for group in rest),
    )
    return (*groups[: most - 1], other)


def cost_page(
    view: Callable[[], FleetView | None], page: Callable[..., Response]
) -> Callable[[Request], Response]:
    """Return the handler of the page of costs; an unknown grouping is that by namespace."""

    def costs(request: Request) -> Response:
        shown = view()
        by = _grouping_of(request.query_params.get("by", ""))
        rows: Iterable[WorkloadCost] = shown.costs if shown is not None else ()
        return page("costs", request, costs=costs_view(tuple(rows), by))

    return costs


def _grouping_of(text: str) -> Grouping:
    try:
        return Grouping.from_text(text)
    except ValueError:
        return BY_NAMESPACE
