"""Completes the objects of a new fleet: what their files leave open, with a note on each.

Placeholders get their values. Names of the account, node classes that are in no file, and names
that are placeholders are assumed: a plan's nodes and their cost do not depend on them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from reconciler.desired.migration.objects import Note
from reconciler.desired.placeholders import CODE as PLACEHOLDER
from reconciler.desired.placeholders import Filled, Placeholder, fill, summary, without_placeholders
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.initialization.collection import Collection, class_of, other_provider
from reconciler.initialization.objects import SourceObject
from reconciler.initialization.refused import (
    ALPHA_VERSIONS,
    fault_of_workload,
    faults_of,
    findings_on,
    leave_out_refused,
    note_refused,
)
from reconciler.initialization.volumes import leave_out_open_volumes
from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict, as_list
from reconciler.model.text.nearest import nearest
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, field_path
from reconciler.source.objects import Entry
from reconciler.source.resource import AUTO_MODE, VALIDATED_KINDS, group_of
from reconciler.source.scalars import resolve_scalar
from reconciler.source.schema import value_at

_TERMS: Final = ("subnetSelectorTerms", "securityGroupSelectorTerms")
_TEMPLATE: Final[Pointer] = ("spec", "template")
_REQUIREMENTS: Final[Pointer] = (*_TEMPLATE, "spec", "requirements")
_ZONE: Final = "topology.kubernetes.io/zone"
_OLD_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
_IMAGES: Final[Pointer] = ("spec", "amiSelectorTerms")
_REFERENCE: Final[Pointer] = (*_TEMPLATE, "spec", "nodeClassRef", "name")
_WORDS: Final = re.compile(r"[A-Za-z0-9]+")
_NAME_MAX: Final = 40

_NUMBERS: Final = frozenset(
    {
        "replicas",
        "weight",
        "minValues",
        "maxPods",
        "podsPerCore",
        "iops",
        "throughput",
        "encrypted",
        "deleteOnTermination",
        "detailedMonitoring",
        "associatePublicIPAddress",
        "httpPutResponseHopLimit",
        "minAvailable",
        "maxUnavailable",
        "completions",
        "parallelism",
    }
)
"""Fields with a number or boolean, which a placeholder without quotes may stand for."""

_KINDS: Final = {"subnetSelectorTerms": "subnets", "securityGroupSelectorTerms": "security groups"}


def complete(found: Collection, known: dict[str, str], name: str) -> None:
    """Complete the objects, with the ``known`` values of placeholders and the cluster's name."""
    _leave_out_unknown_fields(found)
    _leave_out_open_collections(found, known)
    leave_out_open_volumes(found, known)
    _assume_zones(found, known)
    _assume_images(found, known)
    _leave_out_patterns(found, known)
    named, left = _fill_placeholders(found, known)
    _complete_pools(found)
    _complete_classes(found, name)
    leave_out_refused(found, known)
    kept = {id(item.entry) for item in found.items}
    found.notes += summary([(entry, finding) for entry, finding in left if id(entry) in kept])
    _assume_classes(found, name, named)


def _leave_out_unknown_fields(found: Collection) -> None:
    """Leave out the fields that no object of the kind has, with a note on each.

    The API server drops them, or refuses the object, so no cluster has them. One with nearly the
    name of a field is more likely misspelled, and is left to the user.
    """
    for item in found.items:
        if item.kind not in VALIDATED_KINDS:
            continue
        for finding in findings_on(item.kind, item.data):
            if finding.code != "unknown-field" or _is_misspelled(item, finding):
                continue
            item.change(partial(_remove_field, pointer=finding.pointer))
            message = f"no {item.kind} has this field; it is left out"
            hint = "the API server drops it or refuses the object"
            found.note(item, Note(Severity.WARNING, finding.pointer, message, hint))


def _leave_out_open_collections(found: Collection, known: dict[str, str]) -> None:
    """Leave out maps and lists that one placeholder stands for, with a note on each.

    No text can take their place, so such an object has no plan. What a kind requires is left to
    the user. ``merge`` of Terraform leaves a placeholder among entries that are known.
    """
    for item in found.items:
        for pointer in [*_open_entries(item.data, known), *_open_collections(item, known)]:
            above = field_path(pointer[:-1]) if pointer[-1] == value_at(item.data, pointer) else ""
            text = value_at(item.data, pointer)
            item.change(partial(_remove_field, pointer=pointer))
            what = f"the entries of {text} in {above} are" if above else f"{text} is"
            message = f"{what} not known; left out"
            at = pointer[:-1] if above else pointer
            found.note(item, Note(Severity.WARNING, at, message, "write what the cluster has"))


def _open_entries(data: object, known: dict[str, str], at: Pointer = ()) -> Iterator[Pointer]:
    """Yield the entries of maps whose key and value are the same placeholder."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == value and _is_one_placeholder(value, known):
                yield (*at, key)
            else:
                yield from _open_entries(value, known, (*at, key))
    elif isinstance(data, list):
        for number, one in enumerate(data):
            yield from _open_entries(one, known, (*at, number))


def _open_collections(item: SourceObject, known: dict[str, str]) -> Iterator[Pointer]:
    """Yield the optional maps and lists in whose place there is a placeholder."""
    if item.kind not in VALIDATED_KINDS:
        return
    findings = faults_of(item.kind, item.data)
    for finding in findings:
        value = value_at(item.data, finding.pointer)
        is_text = finding.code == "wrong-type" and isinstance(value, str)
        if not is_text or finding.pointer[-1] in _NUMBERS or not _is_one_placeholder(value, known):
            continue
        without = copy.deepcopy(item.data)
        _remove_field(without, finding.pointer)
        if set(faults_of(item.kind, without)) < set(findings):
            yield finding.pointer


def _is_one_placeholder(value: object, known: dict[str, str]) -> bool:
    left = fill({"value": value}, known).left
    return len(left) == 1 and left[0].text == value


def _is_misspelled(item: SourceObject, finding: Finding) -> bool:
    """Return whether an unknown field has nearly the name of one that its value fits."""
    for meant in finding.replaces:
        data = copy.deepcopy(item.data)
        above = value_at(data, meant[:-1])
        if isinstance(above, dict):
            above[str(meant[-1])] = value_at(data, finding.pointer)
            if all(f.pointer[: len(meant)] != meant for f in findings_on(item.kind, data)):
                return True
    return False


def _remove_field(data: JsonDict, pointer: Pointer) -> None:
    above = value_at(data, pointer[:-1])
    if isinstance(above, dict):
        above.pop(str(pointer[-1]), None)


def _leave_out_patterns(found: Collection, known: dict[str, str]) -> None:
    """Leave out the NodePools of which a script makes one for each value of a variable.

    The variable is in the name and in a requirement, and has no value. If every NodePool is such a
    pattern, they stay, and the user writes the value.
    """
    pools = found.of_kind("NodePool")
    patterns = [(pool, at) for pool in pools if (at := _repeated_placeholder(pool, known))]
    if len(patterns) == len(pools):
        return
    for pool, placeholder in patterns:
        found.items.remove(pool)
        what = f"NodePool {pool.name} is a pattern for the values of {placeholder.text}"
        found.leave_out(pool.place, what, "write its value to take it over")


def _repeated_placeholder(pool: SourceObject, known: dict[str, str]) -> Placeholder | None:
    """Return the placeholder without a value that is in the name and in a requirement."""
    left = fill(pool.data, known).left
    needed = {_name_of(p) for p in left if p.pointer[: len(_REQUIREMENTS)] == _REQUIREMENTS}
    names = (p for p in left if p.pointer == ("metadata", "name"))
    return next((p for p in names if _name_of(p) in needed), None)


def _fill_placeholders(
    found: Collection, known: dict[str, str]
) -> tuple[set[str], list[tuple[Entry, Finding]]]:
    """Fill in the placeholders that have a default or a known value.

    Return the names of classes that are named after placeholders where a NodePool refers to them,
    and the placeholders that are left.
    """
    named_classes: set[str] = set()
    left: list[tuple[Entry, Finding]] = []
    for item in list(found.items):
        is_workload = BUILT_IN.reads(item.entry.api_version, item.kind)
        filled = fill(item.data, known, is_workload=is_workload)
        if filled.done:
            _replace_placeholders(found, item, filled)
        if is_workload and not _keep_workload(found, item, filled):
            continue
        unnamed = filled.left if is_workload else _name_placeholders(found, item, filled.left)
        if any(p.pointer == _REFERENCE for p in filled.left):
            named_classes.add(class_of(item))
        left += [(item.entry, finding) for finding in without_placeholders((), unnamed)]
    return named_classes, left


def _replace_placeholders(found: Collection, item: SourceObject, filled: Filled) -> None:
    """Give an object the values of its placeholders, with a note for each."""
    item.change(partial(_take_values, filled=filled.data))
    for text, value in {p.text: value for p, value in filled.done}.items():
        message = f"{text} is replaced by {value}"
        found.note(item, Note(Severity.INFO, ("spec",), message))


def _keep_workload(found: Collection, item: SourceObject, filled: Filled) -> bool:
    """Return whether a workload is taken over, and leave it out if it cannot be read.

    A placeholder in its name, or in a field that a plan needs, has no value here. What the API
    server refuses is in no cluster. Either would be the end of every plan.
    """
    named = [p for p in filled.left if p.pointer[:1] == ("metadata",)]
    if named:
        what = f"the name of {item.kind} {item.name} has the placeholder {named[0].text}"
    elif (fault := fault_of_workload(item, filled.left)) is None:
        return True
    elif fault.code != PLACEHOLDER:
        note_refused(found, item, fault, "the API server")
        return False
    else:
        what = f"{field_path(fault.pointer)} of {item.kind} {item.name}: {fault.message}"
    found.items.remove(item)
    found.leave_out(item.place, what, "write its value to take it over")
    return False


def _assume_images(found: Collection, known: dict[str, str]) -> None:
    """Give an image alias whose family or version is a placeholder the newest of its family.

    No plan without the account depends on the version. Without a family it is Amazon Linux 2023.
    """
    for item in found.of_kind("EC2NodeClass"):
        terms = value_at(item.data, _IMAGES)
        for number, term in enumerate(as_list(terms)):
            alias = term.get("alias") if isinstance(term, dict) else None
            if not isinstance(alias, str) or not fill({"value": alias}, known).left:
                continue
            family = alias.partition("@")[0]
            is_open = "@" not in alias or fill({"value": family}, known).left
            assumed = "al2023@latest" if is_open else f"{family}@latest"
            pointer: Pointer = (*_IMAGES, number, "alias")
            message = f"{alias} has no value; assumed: {assumed}"
            found.note(item, Note(Severity.WARNING, pointer, message, "write the one in use"))
            item.change(partial(_set_alias, number=number, alias=assumed))


def _set_alias(data: JsonDict, number: int, alias: str) -> None:
    data["spec"]["amiSelectorTerms"][number]["alias"] = alias


def _assume_zones(found: Collection, known: dict[str, str]) -> None:
    """Leave out requirements on zones that are a placeholder: nodes may then be in every zone.

    The list of a cluster's zones is mostly known to Terraform alone, and mostly complete.
    """
    for pool in found.of_kind("NodePool"):
        requirements = value_at(pool.data, _REQUIREMENTS)
        for number, one in reversed(list(enumerate(as_list(requirements)))):
            text = _only_placeholder(one, known)
            if text:
                message = f"the zones {text} are not known; nodes may be in every zone"
                hint = f"write a requirement on {_ZONE} if they may not"
                pointer: Pointer = (*_REQUIREMENTS, number)
                found.note(pool, Note(Severity.WARNING, pointer, message, hint))
                pool.change(partial(_remove_requirement, number=number))


def _only_placeholder(requirement: object, known: dict[str, str]) -> str:
    """Return the placeholder that stands for the zones of a requirement, empty if none does."""
    if not isinstance(requirement, dict) or requirement.get("operator") != "In":
        return ""
    values = requirement.get("values")
    texts = values if isinstance(values, list) else [values]
    if requirement.get("key") not in (_ZONE, _OLD_ZONE):
        return ""
    if len(texts) != 1 or not isinstance(texts[0], str):
        return ""
    text = texts[0].strip()
    return text if _is_one_placeholder(text, known) else ""


def _remove_requirement(data: JsonDict, number: int) -> None:
    del data["spec"]["template"]["spec"]["requirements"][number]


def _take_values(data: JsonDict, filled: JsonDict) -> None:
    """Change ``data`` to ``filled`` in place, so that comments and quotes are kept."""
    if list(data) != list(filled):
        data.clear()
        data.update(filled)
        return
    for key, value in filled.items():
        data[key] = _taken(data[key], value, key)


def _taken(old: object, value: object, key: str) -> object:
    if isinstance(old, dict) and isinstance(value, dict):
        _take_values(old, value)
        return old
    if isinstance(old, list) and isinstance(value, list):
        for number, item in enumerate(value):
            old[number] = _taken(old[number], item, key)
        return old
    if isinstance(old, str) and isinstance(value, str) and old != value:
        return resolve_scalar(value) if key in _NUMBERS else type(old)(value)
    return old


def _complete_pools(found: Collection) -> None:
    """Give NodePools of templates the class and the requirements that their values leave open."""
    classes = [item.name for item in found.of_kind("EC2NodeClass")]
    for pool in found.of_kind("NodePool"):
        inner = value_at(pool.data, (*_TEMPLATE, "spec"))
        if not pool.is_made or not isinstance(inner, dict):
            continue
        missing: JsonDict = {}
        if not inner.get("nodeClassRef"):
            name = classes[0] if len(classes) == 1 else "default"
            missing["nodeClassRef"] = {
                "group": "karpenter.k8s.aws",
                "kind": "EC2NodeClass",
                "name": name,
            }
            message = f"names no nodeClassRef; assumed: EC2NodeClass {name}"
            found.note(pool, Note(Severity.WARNING, _TEMPLATE, message, "write the real one"))
        if inner.get("requirements") is None:
            missing["requirements"] = []
            message = "has no requirements; assumed: every instance type"
            found.note(pool, Note(Severity.WARNING, _TEMPLATE, message, "write those in use"))
        if missing:
            pool.change(partial(_complete_template, missing=missing))


def _complete_template(data: JsonDict, missing: JsonDict) -> None:
    data["spec"]["template"]["spec"].update(missing)


def _assume_classes(found: Collection, name: str, named: set[str]) -> None:
    """Add an EC2NodeClass for each that NodePools refer to and that is in no file, with a note.

    Terraform or a chart elsewhere makes it. Where a class has nearly that name, the reference is
    more likely to be wrong, and nothing is assumed, unless it is one of ``named``. ``name`` is that
    of the cluster.
    """
    classes = [item.name for item in found.items if item.kind == "EC2NodeClass"]
    for pool in found.of_kind("NodePool"):
        reference = class_of(pool)
        if not reference or reference in classes or other_provider(pool):
            continue
        if reference not in named and _is_like_another(reference, classes):
            continue
        classes.append(reference)
        spec: JsonDict = {"role": _role(name), "amiSelectorTerms": [{"alias": "al2023@latest"}]}
        data: JsonDict = {
            "apiVersion": "karpenter.k8s.aws/v1",
            "kind": "EC2NodeClass",
            "metadata": {"name": reference},
            "spec": spec | {key: _terms(name) for key in _TERMS},
        }
        found.items.append(SourceObject(pool.entry, None, data))
        message = (
            f"EC2NodeClass {reference} is in no file; assumed: al2023@latest, role {_role(name)}, "
            f"subnets and security groups with karpenter.sh/discovery: {name}"
        )
        hint = f"compare nodes/ec2nodeclass-{reference}.yaml with the class in the cluster"
        found.note(pool, Note(Severity.WARNING, ("spec",), message, hint))


def _is_like_another(reference: str, classes: Sequence[str]) -> bool:
    """Return whether a name is part of that of a class, the reverse, or nearly equal to it."""
    if any(reference in one or one in reference for one in classes):
        return True
    return nearest(reference, classes) is not None


def _complete_classes(found: Collection, name: str) -> None:
    """Give classes the role and the selectors that the files leave open.

    Those of Karpenter's alpha versions had them from its settings or a launch template, and EKS
    Auto Mode has a role of its own; a template gets them from values that are not in the files.
    ``name`` is that of the cluster.
    """
    for item in found.of_kind("EC2NodeClass"):
        is_auto_mode = group_of(item.entry.api_version) == AUTO_MODE
        is_alpha = item.entry.api_version.endswith(ALPHA_VERSIONS)
        missing: JsonDict = {}
        if item.is_made or is_alpha or is_auto_mode:
            missing = _missing_fields(item.data.get("spec"), name)
        if not missing:
            continue
        item.change(partial(_complete, missing=missing))
        parts = [f"role {_role(name)}"] if "role" in missing else []
        if len(missing) > len(parts):
            kinds = " and ".join(_KINDS[key] for key in _TERMS if key in missing)
            parts.append(f"{kinds} with karpenter.sh/discovery: {name}")
        message = f"names no {' and no '.join(missing)}; assumed: {', '.join(parts)}"
        hint = "compare them with those of the account"
        found.note(item, Note(Severity.WARNING, ("spec",), message, hint))


def _missing_fields(spec: object, name: str) -> JsonDict:
    """Return the role and the selectors that a class lacks, for a cluster of that name."""
    if not isinstance(spec, dict):
        return {}
    missing: JsonDict = {key: _terms(name) for key in _TERMS if not spec.get(key)}
    if spec.get("role") or spec.get("instanceProfile"):
        return missing
    return {"role": _role(name), **missing}


def _role(name: str) -> str:
    return f"KarpenterNodeRole-{name}"[:64]


def _terms(name: str) -> list[JsonDict]:
    return [{"tags": {"karpenter.sh/discovery": name}}]


def _complete(data: JsonDict, missing: JsonDict) -> None:
    data["spec"].update(missing)


def _name_placeholders(
    found: Collection, item: SourceObject, left: Sequence[Placeholder]
) -> list[Placeholder]:
    """Write a name for each placeholder that stands for one; return the others.

    It is that of the variable, so that equal placeholders have equal names in all objects.
    """
    named: dict[str, Placeholder] = {}
    others: list[Placeholder] = []
    for placeholder in left:
        if isinstance(value_at(item.data, placeholder.pointer), str) and _is_name(
            placeholder.pointer
        ):
            name = _name_of(placeholder)
            item.change(partial(_replace, placeholder=placeholder, name=name))
            named.setdefault(placeholder.text, placeholder)
        else:
            others.append(placeholder)
    for text, placeholder in named.items():
        message = f"{text} has no value; it is named {_name_of(placeholder)}"
        found.note(item, Note(Severity.WARNING, placeholder.pointer, message, "write the real one"))
    return others


def _is_name(pointer: Pointer) -> bool:
    """Return whether a field of a NodePool or an EC2NodeClass is a name that the user chooses."""
    if pointer == ("metadata", "name") or pointer[:2] == ("metadata", "labels"):
        return True
    inner = pointer[len(_TEMPLATE) :] if pointer[: len(_TEMPLATE)] == _TEMPLATE else ()
    is_taint = inner[:1] == ("spec",) and inner[1:2] in (("taints",), ("startupTaints",))
    return (
        pointer == _REFERENCE
        or inner[:2] == ("metadata", "labels")
        or (is_taint and inner[-1] == "value")
    )


def _name_of(placeholder: Placeholder) -> str:
    """Return the last part of the name of a variable, in the form of names and labels."""
    last = re.split(r"[./\[\]]+", re.split(r"[^\w.\[\]-]", placeholder.name)[0])
    words = _WORDS.findall(next((part for part in reversed(last) if part), ""))
    return "-".join(words).lower()[:_NAME_MAX].strip("-") or "unnamed"


def _replace(data: JsonDict, placeholder: Placeholder, name: str) -> None:
    above = value_at(data, placeholder.pointer[:-1])
    if isinstance(above, dict | list):
        key = placeholder.pointer[-1]
        above[key] = above[key].replace(placeholder.text, name)  # type: ignore[index] # as found
