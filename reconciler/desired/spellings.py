"""Spellings of Karpenter's older documentation, and the current ones.

A spelling with exactly one current meaning is accepted with a warning and read as the current one
(``Spelling``); `reconciler validate --fix` rewrites it. A field that has moved or no longer exists
is an error that names what to write instead, where the schema would only report an unknown field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict, as_list, as_text
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.rewrite import replace_value
from reconciler.source.schema import value_at

CODE: Final = "old-spelling"

_DISRUPTION: Final[Pointer] = ("spec", "disruption")
_TEMPLATE: Final[Pointer] = ("spec", "template", "spec")
_REASONS: Final = {r.lower(): r for r in ("Underutilized", "Empty", "Drifted")}
TERMS_OF_SELECTORS: Final = {
    "subnetSelector": "subnetSelectorTerms",
    "securityGroupSelector": "securityGroupSelectorTerms",
    "amiSelector": "amiSelectorTerms",
}
"""The fields of v1 in place of those of older releases."""
ALIASES_OF_FAMILIES: Final = {
    "AL2": "al2@latest",
    "AL2023": "al2023@latest",
    "Bottlerocket": "bottlerocket@latest",
    "Windows2019": "windows2019@latest",
    "Windows2022": "windows2022@latest",
    "Windows2025": "windows2025@latest",
}
"""The images that a family selected alone before v1."""
_ANNOTATIONS: Final = {
    "karpenter.sh/do-not-evict": "karpenter.sh/do-not-disrupt",
    "karpenter.sh/do-not-consolidate": "karpenter.sh/do-not-disrupt",
}


class Spelling(NamedTuple):
    """An accepted older spelling: the field at ``pointer`` and how it is written today.

    ``key`` is the name of the field today, empty where only its ``value`` has another spelling.
    """

    pointer: Pointer
    value: str
    key: str = ""


def check_spellings(kind: str, data: JsonDict) -> list[Finding]:
    """Return the old spellings in an object; ``data`` may still hold nulls."""
    accepted = [_warning(old, data) for old in accepted_spellings(kind, data)]
    match kind:
        case "NodePool":
            moved = [*_disruption(data), *_claim(data, _TEMPLATE), *_annotations(data)]
        case "NodeClaim":
            moved = list(_claim(data, ("spec",)))
        case "EC2NodeClass":
            moved = list(_node_class(data))
        case _:
            moved = []
    return [*accepted, *moved]


def accepted_spellings(kind: str, data: JsonDict) -> list[Spelling]:
    """Return the older spellings in an object that are read as current ones."""
    match kind:
        case "NodePool":
            return [*_policy(data), *_reasons(data), *_class_version(data, _TEMPLATE)]
        case "NodeClaim":
            return list(_class_version(data, ("spec",)))
    return []


def modernize(kind: str, data: JsonDict) -> JsonDict:
    """Return an object in current spelling; one without older spellings is not copied."""
    for old in accepted_spellings(kind, data):
        rewritten = replace_value(data, old.pointer, old.value, old.key)
        assert isinstance(rewritten, dict), "an object stays one"
        data = rewritten
    return data


def _warning(old: Spelling, data: JsonDict) -> Finding:
    written = value_at(data, old.pointer)
    if old.key:
        message = f"is an older spelling of {old.key}, and is read as {old.key}: {old.value}"
        hint = f"write {old.key}: {old.value}"
    else:
        message = f'"{written}" is an older spelling, and is read as {old.value}'
        hint = f"write {old.value}"
    return Finding(
        CODE,
        old.pointer,
        message,
        f"{hint}, or run `reconciler validate --fix`",
        Severity.WARNING,
        of_key=bool(old.key),
    )


def _policy(data: dict[str, object]) -> Iterator[Spelling]:
    at = (*_DISRUPTION, "consolidationPolicy")
    if value_at(data, at) == "WhenUnderutilized":
        yield Spelling(at, "WhenEmptyOrUnderutilized")


def _reasons(data: dict[str, object]) -> Iterator[Spelling]:
    budgets = value_at(data, (*_DISRUPTION, "budgets"))
    for index, budget in enumerate(as_list(budgets)):
        reasons = budget.get("reasons") if isinstance(budget, dict) else None
        for number, reason in enumerate(as_list(reasons)):
            if isinstance(reason, str) and reason in _REASONS:
                at = (*_DISRUPTION, "budgets", index, "reasons", number)
                yield Spelling(at, _REASONS[reason])


def _class_version(data: dict[str, object], at: Pointer) -> Iterator[Spelling]:
    ref = value_at(data, (*at, "nodeClassRef"))
    if isinstance(ref, dict) and "group" not in ref:
        version = ref.get("apiVersion")
        group = version.partition("/")[0] if isinstance(version, str) else ""
        if group:
            yield Spelling((*at, "nodeClassRef", "apiVersion"), group, "group")


def _old_finding(pointer: Pointer, message: str, hint: str, *replaces: Pointer) -> Finding:
    of_key = message.startswith(("is now", "has moved"))
    return Finding(CODE, pointer, message, hint, of_key=of_key, replaces=replaces)


def _disruption(data: dict[str, object]) -> Iterator[Finding]:
    disruption = value_at(data, _DISRUPTION)
    if not isinstance(disruption, dict):
        return
    if "expireAfter" in disruption:
        hint = "move it to spec.template.spec.expireAfter"
        yield _old_finding((*_DISRUPTION, "expireAfter"), "has moved in v1", hint)
    if "consolidateAfter" in disruption and disruption["consolidateAfter"] is None:
        message = "null means 0s in v1; in v1beta1 it disabled consolidateAfter"
        at = (*_DISRUPTION, "consolidateAfter")
        yield Finding(CODE, at, message, "write 0s, or Never", Severity.WARNING)


def _claim(data: dict[str, object], at: Pointer) -> Iterator[Finding]:
    spec = value_at(data, at)
    if not isinstance(spec, dict):
        return
    if "kubelet" in spec:
        yield _old_finding(
            (*at, "kubelet"), "has moved in v1", "move it to spec.kubelet of the EC2NodeClass"
        )
    ref = spec.get("nodeClassRef")
    if isinstance(ref, dict) and "apiVersion" in ref and not list(_class_version(data, at)):
        here = (*at, "nodeClassRef")
        yield _old_finding(
            (*here, "apiVersion"),
            "is now group, without the version",
            "remove it" if "group" in ref else "write group: karpenter.k8s.aws",
            (*here, "group"),
        )


def _annotations(data: dict[str, object]) -> Iterator[Finding]:
    at: Pointer = ("spec", "template", "metadata", "annotations")
    annotations = value_at(data, at)
    for old, new in _ANNOTATIONS.items():
        if isinstance(annotations, dict) and old in annotations:
            message = f"is now {new} and no longer has an effect"
            yield Finding(CODE, (*at, old), message, "", Severity.WARNING, of_key=True)


def _node_class(data: dict[str, object]) -> Iterator[Finding]:
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return
    for old, new in TERMS_OF_SELECTORS.items():
        if old in spec:
            hint = f"write {new}: [{{tags: {{…}}}}]"
            yield _old_finding(("spec", old), f"is now {new}, a list of terms", hint, ("spec", new))
    alias = ALIASES_OF_FAMILIES.get(as_text(spec.get("amiFamily")))
    if alias and not spec.keys() & {"amiSelectorTerms", "amiSelector"}:
        message = "no longer selects an image alone"
        hint = f"write amiSelectorTerms: [{{alias: {alias}}}]"
        selector: Pointer = ("spec", "amiSelectorTerms")
        yield _old_finding(("spec", "amiFamily"), message, hint, selector)
    if spec.get("amiFamily") == "Ubuntu":
        hint = "write Custom, and select the image by id, name or tags"
        yield _old_finding(("spec", "amiFamily"), "Ubuntu was removed in v1", hint)
