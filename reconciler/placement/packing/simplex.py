"""Small linear programs, solved exactly enough to guide: a dense tableau, no dependency.

The programs here have a few dozen rows, always start feasible, and are solved many times; a
solver's library would cost more to load than to do without. Nobody relies on the last digit:
whatever must hold is checked again with the numbers found (``bound.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_EPSILON = 1e-9
_PIVOTS_A_ROW = 20


class Optimum(msgspec.Struct, frozen=True, gc=False):
    """The value reached, the variables, and the price of each row."""

    value: float
    variables: list[float]
    prices: list[float]


def maximum(
    objective: Sequence[float], rows: Sequence[Sequence[float]], limits: Sequence[float]
) -> Optimum:
    """Return the greatest ``objective · x`` with ``rows · x <= limits`` and ``x >= 0``.

    ``limits`` are not negative, so that nothing at all is a solution. The number of steps is
    limited: then what was reached is returned, which is feasible, and the prices may not be.
    """
    count, height = len(objective), len(rows)
    width = count + height + 1
    table = []
    for number, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        line = [*row, *([0.0] * height), limit]
        line[count + number] = 1.0
        table.append(line)
    goal = [*(-c for c in objective), *([0.0] * (height + 1))]
    basis = list(range(count, count + height))
    for step in range(_PIVOTS_A_ROW * (count + height)):
        column = _entering(goal, width - 1, cautious=step > 4 * (count + height))
        if column < 0:
            break
        leaving = _leaving(table, column, basis)
        if leaving < 0:
            break
        _pivot(table, goal, leaving, column)
        basis[leaving] = column
    variables = [0.0] * count
    for line, index in zip(table, basis, strict=True):
        if index < count:
            variables[index] = line[-1]
    return Optimum(goal[-1], variables, goal[count:-1])


def _entering(goal: list[float], width: int, *, cautious: bool) -> int:
    """Return the column that gains most, or where steps go in circles the first that gains."""
    best, found = -_EPSILON, -1
    for column in range(width):
        if goal[column] < best:
            if cautious:
                return column
            best, found = goal[column], column
    return found


def _leaving(table: list[list[float]], column: int, basis: list[int]) -> int:
    least, found = float("inf"), -1
    for number, line in enumerate(table):
        if line[column] > _EPSILON:
            ratio = line[-1] / line[column]
            if ratio < least - _EPSILON or (
                ratio <= least + _EPSILON and found >= 0 and basis[number] < basis[found]
            ):
                least, found = min(ratio, least), number
    return found


def _pivot(table: list[list[float]], goal: list[float], row: int, column: int) -> None:
    line = table[row]
    scale = 1.0 / line[column]
    line = table[row] = [value * scale for value in line]
    touched = [(i, value) for i, value in enumerate(line) if value]
    for number, other in enumerate(table):
        factor = other[column]
        if number != row and factor:
            for i, value in touched:
                other[i] -= factor * value
            other[column] = 0.0
    factor = goal[column]
    for i, value in touched:
        goal[i] -= factor * value
    goal[column] = 0.0
