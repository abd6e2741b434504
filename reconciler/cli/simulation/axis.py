"""The time axis that the pictures of a simulation share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

WIDTH: Final = 1100
LEFT: Final = 210
RIGHT: Final = 20

_STEPS_S: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
_TICKS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Axis:
    """Moments from ``begin`` to ``end`` on the width of a picture."""

    begin: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        """Return where a moment stands; what is outside stands at the edge."""
        whole = max((self.end - self.begin).total_seconds(), 1.0)
        part = min(max((moment - self.begin).total_seconds() / whole, 0.0), 1.0)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def grid(self, top: float, bottom: float) -> str:
        """Return lines at round spans, each with its span below."""
        whole = (self.end - self.begin).total_seconds()
        step = next((s for s in _STEPS_S if whole / s <= _TICKS_MAX), _STEPS_S[-1])
        parts = []
        for number in range(int(whole // step) + 1):
            at = self.x(self.begin + timedelta(seconds=number * step))
            parts.append(f'<line class="grid" x1="{at}" y1="{top}" x2="{at}" y2="{bottom}"/>')
            parts.append(
                f'<text class="soft" x="{at}" y="{bottom + 14}" text-anchor="middle">'
                f"{_short(number * step)}</text>"
            )
        return "".join(parts)


def _short(seconds: int) -> str:
    if seconds >= 86400 and seconds % 86400 == 0:
        return f"{seconds // 86400}d"
    hours, rest = divmod(seconds, 3600)
    if hours and not rest:
        return f"{hours}h"
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02}"
    return f"{minutes}m" if not left else f"{minutes}:{left:02}"
