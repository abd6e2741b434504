"""Bottlerocket: settings in TOML, the user's own merged below ours."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.errors import CloudError

# Write TOML: tables in the order of their keys, values as Bottlerocket reads them.


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def dumps(document: Mapping[str, Any]) -> str:
    """Return the text of a document of tables, lists, strings, numbers and booleans."""
    return "\n".join(_table(document, ())) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its own values first, then the tables within it."""
    own = {key: value for key, value in table.items() if not _is_table(value)}
    if path and (own or not table):
        yield f"[{'.'.join(map(_key, path))}]"
    for key in sorted(own):
        yield f"{_key(key)} = {_value(own[key])}"
    if own and len(own) < len(table):
        yield ""
    for key in sorted(table):
        value = table[key]
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))
        elif _is_table(value):
            for item in value:
                yield f"[[{'.'.join(map(_key, (*path, key)))}]]"
                yield from _flat(item)


def _flat(item: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(item):
        yield f"{_key(key)} = {_value(item[key])}"


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in sorted(value.items()))}}}"
    return json.dumps(str(value))


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
    }
)


def user_data(setup: Setup) -> str:
    """Return the settings; under ``settings.kubernetes`` ours win, and unknown ones are dropped.

    Raises:
        CloudError: the class's own user data is not TOML.
    """
    try:
        document = tomllib.loads(setup.custom)
    except tomllib.TOMLDecodeError as error:
        raise CloudError(
            (f"the user data of a Bottlerocket EC2NodeClass must be TOML: {error}"),
            where="spec.userData",
        ) from error
    settings = document.setdefault("settings", {})
    own = settings.get("kubernetes", {})
    settings["kubernetes"] = {
        **{key: value for key, value in own.items() if key in _KNOWN},
        **_kubernetes(setup, own),
    }
    if setup.raid0:
        settings.setdefault("bootstrap-commands", {})[_MOUNT] = _mount(setup.image_version)
    return dumps(document)


def _kubernetes(setup: Setup, own: dict[str, Any]) -> dict[str, Any]:
    cluster, kubelet = setup.cluster, setup.kubelet
    taints: dict[str, list[str]] = {}
    for taint in setup.taints:
        taints.setdefault(taint.key, []).append(f"{taint.value}:{taint.effect}")
    table: dict[str, Any] = {
        "api-server": cluster.endpoint,
        "cluster-certificate": cluster.ca_bundle,
        "cluster-name": cluster.name,
        "max-pods": setup.max_pods,
        "node-labels": {**own.get("node-labels", {}), **setup.labels},
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


def _mount(version: str) -> dict[str, Any]:
    """Return the command that joins the instance stores.

    Before 1.46.0 it must be told which directories go there; a version that is not known counts
    as an older one, ``latest`` as a newer.
    """
    bind = ["apiclient", "ephemeral-storage", "bind"]
    if version != "latest" and _number(version) < _BINDS_BY_ITSELF:
        bind += ["--dirs", *_DIRECTORIES]
    return {
        "commands": [["apiclient", "ephemeral-storage", "init"], bind],
        "mode": "always",
        "essential": True,
    }


def _number(version: str) -> tuple[int, ...]:
    parts = version.removeprefix("v").split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else (0,)
