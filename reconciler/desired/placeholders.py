"""Placeholders in the values of objects: what templates, scripts and documents leave to be filled.

A default that is written with a placeholder is used, and the cluster's name and region come from
the settings. Everything else is left, and is reported as a placeholder, never as an invalid value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.settings import DEFAULT_REGION
from reconciler.source.document import Document, Pointer
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.scalars import resolve_scalar
from reconciler.source.schema import value_at

_PLACEHOLDER: Final = re.compile(
    r"\$\{(?P<brace>[A-Za-z_][^{}]{0,200}?(?:\{[^{}]*\}[^{}]*)?)\}"
    r"|\$\((?P<paren>[A-Za-z_][A-Za-z0-9_]*)\)"
    r"|\{\{-?\s*(?P<curly>.{0,200}?)\s*-?\}\}"
    r"|<<\s*(?P<double>[A-Za-z_][\w .-]{0,60}?)\s*>>"
    r"|<(?P<angle>[A-Za-z][\w .-]{1,60}?)>"
    r"|\$(?P<dollar>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<word>\b(?:REPLACE_?ME|CHANGE_?ME|YOUR_[A-Z0-9_]+|REPLACE_WITH_[A-Z0-9_]+)\w*)"
    r"|__(?P<under>[A-Z][A-Z0-9_]*?)__"
)
_DEFAULT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):?[-=](.*)", re.DOTALL)
_HELM_DEFAULT: Final = re.compile(r"^(\S+)\s*\|\s*default\s+[\"']?([^\"']*)[\"']?")
_SCRIPTS: Final = frozenset({"userData"})
"""Fields with scripts, in which ``${NAME}`` is a variable of the shell."""
_RUNTIME: Final = frozenset(
    {
        "command", "args", "env", "envFrom", "lifecycle", "livenessProbe", "readinessProbe",
        "startupProbe", "data", "stringData", "binaryData", "annotations", "image", "volumes",
        "volumeMounts",
    }
)  # fmt: skip
"""Fields of workloads whose variables the cluster fills, or that no plan depends on."""
_CLUSTER: Final = frozenset(
    {
        "cluster", "clustername", "ekscluster", "eksclustername", "ekscluster_name", "clusterid",
        "karpenterclustername", "nameofcluster", "yourclustername", "yourcluster", "myclustername",
        "youreksclustername", "awsclustername", "k8sclustername", "targetcluster",
    }
)  # fmt: skip
_REGION: Final = frozenset(
    {"region", "awsregion", "awsdefaultregion", "clusterregion", "yourregion", "deployregion"}
)
_PARTITION: Final = frozenset({"partition", "awspartition"})
_ENTITY: Final = re.compile(r"[^a-z0-9]+")

CLUSTER_NAME: Final = "clusterName"
REGION: Final = "region"

CODE: Final = "placeholder"
_PREFIX: Final = "the placeholder "
_SUFFIX: Final = " has no value"
_LISTED_MAX: Final = 20

_OF_ACCOUNT: Final = frozenset(
    {
        "subnetSelectorTerms", "securityGroupSelectorTerms", "capacityReservationSelectorTerms",
        "role", "instanceProfile", "tags",
    }
)  # fmt: skip
"""Fields of an EC2NodeClass that name resources of the account."""


class Placeholder(NamedTuple):
    """A placeholder as it is written, its name, and the field that holds it.

    ``default`` is the value that is written with it, None without one.
    """

    pointer: Pointer
    text: str
    name: str
    default: str | None = None


class Filled(NamedTuple):
    """An object after its placeholders were filled: those that are ``left``, and those ``done``."""

    data: JsonDict
    left: tuple[Placeholder, ...]
    done: tuple[tuple[Placeholder, str], ...] = ()


def fill(data: JsonDict, known: Mapping[str, str], *, is_workload: bool = False) -> Filled:
    """Return an object with its placeholders filled from defaults and from ``known`` values.

    ``known`` has ``clusterName`` and ``region``, where they are known, and the values of other
    names. An object without placeholders is returned as it is.
    """
    skipped = _SCRIPTS | _RUNTIME if is_workload else _SCRIPTS
    filling = _Filling(known, skipped, is_workload=is_workload)
    filled = filling.value(data, ())
    if not filling.found:
        return Filled(data, ())
    assert isinstance(filled, dict), "an object stays one"
    return Filled(filled, tuple(filling.left), tuple(filling.done))


def placeholders_in(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders in a text."""
    for match in _PLACEHOLDER.finditer(text):
        found = _placeholder(match, text, ())
        if found is not None:
            yield found


def _placeholder(match: re.Match[str], text: str, pointer: Pointer) -> Placeholder | None:
    kind, inner = match.lastgroup, match[match.lastgroup or 0]
    if kind == "brace":
        default = _DEFAULT.fullmatch(inner)
        if default is not None:
            return Placeholder(pointer, match[0], default[1], default[2])
    elif kind == "curly":
        if not inner:
            return None
        default = _HELM_DEFAULT.match(inner)
        if default is not None:
            return Placeholder(pointer, match[0], default[1].lstrip("."), default[2])
        inner = inner.partition("|")[0].rstrip().lstrip(".")
    elif kind == "dollar" and not (inner.isupper() or match[0] == text or "_" in inner):
        return None  # an amount, or an ordinary word
    return Placeholder(pointer, match[0], inner.strip())


def value_of(name: str, known: Mapping[str, str]) -> str | None:
    """Return the value of a placeholder's name in any spelling, None if it is not known.

    An expression counts by its last part: ``module.eks.cluster_name``, ``.Values.clusterName``.
    """
    if name in known:
        return known[name]
    parts = [_ENTITY.sub("", part.lower()) for part in re.split(r"[.\s]+", name) if part]
    last = parts[-1] if parts else ""
    whole = _ENTITY.sub("", name.lower())
    candidates = {last, whole, "".join(parts[-2:])}
    if last in ("name", "id") and len(parts) > 1:
        candidates = {"".join(parts[-2:])}
    if candidates & _CLUSTER:
        return known.get(CLUSTER_NAME)
    if candidates & _REGION or "".join(parts[-2:]) == "awsregionname":
        return known.get(REGION)
    if candidates & _PARTITION and known.get(REGION):
        return _partition_of(known[REGION])
    return None


def known_values(config: JsonDict, operators: Mapping[str, str]) -> dict[str, str]:
    """Return the values that a fleet's configuration gives; the operator's override them."""
    aws = config.get("aws")
    region = aws.get("region") if isinstance(aws, dict) else None
    found = {REGION: region or DEFAULT_REGION}
    if config.get("clusterName"):
        found[CLUSTER_NAME] = str(config["clusterName"])
    return found | dict(operators)


def _partition_of(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


class _Filling:
    """Walks an object once; ``found`` is whether it has any placeholder."""

    def __init__(
        self, known: Mapping[str, str], skipped: frozenset[str], *, is_workload: bool
    ) -> None:
        self._known = known
        self._skipped = skipped
        self._is_workload = is_workload
        self.found = False
        self.left: list[Placeholder] = []
        self.done: list[tuple[Placeholder, str]] = []

    def value(self, value: object, at: Pointer) -> object:
        if isinstance(value, dict):
            filled = {}
            for key, item in value.items():
                name = self._text(key, (*at, key))
                filled[name] = item if key in self._skipped else self.value(item, (*at, name))
            return filled
        if isinstance(value, list):
            return [self.value(item, (*at, number)) for number, item in enumerate(value)]
        return self._text(value, at) if isinstance(value, str) else value

    def _text(self, text: str, at: Pointer) -> str:
        if not any(mark in text for mark in ("${", "$", "{{", "<", "_", "CHANGE", "REPLACE")):
            return text

        def replace(match: re.Match[str]) -> str:
            found = _placeholder(match, text, at)
            if found is None or (self._is_workload and match.lastgroup in ("angle", "word")):
                return match[0]
            self.found = True
            value = value_of(found.name, self._known)
            value = found.default if value is None else value
            if value is None:
                self.left.append(found)
                return match[0]
            self.done.append((found, value))
            return value

        return _PLACEHOLDER.sub(replace, text)


def fill_entry(
    entry: Entry, known: Mapping[str, str], *, is_workload: bool
) -> tuple[Entry, tuple[Placeholder, ...]]:
    """Return an object with its placeholders filled, and those without a value.

    A value that was written without quotes gets the type that YAML would give it.
    """
    filled = fill(entry.data, known, is_workload=is_workload)
    data = filled.data
    for placeholder, value in filled.done:
        pointer = placeholder.pointer
        if value_at(data, pointer) == value and not _is_quoted(entry, pointer):
            _set_value(data, pointer, resolve_scalar(value))
    return (entry if data is entry.data else entry._replace(data=data)), filled.left


def _is_quoted(entry: Entry, pointer: Pointer) -> bool:
    """Return whether a value is written in quotes, or where it is written is not known."""
    document = entry.document
    if not document.text or type(document) is not Document:
        return True
    start, _ = document.token((*entry.base, *pointer))
    return document.text[start : start + 1] in ("'", '"', "|", ">", "")


def _set_value(data: JsonDict, pointer: Pointer, value: object) -> None:
    above = value_at(data, pointer[:-1]) if len(pointer) > 1 else data
    if isinstance(above, dict | list):
        above[pointer[-1]] = value  # type: ignore[index] # the pointer was found in this very object


def without_placeholders(findings: Iterable[Finding], left: Sequence[Placeholder]) -> list[Finding]:
    """Return the findings on an object, with one on each placeholder in place of those it causes.

    A placeholder whose field would be invalid with it is an error, any other one a warning: the
    fleet can be planned, and not yet applied. Ids and names of the account are such a warning too,
    because no plan without the account depends on them.
    """
    kept: list[Finding] = []
    invalid: set[Pointer] = set()
    for finding in findings:
        caused = [p.pointer for p in left if _concerns(finding.pointer, p.pointer)]
        if caused and finding.severity is Severity.ERROR:
            invalid.update(caused)
        elif not caused:
            kept.append(finding)
    for placeholder in dict.fromkeys(left):
        is_error = placeholder.pointer in invalid and not _is_of_account(placeholder.pointer)
        kept.append(
            Finding(
                CODE, placeholder.pointer, f"{_PREFIX}{placeholder.text[:80]}{_SUFFIX}",
                "write its value", Severity.ERROR if is_error else Severity.WARNING,
            )
        )  # fmt: skip
    return kept


def _is_of_account(pointer: Pointer) -> bool:
    is_image = pointer[:2] == ("spec", "amiSelectorTerms") and pointer[-1] != "alias"
    return (len(pointer) > 1 and pointer[0] == "spec" and pointer[1] in _OF_ACCOUNT) or is_image


def _concerns(finding: Pointer, placeholder: Pointer) -> bool:
    return finding[: len(placeholder)] == placeholder or (
        len(finding) >= 2 and placeholder[: len(finding)] == finding
    )


def _is_cluster_name(text: str) -> bool:
    known = {CLUSTER_NAME: "name"}
    return any(value_of(p.name, known) is not None for p in placeholders_in(text))


def summary(left: Sequence[tuple[Entry, Finding]]) -> Iterator[Diagnostic]:
    """Yield one warning that lists the placeholders without a value, with the first place of each.

    The fleet can be planned with them; they have to be completed before it is applied.
    """
    places: dict[str, Place] = {}
    for entry, finding in left:
        text = finding.message.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        places.setdefault(text, entry.place(finding.pointer))
    if not places:
        return
    ordered = sorted(places.items(), key=lambda item: item[1])
    listed = ", ".join(f"{text} ({place})" for text, place in ordered[:_LISTED_MAX])
    more = f" and {len(ordered) - _LISTED_MAX} more" if len(ordered) > _LISTED_MAX else ""
    count = f"{len(ordered)} placeholders" if len(ordered) > 1 else "1 placeholder"
    yield Diagnostic(
        Severity.WARNING, CODE, f"complete {count}: {listed}{more}", ordered[0][1],
        hint=("write their values" if len(ordered) > 1 else "write its value") + (
            ", and the cluster's name as clusterName in reconciler.yaml"
            if any(_is_cluster_name(text) for text in places) else ""
        ),
    )  # fmt: skip
