"""EC2NodeClasses of ``v1beta1`` and AWSNodeTemplates of ``v1alpha1`` as EC2NodeClasses of ``v1``.

An object is changed in place, so that comments stay where the caller's mappings keep them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.desired.migration.nodepool import mapping
from reconciler.desired.migration.note import Note, changed, dropped, unfinished
from reconciler.desired.migration.selectors import TERMS_MAX, TooManyTermsError, terms_of
from reconciler.model.json import JsonDict

VERSION: Final = "karpenter.k8s.aws/v1"

_SELECTORS: Final = {
    "subnetSelector": "subnetSelectorTerms",
    "securityGroupSelector": "securityGroupSelectorTerms",
    "amiSelector": "amiSelectorTerms",
}
_ALIASES: Final = {
    "AL2": "al2@latest",
    "AL2023": "al2023@latest",
    "Bottlerocket": "bottlerocket@latest",
    "Windows2019": "windows2019@latest",
    "Windows2022": "windows2022@latest",
    "Windows2025": "windows2025@latest",
}
_FORMER_HOP_LIMIT: Final = 2
_REMOVED: Final = {
    "launchTemplate": "launch templates of your own are not supported since v1beta1",
    "launchTemplateName": "launch templates of your own are not supported since v1beta1",
}


def migrate_node_class(data: JsonDict, default_profile: str = "") -> list[Note]:
    """Turn a node class of an older version, or one with its spellings, into one of ``v1``.

    ``default_profile`` is the instance profile of classes that name neither a role nor a profile,
    a former global setting of Karpenter.
    """
    notes: list[Note] = []
    version, kind = data.get("apiVersion"), data.get("kind")
    is_alpha = kind == "AWSNodeTemplate"
    is_old = version != VERSION
    if is_old:
        what = f"{kind} {version}" if is_alpha else f"{version}"
        notes.append(changed(("apiVersion",), f"{what} → EC2NodeClass {VERSION}"))
        data["apiVersion"], data["kind"] = VERSION, "EC2NodeClass"
    spec = mapping(data, "spec")
    notes += _selectors(spec)
    notes += _removed(spec)
    if is_alpha:
        notes += _identity(spec, default_profile)
        if not spec.get("amiFamily"):
            spec["amiFamily"] = "AL2"
            notes.append(changed(("spec", "amiFamily"), "the former default AL2 is written out"))
    notes += _images(spec)
    if is_old:
        notes += _metadata_options(spec)
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


def _selectors(spec: JsonDict) -> Iterator[Note]:
    for old, new in _SELECTORS.items():
        selector = spec.pop(old, None)
        if not isinstance(selector, dict) or new in spec:
            continue
        try:
            spec[new] = terms_of(selector)
        except TooManyTermsError:
            message = f"has more than {TERMS_MAX} alternatives"
            yield unfinished(("spec", old), message, f"write {new} by hand, with fewer terms")
            continue
        yield changed(("spec", old), f"became {new}")


def _removed(spec: JsonDict) -> Iterator[Note]:
    for key, why in _REMOVED.items():
        if spec.pop(key, None) is not None:
            yield dropped(("spec", key), why, "use userData, tags and blockDeviceMappings instead")


def _identity(spec: JsonDict, default_profile: str) -> Iterator[Note]:
    """Give an AWSNodeTemplate without an instance profile the former default."""
    if spec.get("role") or spec.get("instanceProfile"):
        return
    if default_profile:
        spec["instanceProfile"] = default_profile
        yield changed(("spec", "instanceProfile"), "the former defaultInstanceProfile")
    else:
        message = "names neither a role nor an instanceProfile"
        yield unfinished(("spec", "role"), message, "set spec.role to the IAM role of the nodes")


def _images(spec: JsonDict) -> Iterator[Note]:
    """Write the images out that an older class selected by its family alone."""
    family = spec.get("amiFamily")
    if family == "Ubuntu":
        spec["amiFamily"] = "Custom"
        message = "Ubuntu was removed in v1; Custom needs userData that starts the kubelet"
        yield unfinished(("spec", "amiFamily"), message, "check amiSelectorTerms and userData")
    if spec.get("amiSelectorTerms"):
        return
    alias = _ALIASES.get(family) if isinstance(family, str) else None
    if alias is not None:
        spec["amiSelectorTerms"] = [{"alias": alias}]
        yield changed(("spec", "amiFamily"), f"amiSelectorTerms with alias {alias} is written out")
    else:
        message = "v1 requires amiSelectorTerms, and the family has no alias"
        hint = "add amiSelectorTerms with an alias, an id, a name or tags"
        yield unfinished(("spec", "amiSelectorTerms"), message, hint)


def _metadata_options(spec: JsonDict) -> Iterator[Note]:
    options = mapping(spec, "metadataOptions")
    if "httpPutResponseHopLimit" not in options:
        options["httpPutResponseHopLimit"] = _FORMER_HOP_LIMIT
        yield changed(
            ("spec", "metadataOptions"),
            "httpPutResponseHopLimit 2 is written out, the former default (today's is 1)",
        )
