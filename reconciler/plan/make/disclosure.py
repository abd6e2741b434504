"""Which values of an object a plan may contain.

Plans are posted on pull requests and kept as artifacts of CI. User data, the environment and the
commands of containers, and annotations may contain secrets. A plan has hashes of these, which show
that a value changed but not the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from reconciler.model.decision.changes import DriftedClaim, FieldChange
from reconciler.model.karpenter.labels import LAST_APPLIED
from reconciler.model.text.counting import format_count

_USER_DATA: Final = "userData"
_HIDDEN: Final = frozenset(
    {
        "command",
        "args",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "externalId",
    }
)
"""Keys whose values are hidden as a unit."""

_NAMED: Final = frozenset({"env", "envFrom"})
"""Keys of lists whose entries keep their name only."""

_OPEN_DOMAINS: Final = ("karpenter.sh", "karpenter.k8s.aws", "kubernetes.io", "k8s.io")
"""Annotations of these domains control nodes and pods; their values are shown."""

_STEP: Final = re.compile(r'\["([^"]*)"\]|([^.\["]+)')


def hash_user_data(text: str) -> str:
    """Return the replacement of user data: a hash to compare it by, and its number of lines."""
    lines = len(text.splitlines())
    return f"{_digest(text, 16)} ({format_count(lines, 'line')})"


def redact(value: object) -> str:
    """Return the replacement of a value that may be a password.

    The hash is too short to confirm a guess, and long enough to show most changes.
    """
    return f"hidden, {_digest(value, 4)}"


def _digest(value: object, digits: int) -> str:
    content = msgspec.json.encode(value, order="sorted")
    return f"sha256:{sha256(content).hexdigest()[:digits]}"


def disclosed_fields(fields: Iterable[FieldChange]) -> tuple[FieldChange, ...]:
    """Return changed fields as a plan may contain them."""

    def disclosed(value: object, path: str) -> object:
        return disclose_field(_to_json_value(value), path)

    return tuple(
        FieldChange(f.path, disclosed(f.old, f.path), disclosed(f.new, f.path), f.drifts)
        for f in fields
    )


def disclosed_drift(drift: DriftedClaim) -> DriftedClaim:
    """Return drift as a plan may contain it."""
    return msgspec.structs.replace(drift, fields=disclosed_fields(drift.fields))


def _to_json_value(value: object) -> object:
    """Return a value as JSON has it, so that reading the plan back gives the same one."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_value(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def disclose_field(value: object, path: str) -> object:
    """Return the value of a field as a plan may contain it; ``path`` is as diagnostics write it."""
    steps = [quoted or plain for quoted, plain in _STEP.findall(path)]
    if value is not None and not _HIDDEN.isdisjoint(steps[:-1]):
        return redact(value)
    return disclose(value, steps)


def disclose(value: object, path: Sequence[str] = ()) -> Any:
    """Return a value as a plan may contain it; ``path`` are the keys that lead to it."""
    if value is None:
        return None
    above, key = ("", "", *path)[-2:]
    if key == _USER_DATA:
        return hash_user_data(str(value))
    if key in _HIDDEN or (above == "annotations" and not _is_disclosed(key)):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: disclose(item, (*path, str(name))) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        disclosed = _disclose_entry if key in _NAMED else partial(disclose, path=path)
        return list(map(disclosed, value))
    return value


def _is_disclosed(annotation: str) -> bool:
    domain = annotation.partition("/")[0]
    known = any(domain == name or domain.endswith(f".{name}") for name in _OPEN_DOMAINS)
    return known and annotation != LAST_APPLIED


def _disclose_entry(item: object) -> object:
    """Return an entry of an environment: its name, and a hash of the rest."""
    if not isinstance(item, Mapping):
        return redact(item)
    rest = {key: value for key, value in item.items() if key != "name"}
    name = {"name": item["name"]} if "name" in item else {}
    return {**name, **({"value": redact(rest)} if rest else {})}
