"""Instance types, families and zones by name, and the requirements that name unknown ones.

AWS adds types and zones between two releases of the bundled catalog, so an unknown name is a
warning. Partitions that the catalog does not have, and local zones, are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import as_list
from reconciler.model.karpenter.labels import (
    ARCH,
    INSTANCE_TYPE,
    OS,
    TENANCY,
    ZONE,
    ZONE_ID,
    normalize_label,
)
from reconciler.model.text.nearest import did_you_mean, nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.schema import value_at

_FAMILY: Final = "karpenter.k8s.aws/instance-family"
_NAME_LABELS: Final = {
    INSTANCE_TYPE: ("unknown-instance-type", "instance type"),
    _FAMILY: ("unknown-instance-family", "instance family"),
    ZONE: ("unknown-zone", "zone"),
    ZONE_ID: ("unknown-zone", "zone id"),
}
_REQUIREMENT_PATHS: Final[Mapping[str, Pointer]] = {
    "NodePool": ("spec", "template", "spec", "requirements"),
    "NodeClaim": ("spec", "requirements"),
    "NodeOverlay": ("spec", "requirements"),
}
_GROUP_PATHS: Final[Mapping[str, Pointer]] = {
    "NodePool": ("spec", "template", "spec", "nodeClassRef", "group"),
    "NodeClaim": ("spec", "nodeClassRef", "group"),
}
_AWS: Final = "karpenter.k8s.aws"
_ZONE: Final = re.compile(r"(?P<region>[a-z]{2,4}(?:-[a-z]+)+-\d)(?P<rest>.*)", re.ASCII)
_SIMILARITY_MIN: Final = 0.7

_AWS_LABEL: Final = "karpenter.k8s.aws/"

_OTHER_NAMES: Final = {
    **dict.fromkeys(("x86_64", "x86-64", "x64", "x86"), "amd64"),
    **dict.fromkeys(("aarch64", "arm", "armv8"), "arm64"),
}
"""Names of architectures elsewhere, and the one that Kubernetes uses (``GOARCH``)."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names in the catalog: by the label that has them, and the zones of each region.

    ``as_of`` is the version of the catalog.
    """

    values: Mapping[str, frozenset[str]]
    zones: Mapping[str, frozenset[str]]
    as_of: str


@lru_cache(maxsize=1)
def bundled_names() -> KnownNames:
    """Return the names in the bundled catalog.

    Raises:
        UnreadableError: it is missing or damaged.
    """
    from reconciler.catalog.aws.bundle import load

    header, bundle = load()
    types = frozenset((*(machine.name for machine in bundle.machines), *bundle.withdrawn))
    zones = {name: frozenset(z.name for z in at.zones) for name, at in bundle.regions.items()}
    ids = frozenset(z.id for at in bundle.regions.values() for z in at.zones if z.id)
    values = {
        INSTANCE_TYPE: types,
        _FAMILY: frozenset(name.partition(".")[0] for name in types),
        ZONE: frozenset().union(*zones.values()),
        ZONE_ID: ids,
    }
    return KnownNames(values, zones, header.version)


_SUGGESTIONS_MAX: Final = 500
LABEL_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    ARCH: ("amd64", "arm64"),
    OS: ("linux", "windows"),
    _AWS_LABEL + "instance-category": (
        *("a", "c", "d", "dl", "f", "g", "gr", "h", "hpc", "i", "im", "inf", "is"),
        *("m", "p", "r", "t", "trn", "u", "vt", "x", "z"),
    ),
    _AWS_LABEL + "instance-cpu-manufacturer": ("amd", "aws", "intel"),
    _AWS_LABEL + "instance-generation": tuple("123456789"),
    _AWS_LABEL + "instance-hypervisor": ("nitro", "xen"),
    _AWS_LABEL + "instance-size": (
        *["nano", "micro", "small", "medium", "large", "xlarge"],
        *(f"{n}xlarge" for n in (2, 3, 4, 6, 8, 9, 10, 12, 16, 18, 24, 32, 48, 56, 64, 96, 112)),
        "224xlarge",
        "metal",
        *(f"metal-{n}xl" for n in (12, 16, 24, 32, 48, 96)),
    ),
    TENANCY: ("default", "dedicated"),
    **dict.fromkeys(
        (
            _AWS_LABEL + "instance-capability-flex",
            _AWS_LABEL + "instance-encryption-in-transit-supported",
            _AWS_LABEL + "nitro-sandbox",
        ),
        ("false", "true"),
    ),
}
"""Labels with few values.

They are listed because the bundled catalog takes longer to load than everything else that
``validate`` does; a test compares them.
"""


def unknown_label_values(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Finding]]:
    """Yield a warning for each value of a label with few values that no instance type has."""
    for entry, pointer, key, value in _requirement_values(entries, LABEL_VALUES):
        known = LABEL_VALUES[key]
        if value not in known:
            message = f"no instance type has the {key} {quote_value(value)}"
            meant = _OTHER_NAMES.get(value.lower(), value) if key == ARCH else value
            hint = did_you_mean(meant, known, f"known: {', '.join(known)}", _SIMILARITY_MIN)
            yield entry, Finding("unknown-label-value", pointer, message, hint, Severity.WARNING)


def has_named_values(entries: Sequence[Entry]) -> bool:
    """Return whether a requirement names a type, a family or a zone of AWS."""
    return any(True for _ in _requirement_values(entries, _NAME_LABELS))


def unknown_names(
    entries: Sequence[Entry], names: KnownNames, region: str = ""
) -> Iterator[tuple[Entry, Finding]]:
    """Yield a warning for each name that the catalog does not have.

    ``region`` is the region of the fleet if that is configured: a zone of another region is
    reported as well.
    """
    count = 0
    for entry, pointer, key, value in _requirement_values(entries, _NAME_LABELS):
        suggests = count < _SUGGESTIONS_MAX  # looking for a similar name takes a millisecond
        finding = _unknown_name_finding(names, region, pointer, key, value, suggests=suggests)
        if finding is not None:
            count += 1
            yield entry, finding


def _requirement_values(
    entries: Sequence[Entry], labels: Container[str]
) -> Iterator[tuple[Entry, Pointer, str, str]]:
    """Yield the values of requirements on some labels, each with its place."""
    has_aws = any(entry.kind in _GROUP_PATHS and _is_aws(entry) for entry in entries)
    for entry in entries:
        checked = (
            _is_aws(entry)
            if entry.kind in _GROUP_PATHS
            else entry.kind in _REQUIREMENT_PATHS and has_aws
        )
        requirements = value_at(entry.data, _REQUIREMENT_PATHS[entry.kind]) if checked else None
        for index, requirement in enumerate(as_list(requirements)):
            for number, key, value in _values(requirement, labels):
                yield entry, (*_REQUIREMENT_PATHS[entry.kind], index, "values", number), key, value


def _is_aws(entry: Entry) -> bool:
    return value_at(entry.data, _GROUP_PATHS[entry.kind]) in (None, _AWS)


def _values(requirement: object, labels: Container[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the values of one requirement on one of the labels, with their positions."""
    if not isinstance(requirement, dict) or requirement.get("operator") not in ("In", "NotIn"):
        return
    key, values = requirement.get("key"), requirement.get("values")
    label = normalize_label(key) if isinstance(key, str) else ""
    if label in labels and isinstance(values, list):
        for number, value in enumerate(values):
            if isinstance(value, str) and value:
                yield number, label, value


def _unknown_name_finding(
    names: KnownNames, region: str, pointer: Pointer, key: str, value: str, *, suggests: bool
) -> Finding | None:
    known = names.values[key]
    code, what = _NAME_LABELS[key]
    if value in known:
        return _other_region_finding(names, region, pointer, key, value)
    if key == ZONE and not _is_checked(value, names):
        return None
    message = f"{what} {quote_value(value)} is not in the bundled catalog of {names.as_of}"
    near = nearest(value, sorted(known), _SIMILARITY_MIN) if suggests else None
    hint = f"did you mean {near}?" if near else "ignore this if AWS has added it since"
    return Finding(code, pointer, message, hint, Severity.WARNING)


def _other_region_finding(
    names: KnownNames, region: str, pointer: Pointer, key: str, value: str
) -> Finding | None:
    """Return a finding on a zone of another region than that of the fleet."""
    own = names.zones.get(region)
    if key != ZONE or own is None or value in own:
        return None
    message = f"zone {quote_value(value)} is not in the region of this fleet, {region}"
    hint = f"the zones of {region} are {', '.join(sorted(own))}"
    return Finding("zone-of-another-region", pointer, message, hint, Severity.WARNING)


def _is_checked(zone: str, names: KnownNames) -> bool:
    """Return whether the catalog should have the zone: not if local or of another partition."""
    match = _ZONE.fullmatch(zone)
    if match is None:
        return True
    if match["region"] not in names.zones:
        return nearest(match["region"], sorted(names.zones), 0.85) is not None
    return not match["rest"].startswith("-")
