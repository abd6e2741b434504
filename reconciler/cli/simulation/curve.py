"""The cost of a fleet over time, as steps, in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from reconciler.cli.simulation.axis import LEFT, RIGHT, WIDTH, Axis
from reconciler.cli.simulation.driver import Sample

_HEIGHT: Final = 220
_TOP: Final = 14
_BOTTOM: Final = 190


def cost_curve(samples: Sequence[Sample], begin: datetime, end: datetime, before: float) -> str:
    """Return the picture; ``before`` is USD an hour at the first moment."""
    axis = Axis(begin, end)
    highest = max([before, *(s.per_hour for s in samples), 1e-9]) * 1.05

    def y(price: float) -> float:
        return round(_BOTTOM - price / highest * (_BOTTOM - _TOP), 1)

    steps = "".join(f"H{axis.x(s.at)}V{y(s.per_hour)}" for s in samples)
    line = f"M{axis.x(begin)} {y(before)}{steps}H{axis.x(end)}"
    marks = "".join(_mark(highest * share / 4, y(highest * share / 4)) for share in range(5))
    return (
        f'<svg viewBox="0 0 {WIDTH} {_HEIGHT}" role="img" aria-label="cost over time">'
        f"{marks}{axis.grid(_TOP, _BOTTOM)}"
        f'<path class="area" d="{line}V{_BOTTOM}H{axis.x(begin)}Z"/>'
        f'<path class="cost" d="{line}"/></svg>\n'
    )


def _mark(price: float, at: float) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{WIDTH - RIGHT}" y2="{at}"/>'
        f'<text class="soft" x="{LEFT - 8}" y="{at + 4}" text-anchor="end">${price:.3f}</text>'
    )
