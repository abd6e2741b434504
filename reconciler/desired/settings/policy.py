"""Reads the lists of our config about disruption: fleet budgets, windows, suspensions.

Each is a list of objects as in YAML, or the same as JSON text if it comes from the environment or a
flag. Errors name the invalid entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reconciler.model.duration import Duration, parse_duration
from reconciler.model.grouping import Grouping
from reconciler.model.json import JsonObject
from reconciler.model.schedule import parse_schedule, time_zone
from reconciler.model.settings import UNLIMITED, NodeLimit
from reconciler.model.text.quoting import quote_value
from reconciler.model.windows import Suspension, Window

if TYPE_CHECKING:
    from reconciler.model.karpenter.budget import Budget, DisruptionReason

_T = TypeVar("_T")
_REASONS: Final = ("Drifted", "Empty", "Underutilized", "Unhealthy")
_NODES: Final = re.compile(r"(100|[0-9]{1,2})%|[0-9]{1,9}", re.ASCII)


def read_node_limit(value: object) -> NodeLimit:
    """Return a number of nodes, or a percentage of them; no limit if none is set.

    Raises:
        ValueError: it is neither.
    """
    text = str(value)
    if isinstance(value, (bool, float)) or (text and not _NODES.fullmatch(text)):
        raise ValueError(f"{quote_value(text, 40)} is not a number or percentage (5, 10%)")
    if not text:
        return UNLIMITED
    return NodeLimit(int(text.removesuffix("%")), is_percentage=text.endswith("%"))


def read_budgets(value: object) -> tuple[Budget, ...]:
    """Return the budgets of the complete fleet, in the format of a NodePool's.

    Raises:
        ValueError: an entry cannot be read.
    """
    from reconciler.model.karpenter.budget import Budget  # loads msgspec: only where there are any

    entries: list[Budget] = []
    for entry in list_entries(value, ("nodes", "reasons", "schedule", "duration", "timeZone")):
        limit = str(entry.get("nodes", "10%"))
        if not _NODES.fullmatch(limit):
            raise ValueError(
                f"nodes: {quote_value(limit, 40)} is not a number or percentage (5, 10%)"
            )
        if ("schedule" in entry) is not ("duration" in entry):
            raise ValueError("schedule and duration must be set together")
        if "schedule" in entry:
            _check_schedule(entry)
        reasons = get_names(entry, "reasons", _REASONS) or None
        schedule, duration, zone = (entry.get(k) for k in ("schedule", "duration", "timeZone"))
        entries.append(Budget(limit, reasons, schedule, duration, zone))
    return tuple(entries)


def read_windows(value: object) -> tuple[Window, ...]:
    """Return the windows outside which nothing is disrupted.

    Raises:
        ValueError: an entry cannot be read.
    """
    keys = ("schedule", "duration", "timeZone", "nodePools", "reasons", "owner")
    entries: list[Window] = []
    for entry in list_entries(value, keys):
        _check_schedule(entry)
        entries.append(
            Window(
                schedule=entry["schedule"],
                duration=Duration(entry["duration"]),
                time_zone=entry.get("timeZone"),
                node_pools=get_names(entry, "nodePools"),
                reasons=_get_reasons(entry),
                owner=get_text(entry, "owner"),
            )
        )
    return tuple(entries)


def read_suspensions(value: object) -> tuple[Suspension, ...]:
    """Return the suspensions; each has an owner.

    Raises:
        ValueError: an entry cannot be read.
    """
    entries: list[Suspension] = []
    for entry in list_entries(value, ("owner", "until", "nodePools", "reasons", "note")):
        owner = get_text(entry, "owner")
        if not owner:
            raise ValueError("owner: required field is missing")
        entries.append(
            Suspension(
                owner=owner,
                until=parse_end_time(entry["until"]) if "until" in entry else None,
                node_pools=get_names(entry, "nodePools"),
                reasons=_get_reasons(entry),
                note=get_text(entry, "note"),
            )
        )
    return tuple(entries)


def format_entries(entries: Iterable[object]) -> list[object]:
    """Return entries as in the file, without fields that are not set; a text is itself one."""
    texts = (str, Grouping)
    return [str(one) if isinstance(one, texts) else dict(_set_fields(one)) for one in entries]


def _set_fields(entry: Any) -> Iterator[tuple[str, object]]:
    names = getattr(entry, "__struct_fields__", None) or entry.__dataclass_fields__
    for name in names:
        value = getattr(entry, name)
        if value not in (None, "", ()):
            first, *rest = name.split("_")
            key = first + "".join(map(str.title, rest))
            yield key, _format_value(value)


def _format_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_format_value(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, (Duration, StrEnum)) else value


def list_entries(value: object, allowed: tuple[str, ...]) -> Iterator[JsonObject]:
    """Yield the entries, each an object of the allowed keys; errors get the entry's number.

    Raises: ValueError: it is not a list of objects, or an entry has a key that is not allowed.
    """
    entries = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise ValueError("must be a list")  # noqa: TRY004 - of the author's making
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ValueError(f"[{index}] is not an object")  # noqa: TRY004 - likewise
        unknown = sorted(str(key)[:40] for key in entry if key not in allowed)
        if unknown:
            known = ", ".join(allowed)
            raise ValueError(f"[{index}].{unknown[0]}: unknown key (one of {known})")
        yield entry


def read_entries(
    value: object, allowed: tuple[str, ...], read: Callable[[Mapping[str, object]], _T]
) -> Iterator[_T]:
    """Yield the result of ``read`` for each entry; its errors get the entry's number as well.

    Raises:
        ValueError: as ``list_entries``, or an entry cannot be read.
    """
    for index, entry in enumerate(list_entries(value, allowed)):
        try:
            entry_value = read(entry)
        except ValueError as error:
            raise ValueError(f"[{index}].{error}") from error
        yield entry_value


def _parse_json(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a list in JSON, not {quote_value(text, 40)}") from error


def get_names(
    entry: Mapping[str, object], key: str, allowed: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the list of names under ``key``, empty without it.

    Raises:
        ValueError: it is something else, or a name is not among the allowed ones.
    """
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key}: must be a list of names")
    wrong = [name for name in value if allowed and name not in allowed]
    if wrong:
        raise ValueError(
            f"{key}: {quote_value(wrong[0], 40)} is not allowed (one of {', '.join(allowed)})"
        )
    return tuple(value)


def _get_reasons(entry: Mapping[str, object]) -> tuple[DisruptionReason, ...]:
    names = get_names(entry, "reasons", _REASONS)
    if not names:
        return ()
    from reconciler.model.karpenter.budget import DisruptionReason  # loads msgspec, as above

    return tuple(map(DisruptionReason, names))


def get_text(entry: JsonObject, key: str) -> str:
    """Return the text under ``key``, empty without it.

    Raises:
        ValueError: it is something else.
    """
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key}: must be a string")  # noqa: TRY004 - of the author's making
    return value


def _check_schedule(entry: Mapping[str, object]) -> None:
    """Check schedule, duration and time zone: an invalid one must not open or close a window."""
    parse_schedule(get_text(entry, "schedule"))
    if parse_duration(get_text(entry, "duration")).total_seconds() <= 0:
        raise ValueError("duration: must be longer than 0s")
    time_zone(get_text(entry, "timeZone") or None)


def parse_end_time(value: object) -> datetime:
    """Return the time at which something ends.

    Raises:
        ValueError: the value is not a time, or lacks its UTC offset.
    """
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError as error:
        raise ValueError(
            f"until: {quote_value(str(value), 40)} is not a time (example: 2026-03-01T06:00:00Z)"
        ) from error
    if moment.tzinfo is None:
        raise ValueError("until: the time needs a UTC offset (example: 2026-03-01T06:00:00Z)")
    return moment
