"""Reads the default spread of the config, in the format of kube-scheduler's configuration.

What kube-scheduler would reject is rejected, so that the two cannot differ in meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reconciler.desired.rules.runtime import key_fault
from reconciler.desired.settings.policy import read_entries, text_in
from reconciler.model.json import JsonObject
from reconciler.model.settings import DefaultConstraint

_KEYS: Final = (
    "maxSkew",
    "topologyKey",
    "whenUnsatisfiable",
    "minDomains",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
)
_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")


def constraints(value: object) -> tuple[DefaultConstraint, ...]:
    """Return the constraints that apply to pods without any of their own.

    Raises:
        ValueError: an entry cannot be read, or two say when the same key is unsatisfiable.
    """
    made: list[DefaultConstraint] = []
    for index, constraint in enumerate(read_entries(value, _KEYS, _constraint)):
        same = (constraint.topology_key, constraint.when_unsatisfiable)
        if any((m.topology_key, m.when_unsatisfiable) == same for m in made):
            raise ValueError(f"[{index}]: duplicate constraint on {same[0]} with {same[1]}")
        made.append(constraint)
    return tuple(made)


def _constraint(entry: Mapping[str, object]) -> DefaultConstraint:
    key = text_in(entry, "topologyKey")
    fault = key_fault(key) if key else "must be a label"
    if fault:
        raise ValueError(f"topologyKey: {key[:80]!r}: {fault}")
    skew = _positive(entry, "maxSkew")
    if skew is None:
        raise ValueError("maxSkew: must be an integer of at least 1")
    return DefaultConstraint(
        topology_key=key,
        max_skew=skew,
        when_unsatisfiable=_one_of(entry, "whenUnsatisfiable", _ACTIONS) or "",
        min_domains=_positive(entry, "minDomains"),
        node_affinity_policy=_one_of(entry, "nodeAffinityPolicy", _POLICIES, optional=True),
        node_taints_policy=_one_of(entry, "nodeTaintsPolicy", _POLICIES, optional=True),
    )


def _positive(entry: Mapping[str, object], key: str) -> int | None:
    value = entry.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{key}: {value!r} must be an integer of at least 1")
    return value


def _one_of(
    entry: JsonObject, key: str, allowed: tuple[str, ...], *, optional: bool = False
) -> str | None:
    value = entry.get(key)
    if value is None and optional:
        return None
    if value not in allowed:
        raise ValueError(f"{key}: {value!r} is not allowed (one of {', '.join(allowed)})")
    return str(value)
