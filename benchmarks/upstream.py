"""What a release of Karpenter has that this project does not know yet.

``python -m benchmarks.upstream CHECKOUT... [--since CHECKOUT...]`` reads checkouts of Karpenter and
of its AWS provider (``go mod download -json`` prints where a release is) and lists the fields of
the CRDs, feature gates, flags, labels and annotations, reasons of events, and metrics that neither
the schemas nor the code nor the documentation name. ``--since`` lists instead what was added and
removed since older checkouts, and marks what is unknown.

The sources are read as text, by the few forms in which both repositories declare these names. A
name that is built in another way is not found. The command ends with 1 if something is unknown.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
SCHEMAS: Final = {
    "NodePool": "nodepool.v1.json",
    "NodeOverlay": "nodeoverlay.v1alpha1.json",
    "EC2NodeClass": "ec2nodeclass.v1.json",
    "CapacityBuffer": "capacitybuffer.v1beta1.json",
}
KINDS: Final = ("field", "gate", "flag", "label", "event", "metric")

_CONSTANT: Final = re.compile(r'^\s*(?:const\s+)?(\w+)\s*(?:\w+\s*)?=\s*"([^"\n]*)"', re.MULTILINE)
_KEY: Final = re.compile(
    r'^\s*\w+\s*=\s*(?:(\w*)\.?(Group)\s*\+\s*"(/[\w.-]+)"|"([\w.-]+\.[\w.-]+/[\w.-]+)")',
    re.MULTILINE,
)
_FLAG: Final = re.compile(r'\.\w*Var(?:WithEnv)?\(&\w[\w.]*,\s*"([a-z][a-z0-9-]*)"')
_GATE: Final = re.compile(r'FeatureGate\{\s*Name:\s*"(\w+)"|gateMap\["(\w+)"\]')
_REASON: Final = re.compile(r'\bReason:\s*"(\w+)"')
_OPTS: Final = re.compile(r"(?:Counter|Gauge|Histogram|Summary)Opts\{([^}]*)\}")
_PART: Final = re.compile(r'\b(Namespace|Subsystem|Name):\s*(?:"([^"]*)"|(?:\w+\.)?(\w+))')
_CORE_GROUP: Final = "karpenter.sh"

Names = Mapping[str, frozenset[str]]


def declared_names(checkout: Path) -> dict[str, frozenset[str]]:
    """Return the names that a checkout declares, by their kind."""
    texts = {path: path.read_text("utf-8", "replace") for path in _go_files(checkout)}
    constants = {name: value for text in texts.values() for name, value in _CONSTANT.findall(text)}
    group = _group(checkout)
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    found["field"].update(_crd_fields(checkout))
    for path, text in texts.items():
        found["gate"].update(core or aws for core, aws in _GATE.findall(text))
        found["metric"].update(_metrics(text, constants))
        if "options" in path.parts:
            found["flag"].update(_FLAG.findall(text))
        if "apis" in path.parts:
            found["label"].update(_keys(text, group))
        if path.name == "reason.go":
            found["event"].update(value for _, value in _CONSTANT.findall(text))
        elif "events" in path.parts:
            found["event"].update(_REASON.findall(text))
    return {kind: frozenset(names) for kind, names in found.items()}


def known_names(root: Path = ROOT) -> tuple[frozenset[str], str]:
    """Return the fields that the schemas accept, and the text that names what else is known."""
    fields: set[str] = set()
    for kind, name in SCHEMAS.items():
        path = root / "schemas" / name
        if path.exists():
            fields.update(_fields(kind, msgspec.json.decode(path.read_bytes())))
    pages = [root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    code = sorted((root / "reconciler").rglob("*.py"))
    return frozenset(fields), "\n".join(p.read_text() for p in (*pages, *code) if p.exists())


def unknown_names(declared: Names, fields: frozenset[str], text: str) -> dict[str, list[str]]:
    """Return the declared names that are in neither, by their kind."""
    words = frozenset(re.findall(r"[\w./-]*\w", text))
    return {
        kind: sorted(
            name
            for name in declared[kind]
            if (not _is_field(name, fields) if kind == "field" else not _is_named(name, words))
        )
        for kind in KINDS
    }


def _is_field(name: str, fields: frozenset[str]) -> bool:
    """Return whether a field is accepted: itself, or as part of one with arbitrary content.

    One with arbitrary content is also accepted where the schema lists what it may contain.
    """
    steps = name.split(".")
    return name.removesuffix(".*") in fields or any(
        ".".join((*steps[:count], "*")) in fields for count in range(1, len(steps))
    )


def _is_named(name: str, words: frozenset[str]) -> bool:
    """Return whether a word names it: as it is, as an environment variable, or as a flag."""
    return not words.isdisjoint({name, name.upper().replace("-", "_"), f"--{name}"})


def _go_files(checkout: Path) -> Iterator[Path]:
    for path in sorted((checkout / "pkg").rglob("*.go")):
        is_test = path.name.endswith("_test.go") or path.name.startswith("zz_")
        if not is_test and not {"fake", "test"} & set(path.parts):
            yield path


def _group(checkout: Path) -> str:
    path = checkout / "pkg" / "apis" / "apis.go"
    text = path.read_text() if path.exists() else ""
    return dict(_CONSTANT.findall(text)).get("Group", _CORE_GROUP)


def _keys(text: str, group: str) -> Iterator[str]:
    for package, of_group, suffix, literal in _KEY.findall(text):
        if of_group:
            yield (_CORE_GROUP if package == "coreapis" else group) + suffix
        else:
            yield literal


def _metrics(text: str, constants: Mapping[str, str]) -> Iterator[str]:
    for options in _OPTS.findall(text):
        parts = {
            part: literal or constants.get(name, "")
            for part, literal, name in _PART.findall(options)
        }
        if parts.get("Name"):
            words = (parts.get(part, "") for part in ("Namespace", "Subsystem", "Name"))
            yield "_".join(word for word in words if word)


def _crd_fields(checkout: Path) -> Iterator[str]:
    for path in sorted((checkout / "pkg" / "apis" / "crds").glob("*.yaml")):
        crd = msgspec.yaml.decode(path.read_bytes())
        kind = crd["spec"]["names"]["kind"]
        if kind in SCHEMAS:
            for version in crd["spec"]["versions"]:
                yield from _fields(kind, version["schema"]["openAPIV3Schema"])


def _fields(kind: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of a schema's fields below ``spec``, and their values if listed.

    An object with arbitrary keys ends with ``*``.
    """
    spec = schema.get("properties", {}).get("spec", {})
    yield from _paths(f"{kind}.spec", spec, schema.get("$defs", {}))


def _paths(at: str, schema: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[str]:
    schema = shared.get(schema.get("$ref", "").removeprefix("#/$defs/"), schema)
    for value in schema.get("enum", ()):
        yield f"{at}={value}"
    if "items" in schema:
        yield from _paths(f"{at}[]", schema["items"], shared)
    if schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{at}.*"
    for name, below in schema.get("properties", {}).items():
        yield f"{at}.{name}"
        yield from _paths(f"{at}.{name}", below, shared)


def _merged(checkouts: Iterable[Path]) -> dict[str, frozenset[str]]:
    all_names = [declared_names(checkout) for checkout in checkouts]
    return {kind: frozenset().union(*(names[kind] for names in all_names)) for kind in KINDS}


def report(newer: Names, older: Names | None, unknown: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines to print: what is unknown, or all changes since an older release."""
    lines: list[str] = []
    for kind in KINDS:
        if older is None:
            lines += [f"{kind:7}{name}" for name in unknown[kind]]
            continue
        marks = dict.fromkeys(unknown[kind], "  (unknown)")
        added, removed = newer[kind] - older[kind], older[kind] - newer[kind]
        lines += [f"+ {kind:7}{name}{marks.get(name, '')}" for name in sorted(added)]
        lines += [f"- {kind:7}{name}" for name in sorted(removed)]
    return lines


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream")
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--since", nargs="+", type=Path, metavar="CHECKOUT")
    parsed = parser.parse_args(words)
    for checkout in (*parsed.checkouts, *(parsed.since or ())):
        if not (checkout / "pkg").is_dir():
            parser.error(f"{checkout} is not a checkout of Karpenter: it has no folder pkg")
    newer = _merged(parsed.checkouts)
    older = _merged(parsed.since) if parsed.since else None
    new = newer if older is None else {kind: newer[kind] - older[kind] for kind in KINDS}
    unknown = unknown_names(new, *known_names())
    print(*report(newer, older, unknown), sep="\n")
    return 1 if any(unknown.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
