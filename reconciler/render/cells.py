"""The parts of a section: typed cells, lines, rows and columns, and the grouping of similar rows.

Renderers know these, not plans. Of similar rows a reader sees one, and can expand the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from reconciler.model.grouping import group_by, group_pairs
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_forgone_savings, format_hourly, format_monthly
from reconciler.model.text.times import format_time

Tone = Literal["", "soft", "good", "bad", "warn"]

BOXES_MAX: Final = 120
"""A chart of more actions is not readable."""

ROWS_UNGROUPED_MAX: Final = 6
"""Up to this number, all rows are listed, even if some are similar."""

ROWS_SHOWN_MAX: Final = 12
"""The maximum number of rows: the rest is one row that can be expanded."""


class VerbStyle(NamedTuple):
    """The sign of a verb on a terminal, its tone, and whether its word follows the sign."""

    sign: str
    tone: Tone
    has_word: bool = True


VERBS: Final[dict[str, VerbStyle]] = {
    "launch": VerbStyle("+", "good"),
    "replace": VerbStyle("±", "warn"),
    "reboot": VerbStyle("~", "warn"),
    "remove": VerbStyle("-", "bad"),
    "create": VerbStyle("+", "good", has_word=False),
    "update": VerbStyle("~", "warn", has_word=False),
    "delete": VerbStyle("-", "bad", has_word=False),
    "error": VerbStyle("", "bad"),
    "warning": VerbStyle("", "warn"),
    "info": VerbStyle("", ""),
}
"""The style of each verb; the last three are severities."""


class Text(msgspec.Struct, frozen=True):
    """Words."""

    text: str
    tone: Tone = ""


class Name(msgspec.Struct, frozen=True):
    """An identifier, shown as code; ``kind`` is written before it, in words."""

    text: str
    kind: str = ""


class NameList(msgspec.Struct, frozen=True):
    """Identifiers of the same kind; the first ones are shown, and the others can be expanded.

    ``noun`` counts them if none fits.
    """

    names: tuple[str, ...]
    noun: str = "node"
    kind: str = ""
    most: int = 4


class Number(msgspec.Struct, frozen=True):
    """A number, of ``noun`` if that is set."""

    number: int
    noun: str = ""
    after: str = ""


class Dollars(msgspec.Struct, frozen=True):
    """USD an hour, or the sum for a month; None has no price.

    ``unpriced`` is set for a sum, and counts the nodes in it that have no price.
    """

    amount: float | None
    signed: bool = False
    per_month: bool = False
    unpriced: int | None = None


class ValueChange(msgspec.Struct, frozen=True):
    """A value before and after; one value if both look the same."""

    before: Number | Dollars
    after: Number | Dollars


class Moment(msgspec.Struct, frozen=True):
    """A time of the wall clock."""

    at: datetime


class Edit(msgspec.Struct, frozen=True):
    """A field that git changes: its values, or the entries that a list loses and gains."""

    path: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    drifts: bool = False
    is_list: bool = False


Cell: TypeAlias = Text | Name | NameList | Number | Dollars | ValueChange | Moment | Edit


class Line(msgspec.Struct, frozen=True):
    """A line below the head of a row; heads of the lines of a row are aligned on a terminal."""

    cells: tuple[Cell, ...]
    head: Name | NameList | None = None


class SectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row: one cell for each column, then lines. ``more`` are the rows that it represents."""

    cells: tuple[Cell, ...]
    verb: str = ""
    lines: tuple[Line, ...] = ()
    more: tuple[SectionRow, ...] = ()


class Column(msgspec.Struct, frozen=True):
    """A column; numbers are aligned to the right. Narrow formats omit ``page_only`` ones."""

    title: str
    numeric: bool = False
    page_only: bool = False


BarKind = Literal["launch", "remove", "wait", "closed", "limited", "start", "run", "drain"]


class Bar(msgspec.Struct, frozen=True):
    """A period of a lane: what it is, and ``about`` as its tooltip.

    ``hue`` numbers the colours of bars that differ in more than their kind.
    """

    begin: datetime
    end: datetime
    kind: BarKind
    about: str = ""
    hue: int | None = None


class Lane(msgspec.Struct, frozen=True):
    """One line of a timeline."""

    label: str
    bars: tuple[Bar, ...]


class Timeline(msgspec.Struct, frozen=True):
    """The known part of the rollout over time; ``lanes`` are drawn from ``begin`` to ``end``."""

    begin: datetime
    end: datetime
    lanes: tuple[Lane, ...]


class Box(msgspec.Struct, frozen=True):
    """An action in the drawing of their order; ``after`` are the boxes that it waits for."""

    id: str
    kind: str
    title: str
    detail: str
    wave: int
    after: tuple[str, ...]


class Flow(msgspec.Struct, frozen=True):
    """The order of the actions."""

    boxes: tuple[Box, ...]


class Verbatim(msgspec.Struct, frozen=True):
    """Lines that are shown as they are, such as YAML or a patch."""

    text: str


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a plan for people.

    ``table`` sections align all columns on a terminal; the others are lists of rows with lines
    below them, titled ``lines_title`` if they are a column. ``folded`` sections can be expanded.
    ``figure`` is drawn if the format supports it. ``end`` is a line below the rows.
    """

    key: str
    title: str
    note: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[SectionRow, ...] = ()
    lines_title: str = ""
    tone: Tone = ""
    table: bool = False
    folded: bool = False
    figure: Timeline | Flow | Verbatim | None = None
    end: str = ""

    @property
    def is_list(self) -> bool:
        """Whether its rows are texts: one column, which has no title."""
        return not any(c.title for c in self.columns) and all(len(r.cells) == 1 for r in self.rows)

    @property
    def is_facts(self) -> bool:
        """Whether its rows are names and values: two columns without titles."""
        titles = [column.title for column in self.columns]
        return titles == ["", ""] and not any(r.verb or r.lines or r.more for r in self.rows)

    @property
    def is_plain_list(self) -> bool:
        """Whether its rows are texts with nothing before or below them."""
        return self.is_list and not any(row.verb or row.lines or row.more for row in self.rows)

    @property
    def is_lead(self) -> bool:
        """Whether it is what a reply begins with: sentences without a title."""
        return self.is_plain_list and not (self.title or self.folded or self.figure or self.end)

    @property
    def heading(self) -> str:
        """The title and its note as one text."""
        return f"{self.title} {self.note}".strip()


def columns_to_show(
    columns: Sequence[Column], rows: Sequence[SectionRow], *, on_page: bool = False
) -> list[int]:
    """Return the columns that a renderer shows: those with text, and always the first."""
    parts = [part for row in rows for part in (row, *row.more)]
    return [
        number
        for number, column in enumerate(columns)
        if on_page or not column.page_only
        if not number or any(part.cells[number] != Text("") for part in parts)
    ]


class ShownColumns(NamedTuple):
    """The columns of a table that has one more for verbs and one for lines, if it has any."""

    numbers: list[int]
    verbs: bool
    lines: bool
    heads: list[Column]


def shown_columns(
    columns: Sequence[Column],
    rows: Sequence[SectionRow],
    lines_title: str,
    *,
    on_page: bool = False,
) -> ShownColumns:
    """Return the columns of a table on a page or in Markdown."""
    numbers = columns_to_show(columns, rows, on_page=on_page)
    verbs, lines = any(row.verb for row in rows), any(row.lines for row in rows)
    heads = [*([Column("")] if verbs else []), *(columns[number] for number in numbers)]
    heads += [Column(lines_title)] if lines else []
    return ShownColumns(numbers, verbs, lines, heads)


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for people: its subject, the headline, and the sections in order.

    ``revision`` is empty without a commit; ``commit_problem`` is why. ``command`` repeats the
    comparison with a base, empty without one.
    """

    fleet: str
    revision: str
    place: str
    digest: str
    at: datetime
    observation: str
    headline: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str = ""
    commit_problem: str = ""


def text_of(cell: Cell) -> str:
    """Return a cell as plain text, which the renderer still has to escape."""
    match cell:
        case Text(text=text):
            return text
        case Name(text=text, kind=kind):
            return f"{kind} {text}".strip()
        case NameList(names=names, kind=kind, most=most):
            return f"{kind} {format_list(names, most)}".strip()
        case Number(number=number, noun=noun, after=after):
            return f"{format_count(number, noun) if noun else f'{number:,}'} {after}".strip()
        case Dollars():
            return _format_dollars_cell(cell)
        case ValueChange(before=before, after=after):
            first, last = text_of(before), text_of(after)
            return last if first == last else f"{first} → {last}"
        case Moment(at=at):
            return format_time(at)
        case Edit(path=path, old=old, new=new):
            return f"{path} {', '.join(old)} → {', '.join(new)}"


def _format_dollars_cell(cell: Dollars) -> str:
    if cell.unpriced is not None:
        return format_forgone_savings(cell.amount, cell.unpriced)
    if cell.amount is None:
        return "no price"
    form = format_monthly if cell.per_month else format_hourly
    return form(cell.amount, signed=cell.signed)


def sort_value(cell: Cell) -> str:
    """Return what a column is sorted by, empty if that is the text."""
    match cell:
        case Number(number=number):
            return str(number)
        case Dollars(amount=amount):
            return "" if amount is None else repr(amount)
        case ValueChange(after=after):
            return sort_value(after)
        case Moment(at=at):
            return at.isoformat()
    return ""


def name_cell(names: tuple[str, ...], noun: str) -> Name | NameList:
    """Return one name, or several with a noun to count them."""
    return Name(names[0]) if len(names) == 1 else NameList(names, noun)


T = TypeVar("T")


Key = Callable[[T], Hashable]


def group_similar(items: Iterable[T], same: Key[T], *similar: Key[T]) -> list[list[list[T]]]:
    """Return groups of ``same`` items, in clusters.

    A cluster is one group while there are few. Otherwise groups with an equal first key of
    ``similar`` join, then, if there are still many, those with an equal second key.
    """
    clusters = [[group] for group in group_by(items, same).values()]
    for key in similar:
        if len(clusters) <= ROWS_UNGROUPED_MAX:
            break
        joined = group_pairs((key(cluster[0][0]), cluster) for cluster in clusters)
        clusters = [[group for cluster in part for group in cluster] for part in joined.values()]
    return clusters


def text_lines(*texts: str, tone: Tone = "") -> tuple[Line, ...]:
    """Return a line for each text that is not empty."""
    return tuple(Line((Text(text, tone),)) for text in texts if text)


def rows_of(
    clusters: Sequence[Sequence[Sequence[T]]], row: Callable[[Sequence[T]], SectionRow], noun: str
) -> tuple[SectionRow, ...]:
    """Return a row for each cluster; a row of several groups can be expanded.

    Beyond ``ROWS_SHOWN_MAX`` rows, the last one represents the rest.
    """
    rows = []
    for cluster in clusters:
        every = [item for group in cluster for item in group]
        parts = tuple(map(row, cluster)) if len(cluster) > 1 else ()
        rows.append(replace(row(every), more=parts) if parts else row(every))
    return fold_rest(rows, noun, sum(len(g) for c in clusters[ROWS_SHOWN_MAX - 1 :] for g in c))


def fold_rest(rows: Sequence[SectionRow], noun: str, others: int = 0) -> tuple[SectionRow, ...]:
    """Return the first rows, and one row that unfolds to the rest, which has ``others`` items."""
    if len(rows) <= ROWS_SHOWN_MAX:
        return tuple(rows)
    shown, rest = rows[: ROWS_SHOWN_MAX - 1], tuple(rows[ROWS_SHOWN_MAX - 1 :])
    blanks: list[Cell] = [Text("")] * (len(rest[0].cells) - 1)
    label = f"and {format_count(others or len(rest), f'more {noun}')}"
    return (*shown, SectionRow(cells=(Text(label, "soft"), *blanks), more=rest))


def summarize_texts(texts: Iterable[str], similar: str = "similar") -> str:
    """Return the first of the different texts, and how many others there are."""
    every = list(dict.fromkeys(filter(None, texts)))
    more = f" (and {len(every) - 1:,} {similar})" if len(every) > 1 else ""
    return f"{every[0]}{more}" if every else ""


def common_value(values: Iterable[str]) -> str:
    """Return the value that all share, empty if they differ."""
    every = set(values)
    return every.pop() if len(every) == 1 else ""


def without_pool(message: str, pool: str) -> str:
    """Return a message without the name of its NodePool, to compare it with that of another."""
    if not pool:
        return message
    named = rf'\bNodePool ("?){re.escape(pool)}\1(?![\w.-])'
    return re.sub(named, "the NodePool", message)
