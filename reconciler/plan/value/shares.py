"""Who pays for a change: what workloads cost in both fleets (``docs/cost-allocation.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Final

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.part import Part
from reconciler.model.text.money import monthly_difference

_DOLLAR_A_MONTH: Final = 1 / HOURS_A_MONTH


class ShareChange(Part, frozen=True, kw_only=True):
    """What a group of workloads costs in both fleets of a change, in USD an hour."""

    before: float = 0.0
    after: float = 0.0

    @property
    def change(self) -> float:
        """The change of the cost, USD an hour."""
        return self.after - self.before


class CostShares(Part, frozen=True, kw_only=True):
    """Who costs what in both fleets of a change.

    ``by`` is the grouping: ``namespace``, ``workload`` or ``label=KEY``. The groups add up to the
    fleets; one without a name is what no pod pays for.
    """

    by: str
    groups: dict[str, ShareChange]

    def changes(self) -> list[tuple[str, ShareChange]]:
        """Return the groups whose cost changes by a dollar a month, the largest change first.

        The months that are shown differ as well.
        """
        found = [
            pair
            for pair in self.groups.items()
            if abs(pair[1].change) >= _DOLLAR_A_MONTH and _shown(pair[1])
        ]
        return sorted(found, key=lambda pair: (-abs(_shown(pair[1])), pair[0]))


def _shown(group: ShareChange) -> float:
    return monthly_difference(group.before, group.after)


def mean_shares(runs: Sequence[CostShares | None]) -> CostShares | None:
    """Return each group with the means of all runs."""
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs):
        return None
    names = sorted({name for run in known for name in run.groups})
    nothing = ShareChange()
    found = {name: _mean_share([run.groups.get(name, nothing) for run in known]) for name in names}
    return CostShares(by=known[0].by, groups=found)


def _mean_share(rows: Sequence[ShareChange]) -> ShareChange:
    before, after = [row.before for row in rows], [row.after for row in rows]
    return ShareChange(before=_mean(before), after=_mean(after))


def _mean(values: Sequence[float]) -> float:
    return round(fsum(values) / len(values), 9)
