"""The timeline and the order of actions on a page, as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from reconciler.render.cells import Bar, Box, Flow, Lane, Timeline
from reconciler.render.layout import truncate
from reconciler.render.page import Markup, el, join_markup

WIDTH: Final = 1100
LEFT: Final = 230
RIGHT: Final = 30

_STEPS_S: Final = (
    10,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)
_TICKS_MAX: Final = 9

_LANE: Final = 22
_LABEL_MAX: Final = 30
_KINDS: Final = {
    "launch": "launch",
    "remove": "remove",
    "start": "starting",
    "run": "running",
    "drain": "draining",
    "wait": "waits",
    "closed": "window or budget closed",
    "limited": "limited by a budget",
}
_HUE_COUNT: Final = 8

_BOX: Final = (230, 40)
_GAP: Final = (60, 12)
_LETTERS: Final = 29


@dataclass(frozen=True, slots=True)
class Axis:
    """The wall clock from ``begin`` to ``end`` on the width of a picture, in UTC.

    ``left`` is the space for labels, whose baseline is ``drop`` below the picture. There are at
    most ``ticks_max`` + 1 ticks.
    """

    begin: datetime
    end: datetime
    left: float = LEFT
    width: float = WIDTH
    ticks_max: int = _TICKS_MAX
    drop: float = 15

    def x(self, at: datetime) -> float:
        """Return the position of a time; times outside are at the edge."""
        total = max((self.end - self.begin).total_seconds(), 1.0)
        part = min(max((at - self.begin).total_seconds() / total, 0.0), 1.0)
        return round(self.left + part * (self.width - self.left - RIGHT), 1)

    def ticks(self) -> tuple[datetime, ...]:
        """Return the round times of the axis: full minutes, hours or days."""
        total = (self.end - self.begin).total_seconds()
        step = next((s for s in _STEPS_S if total / s <= self.ticks_max), 0)
        step = step or 604_800 * (int(total / 604_800 / self.ticks_max) + 1)
        start = int(self.begin.timestamp())
        first = start + -start % step
        return tuple(
            datetime.fromtimestamp(at, UTC)
            for at in range(first, int(self.end.timestamp()) + 1, step)
        )

    def grid(self, top: float, bottom: float) -> Markup:
        """Return a line at each tick with its time below; the date where a day begins."""
        ticks = self.ticks()
        fine = len(ticks) > 1 and (ticks[1] - ticks[0]).total_seconds() < 60
        parts, day = [], self.begin.astimezone(UTC).date()
        for at in ticks:
            x = self.x(at)
            parts.append(el("line", cls="grid", x1=x, y1=top, x2=x, y2=bottom))
            new, day = at.date() != day, at.date()
            shown = f"{at:%m-%d}" if new else f"{at:%H:%M:%S}" if fine else f"{at:%H:%M}"
            parts.append(
                el("text", shown, cls="soft", x=x, y=bottom + self.drop, text_anchor="middle")
            )
        zone = el(
            "text", "UTC", cls="soft", x=self.left - 50, y=bottom + self.drop, text_anchor="end"
        )
        return join_markup(*parts, zone)


def hue_of(number: int) -> int:
    """Return the colour of a number; colours repeat."""
    return number % _HUE_COUNT


def timeline(figure: Timeline) -> Markup:
    """Return the lanes over the wall clock, with a key above them."""
    used = {bar.kind for lane in figure.lanes for bar in lane.bars}
    key = [
        join_markup(el("span", cls=f"key k-{k}"), label) for k, label in _KINDS.items() if k in used
    ]
    return join_markup(el("p", *key, cls="soft"), lanes(figure))


def lanes(figure: Timeline) -> Markup:
    """Return the lanes over the wall clock."""
    axis = Axis(figure.begin, figure.end)
    bottom = 6 + _LANE * len(figure.lanes)
    drawn = [_lane(lane, axis, 6 + _LANE * number) for number, lane in enumerate(figure.lanes)]
    drawing = el(
        "svg",
        axis.grid(2, bottom),
        *drawn,
        cls="fill",
        viewBox=f"0 0 {WIDTH} {bottom + 24}",
        role="group",
        aria_label="over time",
    )
    return el("div", drawing, cls="wide", tabindex=0)


def _lane(lane: Lane, axis: Axis, y: int) -> Markup:
    label = el("text", truncate(lane.label, _LABEL_MAX), x=LEFT - 10, y=y + 15, text_anchor="end")
    about = "; ".join(dict.fromkeys(bar.about for bar in lane.bars if bar.about)) or lane.label
    bars = [_bar(bar, axis, y) for bar in lane.bars if bar.end > bar.begin]
    return el("g", el("title", about), label, *bars, role="img", aria_label=about)


def _bar(bar: Bar, axis: Axis, y: int) -> Markup:
    left = axis.x(bar.begin)
    hue = "" if bar.hue is None else f" h{hue_of(bar.hue)}"
    width = round(max(axis.x(bar.end) - left, 2.0), 1)
    title = el("title", bar.about) if bar.about else ""
    shape = f"b-{bar.kind}{hue}"
    rect = el("rect", cls=shape, x=left, y=y + 3, width=width, height=_LANE - 6, rx=3)
    return el("g", title, rect) if title else rect


def flow(figure: Flow) -> Markup:
    """Return the order of the actions: a column for each wave, an edge for each wait."""
    rows: dict[int, int] = {}
    corners: dict[str, tuple[int, int]] = {}
    for box in figure.boxes:
        row = rows[box.wave] = rows.get(box.wave, -1) + 1
        corners[box.id] = (
            box.wave * (_BOX[0] + _GAP[0]) + 1,
            row * (_BOX[1] + _GAP[1]) + 1,
        )
    width = (max(rows) + 1) * (_BOX[0] + _GAP[0]) - _GAP[0] + 2
    height = (max(rows.values()) + 1) * (_BOX[1] + _GAP[1]) - _GAP[1] + 2
    edges = [
        _edge(corners[before], corners[box.id])
        for box in figure.boxes
        for before in box.after
        if before in corners
    ]
    boxes = [_box(box, *corners[box.id]) for box in figure.boxes]
    drawing = el(
        "svg",
        *edges,
        *boxes,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="group",
        aria_label="the order of the actions",
    )
    return el("div", drawing, cls="wide", tabindex=0)


def _edge(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x1, y1 = start[0] + _BOX[0], start[1] + _BOX[1] // 2
    x2, y2 = end[0], end[1] + _BOX[1] // 2
    bend = (x1 + x2) // 2
    return el("path", cls="edge", d=f"M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}")


def _box(box: Box, x: int, y: int) -> Markup:
    about = f"{box.title}; {box.detail}" if box.detail else box.title
    texts = [
        el("text", truncate(line, _LETTERS), x=x + 10, y=y + 17 + 15 * number)
        for number, line in enumerate((box.title, box.detail))
    ]
    corner = el("rect", cls=f"box {box.kind}", x=x, y=y, width=_BOX[0], height=_BOX[1], rx=6)
    return el("g", el("title", about), corner, *texts, role="img", aria_label=about)
