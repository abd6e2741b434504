"""The drift hashes of NodePools and EC2NodeClasses, equal to Karpenter's bit for bit.

Karpenter stores the hash of the source of a node on its NodeClaim; a node has drifted if the hash
of the current NodePool or node class differs. Only with equal hashes can a fleet be taken over from
Karpenter, or handed back, without replacing every node.

The value is the result of the Go library hashstructure (v2, lists as sets, zero values omitted) for
Karpenter's structs: FNV-1 over little-endian bytes, the fields of a struct in the order of their
declaration, maps and lists in any order. Since a list is the exclusive or of its elements, two
equal ones cancel out. Fields that are absent, and plain (not pointer) fields that are zero, do not
count; an empty list or map does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from reconciler.model.duration import NEVER, parse_nanoseconds
from reconciler.model.json import JsonObject
from reconciler.model.karpenter.imagefamily import image_family
from reconciler.model.text.quoting import quote_value

_QUANTITY: Final = (
    r"(?P<sign>[+-]?)0*+(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,3})"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12} | {
    "P": 15,
    "E": 18,
}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_INT64_DIGITS: Final = 18
_NANO: Final = -9
_LENGTH_MAX: Final = 60

NODE_POOL_HASH_VERSION: Final = "v3"
NODE_CLASS_HASH_VERSION: Final = "v6"

_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF

_METADATA_DEFAULTS: Final = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 1,
    "httpTokens": "required",
}

_METADATA_KEYS: Final = ("labels", "annotations")


def format_quantity(value: str | float) -> str:
    """Return the text that Go's ``resource.Quantity`` prints after parsing ``value``.

    Raises:
        ValueError: ``value`` is not a quantity.
    """
    text = str(value).strip()
    is_short = 0 < len(text) <= _LENGTH_MAX
    match = re.fullmatch(_QUANTITY, text, re.ASCII) if is_short else None
    if match is None:
        raise ValueError(f"not a quantity: {quote_value(text)} (examples: 2, 500m, 1.5Gi)")
    whole, fraction, suffix = match["whole"] or "0", match["fraction"] or "", match["suffix"]
    if suffix.endswith("i"):
        exponent = 10 * _BINARY.index(suffix)
        if _keeps_binary_text(whole, fraction, exponent):
            return text
        amount, scale = int(whole + fraction) << exponent, -len(fraction)
    else:
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        if _keeps_decimal_text(whole, fraction, exponent):
            return text
        amount, scale = int(whole + fraction), exponent - len(fraction)
    if scale < _NANO:
        amount, scale = -(-amount // 10 ** (_NANO - scale)), _NANO
    sign = "-" if match["sign"] == "-" and amount else ""
    return sign + _format_canonical(amount, scale, suffix)


def _keeps_binary_text(whole: str, fraction: str, exponent: int) -> bool:
    """Return whether Go's fast path recognizes the author's text as already canonical."""
    if fraction or 15 - len(whole) - exponent * 3 // 10 - 1 < 0:
        return False
    return int(whole) % 8 != 0


def _keeps_decimal_text(whole: str, fraction: str, exponent: int) -> bool:
    digits, scale = whole + fraction, exponent - len(fraction)
    if len(digits) > _INT64_DIGITS or scale < _NANO or scale % 3:
        return False
    return not digits.endswith("000") and digits[0] != "0"


def _format_binary(amount: int) -> str:
    power = 0
    while amount % 1024 == 0 and power + 1 < len(_BINARY):
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY[power]}"


def _format_canonical(amount: int, scale: int, suffix: str) -> str:
    """Return ``amount × 10^scale`` with the largest suffix that leaves a whole number."""
    if not amount:
        return "0"
    if suffix.endswith("i"):
        bytes_, rest = divmod(amount * 10 ** max(scale, 0), 10 ** max(-scale, 0))
        if bytes_ >= 1024 and not rest:
            return _format_binary(bytes_)
    while amount % 10 == 0:
        amount, scale = amount // 10, scale + 1
    amount, scale = amount * 10 ** (scale % 3), scale - scale % 3
    exponential = suffix[:1] in ("e", "E") and suffix not in (*_DECIMAL, *_BINARY)
    if exponential or scale not in _DECIMAL_SUFFIX:
        return f"{amount}e{scale}" if scale else str(amount)
    return f"{amount}{_DECIMAL_SUFFIX[scale]}"


_HTML_ESCAPES: Final = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
)


def format_json(value: object) -> str:
    """Return compact JSON with sorted keys, escaped for HTML as Go's ``json.Marshal`` does."""
    if isinstance(value, dict):
        entries = [f"{format_json(str(key))}:{format_json(value[key])}" for key in sorted(value)]
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(format_json, value)) + "]"
    if isinstance(value, float):
        return _format_number(value)
    return json.dumps(value, ensure_ascii=False).translate(_HTML_ESCAPES)


def _format_number(value: float) -> str:
    """Return the shortest text that reads back as ``value``; exponents begin at 1e21 and 1e-7."""
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    if 1e-6 <= abs(value) < 1e21:
        places = len(mantissa.partition(".")[2]) - int(exponent)
        return f"{value:.{max(0, places)}f}"
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"


Hasher = Callable[[Any], int]
"""Hashes a value as the Go type that it has in Karpenter."""


def node_pool_hash(data: Mapping[str, object]) -> str:
    """Return the hash of a NodePool, as its ``karpenter.sh/nodepool-hash`` annotation reads.

    ``data`` is the object as the API server stores it (see ``with_defaults``). Only the template
    counts, without its requirements: they cause drift only if a node's labels no longer match.

    Raises:
        ValueError: a duration or time in it cannot be read.
    """
    return str(_hash_template(_mapping(data, "spec", "template")))


def node_class_hash(data: Mapping[str, object], ca_bundle: str = "") -> str:
    """Return the hash of an EC2NodeClass, as ``karpenter.k8s.aws/ec2nodeclass-hash`` reads.

    ``data`` is the object as the API server stores it (see ``with_defaults``); ``ca_bundle`` is the
    cluster's certificate in base64, which goes into every node's user data.

    Raises:
        ValueError: the size of a volume cannot be read.
    """
    spec = _mapping(data, "spec")
    kubelet = spec.get("kubelet")
    parts = (
        _EC2_NODE_CLASS_SPEC(spec),
        _hash_text(image_family(spec)),
        _hash_text(ca_bundle),
        _hash_text(format_json(kubelet) if kubelet else "null"),
    )
    return str(parts[0] ^ parts[1] ^ parts[2] ^ parts[3])


def object_hash(data: JsonObject, ca_bundle: str = "") -> tuple[str, str] | None:
    """Return hash and hash version of an object as its author wrote it; None for other kinds."""
    match data.get("kind"):
        case "NodePool":
            return node_pool_hash(with_defaults(data)), NODE_POOL_HASH_VERSION
        case "EC2NodeClass":
            return node_class_hash(with_defaults(data), ca_bundle), NODE_CLASS_HASH_VERSION
    return None


def with_defaults(data: Mapping[str, object]) -> dict[str, object]:
    """Return the object as the API server stores it, in the fields that its hash covers.

    The CRDs give a NodePool's template ``expireAfter: 720h`` and a node class its metadata
    options; a null in a field with a default counts as absent.
    """
    spec = dict(_mapping(data, "spec"))
    if data.get("kind") == "NodePool":
        template = dict(_mapping(spec, "template"))
        template["spec"] = _fill_defaults(_mapping(template, "spec"), {"expireAfter": "720h"})
        spec["template"] = template
    elif data.get("kind") == "EC2NodeClass":
        options = _fill_defaults(_mapping(spec, "metadataOptions"), _METADATA_DEFAULTS)
        spec["metadataOptions"] = options
    return {**data, "spec": spec}


def _fill_defaults(
    values: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    return {**defaults, **{key: value for key, value in values.items() if value is not None}}


def _mapping(data: JsonObject, *path: str) -> JsonObject:
    """Return the mapping at ``path``; a missing one is empty."""
    for key in path:
        data = data.get(key) or {}
    return data


def _fnv(content: bytes) -> int:
    value = _OFFSET
    for byte in content:
        value = (value * _PRIME & _MASK) ^ byte
    return value


def _hash_ordered(first: int, second: int) -> int:
    return _fnv(first.to_bytes(8, "little") + second.to_bytes(8, "little"))


def _hash_final(value: int) -> int:
    return _fnv(value.to_bytes(8, "little"))


@lru_cache(maxsize=4096)
def _hash_text(value: str) -> int:
    return _fnv(value.encode())


def _hash_flag(value: bool) -> int:
    return _fnv(bytes([value]))


def _hash_int32(value: int) -> int:
    return _fnv((value & 0xFFFFFFFF).to_bytes(4, "little"))


def _hash_int64(value: int) -> int:
    return _fnv((value & _MASK).to_bytes(8, "little"))


def _hash_texts(value: Mapping[str, str]) -> int:
    total = 0
    for key, text in value.items():
        total ^= _hash_ordered(_hash_text(key), _hash_text(text))
    return _hash_final(total)


def _list_hasher(shape: Hasher) -> Hasher:
    def hash_list(values: list[object]) -> int:
        total = 0
        for value in values:
            total ^= shape(value)
        return total

    return hash_list


def _hash_time(value: str) -> int:
    """Hash a time as Go's ``time.Time`` of a controller whose clock is set to UTC."""
    moment = datetime.fromisoformat(value).astimezone(UTC)
    since = moment - datetime(1, 1, 1, tzinfo=UTC)
    seconds = since.days * 86400 + since.seconds
    return _fnv(
        b"\1"
        + seconds.to_bytes(8, "big")
        + (since.microseconds * 1000).to_bytes(4, "big")
        + bytes(2)  # the offset from UTC
    )


class _Field(NamedTuple):
    """A field of a Go struct. A ``plain`` one, which is no pointer, does not count when zero."""

    key: str
    name: str
    shape: Hasher
    plain: bool = False


def _struct_hasher(name: str, *fields: _Field) -> Hasher:
    """Return a hash function for a Go struct; ``fields`` are those that count, as declared."""

    def hash_struct(value: Mapping[str, object]) -> int:
        total = _hash_text(name)
        for key, go_name, shape, plain in fields:
            item = value.get(key)
            if item is None or (plain and not item):
                continue
            total = _hash_final(total ^ _hash_ordered(_hash_text(go_name), shape(item)))
        return total

    return hash_struct


_TIME: Final = _struct_hasher("Time", _Field("time", "Time", _hash_time))
_TAINT: Final = _struct_hasher(
    "Taint",
    _Field("key", "Key", _hash_text, plain=True),
    _Field("value", "Value", _hash_text, plain=True),
    _Field("effect", "Effect", _hash_text, plain=True),
    _Field("timeAdded", "TimeAdded", lambda time: _TIME({"time": time})),
)
_DURATION: Final = _struct_hasher(
    "Duration",
    _Field("duration", "Duration", _hash_int64, plain=True),
)
_NILLABLE_DURATION: Final = _struct_hasher(
    "NillableDuration",
    _Field("duration", "Duration", _hash_int64),
)
_NODE_CLASS_REFERENCE: Final = _struct_hasher(
    "NodeClassReference",
    _Field("kind", "Kind", _hash_text, plain=True),
    _Field("name", "Name", _hash_text, plain=True),
    _Field("group", "Group", _hash_text, plain=True),
)
_OBJECT_META: Final = _struct_hasher(
    "ObjectMeta",
    _Field("labels", "Labels", _hash_texts),
    _Field("annotations", "Annotations", _hash_texts),
)
_NODE_CLAIM_TEMPLATE_SPEC: Final = _struct_hasher(
    "NodeClaimTemplateSpec",
    _Field("taints", "Taints", _list_hasher(_TAINT)),
    _Field("startupTaints", "StartupTaints", _list_hasher(_TAINT)),
    _Field("nodeClassRef", "NodeClassRef", _NODE_CLASS_REFERENCE),
    _Field(
        "terminationGracePeriod",
        "TerminationGracePeriod",
        lambda text: _DURATION({"duration": parse_nanoseconds(text)}),
    ),
    _Field(
        "expireAfter",
        "ExpireAfter",
        lambda text: _NILLABLE_DURATION({"duration": parse_nanoseconds(text)}),
    ),
)


def _hash_template(value: Mapping[str, object]) -> int:
    """Hash a template: Never is Go's nil, and requirements count for presence, not content."""
    metadata = {k: v for k, v in _mapping(value, "metadata").items() if k in _METADATA_KEYS}
    spec = {k: v for k, v in _mapping(value, "spec").items() if v is not None and v != NEVER}
    return _TEMPLATE({"metadata": _none_if_unset(metadata), "spec": _none_if_unset(spec)})


def _none_if_unset(value: dict[str, object]) -> dict[str, object] | None:
    """Return a struct that is embedded by value, or None if all its fields are unset."""
    return value if any(item is not None for item in value.values()) else None


_TEMPLATE: Final = _struct_hasher(
    "NodeClaimTemplate",
    _Field("metadata", "ObjectMeta", _OBJECT_META),
    _Field("spec", "Spec", _NODE_CLAIM_TEMPLATE_SPEC),
)

_BLOCK_DEVICE: Final = _struct_hasher(
    "BlockDevice",
    _Field("deleteOnTermination", "DeleteOnTermination", _hash_flag),
    _Field("encrypted", "Encrypted", _hash_flag),
    _Field("iops", "IOPS", _hash_int64),
    _Field("kmsKeyID", "KMSKeyID", _hash_text),
    _Field("snapshotID", "SnapshotID", _hash_text),
    _Field("throughput", "Throughput", _hash_int64),
    _Field("volumeInitializationRate", "VolumeInitializationRate", _hash_int32),
    _Field("volumeSize", "VolumeSize", lambda value: _hash_text(format_quantity(value))),
    _Field("volumeType", "VolumeType", _hash_text),
)
_BLOCK_DEVICE_MAPPING: Final = _struct_hasher(
    "BlockDeviceMapping",
    _Field("deviceName", "DeviceName", _hash_text),
    _Field("ebs", "EBS", _BLOCK_DEVICE),
    _Field("rootVolume", "RootVolume", _hash_flag, plain=True),
)
_NETWORK_INTERFACE: Final = _struct_hasher(
    "NetworkInterface",
    _Field("networkCardIndex", "NetworkCardIndex", _hash_int32, plain=True),
    _Field("deviceIndex", "DeviceIndex", _hash_int32, plain=True),
    _Field("interfaceType", "InterfaceType", _hash_text, plain=True),
)
_METADATA_OPTIONS: Final = _struct_hasher(
    "MetadataOptions",
    _Field("httpEndpoint", "HTTPEndpoint", _hash_text),
    _Field("httpProtocolIPv6", "HTTPProtocolIPv6", _hash_text),
    _Field("httpPutResponseHopLimit", "HTTPPutResponseHopLimit", _hash_int64),
    _Field("httpTokens", "HTTPTokens", _hash_text),
)
_CONNECTION_TRACKING: Final = _struct_hasher(
    "ConnectionTracking",
    _Field("tcpEstablishedTimeout", "TCPEstablishedTimeout", _hash_int32),
    _Field("udpStreamTimeout", "UDPStreamTimeout", _hash_int32),
    _Field("udpTimeout", "UDPTimeout", _hash_int32),
)
_PLACEMENT_GROUP_SELECTOR: Final = _struct_hasher(
    "PlacementGroupSelector",
    _Field("name", "Name", _hash_text, plain=True),
    _Field("id", "ID", _hash_text, plain=True),
)
_CPU_OPTIONS: Final = _struct_hasher(
    "CPUOptions",
    _Field(
        "nestedVirtualization",
        "NestedVirtualization",
        _hash_text,
    ),
)
_ENCLAVE_OPTIONS: Final = _struct_hasher(
    "EnclaveOptions",
    _Field("enabled", "Enabled", _hash_flag, plain=True),
)
_EC2_NODE_CLASS_SPEC: Final = _struct_hasher(
    "EC2NodeClassSpec",
    _Field("placementGroupSelector", "PlacementGroupSelector", _PLACEMENT_GROUP_SELECTOR),
    _Field("associatePublicIPAddress", "AssociatePublicIPAddress", _hash_flag),
    _Field("userData", "UserData", _hash_text),
    _Field("role", "Role", _hash_text, plain=True),
    _Field("instanceProfile", "InstanceProfile", _hash_text),
    _Field("tags", "Tags", _hash_texts),
    _Field("blockDeviceMappings", "BlockDeviceMappings", _list_hasher(_BLOCK_DEVICE_MAPPING)),
    _Field("instanceStorePolicy", "InstanceStorePolicy", _hash_text),
    _Field("networkInterfaces", "NetworkInterfaces", _list_hasher(_NETWORK_INTERFACE)),
    _Field("detailedMonitoring", "DetailedMonitoring", _hash_flag),
    _Field("metadataOptions", "MetadataOptions", _METADATA_OPTIONS),
    _Field("connectionTracking", "ConnectionTracking", _CONNECTION_TRACKING),
    _Field("context", "Context", _hash_text),
    _Field("cpuOptions", "CPUOptions", _CPU_OPTIONS),
    _Field("enclaveOptions", "EnclaveOptions", _ENCLAVE_OPTIONS),
)
