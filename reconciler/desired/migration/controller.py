"""Settings of Karpenter's own Deployment, or of its former ConfigMap, as settings of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from reconciler.desired.settings.keys import KEYS
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict, JsonObject, as_list, as_mapping
from reconciler.model.settings import OLDEST, KarpenterVersion
from reconciler.source.schema import value_at

CONFIG_MAP: Final = "karpenter-global-settings"

_NAME: Final = "karpenter"
_NAMESPACES: Final = ("kube-system", "karpenter")
_GATES: Final = ("FEATURE_GATES", "AWS_FEATURE_GATES")

_CONFIG_MAP_KEYS: Final = {
    "batchMaxDuration": "BATCH_MAX_DURATION",
    "batchIdleDuration": "BATCH_IDLE_DURATION",
    "aws.clusterCABundle": "CLUSTER_CA_BUNDLE",
    "aws.clusterName": "CLUSTER_NAME",
    "aws.clusterEndpoint": "CLUSTER_ENDPOINT",
    "aws.isolatedVPC": "ISOLATED_VPC",
    "aws.vmMemoryOverheadPercent": "VM_MEMORY_OVERHEAD_PERCENT",
    "aws.interruptionQueueName": "INTERRUPTION_QUEUE",
    "aws.reservedENIs": "RESERVED_ENIS",
}
_PROCESS_VARIABLES: Final = frozenset(
    {
        *("CPU_REQUESTS", "DISABLE_CLUSTER_STATE_OBSERVABILITY", "DISABLE_CONTROLLER_WARMUP"),
        *("DISABLE_LEADER_ELECTION", "DISABLE_WEBHOOK", "ENABLE_PROFILING", "HEALTH_PROBE_PORT"),
        *("KARPENTER_SERVICE", "KUBE_CLIENT_BURST", "KUBE_CLIENT_QPS", "KUBERNETES_MIN_VERSION"),
        *("LEADER_ELECT", "LEADER_ELECTION_NAME", "LEADER_ELECTION_NAMESPACE", "LOG_LEVEL"),
        *("LOG_ERROR_OUTPUT_PATHS", "LOG_OUTPUT_PATHS", "MEMORY_LIMIT", "METRICS_PORT"),
        *("SYSTEM_NAMESPACE", "WEBHOOK_METRICS_PORT", "WEBHOOK_PORT", "AWS_STS_REGIONAL_ENDPOINTS"),
        *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_DEFAULT_REGION"),
    }
)
"""Settings of the process of Karpenter's controller that do not affect its decisions."""


def _parse_text(text: str) -> object:
    return text


def _parse_flag(text: str) -> object:
    return text.strip().lower() == "true"


def _parse_number(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        return float(text)


VARIABLES: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "AWS_REGION": ("aws.region", _parse_text),
    "BATCH_IDLE_DURATION": ("batchIdleDuration", _parse_text),
    "BATCH_MAX_DURATION": ("batchMaxDuration", _parse_text),
    "CLUSTER_CA_BUNDLE": ("clusterCABundle", _parse_text),
    "CLUSTER_ENDPOINT": ("clusterEndpoint", _parse_text),
    "CLUSTER_NAME": ("clusterName", _parse_text),
    "IGNORE_DRA_REQUESTS": ("ignoreDRARequests", _parse_flag),
    "INTERRUPTION_QUEUE": ("interruptionQueue", _parse_text),
    "ISOLATED_VPC": ("isolatedVPC", _parse_flag),
    "LEGACY_NODE_REPAIR": ("legacyNodeRepair", _parse_flag),
    "MIN_VALUES_POLICY": ("minValuesPolicy", _parse_text),
    "PREFERENCE_POLICY": ("preferencePolicy", _parse_text),
    "RESERVED_ENIS": ("reservedEnis", _parse_number),
    "VM_MEMORY_OVERHEAD_PERCENT": ("vmMemoryOverheadPercent", _parse_number),
}
"""The variables of Karpenter's controller with the settings of the same meaning."""


class ControllerSettings(NamedTuple):
    """Settings by key as in ``reconciler.yaml``, and those that were omitted: name → reason."""

    values: dict[str, object]
    left_out: dict[str, str]
    default_profile: str = ""


def is_controller(data: JsonObject) -> bool:
    """Return whether a Deployment runs Karpenter's controller."""
    if data.get("kind") != "Deployment":
        return False
    labels = value_at(data, ("metadata", "labels"))
    if isinstance(labels, dict) and labels.get("app.kubernetes.io/name") == _NAME:
        return True
    images = [str(c.get("image", "")) for c in _containers(data)]
    return any(_NAME in image and "controller" in image for image in images)


def is_running(data: JsonObject) -> bool:
    """Return whether a Deployment runs Karpenter's controller, and is not scaled to zero."""
    return is_controller(data) and value_at(data, ("spec", "replicas")) != 0


def running_controller(objects: Iterable[JsonObject]) -> JsonObject | None:
    """Return the Deployment that runs Karpenter's controller, None without one.

    A tenant may call any Deployment ``karpenter``. One in a namespace that Karpenter's documents
    name is preferred, then the oldest: nobody chooses the time of creation.
    """
    found = [data for data in objects if is_running(data)]
    return min(found, key=_rank, default=None)


def _rank(data: JsonObject) -> tuple[bool, str]:
    namespace = value_at(data, ("metadata", "namespace"))
    return namespace not in _NAMESPACES, str(value_at(data, ("metadata", "creationTimestamp")))


def settings_of_deployment(data: JsonObject) -> ControllerSettings:
    """Return the settings in the environment and the arguments of Karpenter's controller."""
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    release = followed_release(data)
    for container in _containers(data):
        for variable in _mappings(container.get("env")):
            name, value = str(variable.get("name", "")), variable.get("value")
            if isinstance(value, str | int | float):
                found[name] = str(value)
            elif name in VARIABLES or name in _GATES:
                left_out[name] = "its value is not in the Deployment (valueFrom)"
        found.update(_parse_arguments(container.get("args")))
    read = read_settings(found, left_out)
    return read if release is None else read._replace(values={"karpenter": release, **read.values})


def known_variables(container: JsonObject) -> list[JsonDict]:
    """Return the settings in the environment and flags of a controller, as an environment.

    A variable whose value is elsewhere has none.
    """
    found: list[JsonDict] = []
    for variable in _mappings(container.get("env")):
        name, value = str(variable.get("name", "")), variable.get("value")
        if name in VARIABLES or name in _GATES:
            has_value = isinstance(value, str | int | float)
            found.append({"name": name, "value": value} if has_value else {"name": name})
    for name, text in _parse_arguments(container.get("args")):
        if name in VARIABLES or name in _GATES:
            found.append({"name": name, "value": text})
    return found


def followed_release(data: JsonObject) -> str | None:
    """Return the release whose rules a fleet of this Deployment follows; None if it is not known.

    It is that of the image of the controller, or of the label that the chart sets. An older one
    follows the oldest known rules, and a newer one the newest.
    """
    labels = value_at(data, ("metadata", "labels"))
    label = labels.get("app.kubernetes.io/version", "") if isinstance(labels, dict) else ""
    images = [str(c.get("image", "")) for c in _containers(data)]
    tags = [i.partition("@")[0].rpartition("/")[2].partition(":")[2] for i in images if _NAME in i]
    return release_to_follow([*tags, str(label)])


def release_to_follow(versions: Iterable[str]) -> str | None:
    """Return the known release whose rules are those of the first version; None if none is one."""
    for text in versions:
        match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?![\w])", text, re.ASCII)
        if match:
            version = (int(match[1]), int(match[2]))
            known = [release for release in KarpenterVersion if release.number <= version]
            return max(known, key=lambda release: release.number, default=OLDEST)
    return None


def settings_of_config_map(data: JsonObject) -> ControllerSettings:
    """Return the settings in the ConfigMap of Karpenter before v0.33."""
    values = data.get("data")
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    profile = ""
    for key, value in as_mapping(values).items():
        if key in _CONFIG_MAP_KEYS:
            found[_CONFIG_MAP_KEYS[key]] = str(value)
        elif key == "featureGates.driftEnabled":
            found["FEATURE_GATES"] = f"Drift={value}"
        elif key == "aws.defaultInstanceProfile":
            profile = str(value)
        else:
            left_out[str(key)] = "has no successor"
    return read_settings(found, left_out)._replace(default_profile=profile)


def read_settings(
    found: Mapping[str, str], left_out: dict[str, str] | None = None
) -> ControllerSettings:
    """Return the settings in variables of the controller; ``left_out`` are those known to be."""
    left_out = {} if left_out is None else left_out
    values: dict[str, object] = {}
    for name, text in found.items():
        if not text or name in _PROCESS_VARIABLES:
            continue
        if name in _GATES:
            _read_gates(text, values, left_out)
        elif name in VARIABLES:
            key, convert = VARIABLES[name]
            _add_setting(key, name, text, convert, values, left_out)
        else:
            left_out[name] = "has no counterpart"
    return ControllerSettings(values, left_out)


def _read_gates(text: str, values: dict[str, object], left_out: dict[str, str]) -> None:
    for part in text.split(","):
        gate, _, value = part.strip().partition("=")
        if not gate:
            continue
        key = f"featureGates.{gate}"
        if key in KEYS:
            _add_setting(key, f"feature gate {gate}", value, _parse_flag, values, left_out)
        else:
            left_out[f"feature gate {gate}"] = "has no counterpart"


def _add_setting(
    key: str,
    name: str,
    text: str,
    convert: Callable[[str], object],
    values: dict[str, object],
    left_out: dict[str, str],
) -> None:
    try:
        value = convert(text)
        KEYS[key].read(value)
    except (UsageError, ValueError) as error:
        left_out[name] = f"is not a valid {key}: {error}"
    else:
        values[key] = value


def _parse_arguments(words: object) -> Iterator[tuple[str, str]]:
    """Yield the flags of a command line by the name of the variable with the same meaning."""
    texts = [str(word) for word in words] if isinstance(words, list) else []
    for number, word in enumerate(texts):
        if not word.startswith("--"):
            continue
        flag, given, value = word.removeprefix("--").partition("=")
        if not given:
            after = texts[number + 1] if number + 1 < len(texts) else "true"
            value = "true" if after.startswith("--") else after
        yield flag.upper().replace("-", "_"), value


def _containers(data: JsonObject) -> list[JsonDict]:
    return list(_mappings(value_at(data, ("spec", "template", "spec", "containers"))))


def _mappings(items: object) -> Iterator[JsonDict]:
    for item in as_list(items):
        if isinstance(item, dict):
            yield item
