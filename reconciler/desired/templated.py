"""YAML with placeholders that are not quoted, such as templates of Jinja and Ansible.

YAML reads ``{{ name }}`` as a mapping, whose key is another one. So placeholders are protected
while a text is parsed, and are texts in its data.
"""

from __future__ import annotations

import re
from typing import Final

from reconciler.desired.sources.protection import protect, restore
from reconciler.model.diagnostics import Diagnostic
from reconciler.source.document import Document, parse_documents

_EXPRESSION: Final = re.compile(
    r"\$\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}|\{\{[^{}\n]*\}\}|<%=?[^\n]{0,300}?%>|\$\([A-Z_]+\)"
)
_CONTROL: Final = re.compile(
    r"\{\{-?\s*(?:if|else|end|range|with|define|block|template|include)\b|\{%|%\{"
)
_COMMENT_LINE: Final = re.compile(r"^[ \t]*\{\{-?\s*/\*.*?\*/\s*-?\}\}[ \t]*$", re.MULTILINE)


def templated_documents(
    path: str, content: bytes, first_line: int = 1
) -> tuple[list[Document], list[Diagnostic]]:
    """Return the documents of a text with their placeholders as texts.

    ``first_line`` is the line of the file at which the text starts.
    """
    text = _COMMENT_LINE.sub("", content.decode("utf-8", "replace"))
    matches = list(_EXPRESSION.finditer(text))
    padded = "\n" * (first_line - 1) + protect(text, (m.span() for m in matches))
    documents, findings = parse_documents(path, padded.encode())
    expressions = [match[0] for match in matches]
    return [d._replace(data=restore(d.data, expressions)) for d in documents], findings


def has_control_flow(content: bytes) -> bool:
    """Return whether a template has conditions or loops, which only its renderer understands."""
    return _CONTROL.search(content.decode("utf-8", "replace")) is not None
