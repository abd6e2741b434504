"""The family of the images of an EC2NodeClass: as set, or that of its alias.

Rules and hashes read it from data, because `reconciler validate` starts without msgspec.
"""

from __future__ import annotations

from typing import Final

from reconciler.model.json import JsonObject

ALIAS_FAMILIES: Final = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}
"""The families that an alias can name."""


def image_family(spec: JsonObject) -> str:
    """Return the image family: as set, otherwise that of the first alias, otherwise Custom."""
    family = spec.get("amiFamily")
    if family is not None:
        return str(family)
    terms = spec.get("amiSelectorTerms") or ()
    alias = next((term["alias"] for term in terms if term.get("alias")), "")
    return ALIAS_FAMILIES.get(alias.partition("@")[0], "Custom")
