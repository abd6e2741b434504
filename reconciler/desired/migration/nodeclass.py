"""EC2NodeClasses of ``v1beta1`` and AWSNodeTemplates of ``v1alpha1`` as EC2NodeClasses of ``v1``.

An object is changed in place, so that comments stay where the caller's mappings keep them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from reconciler.desired.migration.nodepool import ensure_mapping
from reconciler.desired.migration.objects import Note, change_note, incomplete_note, removal_note
from reconciler.desired.spellings import ALIASES_OF_FAMILIES, TERMS_OF_SELECTORS
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value

TERMS_MAX: Final = 30
"""The maximum number of terms of a selector in Karpenter's schema."""

_IDS: Final = ("aws-ids", "aws::ids", "aws:ids")
_NAMES: Final = ("aws::name", "aws:name")
_OWNERS: Final = ("aws::owners", "aws:owners")

_ALTERNATIVE: Final = re.compile(r"(?:\$\{[^{}]*\}|[^,$]++|\$)+")

VERSION: Final = "karpenter.k8s.aws/v1"

_FORMER_HOP_LIMIT: Final = 2
_REMOVED: Final = {
    "launchTemplate": "launch templates of your own are not supported since v1beta1",
    "launchTemplateName": "launch templates of your own are not supported since v1beta1",
}


class TooManyTermsError(ValueError):
    """The alternatives of a selector give more terms than a selector may have."""


def selector_terms(selector: JsonDict) -> list[JsonDict]:
    """Return the terms that select what a selector of ``v1alpha1`` selects.

    Raises:
        TooManyTermsError: there are more than ``TERMS_MAX`` alternatives.
    """
    ids = _alternatives(selector, _IDS)
    if ids:
        return _check_count([{"id": one} for one in ids])
    special = {*_IDS, *_NAMES, *_OWNERS}
    tags = {key: _split(value) for key, value in selector.items() if key not in special}
    names = _alternatives(selector, _NAMES) or [""]
    owners = _alternatives(selector, _OWNERS) or [""]
    if prod(map(len, (names, owners, *tags.values()))) > TERMS_MAX:
        raise TooManyTermsError
    return [
        _term(dict(zip(tags, values, strict=True)), name, owner)
        for name, owner, *values in product(names, owners, *tags.values())
    ]


def _term(tags: dict[str, str], name: str, owner: str) -> JsonDict:
    term: JsonDict = {}
    if name:
        term["name"] = name
    if owner:
        term["owner"] = owner
    if tags:
        term["tags"] = tags
    return term


def _check_count(terms: list[JsonDict]) -> list[JsonDict]:
    if len(terms) > TERMS_MAX:
        raise TooManyTermsError
    return terms


def _alternatives(selector: JsonDict, keys: tuple[str, ...]) -> list[str]:
    return [one for key in keys if key in selector for one in _split(selector[key])]


def _split(value: object) -> list[str]:
    """Return the alternatives of a value; an empty one means any value, like ``*``.

    A comma in a placeholder separates nothing: ``${join(",", var.subnets)}``.
    """
    parts = [part.strip() for part in _ALTERNATIVE.findall(str(value))]
    return [part for part in parts if part] or ["*"]


def migrate_node_class(data: JsonDict, default_profile: str = "") -> list[Note]:
    """Turn a node class of an older version, or one with its spellings, into one of ``v1``.

    ``default_profile`` is the instance profile of classes that name neither a role nor a profile,
    a former global setting of Karpenter.
    """
    notes: list[Note] = []
    version, kind = data.get("apiVersion"), data.get("kind")
    is_alpha = kind == "AWSNodeTemplate"
    is_old = version != VERSION or is_alpha
    if is_old:
        what = f"{kind} {version}" if is_alpha else f"{version}"
        notes.append(change_note(("apiVersion",), f"{what} → EC2NodeClass {VERSION}"))
        data["apiVersion"], data["kind"] = VERSION, "EC2NodeClass"
    spec = ensure_mapping(data, "spec")
    notes += _migrate_selectors(spec)
    notes += _remove_unsupported(spec)
    if is_alpha:
        notes += _add_instance_profile(spec, default_profile)
        if not spec.get("amiFamily"):
            spec["amiFamily"] = "AL2"
            notes.append(
                change_note(("spec", "amiFamily"), "the former default AL2 is written out")
            )
    notes += _migrate_images(spec)
    if is_old:
        notes += _add_hop_limit(spec)
    return notes


def node_class_of_provider(name: object, provider: JsonDict, default_profile: str) -> JsonDict:
    """Return the EC2NodeClass for the inline ``provider`` of a Provisioner of the same name."""
    provider.pop("apiVersion", None)
    provider.pop("kind", None)
    data: JsonDict = {
        "apiVersion": "karpenter.k8s.aws/v1alpha1",
        "kind": "AWSNodeTemplate",
        "metadata": {"name": name},
        "spec": provider,
    }
    migrate_node_class(data, default_profile)
    return data


def _migrate_selectors(spec: JsonDict) -> Iterator[Note]:
    for old, new in TERMS_OF_SELECTORS.items():
        selector = spec.pop(old, None)
        if not isinstance(selector, dict) or new in spec:
            continue
        try:
            spec[new] = selector_terms(selector)
        except TooManyTermsError:
            message = f"has more than {TERMS_MAX} alternatives"
            yield incomplete_note(("spec", old), message, f"write {new} by hand, with fewer terms")
            continue
        yield change_note(("spec", old), f"became {new}")


def _remove_unsupported(spec: JsonDict) -> Iterator[Note]:
    for key, reason in _REMOVED.items():
        if spec.pop(key, None) is not None:
            yield removal_note(
                ("spec", key), reason, "use userData, tags and blockDeviceMappings instead"
            )


def _add_instance_profile(spec: JsonDict, default_profile: str) -> Iterator[Note]:
    """Give an AWSNodeTemplate without an instance profile the former default."""
    if spec.get("role") or spec.get("instanceProfile"):
        return
    if default_profile:
        spec["instanceProfile"] = default_profile
        yield change_note(("spec", "instanceProfile"), "the former defaultInstanceProfile")


def _migrate_images(spec: JsonDict) -> Iterator[Note]:
    """Add an explicit image selector to an older class that selected images only by family."""
    family = spec.get("amiFamily")
    if family == "Ubuntu":
        spec["amiFamily"] = "Custom"
        message = "Ubuntu was removed in v1; Custom needs userData that starts the kubelet"
        yield incomplete_note(("spec", "amiFamily"), message, "check amiSelectorTerms and userData")
    if spec.get("amiSelectorTerms"):
        return
    alias = ALIASES_OF_FAMILIES.get(family) if isinstance(family, str) else None
    if alias is not None:
        spec["amiSelectorTerms"] = [{"alias": alias}]
        yield change_note(
            ("spec", "amiFamily"), f"amiSelectorTerms with alias {alias} is written out"
        )
    else:
        why = "there is no amiFamily whose alias is one"
        if family:
            why = f"amiFamily {quote_value(family)} has no alias"
        message = f"v1 requires amiSelectorTerms, and {why}"
        hint = "add amiSelectorTerms with an alias, an id, a name or tags"
        yield incomplete_note(("spec", "amiSelectorTerms"), message, hint)


def _add_hop_limit(spec: JsonDict) -> Iterator[Note]:
    options = ensure_mapping(spec, "metadataOptions")
    if "httpPutResponseHopLimit" not in options:
        options["httpPutResponseHopLimit"] = _FORMER_HOP_LIMIT
        yield change_note(
            ("spec", "metadataOptions"),
            "httpPutResponseHopLimit 2 is written out, the former default (today's is 1)",
        )
