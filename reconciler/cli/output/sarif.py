"""Findings as SARIF 2.1.0, which code-scanning services show beside the lines of a change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from reconciler import __version__
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "FLEET"

HELP: Final = {
    "alias-bomb": "YAML aliases must not expand to more data than a file may contain.",
    "bad-format": "A value has a format that the API server rejects.",
    "bad-schedule": "The schedule of a budget is not a valid cron expression.",
    "duplicate-key": "A mapping has a duplicate key, which Kubernetes rejects.",
    "duplicate-name": "Two objects of the same kind have the same name.",
    "empty-fleet": "The folder contains no NodePool.",
    "gate-is-off": "A field has no effect because a feature gate is off.",
    "idle-values": "A requirement has values that its operator ignores.",
    "indentation": "A line is indented by the wrong number of columns.",
    "merge-conflict": "A file contains an unresolved merge conflict.",
    "missing-field": "A required field is missing.",
    "missing-kind": "An object has no apiVersion or kind.",
    "missing-nodeclass": "A NodePool references an EC2NodeClass that is not in the folder.",
    "not-allowed": "A value is not one of the allowed values.",
    "old-spelling": "A field or value has the spelling of an older API version.",
    "old-version": "An object has an older API version.",
    "out-of-range": "A number is out of range.",
    "skipped-kinds": "Objects of kinds that the engine ignores.",
    "syntax": "A file is not valid YAML.",
    "unknown-instance-family": "An instance family is not in the bundled catalogue.",
    "unknown-instance-type": "An instance type is not in the bundled catalogue.",
    "unknown-zone": "A zone is not in the bundled catalogue.",
    "unknown-field": "A field is unknown, often because of a typo.",
    "wrong-type": "A value has the wrong type for its field.",
}
"""What a code means in general; a code that is not here explains itself."""


def render_sarif(diagnostics: Sequence[Diagnostic], folder: str = "") -> str:
    """Return one run with a rule for each code that occurs.

    ``folder`` is where the fleet lies in its repository: paths are written from the top of it.
    """
    codes = sorted({d.code for d in diagnostics})
    driver = {
        "name": "reconciler",
        "semanticVersion": __version__,
        "rules": [_rule(code) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The top of the repository."}}},
        "results": [_result(d, codes.index(d.code), folder) for d in diagnostics],
    }
    data = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _rule(code: str) -> JsonDict:
    words = code.replace("-", " ")
    text = HELP.get(code, f"{words[:1].upper()}{words[1:]}.")
    name = "".join(part[:1].upper() + part[1:] for part in code.split("-"))
    return {"id": code, "name": name, "shortDescription": {"text": text}, "help": {"text": text}}


def _result(diagnostic: Diagnostic, rule: int, folder: str) -> JsonDict:
    what = f"{diagnostic.path}: " if diagnostic.path else ""
    hint = f" ({diagnostic.hint})" if diagnostic.hint else ""
    result: JsonDict = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": f"{what}{diagnostic.message}{hint}"},
    }
    place = diagnostic.place
    if place is not None:
        path = f"{folder}/{place.file}" if folder else place.file
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path), "uriBaseId": _ROOT},
                    "region": {"startLine": place.line, "startColumn": place.column},
                }
            }
        ]
    return result
