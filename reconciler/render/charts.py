"""The drawings of a page, as inline SVG: a time axis, a timeline, curves, and the order of actions.

Curves of several sides are distinguished by dashes and colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from math import floor, log10
from typing import Final

from reconciler.render.cells import Bar, Box, Flow, Lane, Timeline
from reconciler.render.layout import truncate
from reconciler.render.page import Markup, el, join_markup

WIDTH: Final = 1100
LEFT: Final = 230
RIGHT: Final = 30

_STEPS_S: Final = (
    10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
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

POINTS_MAX: Final = 2000
"""The maximum number of points of a curve."""

_WIDTH: Final = 760
_HEIGHT: Final = 260
_LEFT: Final = 96
_TOP: Final = 14
_BOTTOM: Final = 226
_DROP: Final = 24
_CURVE_TICKS_MAX: Final = 6
_TICK_GAP: Final = 80
_STYLES: Final = 3

_NEAR: Final = 14.0
"""Points that are closer than this share a label, since their labels would overlap."""

_SPANS: Final = (
    (1, "≤1 s"), (2, "2 s"), (5, "5 s"), (10, "10 s"), (20, "20 s"), (30, "30 s"), (60, "1 min"),
    (120, "2 min"), (300, "5 min"), (600, "10 min"), (1800, "30 min"), (3600, "1 h"),
    (7200, "2 h"), (18_000, "5 h"), (36_000, "10 h"), (86_400, "1 d"), (172_800, "2 d"),
    (604_800, "7 d"), (2_592_000, "30 d"), (31_536_000, "1 y"), (315_360_000, "10 y"),
)  # fmt: skip


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
        "svg", axis.grid(2, bottom), *drawn, cls="fill",
        viewBox=f"0 0 {WIDTH} {bottom + 24}", role="group", aria_label="over time",
    )  # fmt: skip
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
        "svg", *edges, *boxes, viewBox=f"0 0 {width} {height}", width=width, height=height,
        role="group", aria_label="the order of the actions",
    )  # fmt: skip
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


Point = tuple[float, float]
"""The position on the width of a chart, from 0 to 1, and the value from there on."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line of steps from left to right; each value applies until the next point."""

    name: str
    points: Sequence[Point]


def thin_points(points: Sequence[Point], points_max: int = POINTS_MAX) -> Sequence[Point]:
    """Return at most ``points_max`` points: of each slice its first, lowest, highest and last.

    No extreme is lost, and no point moves by more than the width of a slice.
    """
    if len(points) <= points_max:
        return points
    slices = points_max // 4
    points_kept: list[Point] = []
    for _, members in groupby(points, lambda point: min(int(point[0] * slices), slices - 1)):
        part = list(members)
        order = range(len(part))
        lowest, highest = (pick(order, key=lambda n: part[n][1]) for pick in (min, max))
        points_kept += [part[n] for n in sorted({0, lowest, highest, len(part) - 1})]
    return points_kept


def chart(
    curves: Sequence[Curve], top: float, label: Callable[[float], str], grid: Markup, about: str
) -> Markup:
    """Return the curves between 0 and ``top`` over a grid of the width, with a key above them."""

    def y(value: float) -> float:
        return round(_BOTTOM - value / top * (_BOTTOM - _TOP), 1)

    levels = [top * quarter / 4 for quarter in range(5)]
    drawing = el(
        "svg",
        *(level_line(label(value), y(value), _LEFT, _WIDTH - RIGHT) for value in levels), grid,
        *(_line(curve, number, y) for number, curve in enumerate(curves)), cls="curves",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=about,
    )  # fmt: skip
    return join_markup(_legend(curves), drawing)


def _line(curve: Curve, number: int, y: Callable[[float], float]) -> Markup:
    if not curve.points:
        return Markup("")
    (x, value), *rest = thin_points(curve.points)
    steps = "".join(f"H{_x(x)}V{y(value)}" for x, value in rest)
    path = f"M{_x(x)} {y(value)}{steps}H{_WIDTH - RIGHT}"
    return el("g", el("title", curve.name), el("path", cls=_style(number), d=path))


def _x(share: float) -> float:
    return round(_LEFT + share * (_WIDTH - _LEFT - RIGHT), 1)


def _style(number: int) -> str:
    return f"curve s{number % _STYLES}"


def _legend(curves: Sequence[Curve]) -> Markup:
    items = (
        el(
            "span",
            el(
                "svg", el("path", cls=_style(number), d="M0 5H40"), cls="sample",
                viewBox="0 0 40 10", width=40, height=10, aria_hidden="true",
            ),
            curve.name,
        )
        for number, curve in enumerate(curves)
    )  # fmt: skip
    return el("p", Markup(" ".join(items)), cls="samples")


@dataclass(frozen=True, slots=True)
class Dot:
    """A labelled point of a scatter chart; a line joins the ``marked`` ones."""

    x: float
    y: float
    label: str
    about: str
    marked: bool = False


def scatter(dots: Sequence[Dot], unit: str, label: Callable[[float], str], about: str) -> Markup:
    """Return points over a width from 0 and a height around their values.

    ``unit`` is what the width counts, ``label`` formats a height. Points of the same place are
    drawn above each other, with all labels beside them.
    """
    right = round_up(max((dot.x for dot in dots), default=0.0) or 1.0)
    low, high = _height_range([dot.y for dot in dots])

    def y(value: float) -> float:
        return round(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP), 1)

    levels = [low + (high - low) * quarter / 4 for quarter in range(5)]
    ends = [right * quarter / 4 for quarter in range(5)]
    marked = sorted({(dot.x, dot.y) for dot in dots if dot.marked})
    path = "".join(
        f"{'L' if number else 'M'}{_x(x / right)} {y(value)}"
        for number, (x, value) in enumerate(marked)
    )
    return el(
        "svg",
        *(level_line(label(value), y(value), _LEFT, _WIDTH - RIGHT) for value in levels),
        *(
            el(
                "text", f"{value:,.0f}", cls="soft", x=_x(value / right), y=_BOTTOM + _DROP,
                text_anchor="middle",
            )
            for value in ends
        ),
        el("text", unit, cls="soft", x=_LEFT - 8, y=_BOTTOM + _DROP, text_anchor="end"),
        *([el("path", cls="front", d=path)] if len(marked) > 1 else []),
        *(_dot(dot, _x(dot.x / right), y(dot.y)) for dot in dots),
        *_dot_labels([(_x(dot.x / right), y(dot.y), dot.label) for dot in dots]), cls="curves",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=about,
    )  # fmt: skip


def _dot(dot: Dot, x: float, y: float) -> Markup:
    return el(
        "g", el("title", dot.about), el("circle", cls="dot on" if dot.marked else "dot",
        cx=x, cy=y, r=5),
    )  # fmt: skip


def _dot_labels(places: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Return the labels above and to the right of the points."""
    groups: list[list[tuple[float, float, str]]] = []
    for place in sorted(places):
        near = (
            group
            for group in groups
            if any(
                abs(place[0] - x) < _NEAR * 1.6 and abs(place[1] - y) < _NEAR for x, y, _ in group
            )
        )
        group = next(near, None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return [
        el(
            "text", ", ".join(sorted((name for *_, name in group), key=int)),
            x=max(x for x, *_ in group) + 8, y=round(min(y for _, y, _ in group) - 6, 1),
        )
        for group in groups
    ]  # fmt: skip


def _height_range(values: Sequence[float]) -> tuple[float, float]:
    """Return round limits below and above values, of which a quarter is round as well."""
    least, most = min(values, default=0.0), max(values, default=1.0)
    if least == most:
        return (0.0, round_up(most)) if most > 0 else (0.0, 1.0)
    step = round_up((most - least) / 3) / 4
    while True:
        low = floor(least / step) * step
        if low + 4 * step >= most:
            return low, low + 4 * step
        step *= 2


def level_line(label: str, at: float, left: float, right: float) -> Markup:
    """Return a line across a chart with its label to the left."""
    return join_markup(
        el("line", cls="grid", x1=left, y1=at, x2=right, y2=at),
        el("text", label, cls="soft", x=left - 8, y=at + 4, text_anchor="end"),
    )


def round_up(value: float) -> float:
    """Return the round number at or above ``value``, of which a quarter is round as well."""
    unit = 10.0 ** floor(log10(value))
    return next(part * unit for part in (1, 2, 4, 6, 8, 10, 12) if part * unit >= value)


def format_price_label(price: float) -> str:
    """Return USD an hour for the side of a chart, with cents unless these are not exact."""
    digits = 2 if round(price, 4) == round(price, 2) else 4
    return f"${price:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The width of a chart as the time from ``begin`` to ``end``."""

    begin: datetime
    end: datetime

    def share(self, at: datetime) -> float:
        """Return the position of a time; times outside are at the edge."""
        total = max((self.end - self.begin).total_seconds(), 1.0)
        return min(max((at - self.begin).total_seconds() / total, 0.0), 1.0)

    def grid(self) -> Markup:
        """Return a line at each round time."""
        axis = Axis(self.begin, self.end, _LEFT, _WIDTH, _CURVE_TICKS_MAX, _DROP)
        return axis.grid(_TOP, _BOTTOM)


@dataclass(frozen=True, slots=True)
class SpanScale:
    """The width of a chart as spans of time from a second to ``most`` seconds, by their logarithm.

    A minute and an hour are as far apart as a second and a minute: few pods wait long, and those
    matter.
    """

    most: float

    @property
    def top(self) -> float:
        """The span at the right edge, in seconds: a round one."""
        return float(next((s for s, _ in _SPANS[1:] if s >= self.most), self.most))

    def share(self, seconds: float) -> float:
        """Return the position of a span; spans below a second are at the left edge."""
        return log10(max(seconds, 1.0)) / log10(self.top)

    def grid(self) -> Markup:
        """Return a line at round spans, as many as fit."""
        parts: list[Markup] = []
        last = float("-inf")
        for seconds, label in _SPANS:
            x = _x(self.share(seconds))
            if seconds > self.top or x - last < _TICK_GAP:
                continue
            last = x
            parts.append(el("line", cls="grid", x1=x, y1=_TOP, x2=x, y2=_BOTTOM))
            parts.append(
                el("text", label, cls="soft", x=x, y=_BOTTOM + _DROP, text_anchor="middle")
            )
        return join_markup(*parts)
