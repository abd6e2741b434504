"""How the facts of a plan are said: money, moments, counts, lists. Every rendering says them so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UnsetType

from reconciler.plan.plan import (
    HOURS_A_MONTH,
    Change,
    Finding,
    Plan,
    PlannedImage,
    PriceSource,
)

_REASONS = {
    "Unschedulable": "pods wait for a node",
    "Headroom": "CapacityBuffers keep room for pods to come",
    "Static": "the pool keeps a fixed number of nodes",
    "NotLaunched": "the claim was made before and has no instance yet",
    "Drifted": "no longer what git wants",
    "Empty": "without pods",
    "Underutilized": "the pods fit elsewhere for less",
    "Expired": "older than expireAfter allows",
    "Interrupted": "the cloud takes the instance back",
    "Unhealthy": "unhealthy for too long",
    "Overprovisioned": "the pool has more nodes than replicas",
    "NodePoolDeleted": "the NodePool is gone from git",
    "Orphaned": "no NodePool owns the instance",
}
_PRICES = {
    "bundled": "the bundled list",
    "live": "AWS' price list",
    "spot-history": "spot history",
    "estimate": "an estimate",
    "reservation": "its reservation",
    "book": "the price book",
    "overlay": "a NodeOverlay",
    "commitment": "what is paid for already",
}
_LOUDEST = ("error", "warning", "info")
_SIDES = {"git": "git moved", "world": "the world moved", "us": "this release moved"}


def reason_said(reason: str) -> str:
    """Return a reason in half a sentence, the word itself where it is not one of ours."""
    return _REASONS.get(reason, reason)


def side_said(side: str) -> str:
    """Return who moved away from what was agreed."""
    return _SIDES.get(side, side)


def dollars(amount: float, *, signed: bool = False) -> str:
    """Return USD with cents, and with four digits below a dollar: ``$12.24``, ``+$0.0931``."""
    digits = 4 if abs(amount) < 1 and round(amount, 4) else 2
    return f"{_sign(amount, digits, signed=signed)}${abs(amount):,.{digits}f}"


def hourly(amount: float, *, signed: bool = False) -> str:
    """Return USD an hour for a column of a table: always four digits after the point."""
    return f"{_sign(amount, 4, signed=signed)}{abs(amount):,.4f}"


def monthly(amount: float, *, signed: bool = False) -> str:
    """Return what an hourly price comes to in a month of 730 hours, in whole dollars."""
    month = amount * HOURS_A_MONTH
    return f"{_sign(month, 0, signed=signed)}${abs(month):,.0f}"


def _sign(amount: float, digits: int, *, signed: bool) -> str:
    if not round(abs(amount), digits):
        return ""
    return "-" if amount < 0 else "+" if signed else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 node``, ``3 nodes``, ``1,200 nodes``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first names, and how many there are besides."""
    every = list(names)
    if len(every) <= most + 1:
        return ", ".join(every)
    return f"{', '.join(every[:most])} and {len(every) - most:,} more"


def short_node(name: str) -> str:
    """Return a node's name without the domain that every node of a region shares."""
    host, dot, domain = name.partition(".")
    return host if dot and domain.endswith((".internal", "compute.internal")) else name


def pods_said(pods: Iterable[str], most: int = 4) -> str:
    """Return pods by the workload that their names suggest: ``web/api-* (30), web/db-0``.

    Pods of one workload differ in the last part of their name; several of them count as one.
    The count sticks to its name by a no-break space.
    """
    groups: dict[str, list[str]] = {}
    for pod in pods:
        groups.setdefault(pod.rpartition("-")[0] or pod, []).append(pod)
    shown = [
        f"{stem}-*\xa0({len(members):,})" if len(members) > 1 else members[0]
        for stem, members in groups.items()
    ]
    return listed(shown, most)


def image_label(image: PlannedImage) -> str:
    """Return what names an image: its id, and its alias or name where they are known."""
    if not image.id:
        return f"image {image.alias} (resolved at launch)"
    about = ", ".join(filter(None, (image.alias, image.name)))
    return f"image {image.id}" + (f" ({about})" if about else "")


def moment(at: datetime) -> str:
    """Return a time for people, in UTC: ``Sat 3 Jan 2026 02:00 UTC``."""
    utc = at.astimezone(UTC)
    return f"{utc:%a} {utc.day} {utc:%b %Y %H:%M} UTC"


def age_said(at: datetime, now: datetime) -> str:
    """Return how long ago a moment was, in one unit: ``3 h old``, ``12 days old``."""
    seconds = (now - at).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min old"
    return (
        f"{seconds // 3600:.0f} h old" if seconds < 172_800 else f"{seconds // 86_400:.0f} days old"
    )


def price_said(source: PriceSource, now: datetime | None = None) -> str:
    """Return whence a price comes: ``spot history of Sat 3 Jan 2026 02:00 UTC``.

    With ``now`` its age is told in place of the moment: ``spot history, 3 h old``.
    """
    basis = "" if isinstance(source.basis, UnsetType) else source.basis
    said = _PRICES.get(source.source, source.source)
    if not isinstance(source.note, UnsetType):
        said += f" ({source.note})"
    if basis:
        said += f" on {_PRICES.get(basis, basis)}"
    if isinstance(source.at, UnsetType):
        return said
    return (
        f"{said} of {moment(source.at)}" if now is None else f"{said}, {age_said(source.at, now)}"
    )


def forgone_said(forgone: float | None, unpriced: int) -> str:
    """Return what something costs a month by standing in the way: ``$1,204 a month``."""
    if forgone is None:
        return "not priced"
    some = f" and {counted(unpriced, 'node')} not priced" if unpriced else ""
    return f"{monthly(forgone)} a month{some}"


def duration_said(text: str) -> str:
    """Return an ISO 8601 duration as people say it, in at most two units: ``1 day 2 h``."""
    units = {"D": ("day", "days"), "H": ("h", "h"), "M": ("min", "min"), "S": ("s", "s")}
    parts = [
        f"{number} {units[unit][int(number) != 1]}"
        for number, unit in re.findall(r"(\d+)([DHMS])", text)
    ]
    return " ".join(parts[:2])


def until(at: datetime, now: datetime) -> str:
    """Return a coming moment as people say it: the day only where it is not today."""
    utc, today = at.astimezone(UTC), now.astimezone(UTC).date()
    clock = f"{utc:%H:%M} UTC"
    if utc.date() == today:
        return clock
    year = f" {utc.year}" if utc.year != today.year else ""
    return f"{utc:%a} {utc.day} {utc:%b}{year} {clock}"


def revision_said(plan: Plan) -> str:
    """Return which state of the repository was planned, and whether it is committed."""
    revision = plan.revision
    if revision.head is None:
        return "a folder outside git"
    text = short(revision.head)
    return f"{text} with uncommitted changes" if revision.dirty else text


def compared(plan: Plan) -> str:
    """Return since what git changes what it changes."""
    match plan.compared_with:
        case "base":
            head = short(plan.revision.head or "this folder")
            return f"{short(plan.revision.base or 'base')} → {head}"
        case "cluster":
            return "against what the cluster has"
        case "records":
            return "since what was carried out last"
    return ""


def short(commit: str) -> str:
    """Return a commit as git abbreviates it; anything else as it is."""
    is_hash = len(commit) in (40, 64) and all(c in "0123456789abcdef" for c in commit)
    return commit[:8] if is_hash else commit


def value_said(value: Any, width: int = 60) -> str:
    """Return a value of a field in one line, cut to ``width``."""
    text = _value(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        if "key" in value and "operator" in value:
            return _requirement(value)
        if "key" in value and "effect" in value:
            text = f"={value['value']}" if value.get("value") else ""
            return f"{value['key']}{text}:{value['effect']}"
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)


def _requirement(entry: dict[str, Any]) -> str:
    values = entry.get("values") or ()
    text = f"{entry['key']} {entry['operator']}"
    if values:
        text += f" [{', '.join(map(str, values))}]"
    if entry.get("minValues") is not None:
        text += f" minValues {entry['minValues']}"
    return text


def list_changes(old: Any, new: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Return what a list loses and gains, None where the values are not lists of objects."""
    both = (old or []), (new or [])
    if not all(isinstance(side, (list, tuple)) for side in both):
        return None
    if not any(isinstance(entry, dict) for side in both for entry in side):
        return None
    lost = [entry for entry in both[0] if entry not in both[1]]
    gained = [entry for entry in both[1] if entry not in both[0]]
    return lost, gained


def fields_summary(change: Change) -> str | None:
    """Return many changes of instance types in one line, None where each has its own.

    ``312 prices from -4.2% to +10.0%``; of few changes each is told.
    """
    if change.kind != "Lock" or not change.name.startswith("types") or len(change.fields) < 4:
        return None
    pairs = [(f.old, f.new) for f in change.fields]
    if change.name not in ("types.onDemand", "types.spot"):
        came = sum(old is None for old, _ in pairs)
        went = sum(new is None for _, new in pairs)
        moved = f"{came:,} added, {went:,} removed" if came or went else "changed"
        return f"{counted(len(pairs), 'instance type')}: {moved}"
    shares = [new / old - 1 for old, new in pairs if old and new is not None]
    ends = [f"{share:+.1%}" for share in (min(shares), max(shares))] if shares else []
    span = (
        " from " + " to ".join(dict.fromkeys(ends))
        if len(set(ends)) > 1
        else "".join(f" by {end}" for end in ends[:1])
    )
    lost = sum(new is None for _, new in pairs)
    found = sum(old is None for old, _ in pairs)
    more = [f"{found:,} new" if found else "", f"{lost:,} no longer known" if lost else ""]
    return ", ".join(filter(None, (f"{counted(len(pairs), 'price')}{span}", *more)))


def findings_said(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return diagnostics as severity and text, loudest first; alike ones once, with all places."""
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for f in findings:
        place = ":".join(str(p) for p in (f.file, f.line, f.column) if p is not None)
        places = alike.setdefault((f.severity, f.path, f.message, f.hint), [])
        if place:
            places.append(place)
    said = [
        (severity or "", _finding(places, path, message or "", hint))
        for (severity, path, message, hint), places in alike.items()
    ]
    return sorted(said, key=lambda pair: _LOUDEST.index(pair[0]))


def _finding(places: list[str], path: str | None, message: str, hint: str | None) -> str:
    where = f"{listed(places, 2)}: " if places else ""
    what = f"{path}: " if path else ""
    advice = f" ({hint})" if hint else ""
    return f"{where}{what}{message}{advice}"
