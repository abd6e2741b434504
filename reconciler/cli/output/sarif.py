"""Findings as SARIF 2.1.0, which code-scanning services show next to the lines of a change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from reconciler import __version__
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict
from reconciler.source.codes import FindingCode, known_codes

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

_ROOT: Final = "FLEET"


def render_sarif(diagnostics: Sequence[Diagnostic], folder: str = "") -> str:
    """Return one run with a rule for each code that occurs.

    ``folder`` is the path of the fleet in its repository: paths start at the top of that.
    """
    codes, known = sorted({d.code for d in diagnostics}), known_codes()
    driver = {
        "name": "reconciler",
        "version": __version__,
        "rules": [_rule(code, known) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The top of the repository."}}},
        "results": [_result(d, codes.index(d.code), folder) for d in diagnostics],
    }
    data = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _rule(code: str, known: Mapping[str, FindingCode]) -> JsonDict:
    words = code.replace("-", " ")
    about = known.get(code) or FindingCode(f"{words[:1].upper()}{words[1:]}.", "")
    name = "".join(part[:1].upper() + part[1:] for part in code.split("-"))
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": about.meaning},
        "help": {"text": f"{about.meaning} {about.remedy}".rstrip()},
    }


def _without_links(text: str) -> str:
    """Return a text in which services find no link.

    SARIF has links as ``[text](target)`` in the plain text of messages (section 3.11.6), and
    messages quote what a repository contains.
    """
    return text.replace("](", "] (")


def _result(diagnostic: Diagnostic, rule: int, folder: str) -> JsonDict:
    what = f"{diagnostic.path}: " if diagnostic.path else ""
    hint = f" ({diagnostic.hint})" if diagnostic.hint else ""
    result: JsonDict = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": _without_links(f"{what}{diagnostic.message}{hint}")},
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
