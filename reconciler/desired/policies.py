"""Reads policies from a document that fits its schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Final

from reconciler.model.decision.policy import Exemption, Policy, PolicySeverity, PolicySource
from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry

RESERVED: Final = ("none", "unschedulable", "warnings")
"""Words that ``--fail-on`` accepts besides the names of policies."""
_EXAMPLES: Final = "examples: 2026-12-31, 2026-12-31T18:00:00Z"


def check_policies(data: JsonDict) -> Iterator[Finding]:
    """Yield the findings on the policies in ``data`` that the schema cannot express."""
    names: set[str] = set()
    for index, policy in enumerate(data.get("policies") or ()):
        at: Pointer = ("policies", index)
        name = policy["name"]
        if name in RESERVED:
            message = f"{quote_value(name)} has a meaning of its own in --fail-on"
            yield Finding("reserved-name", (*at, "name"), message, "choose another name")
        if name in names:
            yield Finding("duplicate-name", (*at, "name"), f"duplicate policy {quote_value(name)}")
        names.add(name)
        for number, exemption in enumerate(policy.get("exemptions") or ()):
            text = exemption["expires"]
            if _parse_expiry(text) is None:
                where = (*at, "exemptions", number, "expires")
                message = f"{quote_value(text)} is not a date, or a time with its UTC offset"
                yield Finding("bad-time", where, message, _EXAMPLES)


def ignored_policies(entry: Entry) -> Finding | None:
    """Return the warning on a file of policies in a fleet folder, None for any other object.

    Whoever adds such a file expects that its policies apply.
    """
    if (entry.api_version, entry.kind) != ("reconciler/v1", "Policies"):
        return None
    message = "policies in a file of their own do not apply here"
    hint = (
        "move them to `policies` in reconciler.yaml, or the file out of the repository and pass "
        "it as `--policy`"
    )
    return Finding("policies-in-fleet", ("kind",), message, hint, Severity.WARNING)


def policies_of(entry: Entry, source: PolicySource) -> tuple[Policy, ...]:
    """Return the policies of a document without findings, in order of their names."""
    listed = enumerate(entry.pruned_data.get("policies") or ())
    policies = (_policy(entry, data, ("policies", index), source) for index, data in listed)
    return tuple(sorted(policies, key=lambda policy: policy.name))


def _policy(entry: Entry, data: JsonDict, at: Pointer, source: PolicySource) -> Policy:
    exemptions = [
        Exemption(
            owner=item["owner"],
            expires=_parse_expiry(item["expires"]) or datetime.min.replace(tzinfo=UTC),
            reason=item.get("reason", ""),
            when=item.get("when", ""),
            when_at=entry.place((*at, "exemptions", number, "when")),
        )
        for number, item in enumerate(data.get("exemptions") or ())
    ]
    return Policy(
        name=data["name"],
        expression=data["expression"],
        place=entry.place((*at, "expression")),
        message=data.get("message", ""),
        message_expression=data.get("messageExpression", ""),
        message_at=entry.place((*at, "messageExpression")),
        severity=PolicySeverity(data.get("severity", PolicySeverity.ERROR)),
        exemptions=tuple(exemptions),
        source=source,
    )


def _parse_expiry(text: str) -> datetime | None:
    """Return the time at which something with this expiry ends; a date includes its day."""
    try:
        moment = datetime.fromisoformat(text)
        if "T" not in text.upper():
            return datetime.combine(moment.date() + timedelta(days=1), time(), UTC)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
