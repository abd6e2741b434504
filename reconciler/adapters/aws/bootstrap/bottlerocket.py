"""Bottlerocket: settings in TOML, merged with the user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from typing import Any, Final

from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.errors import CloudError
from reconciler.model.grouping import group_pairs
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value

_MOUNT: Final = "000-mount-instance-storage"
_DIRECTORIES: Final = ("/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods")
_BINDS_BY_ITSELF: Final = (1, 46, 0)
_COPIED: Final = {
    "evictionHard": "eviction-hard",
    "evictionSoft": "eviction-soft",
    "evictionSoftGracePeriod": "eviction-soft-grace-period",
    "kubeReserved": "kube-reserved",
    "systemReserved": "system-reserved",
}
_PLAIN: Final = {
    "evictionMaxPodGracePeriod": "eviction-max-pod-grace-period",
    "cpuCFSQuota": "cpu-cfs-quota-enforced",
}
_TEXTS: Final = {
    "imageGCHighThresholdPercent": "image-gc-high-threshold-percent",
    "imageGCLowThresholdPercent": "image-gc-low-threshold-percent",
}
_KNOWN: Final = frozenset(
    {
        "api-server",
        "cluster-certificate",
        "cluster-name",
        "cluster-dns-ip",
        "max-pods",
        "node-labels",
        "node-taints",
        *_COPIED.values(),
        *_PLAIN.values(),
        *_TEXTS.values(),
        "allowed-unsafe-sysctls",
        "cloud-provider",
        "cluster-domain",
        "container-log-max-files",
        "container-log-max-size",
        "container-log-max-workers",
        "container-log-monitor-interval",
        "cpu-manager-policy",
        "cpu-manager-policy-options",
        "cpu-manager-reconcile-period",
        "credential-providers",
        "device-ownership-from-security-context",
        "event-burst",
        "event-qps",
        "hostname-override-source",
        "ids-per-pod",
        "kube-api-burst",
        "kube-api-qps",
        "log-level",
        "pod-pids-limit",
        "registry-burst",
        "registry-qps",
        "seccomp-default",
        "server-tls-bootstrap",
        "shutdown-grace-period",
        "shutdown-grace-period-for-critical-pods",
        "single-process-oom-kill",
        "static-pods",
        "topology-manager-policy",
        "topology-manager-scope",
    }
)
"""What Karpenter passes on of ``settings.kubernetes`` (``BottlerocketKubernetes``).

It reads keys in any case and writes them in lower case; it drops the others.
"""


def user_data(setup: Setup) -> str:
    """Return the settings: the class's own, and over them what the NodeClaim decides.

    Raises:
        CloudError: the class's own user data is not TOML.
    """
    try:
        document = tomllib.loads(setup.custom)
    except (ValueError, RecursionError) as error:  # a number or a nesting without end, too
        raise CloudError(
            (f"the user data of a Bottlerocket EC2NodeClass must be TOML: {error}"),
            where="spec.userData",
        ) from error
    document = _lowercase_keys(document, {"settings"})
    settings = _lowercase_keys(document.get("settings", {}), {"kubernetes", "bootstrap-commands"})
    own = _lowercase_keys(settings.get("kubernetes", {}), _KNOWN)
    settings["kubernetes"] = {
        **{key: value for key, value in own.items() if key in _KNOWN},
        **_kubernetes_settings(setup, own),
    }
    if setup.raid0:
        commands = _table(settings.get("bootstrap-commands", {}))
        settings["bootstrap-commands"] = {**commands, _MOUNT: _mount_command(setup.image_version)}
    return _to_toml({**document, "settings": settings})


def _lowercase_keys(table: object, known: Collection[str]) -> JsonDict:
    """Return a table with its known keys in lower case.

    Raises:
        CloudError: it is not a table.
    """
    found = _table(table)
    return {key.lower() if key.lower() in known else key: found[key] for key in found}


def _table(table: object) -> JsonDict:
    """Return a part of the user data that has to be a table.

    Raises:
        CloudError: it is not.
    """
    if not isinstance(table, dict):
        raise CloudError(
            f"the user data of a Bottlerocket EC2NodeClass has {quote_value(table)} where a table "
            "is required",
            where="spec.userData",
        )
    return table


def _to_toml(document: JsonDict) -> str:
    """Return the settings as TOML, sorted by key, so that equal settings give equal bytes.

    Raises:
        CloudError: they are nested too deeply.
    """
    import tomli_w

    try:
        return tomli_w.dumps(_sort_keys(document))
    except RecursionError as error:
        raise CloudError(
            "the user data of a Bottlerocket EC2NodeClass is nested too deeply",
            where="spec.userData",
        ) from error


def _sort_keys(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if isinstance(value, list) else value


def _kubernetes_settings(setup: Setup, own: JsonDict) -> JsonDict:
    cluster, kubelet = setup.cluster, setup.kubelet
    taints = group_pairs((taint.key, f"{taint.value}:{taint.effect}") for taint in setup.taints)
    table: JsonDict = {
        "api-server": cluster.endpoint,
        "cluster-certificate": cluster.ca_bundle,
        "cluster-name": cluster.name,
        "max-pods": setup.max_pods,
        "node-labels": {**_table(own.get("node-labels", {})), **setup.labels},
        "node-taints": taints,
    }
    if setup.cluster_dns:
        table["cluster-dns-ip"] = setup.cluster_dns[0]
    for source, names, form in (
        (kubelet, _COPIED, lambda table: {k: str(v) for k, v in table.items()}),
        (kubelet, _PLAIN, lambda value: value),
        (kubelet, _TEXTS, str),
    ):
        table |= {names[k]: form(source[k]) for k in names if source.get(k) not in (None, {})}
    return {key: value for key, value in table.items() if value != ""}


def _mount_command(version: str) -> JsonDict:
    """Return the command that joins the instance stores.

    Before 1.46.0 it requires the directories to put there. An unknown version is treated as older,
    ``latest`` as newer.
    """
    bind = ["apiclient", "ephemeral-storage", "bind"]
    if version != "latest" and _version_number(version) < _BINDS_BY_ITSELF:
        bind += ["--dirs", *_DIRECTORIES]
    return {
        "commands": [["apiclient", "ephemeral-storage", "init"], bind],
        "mode": "always",
        "essential": True,
    }


def _version_number(version: str) -> tuple[int, ...]:
    parts = version.removeprefix("v").split(".")
    is_number = all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts)
    return tuple(map(int, parts)) if is_number else (0,)
