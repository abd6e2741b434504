"""Groups of similar rows of a section: one of them is shown, and the others can be expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from reconciler.plan.render.sections.cells import Cell, SectionRow, Text
from reconciler.plan.render.wording import counted

T = TypeVar("T")

FEW: Final = 6
"""Up to this number, all rows are listed, even if some are similar."""

MOST: Final = 12
"""The maximum number of rows: the rest is one row that can be expanded."""

Key = Callable[[T], Hashable]


def grouped(items: Iterable[T], key: Key[T]) -> list[list[T]]:
    """Return the items in groups of equal keys, in the order in which the keys first occur."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def condensed(items: Iterable[T], same: Key[T], *alike: Key[T]) -> list[list[list[T]]]:
    """Return groups of ``same`` items, in clusters.

    A cluster is one group while there are few. Otherwise groups with an equal first key of
    ``alike`` join, then, if there are still many, those with an equal second key.
    """
    clusters = [[group] for group in grouped(items, same)]
    for key in alike:
        if len(clusters) <= FEW:
            break
        joined = grouped(clusters, lambda cluster, key=key: key(cluster[0][0]))  # type: ignore[misc]
        clusters = [[group for cluster in part for group in cluster] for part in joined]
    return clusters


def rows_of(
    clusters: Sequence[Sequence[Sequence[T]]], row: Callable[[Sequence[T]], SectionRow], noun: str
) -> tuple[SectionRow, ...]:
    """Return a row for each cluster; a row of several groups can be expanded.

    Beyond ``MOST`` rows, the last one represents the rest.
    """
    rows = []
    for cluster in clusters:
        every = [item for group in cluster for item in group]
        parts = tuple(map(row, cluster)) if len(cluster) > 1 else ()
        rows.append(replace(row(every), more=parts) if parts else row(every))
    return with_rest(rows, noun, sum(len(g) for c in clusters[MOST - 1 :] for g in c))


def with_rest(rows: Sequence[SectionRow], noun: str, others: int = 0) -> tuple[SectionRow, ...]:
    """Return the first rows, and one row that unfolds to the others, which are ``others`` nouns."""
    if len(rows) <= MOST:
        return tuple(rows)
    shown, rest = rows[: MOST - 1], tuple(rows[MOST - 1 :])
    blanks: list[Cell] = [Text("")] * (len(rest[0].cells) - 1)
    said = f"and {counted(others or len(rest), f'more {noun}')}"
    return (*shown, SectionRow(cells=(Text(said, "soft"), *blanks), more=rest))


def one_of(texts: Iterable[str], similar: str = "similar") -> str:
    """Return the first of the different texts, and how many others there are."""
    every = list(dict.fromkeys(filter(None, texts)))
    more = f" (and {len(every) - 1:,} {similar})" if len(every) > 1 else ""
    return f"{every[0]}{more}" if every else ""


def common(values: Iterable[str]) -> str:
    """Return the value that all share, empty if they differ."""
    every = set(values)
    return every.pop() if len(every) == 1 else ""


def without_pool(message: str, pool: str) -> str:
    """Return a message without the name of its NodePool, to compare it with that of another."""
    if not pool:
        return message
    named = rf'\bNodePool ("?){re.escape(pool)}\1(?![\w.-])'
    return re.sub(named, "the NodePool", message)
