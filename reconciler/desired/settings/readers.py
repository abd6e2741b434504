"""Reads one value of a setting: a text from the environment or a flag, or data from YAML.

Each function returns the value in its type, or raises a ValueError that names what was read and
what is allowed. The types are not left to msgspec: a text such as ``True`` or ``1e3`` means the
same in every layer, and ``reconciler validate`` starts without loading msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from string import Template
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reconciler.desired.settings.policy import get_names, get_text, read_entries
from reconciler.model.duration import NEVER, Duration, parse_nanoseconds
from reconciler.model.grouping import BY_NAMESPACE, Grouping
from reconciler.model.json import JsonObject
from reconciler.model.kubernetes.labelsyntax import key_fault
from reconciler.model.notification import NoticeKind, Webhook, WebhookFormat
from reconciler.model.settings import SchedulerConfiguration
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import is_unencrypted

if TYPE_CHECKING:
    from reconciler.model.kubernetes.pod import TopologySpreadConstraint

_WEBHOOK_KEYS: Final = ("urlVariable", "format", "events", "secretVariable", "template")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
FIELDS: Final = ("fleet", "kind", "title", "text", "node_pool", "revision")
"""The variables of a template."""

_SPREAD_KEYS: Final = (
    "maxSkew",
    "topologyKey",
    "whenUnsatisfiable",
    "minDomains",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
)
_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")

GROUPINGS_MAX: Final = 5
"""By how many groupings metrics show costs: each has up to 200 series."""
_REGION: Final = r"[a-z]{2,}(-[a-z0-9]+)+"
_DAY: Final = timedelta(days=1)
_URL: Final = r"https?://(?:[^/?#\s@:\[\]]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[^\s?#]*)?"


def read_webhooks(value: object) -> tuple[Webhook, ...]:
    """Return the webhooks, in order.

    Raises:
        ValueError: an entry cannot be read.
    """
    return tuple(read_entries(value, _WEBHOOK_KEYS, _read_webhook))


def _read_webhook(entry: Mapping[str, object]) -> Webhook:
    url, secret = _get_variable(entry, "urlVariable"), _get_variable(entry, "secretVariable")
    if not url:
        raise ValueError("urlVariable: required field is missing")
    form = get_text(entry, "format") or WebhookFormat.SLACK.value
    if form not in tuple(WebhookFormat):
        raise ValueError(f"format: {quote_value(form, 40)} is not allowed (one of slack, json)")
    if secret and form != WebhookFormat.JSON:
        raise ValueError("secretVariable: only requests in the format json are signed")
    kinds = get_names(entry, "events", tuple(kind.value for kind in NoticeKind))
    return Webhook(
        url, WebhookFormat(form), tuple(map(NoticeKind, kinds)), secret, _get_template(entry)
    )


def _get_variable(entry: Mapping[str, object], key: str) -> str:
    name = get_text(entry, key)
    if name and not _VARIABLE.fullmatch(name):
        # Never the value: somebody who confuses the two writes a secret here.
        raise ValueError(f"{key}: must be the name of an environment variable, not the value")
    return name


def _get_template(entry: Mapping[str, object]) -> str:
    text = get_text(entry, "template")
    template = Template(text)
    if not template.is_valid():
        raise ValueError("template: write $$ for a dollar sign that begins no name")
    unknown = [name for name in template.get_identifiers() if name not in FIELDS]
    if unknown:
        known = ", ".join(f"${name}" for name in FIELDS)
        raise ValueError(f"template: ${unknown[0][:40]} is unknown (one of {known})")
    return text


def read_constraints(value: object) -> tuple[TopologySpreadConstraint, ...]:
    """Return the constraints that apply to pods without any of their own.

    Raises:
        ValueError: an entry cannot be read, or two say when the same key is unsatisfiable.
    """
    found: list[TopologySpreadConstraint] = []
    for index, constraint in enumerate(read_entries(value, _SPREAD_KEYS, _read_constraint)):
        same = (constraint.topology_key, constraint.when_unsatisfiable)
        if any((m.topology_key, m.when_unsatisfiable) == same for m in found):
            raise ValueError(f"[{index}]: duplicate constraint on {same[0]} with {same[1]}")
        found.append(constraint)
    return tuple(found)


def _read_constraint(entry: Mapping[str, object]) -> TopologySpreadConstraint:
    from reconciler.model.kubernetes.pod import TopologySpreadConstraint

    key = get_text(entry, "topologyKey")
    fault = key_fault(key) if key else "must be a label"
    if fault:
        raise ValueError(f"topologyKey: {quote_value(key, 80)}: {fault}")
    skew = _get_positive(entry, "maxSkew")
    if skew is None:
        raise ValueError("maxSkew: must be an integer of at least 1")
    return TopologySpreadConstraint(
        topology_key=key,
        max_skew=skew,
        when_unsatisfiable=_get_choice(entry, "whenUnsatisfiable", _ACTIONS) or "",
        min_domains=_get_positive(entry, "minDomains"),
        node_affinity_policy=_get_choice(entry, "nodeAffinityPolicy", _POLICIES, optional=True),
        node_taints_policy=_get_choice(entry, "nodeTaintsPolicy", _POLICIES, optional=True),
    )


def _get_positive(entry: Mapping[str, object], key: str) -> int | None:
    value = entry.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{key}: {quote_value(value)} must be an integer of at least 1")
    return value


def _get_choice(
    entry: JsonObject, key: str, allowed: tuple[str, ...], *, optional: bool = False
) -> str | None:
    value = entry.get(key)
    if value is None and optional:
        return None
    if value not in allowed:
        raise ValueError(
            f"{key}: {quote_value(value)} is not allowed (one of {', '.join(allowed)})"
        )
    return str(value)


_Choice = TypeVar("_Choice", bound=StrEnum)


def read_groupings(value: object) -> tuple[Grouping, ...]:
    """Return by what costs are grouped: a list, or a text with commas.

    Raises:
        ValueError: an entry is neither ``workload`` nor a label, or there are too many.
    """
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > GROUPINGS_MAX:
        raise ValueError(f"must be a list of at most {GROUPINGS_MAX} groupings")
    found: list[Grouping] = []
    for index, word in enumerate(words):
        grouping = Grouping.read(word)
        if grouping is None or grouping == BY_NAMESPACE:
            allowed = "workload or label=KEY, such as label=team"
            raise ValueError(
                f"[{index}]: {quote_value(word, 80)} is not a grouping (use {allowed})"
            )
        if grouping in found:
            raise ValueError(f"[{index}]: duplicate grouping {quote_value(word, 80)}")
        found.append(grouping)
    return tuple(found)


def read_text(value: object) -> str:
    """Return a text; values that YAML reads as another type are rejected."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {quote_value(value)}")  # noqa: TRY004 - of the author's making
    return value


def form_reader(pattern: str, fault: str) -> Callable[[object], str]:
    """Return the function that reads a text of a form; ``fault`` ends the error about another."""

    def read(value: object) -> str:
        text = read_text(value)
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{quote_value(text, 80)} {fault}")
        return text

    return read


read_name: Final = form_reader(
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is not a valid name: use at most 63 letters, digits and -",
)
"""Reads the name of a fleet: a label value of Kubernetes."""
read_region: Final = form_reader(_REGION, "is not a region (example: eu-central-1)")
read_role: Final = form_reader(
    r"arn:[a-z-]+:iam::[0-9]{12}:role/\S+",
    "is not a role ARN (arn:aws:iam::ACCOUNT:role/NAME)",
)
read_session: Final = form_reader(
    r"[A-Za-z0-9_+=,.@-]{2,64}",
    "is not a valid session name: use 2 to 64 of A-Z a-z 0-9 _+=,.@-",
)


def choice_reader(choices: type[_Choice]) -> Callable[[object], _Choice]:
    """Return the function that reads one of the choices."""
    allowed = tuple(choice.value for choice in choices)

    def read(value: object) -> _Choice:
        if value not in allowed:
            raise ValueError(f"{quote_value(value)} is not allowed (one of {', '.join(allowed)})")
        return choices(value)

    return read


def read_flag(value: object) -> bool:
    """Return a boolean."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"{quote_value(value)} must be true or false")


def read_count(value: object) -> int:
    """Return an integer of at least 0."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        raise ValueError(f"{quote_value(value)} must be an integer of at least 0")
    return int(text)


def read_share(value: object) -> float:
    """Return a share from 0 to 1."""
    number = read_amount(value)
    if number > 1:
        raise ValueError(f"{quote_value(value)} must be a number from 0 to 1 (7.5% is 0.075)")
    return number


def read_amount(value: Any) -> float:
    """Return a number of at least 0."""
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", str(value), re.ASCII):
        raise ValueError(f"{quote_value(value)} must be a number of at least 0")
    return float(value)


def read_duration(value: object) -> Duration:
    """Return a duration longer than zero."""
    text = read_text(value)
    if parse_nanoseconds(text) <= 0:
        raise ValueError(f"{quote_value(text)} must be longer than 0s")
    return Duration(text)


def read_optional_duration(value: object) -> Duration:
    """Return a duration that may be zero, which disables its option."""
    text = read_text(value)
    if parse_nanoseconds(text) < 0:
        raise ValueError(f"{quote_value(text)} must not be negative")
    return Duration(text)


def read_retention(value: object) -> Duration | None:
    """Return for how long records are kept, None for ``Never``: they are not removed at all."""
    return _days_or_never(value, ", the period of the daily maximum")


def read_recording_period(value: object) -> Duration | None:
    """Return for how long a workload is recorded, None for ``Never``: it is not recorded."""
    return _days_or_never(value, ": the record is trimmed once a day")


def _days_or_never(value: object, reason: str) -> Duration | None:
    """Return a duration of at least a day, None for ``Never``; ``reason`` ends the error."""
    text = read_text(value)
    if text == NEVER:
        return None
    duration = Duration(text)
    if duration < _DAY:
        raise ValueError(f"{quote_value(text)} must be at least 24h{reason}")
    return duration


def read_percent(value: object) -> float:
    """Return a percentage from 0 to 100."""
    number = read_amount(value)
    if number > 100:
        raise ValueError(f"{quote_value(value)} must be a percentage from 0 to 100")
    return number


def read_scheduler(value: object) -> SchedulerConfiguration:
    """Return the configuration of the cluster's scheduler."""
    from reconciler.desired.settings.scheduling import scheduler_configuration

    return scheduler_configuration(value)


def is_region(text: str) -> bool:
    """Return whether a text has the form of a region's name."""
    return re.fullmatch(_REGION, text, re.ASCII) is not None


def read_endpoint(value: object) -> str:
    """Return the URL of an endpoint: https, or plain http on this machine."""
    text = read_text(value)
    if text and "://" in text and not re.match(r"https?://[^/?#\s]", text, re.IGNORECASE):
        raise ValueError("is not an http or https URL")
    if is_unencrypted(text):
        raise ValueError("plain http is allowed only for 127.0.0.1; use https")
    return text


def read_url(value: object) -> str:
    """Return the URL of an endpoint without a user or a query in it."""
    text = read_endpoint(value)
    if text and not re.fullmatch(_URL, text, re.IGNORECASE):
        raise ValueError("is not an http or https URL (example: https://ec2.example.com:8443)")
    return text
