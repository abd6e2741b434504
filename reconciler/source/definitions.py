"""Leaves out the schemas of CustomResourceDefinitions, which no plan reads.

They are most of the lines of many repositories: a vendored operator brings ten thousands. The lines
become empty, so that the places of everything else stay.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_KIND: Final = "CustomResourceDefinition"
DEFINITION: Final = _KIND.encode()
"""What a file with definitions contains."""
_IS_DEFINITION: Final = re.compile(rf"^kind:[ \t]*[\"']?{_KIND}[\"']?[ \t]*\r?$", re.MULTILINE)
_START: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_SPEC: Final = re.compile(r"^spec:[ \t]*\r?\n", re.MULTILINE)
_NEXT_KEY: Final = re.compile(r"^[^\s#]", re.MULTILINE)


def without_schemas(text: str) -> str:
    """Return YAML without the content of ``spec`` in definitions, which are in block style."""
    if _KIND not in text:
        return text
    starts = [0, *(match.start() for match in _START.finditer(text) if match.start()), len(text)]
    return "".join(_without_schema(text[start:end]) for start, end in pairwise(starts))


def _without_schema(document: str) -> str:
    if not _IS_DEFINITION.search(document):
        return document
    spec = _SPEC.search(document)
    if spec is None:
        return document
    following = _NEXT_KEY.search(document, spec.end())
    end = following.start() if following is not None else len(document)
    lines = "\n" * document.count("\n", spec.end(), end)
    return document[: spec.end()] + lines + document[end:]
