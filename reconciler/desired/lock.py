"""An EC2NodeClass with its lock: images and subnets that are valid until the lock changes.

``reconciler.lock`` is data from AWS, stored so that plans are reproducible. It is in the fleet
folder beside ``reconciler.yaml``, is written by ``reconciler lock`` and reviewed like any other
file. It contains images, subnets and security groups of each EC2NodeClass, and properties and
prices of the instance types that NodePools allow. If it exists, it is used, online and offline; a
new image reaches nodes only by a commit that changes this file. An entry is valid for the selectors
with which it was resolved: if those change in git, the class is looked up as without a lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.nodeclass import (
    AMI,
    EC2NodeClass,
    EC2NodeClassStatus,
    SecurityGroup,
    Subnet,
)
from reconciler.model.kubernetes.metadata import Condition
from reconciler.source.resource import LOCK_FILE, Resource

API_VERSION: Final = "reconciler/v1"
REMEDY: Final = "run `reconciler lock --update` and commit the result"
_DIGEST: Final = 16
_SELECTORS: Final = (
    "subnetSelectorTerms",
    "securityGroupSelectorTerms",
    "amiSelectorTerms",
    "amiFamily",
    "role",
    "instanceProfile",
)

_MULTILINE_KEYS: Final = frozenset(
    {"nodeClasses", "types", "nodePools", "amis", "subnets", "securityGroups", "catalog"}
)
"""Under these keys each entry has a line of its own."""

_KEY: Final = re.compile(r'( *)"((?:[^"\\]|\\.)*)":')

_Resource = TypeVar("_Resource", Subnet, SecurityGroup)


class _Part(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A part of the file, in the spelling of its schema."""


class LockedClass(_Part, frozen=True, kw_only=True):
    """The resources in the account for an EC2NodeClass whose ``selectors`` have this digest."""

    selectors: str
    amis: tuple[AMI, ...] = ()
    subnets: tuple[Subnet, ...] = ()
    security_groups: tuple[SecurityGroup, ...] = ()
    instance_profile: str = ""


class FactSource(_Part, frozen=True, kw_only=True):
    """The source of facts (as ``PriceOrigin.source``), and when they were read or published."""

    source: str
    at: datetime | None = None


class LockedCatalog(_Part, frozen=True, kw_only=True):
    """The instance types: their source, and the bundled data to which they are a difference."""

    instance_types: FactSource
    bundle: str
    bundle_digest: str
    on_demand: FactSource
    spot: FactSource


class LockedType(_Part, frozen=True, kw_only=True):
    """An instance type; omitted fields are as in the bundled data.

    Prices are USD an hour; ``spot`` is by zone, if known. ``machine`` are the
    facts of ``catalog.machine.Machine`` in their order.
    """

    on_demand: float | None = None
    spot: dict[str, float] | None = None
    zones: tuple[str, ...] | None = None
    machine: list[Any] | None = None


class Lock(_Part, frozen=True, kw_only=True):
    """The complete file; ``digest`` is over everything else in it."""

    api_version: str = msgspec.field(default=API_VERSION)
    kind: str = "Lock"
    digest: str = ""
    locked_at: datetime
    region: str
    catalog: LockedCatalog
    node_pools: dict[str, str] = {}
    node_classes: dict[str, LockedClass] = {}
    types: dict[str, LockedType] = {}

    def entry(self, name: str) -> LockedClass | None:
        """Return the locked resources of a node class."""
        return self.node_classes.get(name)


def lock_digest(lock: Lock) -> str:
    """Return the digest over everything in a lock but the digest itself."""
    plain: dict[str, object] = msgspec.to_builtins(lock)
    return _digest({k: v for k, v in plain.items() if k not in ("digest", "apiVersion", "kind")})


def selectors_digest(node_class: JsonObject) -> str:
    """Return a digest of the selectors of an EC2NodeClass."""
    spec = node_class.get("spec", {})
    return _digest({key: spec[key] for key in _SELECTORS if key in spec})


def choices_digest(node_pool: JsonObject) -> str:
    """Return a digest of the fields that determine the instance types of a NodePool."""
    template = node_pool.get("spec", {}).get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    requirements = template.get("spec", {}).get("requirements", [])
    return _digest([labels, requirements])


def _digest(value: object) -> str:
    return sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGEST]


def encode(lock: Lock) -> bytes:
    """Return the file: JSON, sorted, with one line for each image, subnet and instance type.

    The same lock gives the same bytes, and a change of one thing is a change of its line.
    """
    signed = msgspec.structs.replace(lock, digest=lock_digest(lock))
    plain: JsonDict = msgspec.to_builtins(signed)
    plain["apiVersion"], plain["kind"] = signed.api_version, signed.kind
    first = ("apiVersion", "kind", "digest", "lockedAt", "region", "catalog")
    last = ("nodePools", "nodeClasses", "types")
    ordered = {key: plain[key] for key in (*first, *last) if key in plain}
    lines: list[str] = []
    _write(lines, "", ordered, 0, "")
    return ("\n".join(lines) + "\n").encode()


def _items(
    value: Mapping[str, object] | Sequence[object], *, in_order: bool
) -> list[tuple[str, object]]:
    """Return the values of a mapping with their keys, sorted unless ``in_order``, or of a list."""
    if isinstance(value, Mapping):
        return [(key, value[key]) for key in (value if in_order else sorted(value))]
    return [("", item) for item in value]


def _write(lines: list[str], key: str, value: Any, depth: int, end: str) -> None:
    """Write a value under a key; a small value is on one line."""
    indent = "  " * depth
    head = f"{indent}{_encode_compact(key)}: " if key else indent
    is_open = (
        depth == 0 or key in _MULTILINE_KEYS or (isinstance(value, dict) and "selectors" in value)
    )
    if not is_open or not value:
        lines.append(f"{head}{_encode_compact(value)}{end}")
        return
    begin, stop = "{}" if isinstance(value, dict) else "[]"
    lines.append(head + begin)
    items = _items(value, in_order=depth == 0)
    for number, (name, item) in enumerate(items, 1):
        _write(lines, name, item, depth + 1, "," if number < len(items) else "")
    lines.append(f"{indent}{stop}{end}")


def _encode_compact(value: object) -> str:
    compact = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(compact, indent=0).decode()


def lines_of_lock(content: bytes) -> dict[str, int]:
    """Return the line of each field of a lock by its dotted path.

    They are derived from the layout that `reconciler lock` writes. In a file with another layout
    few are found; for the others, callers use the first line.
    """
    found: dict[str, int] = {}
    above: list[str] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        match = _KEY.match(line)
        if match is not None:
            depth = max(len(match[1]) // 2 - 1, 0)
            above = [*above[:depth], match[2]]
            found.setdefault(".".join(above), number)
    return found


def read_lock(content: bytes) -> Lock | Diagnostic:
    """Return the lock in a file, or a finding if the file is invalid.

    A lock that was edited by hand or merged is rejected, because its content never existed in an
    account.
    """
    try:
        lock = decode_json(content, Lock)
    except msgspec.ValidationError as error:
        return _damaged_finding(f"not a lock file: {describe_mismatch(error)}")
    except msgspec.DecodeError as error:
        text = (
            "the file contains merge conflict markers" if b"\n<<<<<<< " in content else str(error)
        )
        return _damaged_finding(f"not JSON: {text}")
    if (lock.api_version, lock.kind) != (API_VERSION, "Lock"):
        return _damaged_finding(
            f"expected a Lock of {API_VERSION}, found {lock.kind} of {lock.api_version}"
        )
    if lock.digest != lock_digest(lock):
        return _damaged_finding("wrong digest: the file was edited by hand or merged")
    return lock


def _damaged_finding(message: str) -> Diagnostic:
    place = Place(LOCK_FILE, 1, 1)
    return Diagnostic(Severity.ERROR, "lock-damaged", message, place, hint=REMEDY)


def drop_stale_entries(
    lock: Lock, node_classes: Iterable[Resource], node_pools: Iterable[Resource]
) -> tuple[Lock, tuple[Diagnostic, ...]]:
    """Return the lock without the entries that no longer match git, and one finding on them."""
    classes = {r.name: selectors_digest(r.data) for r in node_classes}
    current = {
        name: entry
        for name, entry in lock.node_classes.items()
        if entry.selectors == classes.get(name)
    }
    stale_names = [f"EC2NodeClass {name}" for name in sorted(classes) if name not in current]
    stale_names += [
        f"NodePool {r.name}"
        for r in node_pools
        if lock.node_pools.get(r.name) != choices_digest(r.data)
    ]
    found = msgspec.structs.replace(lock, node_classes=current)
    if not stale_names:
        return found, ()
    names = ", ".join(stale_names[:5]) + (
        f" and {len(stale_names) - 5} more" if len(stale_names) > 5 else ""
    )
    message = f"the lock is out of date: {names} changed since it was written"
    finding = Diagnostic(
        Severity.WARNING, "lock-stale", message, Place(LOCK_FILE, 1, 1), hint=REMEDY
    )
    return found, (finding,)


def with_locked_resources(node_class: EC2NodeClass, entry: LockedClass | None) -> EC2NodeClass:
    """Return the class with its locked resources in place of resolved ones.

    If nothing was resolved, the lock provides everything. Of resolved subnets and security groups,
    the locked ones are kept, in the order in which they were resolved: free addresses change every
    minute. If none of them is left, the class is not ready, and its condition states the reason.
    """
    if entry is None:
        return node_class
    status = node_class.status
    if status == EC2NodeClassStatus():
        found = EC2NodeClassStatus(
            subnets=entry.subnets,
            security_groups=entry.security_groups,
            amis=entry.amis,
            instance_profile=entry.instance_profile,
        )
        return msgspec.structs.replace(node_class, status=found)
    locked = msgspec.structs.replace(
        status,
        amis=entry.amis or status.amis,
        subnets=_only_locked(status.subnets, entry.subnets),
        security_groups=_only_locked(status.security_groups, entry.security_groups),
    )
    if locked.conditions:
        locked = msgspec.structs.replace(
            locked, conditions=_pinned_conditions(status.conditions, locked)
        )
    return msgspec.structs.replace(node_class, status=locked)


def _only_locked(
    resolved: Sequence[_Resource], locked: Sequence[_Resource]
) -> tuple[_Resource, ...]:
    """Return the resolved resources that are locked, all of them if the lock has none."""
    ids = {resource.id for resource in locked}
    return tuple(resource for resource in resolved if not ids or resource.id in ids)


def _pinned_conditions(
    before: Sequence[Condition], status: EC2NodeClassStatus
) -> tuple[Condition, ...]:
    """Return the conditions for a status with only locked resources."""
    pinned_kinds = {
        "AMIsReady": (status.amis, "AMINotFound", "no image is locked"),
        "SubnetsReady": (status.subnets, "SubnetsNotFound", "no locked subnet exists any more"),
        "SecurityGroupsReady": (
            status.security_groups,
            "SecurityGroupsNotFound",
            "no locked security group exists any more",
        ),
    }
    conditions: list[Condition] = []
    for condition in before:
        found, reason, message = pinned_kinds.get(condition.type, (None, "", ""))
        if found is None:
            conditions.append(condition)
        elif found:
            conditions.append(_with_status(condition, "True", "", ""))
        else:
            conditions.append(_with_status(condition, "False", reason, f"{message}: {REMEDY}"))
    missing = ", ".join(
        f"{c.type}={c.status}" for c in conditions if c.type != "Ready" and c.status != "True"
    )
    ready = ("False", "UnhealthyDependents", missing) if missing else ("True", "", "")
    return tuple(_with_status(c, *ready) if c.type == "Ready" else c for c in conditions)


def _with_status(condition: Condition, status: str, reason: str, message: str) -> Condition:
    if condition.status == status:
        return condition
    return msgspec.structs.replace(condition, status=status, reason=reason, message=message)
