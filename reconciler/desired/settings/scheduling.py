"""Reads a KubeSchedulerConfiguration: the profiles of the cluster's scheduler.

The rules are those of kube-scheduler 1.34: what a profile does not mention has its default
(``pkg/scheduler/apis/config/v1/defaults.go``), plugins of an extension point take precedence over
those of ``multiPoint``, and a weight of zero is one (``pkg/scheduler/framework/runtime``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from reconciler.model.decode import decode
from reconciler.model.json import JsonDict, JsonObject, as_mapping
from reconciler.model.kubernetes.labelsyntax import key_fault
from reconciler.model.kubernetes.pod import NodeAffinity, TopologySpreadConstraint
from reconciler.model.kubernetes.profile import (
    DEFAULT_SCHEDULER,
    DEFAULT_WEIGHTS,
    Plugin,
    Profile,
    ResourceWeights,
    ScoringStrategy,
    Strategy,
)
from reconciler.model.settings import SchedulerConfiguration
from reconciler.model.text.quoting import quote_value

T = TypeVar("T")

_VERSION: Final = "kubescheduler.config.k8s.io/v1"
_KIND: Final = "KubeSchedulerConfiguration"
_UNSIMULATED: Final = frozenset(
    {"PrioritySort", "SchedulingGates", "DefaultBinder", "DynamicResources"}
)
"""Plugins that a configuration may name although they do not change where pods run here."""
_ALL: Final = "*"


class SettingError(ValueError):
    """A value inside of a setting that cannot be used; ``path`` leads to it."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class _Part:
    """A part of the configuration, and the path to it."""

    def __init__(self, data: object, path: tuple[str | int, ...] = ()) -> None:
        self.data = data
        self.path = path

    def __getitem__(self, key: str) -> _Part:
        data = self.data.get(key) if isinstance(self.data, Mapping) else None
        return _Part(data, (*self.path, key))

    def items(self) -> Iterator[_Part]:
        """Yield the entries of a list."""
        if self.data is None:
            return
        if not isinstance(self.data, list):
            raise self.error("must be a list")
        for number, entry in enumerate(self.data):
            yield _Part(entry, (*self.path, number))

    def text(self, default: str = "") -> str:
        if self.data is None:
            return default
        if not isinstance(self.data, str):
            raise self.error(f"must be a string, not {quote_value(self.data)}")
        return self.data

    def number(self, low: int, high: int, default: int) -> int:
        """Return an integer in a range."""
        if self.data is None:
            return default
        is_integer = isinstance(self.data, int) and not isinstance(self.data, bool)
        if not is_integer or not low <= int(str(self.data)) <= high:
            raise self.error(f"{quote_value(self.data)} must be an integer from {low} to {high}")
        return int(str(self.data))

    def choice(self, allowed: tuple[str, ...], default: str) -> str:
        if self.data is None:
            return default
        if self.data not in allowed:
            one = ", ".join(allowed)
            raise self.error(f"{quote_value(self.data)} is not allowed (one of {one})")
        return str(self.data)

    def flag(self) -> bool:
        if self.data not in (None, True, False):
            raise self.error(f"{quote_value(self.data)} must be true or false")
        return bool(self.data)

    def error(self, message: str) -> SettingError:
        return SettingError(self.path, f"{_format_path(self.path)}: {message}")


def _format_path(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or _KIND


def scheduler_configuration(value: object) -> SchedulerConfiguration:
    """Return the profiles of a KubeSchedulerConfiguration.

    Raises:
        SettingError: a value cannot be used; the message names what is allowed.
    """
    if not isinstance(value, dict):
        raise SettingError((), f"must be a {_KIND} in reconciler.yaml")
    whole = _Part(value)
    whole["apiVersion"].choice((_VERSION,), _VERSION)
    whole["kind"].choice((_KIND,), _KIND)
    for extender in whole["extenders"].items():
        raise extender.error("extenders cannot be simulated: remove them here")
    percentage = whole["percentageOfNodesToScore"].number(0, 100, 0)
    profiles: dict[str, Profile] = {}
    for part in whole["profiles"].items():
        name = part["schedulerName"].text(DEFAULT_SCHEDULER)
        if name in profiles:
            raise part["schedulerName"].error(f"duplicate profile {quote_value(name)}")
        profiles[name] = _profile(part, percentage)
    if not profiles:
        profiles[DEFAULT_SCHEDULER] = Profile(percentage_of_nodes_to_score=percentage)
    return SchedulerConfiguration(value, profiles)


def _profile(part: _Part, percentage: int) -> Profile:
    plugins = part["plugins"]
    arguments = _arguments(part["pluginConfig"])
    score = _enabled(plugins, "score", DEFAULT_WEIGHTS)
    filters = _enabled(plugins, "filter", dict.fromkeys(Plugin, 0))
    preemption = _enabled(plugins, "postFilter", {Plugin.DEFAULT_PREEMPTION: 0})
    disabled = {plugin for plugin in Plugin if plugin not in filters}
    disabled.discard(Plugin.DEFAULT_PREEMPTION)
    if Plugin.DEFAULT_PREEMPTION not in preemption:
        disabled.add(Plugin.DEFAULT_PREEMPTION)
    balanced = arguments(Plugin.NODE_RESOURCES_BALANCED_ALLOCATION)["resources"]
    affinity = arguments(Plugin.INTER_POD_AFFINITY)
    fit = arguments(Plugin.NODE_RESOURCES_FIT)
    return Profile(
        weights={plugin: max(score[plugin], 1) for plugin in DEFAULT_WEIGHTS if plugin in score},
        disabled=frozenset(disabled),
        scoring=_strategy(fit["scoringStrategy"]),
        balanced_resources=_resources(balanced, most=1),
        default_constraints=_constraints(arguments(Plugin.POD_TOPOLOGY_SPREAD)),
        hard_pod_affinity_weight=affinity["hardPodAffinityWeight"].number(0, 100, 1),
        ignores_preferred_terms_of_existing_pods=affinity[
            "ignorePreferredTermsOfExistingPods"
        ].flag(),
        added_affinity=_added_affinity(arguments(Plugin.NODE_AFFINITY)["addedAffinity"]),
        ignored_resources=frozenset(p.text() for p in fit["ignoredResources"].items()),
        ignored_resource_groups=frozenset(p.text() for p in fit["ignoredResourceGroups"].items()),
        percentage_of_nodes_to_score=part["percentageOfNodesToScore"].number(0, 100, percentage),
    )


def _enabled(plugins: _Part, point: str, defaults: Mapping[Plugin, int]) -> dict[Plugin, int]:
    """Return the plugins that are enabled at an extension point, with their weights."""
    everywhere = plugins["multiPoint"]
    hidden = _names(everywhere["disabled"])
    found = {p: weight for p, weight in defaults.items() if not hidden & {_ALL, p.value}}
    found |= {p: weight for p, weight in _weights(everywhere["enabled"]) if p in defaults}
    own = dict(_weights(plugins[point]["enabled"]))
    hidden = _names(plugins[point]["disabled"])
    found = {p: weight for p, weight in found.items() if not hidden & {_ALL, p.value}}
    return found | own


def _names(entries: _Part) -> set[str]:
    return {_plugin_name(entry["name"], also=(_ALL,)) for entry in entries.items()}


def _weights(entries: _Part) -> Iterator[tuple[Plugin, int]]:
    for entry in entries.items():
        name = _plugin_name(entry["name"])
        if name not in _UNSIMULATED:
            yield Plugin(name), entry["weight"].number(0, 1_000_000, 0)


def _plugin_name(part: _Part, also: tuple[str, ...] = ()) -> str:
    name = part.text()
    if name in (*Plugin, *_UNSIMULATED, *also):
        return name
    raise part.error(
        f"{quote_value(name)} is not a plugin of kube-scheduler and cannot be simulated: "
        "remove it here"
    )


def _arguments(entries: _Part) -> Callable[[Plugin], _Part]:
    """Return a function that returns the arguments of a plugin."""
    found: dict[str, _Part] = {}
    for entry in entries.items():
        name = _plugin_name(entry["name"])
        if name in found:
            raise entry["name"].error(f"duplicate arguments of {name}")
        found[name] = entry["args"]
    return lambda plugin: found.get(plugin.value, _Part(None))


def _strategy(part: _Part) -> ScoringStrategy:
    kind = Strategy(part["type"].choice(tuple(Strategy), Strategy.LEAST_ALLOCATED))
    points = part["requestedToCapacityRatio"]["shape"]
    shape = tuple(
        (point["utilization"].number(0, 100, 0), point["score"].number(0, 10, 0))
        for point in points.items()
    )
    if any(left[0] >= right[0] for left, right in pairwise(shape)):
        raise points.error("utilization must increase from point to point")
    if kind is Strategy.REQUESTED_TO_CAPACITY_RATIO and not shape:
        raise points.error(f"required for the type {kind}")
    return ScoringStrategy(kind, _resources(part["resources"], most=100), shape)


def _resources(part: _Part, most: int) -> ResourceWeights:
    """Return the resources with their weights, by default CPU and memory alike."""
    found: dict[str, int] = {}
    for entry in part.items():
        name = entry["name"].text()
        if not name or name in found:
            raise entry["name"].error(f"{quote_value(name)} is empty or a duplicate")
        found[name] = max(entry["weight"].number(0, most, 1), 1)
    return tuple(found.items()) or ScoringStrategy().resources


def _constraints(part: _Part) -> tuple[TopologySpreadConstraint, ...] | None:
    """Return the default spread constraints, None for those of the system."""
    is_list = part["defaultingType"].choice(("System", "List"), "System") == "List"
    entries = part["defaultConstraints"]
    found: list[TopologySpreadConstraint] = []
    for entry in entries.items():
        if not is_list:
            raise part["defaultingType"].error('must be "List" where defaultConstraints are given')
        rule = _constraint(entry)
        same = (rule.topology_key, rule.when_unsatisfiable)
        if any((m.topology_key, m.when_unsatisfiable) == same for m in found):
            raise entry.error(f"duplicate constraint on {same[0]} with {same[1]}")
        found.append(rule)
    return tuple(found) if is_list else None


def _constraint(entry: _Part) -> TopologySpreadConstraint:
    key = entry["topologyKey"].text()
    fault = key_fault(key) if key else "must be a label"
    if fault:
        raise entry["topologyKey"].error(f"{quote_value(key, 80)}: {fault}")
    if entry["labelSelector"].data is not None:
        raise entry["labelSelector"].error("is derived for each pod: remove it")
    minimum = entry["minDomains"]
    return TopologySpreadConstraint(
        key,
        entry["maxSkew"].number(1, 2**31 - 1, 0) or _missing(entry["maxSkew"]),
        entry["whenUnsatisfiable"].choice(("DoNotSchedule", "ScheduleAnyway"), "")
        or _missing(entry["whenUnsatisfiable"]),
        min_domains=minimum.number(1, 2**31 - 1, 1) if minimum.data is not None else None,
        node_affinity_policy=_policy(entry["nodeAffinityPolicy"]),
        node_taints_policy=_policy(entry["nodeTaintsPolicy"]),
    )


def _policy(part: _Part) -> str | None:
    return part.choice(("Honor", "Ignore"), "") or None


def _missing(part: _Part) -> Any:
    raise part.error("required field is missing")


def _added_affinity(part: _Part) -> NodeAffinity | None:
    if part.data is None:
        return None
    data: JsonObject | JsonDict = as_mapping(part.data)
    try:
        return decode(data, NodeAffinity)
    except ValueError as error:
        raise part.error(str(error)) from None
