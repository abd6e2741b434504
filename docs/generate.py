"""Write ``docs/configuration.md`` from the schemas, so that the two cannot disagree.

``python docs/generate.py`` rewrites it; a test holds the file to what this makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SCHEMAS = DOCS.parent / "schemas"
PAGE = DOCS / "configuration.md"
KINDS = (
    "reconciler.v1",
    "nodepool.v1",
    "nodeoverlay.v1alpha1",
    "ec2nodeclass.v1",
    "capacitybuffer.v1beta1",
)
INTRODUCTION = """# Configuration reference

Generated from `schemas/` by `python docs/generate.py`. Unknown keys are errors.

Settings of the engine itself come, from the least to the most specific, from built-in defaults,
`reconciler.yaml` at the root of the fleet folder, the operator's configuration file, the
environment (`RECONCILER_` and the key in capitals, words parted by `_`, levels by `__`), and
`--set key=value`. `reconciler config` prints the effective ones and where each came from.

The operator's configuration file has the form of `reconciler.yaml` and lies outside the fleet's
repository. `--config FILE` or `RECONCILER_CONFIG` names it. Relative paths in it (`state`,
`kubernetes.kubeconfig`) start at its own folder.

`reconciler.yaml` comes with every pull request, so some settings are errors there. These settings
choose credentials, endpoints or programs: `aws.endpointUrl`, `aws.roleArn`, `aws.externalId`,
`kubernetes.kubeconfig`, `kubernetes.context`, and a `state` that is a URL or leads out of the
fleet folder. Put them in the operator's file, the environment or a flag
([decision 13](decisions/0013-settings-of-the-operator.md)).
"""

Row = tuple[str, str, str, str]


def resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a reference to the same file followed."""
    reference = schema.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return schema
    target: dict[str, Any] = root["$defs"][reference.removeprefix("#/$defs/")]
    return {**target, **{k: v for k, v in schema.items() if k != "$ref"}}


def rows(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[Row]:
    """Yield path, type, default and meaning of every field below ``schema``."""
    for name, field in schema.get("properties", {}).items():
        if path == "" and name in ("apiVersion", "kind", "metadata", "status"):
            continue
        field = resolved(field, root)
        here = f"{path}.{name}" if path else name
        yield here, kind_of(field, root), default_of(field), field.get("description", "")
        yield from rows(field, root, here)
        items = resolved(field.get("items") or {}, root)
        yield from rows(items, root, f"{here}[]")
        values = field.get("additionalProperties")
        if isinstance(values, dict):
            yield from rows(resolved(values, root), root, f"{here}.NAME")


def kind_of(field: dict[str, Any], root: dict[str, Any]) -> str:
    """Return the type of a field in a few words."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " \\| ".join(f"`{v}`" for v in field["enum"])
    kind = field.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if text == "array":
        return f"list of {kind_of(resolved(field.get('items') or {}, root), root)}"
    return text


def default_of(field: dict[str, Any]) -> str:
    """Return the default as JSON, empty without one."""
    return f"`{json.dumps(field['default'])}`" if "default" in field else ""


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for name in KINDS:
        root = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
        title = "`reconciler.yaml`" if name.startswith("reconciler") else root["title"]
        parts.append(
            f"\n## {title}\n\n{root['description']}\n\n| field | type | default | meaning |"
        )
        parts.append("|---|---|---|---|")
        for path, kind, default, meaning in rows(root, root):
            text = " ".join(meaning.split()).replace("|", "\\|")
            parts.append(f"| `{path}` | {kind} | {default} | {text} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
