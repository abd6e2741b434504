"""The grammar of everything that becomes part of user data, checked before the text is built.

User data is a program: a shell script, PowerShell, YAML or TOML, which runs as root when the node
starts. Labels can come from pods, so from tenants, and other values from the operator or AWS. None
of the characters allowed here has a meaning in one of these languages, whatever quotes it is in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Final

from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.errors import CloudError
from reconciler.model.kubernetes.labelsyntax import key_fault, value_fault
from reconciler.model.text.quoting import quote_value

_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_ENDPOINT: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?", re.ASCII
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}", re.ASCII)
_SETTING: Final = re.compile(r"[A-Za-z0-9.%:/_+-]{0,1000}", re.ASCII)
_EFFECTS: Final = frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"})
_CHARACTERS: Final = "use only letters, digits and the characters of its usual form"


def check_setup(setup: Setup) -> None:
    """Check everything in a setup but the user data that the author of the class wrote.

    Raises:
        CloudError: a value has a character outside of its grammar.
    """
    for where, value, fault in _faults(setup):
        raise CloudError(
            f"{quote_value(value)} cannot be part of user data: {fault}",
            where=where,
            remedy="correct it where it comes from: the NodePool, the EC2NodeClass, a pod's node "
            "affinity, or the settings of the cluster",
        )


def _faults(setup: Setup) -> Iterator[tuple[str, object, str]]:
    """Yield what is wrong: the place, the value, and why."""
    yield from _cluster_faults(setup)
    for key, value in setup.labels.items():
        if key_fault(key):
            yield "labels", key, key_fault(key)
        if value_fault(value):
            yield f"label {key}", value, value_fault(value)
    for taint in setup.taints:
        if key_fault(taint.key):
            yield "taints", taint.key, key_fault(taint.key)
        if taint.value and key_fault(taint.value):  # Karpenter allows a slash in it
            yield f"taint {taint.key}", taint.value, key_fault(taint.value)
        if taint.effect not in _EFFECTS:
            yield f"taint {taint.key}", taint.effect, f"use one of {', '.join(sorted(_EFFECTS))}"
    yield from _setting_faults("spec.kubelet", setup.kubelet)


def _cluster_faults(setup: Setup) -> Iterator[tuple[str, object, str]]:
    cluster = setup.cluster
    for where, value, form in (
        ("aws.clusterName", cluster.name, _CLUSTER),
        ("aws.clusterEndpoint", cluster.endpoint, _ENDPOINT),
        ("aws.clusterCABundle", cluster.ca_bundle, _BASE64),
    ):
        if value and form.fullmatch(value) is None:
            yield where, value, _CHARACTERS
    if cluster.cidr and not all(map(_is_network, cluster.cidr.split(","))):
        yield "aws.clusterCIDR", cluster.cidr, "it is not an IP network"
    for address in setup.cluster_dns:
        if not _is_address(address):
            yield "clusterDNS", address, "it is not an IP address"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone of IPv6 may have any character


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return "%" not in text


def _setting_faults(where: str, value: object) -> Iterator[tuple[str, object, str]]:
    """Yield the faults of a value of the kubelet's settings, and of everything in it."""
    match value:
        case dict():
            for key, one in value.items():
                yield from _setting_faults(where, key)
                yield from _setting_faults(f"{where}.{key}", one)
        case list() | tuple():
            for one in value:
                yield from _setting_faults(where, one)
        case str() if _SETTING.fullmatch(value) is None:
            yield where, value, _CHARACTERS
