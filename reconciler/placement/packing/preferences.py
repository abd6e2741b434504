"""What preferences may cost: packed for their price, pods give up those that are too dear.

A preference is no constraint, and Karpenter still pays any price for it: two pods that would like
to be apart get two nodes. So what the preferences cost is measured, by packing without them.
Where that is more than the settings allow, the dearest are given up until it no longer is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from reconciler.placement.answer import Attempt
from reconciler.placement.packing.goal import Depth, Goal, PackingScore
from reconciler.placement.pods.shape import Shape

_ALMOST = 1e-9
_PARTS_MAX = 8
"""In how many parts preferences are tried; more kinds of pods than that share them."""


class Thrift:
    """Finds out which preferences of one question are too dear.

    ``attempt`` packs with those of the given shapes left out.
    """

    def __init__(self, goal: Goal, attempt: Callable[[Collection[Shape], Depth], Attempt]) -> None:
        self._goal = goal
        self._attempt = attempt

    def applied(
        self, kept: Attempt, with_preferences: Sequence[Shape], least: float
    ) -> tuple[Attempt, float]:
        """Return the attempt that stands, and what it saves beside ``kept``, in USD an hour.

        ``kept`` has every preference; ``wishing`` are the shapes that have some. Nodes without
        any preference cost at least ``least`` USD an hour.
        """
        dear = self._outcome(kept)
        if not with_preferences or dear.cost <= self._allowed(least):
            return kept, 0.0
        stands = self._attempt(with_preferences, "third")
        bare = self._outcome(stands)
        if bare.waiting > dear.waiting or dear.cost <= self._allowed(bare.cost):
            return kept, 0.0
        for needed in self._fewer(with_preferences, bare):
            fewer = self._attempt(needed, "third")
            reached = self._outcome(fewer)
            if reached.waiting <= bare.waiting and reached.cost <= self._allowed(bare.cost):
                stands = fewer
                break
        return stands, dear.cost - self._outcome(stands).cost

    def _outcome(self, attempt: Attempt) -> PackingScore:
        return self._goal.reached(attempt.solving, attempt.cohorts)

    def _allowed(self, without: float) -> float:
        """Return what nodes may cost with preferences that cost ``without`` without any."""
        return without / (1 - self._goal.preference_cost_max) + _ALMOST

    def _fewer(
        self, with_preferences: Sequence[Shape], bare: PackingScore
    ) -> Iterator[list[Shape]]:
        """Yield ever more shapes to do without: first all but those that seem cheap enough.

        What the preferences of some pods cost is guessed by keeping these alone.
        """
        parts = list(_parts(with_preferences))
        if len(parts) == 1:
            return
        none = self._outcome(self._attempt(with_preferences, "brief"))
        costs: list[tuple[float, int]] = []
        for number in range(len(parts)):
            alone = self._outcome(self._attempt(_all_but(parts, {number}), "brief"))
            if alone.waiting <= none.waiting:
                costs.append((max(0.0, alone.cost - none.cost), number))
        left, kept = self._allowed(bare.cost) - bare.cost, []
        for cost, number in sorted(costs)[: len(parts) - 1]:
            left -= cost
            if left >= 0:
                kept.append(number)
        while kept:
            yield _all_but(parts, kept)
            kept = kept[: len(kept) // 2]


def _all_but(parts: Sequence[Sequence[Shape]], kept: Collection[int]) -> list[Shape]:
    return [s for number, part in enumerate(parts) if number not in kept for s in part]


def _parts(shapes: Sequence[Shape]) -> Iterator[Sequence[Shape]]:
    size = -(-len(shapes) // _PARTS_MAX)
    for start in range(0, len(shapes), size):
        yield shapes[start : start + size]
