"""Curves over a width, and points of a scatter chart, as inline SVG.

Curves of several sides are distinguished by dashes and colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from math import floor, log10
from typing import Final

from reconciler.render.charts import RIGHT, Axis
from reconciler.render.page import Markup, el, join_markup

POINTS_MAX: Final = 2000
"""The maximum number of points of a curve."""

_WIDTH: Final = 760
_HEIGHT: Final = 260
_LEFT: Final = 96
_TOP: Final = 14
_BOTTOM: Final = 226
_DROP: Final = 24
_TICKS_MAX: Final = 6
_TICK_GAP: Final = 80
_STYLES: Final = 3

_NEAR: Final = 14.0
"""Points that are closer than this share a label, since their labels would overlap."""

_SPANS: Final = (
    (1, "≤1 s"),
    (2, "2 s"),
    (5, "5 s"),
    (10, "10 s"),
    (20, "20 s"),
    (30, "30 s"),
    (60, "1 min"),
    (120, "2 min"),
    (300, "5 min"),
    (600, "10 min"),
    (1800, "30 min"),
    (3600, "1 h"),
    (7200, "2 h"),
    (18_000, "5 h"),
    (36_000, "10 h"),
    (86_400, "1 d"),
    (172_800, "2 d"),
    (604_800, "7 d"),
    (2_592_000, "30 d"),
    (31_536_000, "1 y"),
    (315_360_000, "10 y"),
)

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

    drawing = el(
        "svg",
        *(
            level_line(label(value), y(value), _LEFT, _WIDTH - RIGHT)
            for value in _quarters(0.0, top)
        ),
        grid,
        *(_line(curve, number, y) for number, curve in enumerate(curves)),
        cls="curves",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=about,
    )
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
                "svg",
                el("path", cls=_style(number), d="M0 5H40"),
                cls="sample",
                viewBox="0 0 40 10",
                width=40,
                height=10,
                aria_hidden="true",
            ),
            curve.name,
        )
        for number, curve in enumerate(curves)
    )
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

    return el(
        "svg",
        *(
            level_line(label(value), y(value), _LEFT, _WIDTH - RIGHT)
            for value in _quarters(low, high)
        ),
        *(
            el(
                "text",
                f"{value:,.0f}",
                cls="soft",
                x=_x(value / right),
                y=_BOTTOM + _DROP,
                text_anchor="middle",
            )
            for value in _quarters(0, right)
        ),
        el("text", unit, cls="soft", x=_LEFT - 8, y=_BOTTOM + _DROP, text_anchor="end"),
        *_front(dots, right, y),
        *(_dot(dot, _x(dot.x / right), y(dot.y)) for dot in dots),
        *_dot_labels([(_x(dot.x / right), y(dot.y), dot.label) for dot in dots]),
        cls="curves",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=about,
    )


def _dot(dot: Dot, x: float, y: float) -> Markup:
    return el(
        "g",
        el("title", dot.about),
        el("circle", cls="dot on" if dot.marked else "dot", cx=x, cy=y, r=5),
    )


def _front(dots: Iterable[Dot], right: float, y: Callable[[float], float]) -> Iterator[Markup]:
    """Yield the line through the marked points, if there are at least two."""
    marked = sorted({(dot.x, dot.y) for dot in dots if dot.marked})
    if len(marked) > 1:
        steps = "L".join(f"{_x(x / right)} {y(value)}" for x, value in marked)
        yield el("path", cls="front", d=f"M{steps}")


def _is_near(place: tuple[float, float, str], group: Iterable[tuple[float, float, str]]) -> bool:
    left, top, _ = place
    return any(abs(left - x) < _NEAR * 1.6 and abs(top - y) < _NEAR for x, y, _ in group)


def _dot_labels(places: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Return the labels above and to the right of the points."""
    groups: list[list[tuple[float, float, str]]] = []
    for place in sorted(places):
        group = next((group for group in groups if _is_near(place, group)), None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return [
        el(
            "text",
            ", ".join(sorted((name for *_, name in group), key=int)),
            x=max(x for x, *_ in group) + 8,
            y=round(min(y for _, y, _ in group) - 6, 1),
        )
        for group in groups
    ]


def _quarters(low: float, high: float) -> list[float]:
    """Return the ends of a range and three values between them, at equal distances."""
    return [low + (high - low) * quarter / 4 for quarter in range(5)]


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
        axis = Axis(self.begin, self.end, _LEFT, _WIDTH, _TICKS_MAX, _DROP)
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
