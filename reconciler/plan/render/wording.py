"""How every rendering of a plan formats money, times, counts and lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.waiting import DeferredClaim
from reconciler.model.grouping import group_by, group_pairs
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.times import format_date, format_time
from reconciler.plan.value.nodes import PlannedImage
from reconciler.plan.value.plan import Plan, Revision

_REASONS = {
    "Unschedulable": "pending pods",
    "Headroom": "headroom for CapacityBuffers",
    "Static": "the NodePool has a fixed number of replicas",
    "NotLaunched": "the NodeClaim exists but has no instance yet",
    "Drifted": "no longer matches the desired configuration",
    "Empty": "no pods to reschedule",
    "Underutilized": "its pods fit on cheaper capacity",
    "Expired": "older than expireAfter",
    "Interrupted": "the cloud provider is reclaiming the instance",
    "Unhealthy": "unhealthy for too long",
    "Overprovisioned": "the NodePool has more nodes than replicas",
    "NodePoolDeleted": "the NodePool was removed from git",
    "Orphaned": "no NodePool owns the instance",
}
_PRICES = {
    "bundled": "bundled list",
    "live": "AWS price list",
    "spot-history": "spot price history",
    "estimate": "estimate",
    "reservation": "capacity reservation",
    "book": "price book",
    "overlay": "NodeOverlay",
    "commitment": "commitment",
}
_RULES = {
    "Budget": "disruption budget",
    "Schedule": "disruption window",
    "Suspension": "suspension",
    "MinimumAge": "minimum age",
    "Wave": "wave",
    "MaximumPerDay": "daily limit",
    "EvictionCost": "cost of evictions",
    "UndoPeriod": "undo period",
    "Retry": "next attempt",
    "Approval": "approval",
}
_SEVERITIES = ("error", "warning", "info")
_SIDES = {"git": "changed in git", "world": "changed in AWS", "us": "changed by this release"}

_DRIFTED_PARTS: Final = {
    "NodePoolDrifted": "the NodePool",
    "NodeClassDrift": "the EC2NodeClass",
    "RequirementsDrifted": "the requirements of the NodePool",
    "AMIDrift": "the image",
    "SubnetDrift": "the subnets",
    "SecurityGroupDrift": "the security groups",
    "CapacityReservationDrift": "the capacity reservations",
    "PlacementGroupDrift": "the placement group",
}
"""What has changed, by Karpenter's reason for a drift."""

_POD: Final = re.compile(r"(?<![\w./-])([a-z0-9-]+/[a-z0-9.-]+)-[a-z0-9]+(?![\w/=:])")

_DURATION_PART: Final = re.compile(r"(?<!\d)(\d+)([DHMS])")

_UNIT_SECONDS: Final = {"D": 86_400, "H": 3_600, "M": 60, "S": 1}

_MINUTE_FROM: Final = 55


def format_drift(reason: str, side: str) -> str:
    """Return what has changed and where: ``the EC2NodeClass changed in git``."""
    where, part = format_side(side), _DRIFTED_PARTS.get(reason)
    if part is not None and where:
        return f"{part} {where}"
    return f"{reason} ({where})" if where else reason


def format_reason(reason: str) -> str:
    """Return a short explanation of a reason, or the reason itself if it is not known."""
    return _REASONS.get(reason, reason)


_CAUSES = {
    **{reason.value: reason.cause for reason in DisruptionReason},
    "Expired": "expiry",
    "Interrupted": "interruption",
    "NodePoolDeleted": "removal of the NodePool",
}


def cause_of(reason: str) -> str:
    """Return a reason as a noun, or the reason itself if it is not known."""
    return _CAUSES.get(reason, reason)


def format_drain_limit(limit: str) -> str:
    """Return how long a drain may take that a command limits."""
    return f"the drain takes at most {limit}" if limit != "0s" else "pods are deleted at once"


def format_side(side: str) -> str:
    """Return where a change that caused drift was made."""
    return _SIDES.get(side, side)


class MessageGroup(NamedTuple):
    """The names of objects with the same message; ``group`` is what else they have in common."""

    group: tuple[str, ...]
    message: str
    names: list[str]


def group_messages(rows: Iterable[tuple[tuple[str, ...], str, str]]) -> list[MessageGroup]:
    """Return objects by group and message, in order; a row is a group, a message and a name.

    Messages that differ only in a pod of a workload are one, which names the workload.
    """
    found = group_pairs(
        ((group, _without_pod_names(message)), (message, name)) for group, message, name in rows
    )
    return [
        MessageGroup(
            group, general if len(dict(same)) > 1 else same[0][0], [name for _, name in same]
        )
        for (group, general), same in found.items()
    ]


def _without_pod_names(reason: str) -> str:
    """Return a reason with the workloads of pods in place of their names: ``web/api-*``."""
    return _POD.sub(r"\1-*", reason)


def format_zones(zones: Sequence[str]) -> str:
    """Return zones of one region with the region once: ``us-east-1a/b/c``."""
    stems = {zone[:-1] for zone in zones}
    if len(stems) > 1 or not all(zone[-1:].isalpha() for zone in zones):
        return format_list(zones)
    return "/".join((zones[0], *(zone[-1] for zone in zones[1:])))


def removal_texts(deferred: Iterable[DeferredClaim]) -> list[str]:
    """Return a sentence for each NodePool that git no longer has and whose nodes are kept."""
    waiting = Counter(item.node_pool for item in deferred if item.is_unapproved_removal)
    return [
        f"NodePool {name} was removed from git: {format_count(waiting[name], 'node')} stay"
        f"{'s' if waiting[name] == 1 else ''} until `--allow-removal {name}` allows the removal"
        for name in sorted(waiting)
    ]


def short_node_name(name: str) -> str:
    """Return a node's name without the domain that every node of a region shares."""
    host, dot, domain = name.partition(".")
    return host if dot and domain.endswith((".internal", "compute.internal")) else name


def format_pods(pods: Iterable[str], most: int = 4) -> str:
    """Return pods by the workload that their names suggest: ``web/api-* (30), web/db-0``.

    Pods of one workload differ in the last part of their name; several of them count as one.
    The count sticks to its name by a no-break space.
    """
    groups = group_by(pods, lambda pod: pod.rpartition("-")[0] or pod)
    shown = [
        f"{stem}-*\xa0({len(members):,})" if len(members) > 1 else members[0]
        for stem, members in groups.items()
    ]
    return format_list(shown, most)


def format_image(image: PlannedImage) -> str:
    """Return the name of an image: its id, and its alias or name if known."""
    if not image.id:
        return f"image {image.alias} (resolved at launch)"
    about = ", ".join(filter(None, (image.alias, image.name)))
    return f"image {image.id}" + (f" ({about})" if about else "")


def format_age(at: datetime, now: datetime) -> str:
    """Return how long ago a time was, in one unit: ``3 h old``, ``12 days old``."""
    seconds = (now - at).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min old"
    return (
        f"{seconds // 3600:.0f} h old" if seconds < 172_800 else f"{seconds // 86_400:.0f} days old"
    )


def format_price_source(source: PriceOrigin, now: datetime | None = None) -> str:
    """Return the source of a price: ``spot price history of 2026-01-03``.

    With ``now``, the age replaces the date: ``spot price history, 3 h old``.
    """
    basis = source.basis
    text = _PRICES.get(source.source, source.source)
    if source.note:
        text += f" ({source.note})"
    if basis:
        text += f" on {_PRICES.get(basis, basis)}"
    if source.at is None:
        return text
    return (
        f"{text} of {format_date(source.at)}"
        if now is None
        else f"{text}, {format_age(source.at, now)}"
    )


def blocker_title(kind: str, name: str) -> str:
    """Return what blocks nodes: an object, or a rule of a NodePool for one reason."""
    pool, _, reason = name.rpartition("/")
    rule = _RULES.get(kind)
    return f"{kind} {name}" if rule is None else f"NodePool {pool}: {rule} ({reason})"


def format_duration(text: str) -> str:
    """Return an ISO 8601 duration as people say it, in at most two units: ``1 day 2 h``."""
    units = {"D": ("day", "days"), "H": ("h", "h"), "M": ("min", "min"), "S": ("s", "s")}
    parts = [
        f"{number} {units[unit][int(number) != 1]}" for number, unit in _DURATION_PART.findall(text)
    ]
    return " ".join(parts[:2])


def rough_duration(text: str) -> str:
    """Return an ISO 8601 duration for a forecast, such as ``40 seconds`` or ``3 minutes``.

    From two hours on, it is rounded to ten minutes.
    """
    parts = _DURATION_PART.findall(text)
    seconds = sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds < _MINUTE_FROM:
        return f"{max(10, round(seconds, -1))} seconds"
    minutes = round(seconds / 60)
    if minutes < 120:
        return format_count(minutes, "minute")
    hours, rest = divmod(round(minutes, -1), 60)
    if hours < 10:
        return f"{hours} h {rest} min" if rest else f"{hours} hours"
    hours = round(minutes / 60)
    return f"{hours} hours" if hours < 72 else f"{round(hours / 24)} days"


def format_words(words: Sequence[str]) -> str:
    """Return words as an enumeration: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def format_near_time(at: datetime, now: datetime) -> str:
    """Return a time near ``now``, without its date if that is the same day."""
    utc = at.astimezone(UTC)
    return f"{utc:%H:%M} UTC" if utc.date() == now.astimezone(UTC).date() else format_time(at)


def format_revision(plan: Plan) -> str:
    """Return the commit that was planned, and whether there are uncommitted changes.

    Empty without a commit; ``commit_problem`` is why.
    """
    revision = plan.revision
    if revision.head is None:
        return ""
    text = short_commit(revision.head)
    return f"{text} with uncommitted changes" if revision.dirty else text


def commit_problem(revision: Revision) -> str:
    """Return why the commit of a revision is not known, empty if it is."""
    if revision.head is not None:
        return ""
    if revision.repo is None:
        return "not in a git repository"
    return "no commits yet" if revision.dirty else "unknown commit"


_OBSERVED = {
    "cluster": "observed: the cluster and EC2",
    "embedded": "observed: EC2 and the simulated cluster",
    "snapshot": "observed: the snapshot",
    "workloads": "no cluster: workloads of the folder",
}


def format_observation(plan: Plan) -> str:
    """Return the source and age of the plan's observation, empty if that is not recorded."""
    if plan.observation is None:
        return ""
    seen = _OBSERVED[plan.observation]
    if plan.findings_of("workloads-unknown"):
        seen = "no cluster and no workloads"
    if plan.actor and plan.observation == "cluster":
        seen = "observed: the cluster"  # without an account
    return seen if plan.observed_at is None else f"{seen}, {format_age(plan.observed_at, plan.at)}"


def format_comparison(plan: Plan) -> str:
    """Return what the changes in git are compared with."""
    match plan.compared_with:
        case "base":
            head = (
                "working tree"
                if plan.revision.dirty
                else short_commit(plan.revision.head or "this folder")
            )
            return f"{short_commit(plan.revision.base or 'base')} → {head}"
        case "cluster":
            return "compared with the cluster"
        case "records":
            return "since the last apply"
    return ""


def format_value(value: object, width: int = 60) -> str:
    """Return the value of a field on one line, truncated to ``width``."""
    text = _format_value(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def _format_value(value: object) -> str:
    match value:
        case None:
            return "(not set)"
        case bool():
            return "true" if value else "false"
        case dict() if value.keys() >= {"key", "operator"}:
            return _format_requirement(value)
        case dict() if value.keys() >= {"key", "effect"}:
            text = f"={value['value']}" if value.get("value") else ""
            return f"{value['key']}{text}:{value['effect']}"
        case dict():
            return "{" + ", ".join(f"{k}: {_format_value(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_format_value, value)) + "]"
    return str(value)


def _format_requirement(entry: JsonDict) -> str:
    values = entry.get("values")
    text = f"{entry['key']} {entry['operator']}"
    if values and isinstance(values, (list, tuple)):
        text += f" [{', '.join(map(str, values))}]"
    if entry.get("minValues") is not None:
        text += f" minValues {entry['minValues']}"
    return text


def list_changes(old: Any, new: Any) -> tuple[Sequence[object], Sequence[object]] | None:
    """Return the entries removed and added, None where the values are not lists of objects."""
    before, after = old or [], new or []
    if not (isinstance(before, (list, tuple)) and isinstance(after, (list, tuple))):
        return None
    if not any(isinstance(entry, dict) for entry in (*before, *after)):
        return None
    return _not_in(after, before), _not_in(before, after)


def _not_in(others: Sequence[object], entries: Sequence[object]) -> list[object]:
    return [entry for entry in entries if entry not in others]


def summarize_fields(change: Change) -> str | None:
    """Return many changes of instance types as one line: ``312 prices from -4.2% to +10.0%``.

    Return None for few changes, which are listed one by one.
    """
    if change.kind != "Lock" or not change.name.startswith("types") or len(change.fields) < 4:
        return None
    came = sum(field.old is None for field in change.fields)
    went = sum(field.new is None for field in change.fields)
    if change.name not in ("types.onDemand", "types.spot"):
        moved = f"{came:,} added, {went:,} removed" if came or went else "changed"
        return f"{format_count(len(change.fields), 'instance type')}: {moved}"
    parts = [f"{format_count(len(change.fields), 'price')}{_price_span(change)}"]
    parts += [f"{came:,} new"] if came else []
    parts += [f"{went:,} removed"] if went else []
    return ", ".join(parts)


def _price_span(change: Change) -> str:
    """Return the least and the largest change of prices, which may be the same."""
    prices = [(f.old, f.new) for f in change.fields]
    shares = [new / old - 1 for old, new in prices if old and new is not None]
    if not shares:
        return ""
    low, high = f"{min(shares):+.1%}", f"{max(shares):+.1%}"
    return f" by {low}" if low == high else f" from {low} to {high}"


class NoteText(NamedTuple):
    """A finding as one text, with all places where it was found."""

    severity: str
    code: str
    text: str


def note_texts(findings: Iterable[PlanFinding]) -> list[NoteText]:
    """Return findings, most severe first; equal ones once."""
    alike: dict[tuple[str, str, str | None, str, str | None], list[str]] = {}
    for f in findings:
        place = ":".join(str(p) for p in (f.file, f.line, f.column) if p is not None)
        places = alike.setdefault((f.severity, f.code, f.path, f.message, f.hint), [])
        if place:
            places.append(place)
    notes = [
        NoteText(severity, code, _format_finding(places, path, message, hint))
        for (severity, code, path, message, hint), places in alike.items()
    ]
    return sorted(notes, key=lambda finding: _SEVERITIES.index(finding.severity))


def _format_finding(places: list[str], path: str | None, message: str, hint: str | None) -> str:
    where = f"{format_list(places, 2)}: " if places else ""
    what = f"{path}: " if path else ""
    advice = f" ({hint})" if hint else ""
    return f"{where}{what}{message}{advice}"
