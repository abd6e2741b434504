"""Solve small linear programs with a dense tableau, accurately enough to guide a search.

The programs have a few dozen rows, always start feasible, and are solved many times; loading a
solver library would cost more than it saves. Results are not trusted to the last digit: whatever
must hold is verified with the numbers found (``bound.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

_EPSILON = 1e-9
_PIVOTS_PER_ROW = 20


class Optimum(msgspec.Struct, frozen=True, gc=False):
    """The objective value, the variables, and the price of each row."""

    value: float
    variables: list[float]
    prices: list[float]


def maximize(
    objective: Sequence[float], rows: Sequence[Sequence[float]], limits: Sequence[float]
) -> Optimum:
    """Return the maximum of ``objective · x`` with ``rows · x <= limits`` and ``x >= 0``.

    ``limits`` are not negative, so ``x = 0`` is feasible. The number of steps is limited. When it
    is reached, the current solution is returned: it is feasible, but its prices may not be.
    """
    return Program(objective, zip(rows, limits, strict=True)).solve()


class Program:
    """The maximum of ``objective · x`` with ``x >= 0``; rows can be added between solutions.

    ``rows`` are the first constraints, each with its limit. Each solution starts from the previous
    one: a violated new row costs a few steps.
    """

    def __init__(
        self, objective: Sequence[float], rows: Iterable[tuple[Sequence[float], float]] = ()
    ) -> None:
        self._objective = list(objective)
        self._rows = list(rows)
        self._restart()

    def add(self, row: Sequence[float], limit: float) -> None:
        """Add the constraint ``row · x <= limit``; ``limit`` is not negative."""
        self._rows.append((row, limit))
        self._enter(row, limit)

    def solve(self) -> Optimum:
        """Return the optimum, or the feasible solution found when the step limit is reached."""
        if not self._restore_feasibility():
            self._restart()
        self._improve()
        count = len(self._objective)
        variables = [0.0] * count
        for index, limit in zip(self._basis, self._limits, strict=True):
            if index < count:
                variables[index] = limit
        value = sum(c * x for c, x in zip(self._objective, variables, strict=True))
        return Optimum(value, variables, self._goal[count:])

    def _restart(self) -> None:
        """Build the tableau of all rows, in which no variable is in the basis yet."""
        width, count = len(self._objective), len(self._rows)
        self._goal = [-c for c in self._objective] + [0.0] * count
        self._table: list[list[float]] = []
        for number, (row, _) in enumerate(self._rows):
            line = [*row, *([0.0] * count)]
            line[width + number] = 1.0
            self._table.append(line)
        self._limits = [limit for _, limit in self._rows]
        self._basis = list(range(width, width + count))

    def _enter(self, row: Sequence[float], limit: float) -> None:
        """Add a row to the tableau, expressed in the non-basic variables."""
        width = len(self._goal)
        line = [*row, *([0.0] * (width - len(row)))]
        for other, bound, index in zip(self._table, self._limits, self._basis, strict=True):
            factor = line[index]
            if factor:
                line = [a - factor * b for a, b in zip(line, other, strict=True)]
                limit -= factor * bound
        for other in self._table:
            other.append(0.0)
        self._goal.append(0.0)
        self._table.append([*line, 1.0])
        self._limits.append(limit)
        self._basis.append(width)

    def _restore_feasibility(self) -> bool:
        """Restore feasibility after adding rows, by dual steps; return whether that succeeded."""
        if min(self._limits, default=0.0) >= -_EPSILON:
            return True
        if min(self._goal) < -_EPSILON:
            return False
        for _ in range(_PIVOTS_PER_ROW * len(self._goal)):
            leaving = min(range(len(self._limits)), key=self._limits.__getitem__)
            if self._limits[leaving] >= -_EPSILON:
                return True
            least, column = float("inf"), -1
            for i, (gain, amount) in enumerate(zip(self._goal, self._table[leaving], strict=True)):
                if amount < -_EPSILON and gain / -amount < least:
                    least, column = gain / -amount, i
            if column < 0:
                return False
            self._pivot(leaving, column)
        return False

    def _improve(self) -> None:
        """Improve the solution until no step improves it."""
        steps = len(self._goal)
        for step in range(_PIVOTS_PER_ROW * steps):
            column = self._entering_column(cautious=step > 4 * steps)
            leaving = self._leaving_row(column) if column >= 0 else -1
            if leaving < 0:
                return
            self._pivot(leaving, column)

    def _entering_column(self, *, cautious: bool) -> int:
        """Return the column with the largest gain, or the first that gains if steps cycle."""
        best = min(self._goal)
        if best >= -_EPSILON:
            return -1
        if cautious:
            return next(i for i, gain in enumerate(self._goal) if gain < -_EPSILON)
        return self._goal.index(best)

    def _leaving_row(self, column: int) -> int:
        least, found = float("inf"), -1
        for number, line in enumerate(self._table):
            if line[column] > _EPSILON:
                ratio = self._limits[number] / line[column]
                if ratio < least - _EPSILON or (
                    ratio <= least + _EPSILON
                    and found >= 0
                    and self._basis[number] < self._basis[found]
                ):
                    least, found = min(ratio, least), number
        return found

    def _pivot(self, row: int, column: int) -> None:
        table, limits = self._table, self._limits
        scale = 1.0 / table[row][column]
        line = table[row] = [value * scale for value in table[row]]
        limit = limits[row] = limits[row] * scale
        touched = [(i, value) for i, value in enumerate(line) if value]
        for number, other in enumerate(table):
            factor = other[column]
            if number != row and factor:
                for i, value in touched:
                    other[i] -= factor * value
                other[column] = 0.0
                limits[number] -= factor * limit
        factor = self._goal[column]
        for i, value in touched:
            self._goal[i] -= factor * value
        self._goal[column] = 0.0
        self._basis[row] = column
