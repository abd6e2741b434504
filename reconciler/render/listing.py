"""Lists for people and for programs: aligned columns, a Kubernetes List, JSON or YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import msgspec

from reconciler.model.text.times import format_time, timestamp
from reconciler.model.text.visible import Painted, one_line
from reconciler.render.cells import Tone
from reconciler.render.layout import table

T_co = TypeVar("T_co", covariant=True)

_HEADINGS: Final = {
    head.upper(): head
    for head in ("NodePool", "NodePools", "NodeClaim", "NodeClaims", "NodeClass", "CPU", "ID")
}
_COLOURS: Final = {"good": "32", "warn": "33", "bad": "31"}
_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("launch", "launch-batch", "provision"), "good"),
    **dict.fromkeys(("replace", "reboot", "taint", "drain"), "warn"),
    **dict.fromkeys(("terminate", "delete-node", "delete"), "bad"),
}


@dataclass(frozen=True, slots=True)
class Item(Generic[T_co]):
    """An item: its cells in a table, further ones in a wide table, and its object."""

    name: str
    cells: tuple[str, ...]
    wide: tuple[str, ...]
    document: T_co


@dataclass(frozen=True, slots=True)
class Listing(Generic[T_co]):
    """Items of one kind; ``header`` and ``wide_header`` name the cells of the items."""

    header: tuple[str, ...]
    items: Sequence[Item[T_co]]
    wide_header: tuple[str, ...] = field(default=())


def format_table(
    listing: Listing[object], *, wide: bool, verb: str = "", colour: bool = False
) -> str:
    """Return the items as aligned columns below their header.

    ``verb`` is the header of the column with the verb of an item, which decides its ``colour``.
    """
    header = listing.header + (listing.wide_header if wide else ())
    rows = [i.cells + (i.wide if wide else ()) for i in listing.items]
    tones: list[Tone] = []
    if colour and verb:
        tones = ["", *(verb_tone(row[listing.header.index(verb)]) for row in rows)]
    return columns([header, *rows], tones=tones)


def columns(
    rows: Sequence[Sequence[str]], indent: int = 0, tones: Sequence[Tone] = (), align: str = ""
) -> str:
    """Return rows as lines of aligned columns; an empty cell is shown as a dash.

    ``align`` has a sign for each column, to the left by default. ``tones`` has the tone of each
    row, which is its colour; none for an output without colour.
    """
    shown = [[one_line(cell) or "-" for cell in row] for row in rows]
    lines = table(shown, align or "<" * max((len(row) for row in rows), default=0))
    if not any(tones):
        return "".join(f"{' ' * indent}{line}\n" for line in lines)
    pairs = zip(lines, tones, strict=True)
    return Painted("".join(f"{' ' * indent}{_paint(line, tone)}\n" for line, tone in pairs))


def heading_words(header: str) -> str:
    """Return the header of a column on a page: ``NodePool`` for ``node_pool`` or ``NODEPOOL``."""
    plain = re.sub("[-_]", " ", header)
    return _HEADINGS.get(plain.replace(" ", "").upper()) or plain.lower()


def kind_words(kind: str) -> str:
    """Return the name of a kind at the start of a title: ``NodePool`` for ``nodepool``."""
    words = heading_words(kind.upper())
    return words[0].upper() + words[1:]


def verb_tone(verb: str) -> Tone:
    """Return the tone of an operation or action: whether it adds, changes or removes."""
    return _TONES.get(verb, "")


def _paint(line: str, tone: Tone) -> str:
    code = _COLOURS.get(tone)
    return f"\x1b[{code}m{line}\x1b[0m" if code else line


class KubernetesList(msgspec.Struct, frozen=True, rename="camel"):
    """Objects as a Kubernetes List."""

    items: Sequence[object]
    metadata: dict[str, str] = {}
    kind: str = "List"
    api_version: str = "v1"


def format_document(value: object, output: str, *, sort_keys: bool = True) -> str:
    """Return a value in the format ``output``, ``json`` or ``yaml``."""
    if output == "json":
        return json.dumps(value, indent=2, sort_keys=sort_keys, ensure_ascii=False) + "\n"
    from reconciler.source.plainyaml import dump

    return dump(value, sort_keys=sort_keys)


def json_to_yaml(text: str) -> str:
    """Return a JSON document as YAML, its keys in the same order."""
    from reconciler.source.plainyaml import dump

    return dump(json.loads(text), sort_keys=False)


def age(since: datetime | None, now: datetime) -> str:
    """Return how long ago something was, in the form of kubectl (``HumanDuration``)."""
    return "" if since is None else human_duration(now - since)


def human_duration(duration: timedelta) -> str:
    """Return a duration with at most two units: ``45s``, ``3m12s``, ``5h30m``, ``3d4h``, ``2y30d``.

    The larger it is, the less the smaller unit matters: from 10 minutes, 8 hours, 8 days and
    8 years on only the larger one is shown.
    """
    seconds = max(int(duration.total_seconds()), 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    years = days // 365
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two_units(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two_units(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two_units(days, "d", hours % 24, "h")
    if years < 2:
        return f"{days}d"
    if years < 8:
        return _two_units(years, "y", days % 365, "d")
    return f"{years}y"


def _two_units(large: int, unit: str, small: int, smaller_unit: str) -> str:
    return f"{large}{unit}{small}{smaller_unit}" if small else f"{large}{unit}"


def stamp(at: datetime | None) -> str:
    """Return a time as Kubernetes writes it, to the second: ``2026-01-03T12:00:00Z``."""
    return "" if at is None else timestamp(at)


def clock_time(at: datetime | None) -> str:
    """Return a time for a terminal, to the minute: ``2026-01-03 12:00 UTC``."""
    return "" if at is None else format_time(at)


def truncate(text: str, width: int) -> str:
    """Return a text on one line of at most ``width`` characters."""
    line = one_line(text)
    return line if len(line) <= width else line[: width - 1] + "…"
