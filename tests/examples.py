"""The number of examples of property tests: a tenth by default, all in an exhaustive run.

``pytest -m exhaustive`` runs every property test again, with the number that ``examples`` is given
or 500 if a test gives none. ``--hypothesis-profile=thorough`` tries a hundred times as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

DEFAULT: Final = 50
"""The number of examples of hypothesis by default."""

_TIMES: Final = 10
_THOROUGH: Final = 100
_LEAST: Final = 5


def load_profile(markers: str) -> None:
    """Select the number of examples of this run, from the expression after ``-m``."""
    usual = settings(
        settings(),
        max_examples=DEFAULT,
        deadline=None,  # the machine may be busy with something else
        derandomize=True,  # failures are reproducible, here and in CI
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    exhaustive = settings(usual, max_examples=_TIMES * DEFAULT)
    thorough = settings(usual, max_examples=_THOROUGH * _TIMES * DEFAULT, derandomize=False)
    settings.register_profile("usual", usual)
    settings.register_profile("exhaustive", exhaustive)
    settings.register_profile("thorough", thorough)
    settings.load_profile("exhaustive" if is_exhaustive(markers) else "usual")


def is_exhaustive(markers: str) -> bool:
    """Return whether the expression after ``-m`` selects the exhaustive tests."""
    return "exhaustive" in markers and "not exhaustive" not in markers


def rotate(turn: int, values: Sequence[T]) -> Sequence[T]:
    """Return the values rotated by the number of the turn: a short run tries the first one."""
    start = turn % len(values)
    return [*values[start:], *values[:start]]


def examples(exhaustive: int, usual: int | None = None) -> int:
    """Return the number of examples in this run, given the number in an exhaustive run.

    A usual run tries a tenth of them, or ``usual`` if a test is slow.
    """
    if usual is not None and settings().max_examples == DEFAULT:
        return usual
    return max(_LEAST, exhaustive * settings().max_examples // (_TIMES * DEFAULT))
