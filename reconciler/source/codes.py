"""What the code of each finding means and how to resolve it, for ``explain CODE`` and SARIF.

``schemas/codes.toml`` says so of the codes that this package chooses; those of rules that a schema
states (``x-kubernetes-validations``) come from the schemas.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from reconciler._resources import resource_path
from reconciler.source.schema import load_schema


class FindingCode(NamedTuple):
    """What a code means, and what to do about a finding with it."""

    meaning: str
    remedy: str


def chosen_codes() -> dict[str, FindingCode]:
    """Return the codes of ``schemas/codes.toml``."""
    with open(resource_path("schemas", "codes.toml"), "rb") as file:
        found = tomllib.load(file)
    return {code: FindingCode(**texts) for code, texts in found.items()}


def known_codes() -> dict[str, FindingCode]:
    """Return all codes, with those of the rules that the schemas state."""
    found = chosen_codes()
    for name in (
        "nodepool.v1",
        "nodeclaim.v1",
        "nodeoverlay.v1alpha1",
        "ec2nodeclass.v1",
        "capacitybuffer.v1beta1",
    ):
        for rule, message in _rules(load_schema(name)):
            meaning = f"The API server rejects the object: {message.rstrip('.')}."
            found.setdefault(rule, FindingCode(meaning, "Correct the field that is shown."))
    return dict(sorted(found.items()))


def _rules(schema: object) -> Iterator[tuple[str, str]]:
    """Yield the name and message of each rule of a schema, but for rules about updates."""
    if isinstance(schema, dict):
        for rule in schema.get("x-kubernetes-validations", ()):
            if "oldSelf" not in rule["rule"]:
                yield rule["name"], rule["message"]
        for below in schema.values():
            yield from _rules(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _rules(below)
