"""Curves over an axis: how thousands of steps are drawn, and how sides are distinguished."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.render.curves import (
    POINTS_MAX,
    Curve,
    Point,
    SpanScale,
    chart,
    round_up,
    thin_points,
)
from reconciler.render.page import Markup

points = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 100)), min_size=1, max_size=300
).map(sorted)  # fmt: skip


@given(points, st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(steps: list[Point], most: int) -> None:
    kept = list(thin_points(steps, most))
    assert len(kept) <= most
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    remaining = iter(steps)
    assert all(point in remaining for point in kept), "in their order"
    for extreme in (min, max):
        assert extreme(v for _, v in kept) == extreme(v for _, v in steps)


def test_a_peak_of_one_step_in_thousands_is_drawn() -> None:
    steps = [(n / 50_000, 90.0 if n == 31_003 else float(n % 2)) for n in range(50_000)]
    drawn = chart([Curve("head", steps)], 100, "{:.0f}".format, Markup(""), "about")
    (path,) = re.findall(r'class="curve s0" d="(M[^"]+H730)"', drawn)
    heights = [float(height) for height in re.findall(r"V([\d.]+)", path)]
    assert len(heights) < POINTS_MAX
    assert min(heights) == pytest.approx(226 - 0.9 * 212, abs=0.1)


def test_sides_differ_by_more_than_colour_and_are_named_in_the_legend() -> None:
    names = ["head", "base", "<b>"]
    drawn = chart(
        [Curve(n, [(0.0, 1.0)]) for n in names], 1, "{:.0f}".format, Markup(""), "x<y"
    )  # fmt: skip
    assert [len(re.findall(f'class="curve s{n}"', drawn)) for n in range(3)] == [2, 2, 2]
    assert "<b>" not in drawn
    assert drawn.count("&lt;b&gt;") == 2, "in the key, and as a title"
    assert 'aria-label="x&lt;y"' in drawn


def test_a_curve_without_points_is_only_in_the_legend() -> None:
    drawn = chart([Curve("head", [])], 1, "{:.0f}".format, Markup(""), "nothing")
    assert drawn.count("<path") == 1


@given(st.floats(0, 400_000_000))
def test_spans_keep_their_order_within_the_width(most: float) -> None:
    spans = SpanScale(most)
    moments = [0.0, 0.5, 1.0, 40.0, 3600.0, spans.top]
    places = [spans.share(seconds) for seconds in moments if seconds <= spans.top]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)
    assert 1 <= spans.grid().count("<line") <= 9


@given(st.floats(1e-9, 1e9))
def test_the_top_of_an_axis_is_not_far_above_its_highest_value(value: float) -> None:
    assert value <= round_up(value) <= 2.001 * value
