"""A frequent trap: kustomize renames an EC2NodeClass, and the NodePools still name it as before.

kustomize follows references only in the kinds that it knows. ``nodeClassRef`` is not one of them
without a nameReference configuration (kustomize's ``configurations`` field).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from reconciler.desired.fleet import RENAMED, SourceFile
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import as_text
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Document, Pointer
from reconciler.source.finding import field_path
from reconciler.source.schema import value_at

CODE: Final = RENAMED
CONFIGURATION: Final = (
    "{nameReference: [{kind: EC2NodeClass, group: karpenter.k8s.aws, fieldSpecs: "
    "[{kind: NodePool, group: karpenter.sh, path: spec/template/spec/nodeClassRef/name}]}]}"
)
"""The content of the file that makes kustomize follow ``nodeClassRef``."""
_REFERENCE: Final[Pointer] = ("spec", "template", "spec", "nodeClassRef", "name")


def _renamed(name: str, expected: str, classes: Collection[str]) -> str:
    """Return the class that kustomize has probably renamed from ``name``, empty if none is."""
    if expected in classes:
        return expected
    return min((one for one in classes if name in one), default="")


def broken_references(
    file: SourceFile, prefix: str, suffix: str, kustomization: str
) -> Iterator[Diagnostic]:
    """Yield a finding for each NodePool whose class kustomize has renamed.

    ``prefix`` and ``suffix`` are those of the kustomization ``kustomization``.
    """
    documents, _ = file.documents()
    classes = {_name(d) for d in documents if _kind(d) == "EC2NodeClass"}
    for document in documents:
        if _kind(document) != "NodePool":
            continue
        name = value_at(document.data, _REFERENCE)
        if not isinstance(name, str) or name in classes:
            continue
        renamed = _renamed(name, f"{prefix}{name}{suffix}", classes)
        if not renamed:
            continue
        message = (
            f"NodePool {quote_value(_name(document))} launches nothing: it refers to EC2NodeClass "
            f"{quote_value(name)}, which kustomize has renamed to {quote_value(renamed)} "
            "without changing nodeClassRef"
        )
        hint = (
            f"add `configurations: [namereference.yaml]` to {kustomization}, and next to it "
            f"namereference.yaml: {CONFIGURATION}"
        )
        yield Diagnostic(
            Severity.WARNING,
            CODE,
            message,
            document.place(_REFERENCE),
            field_path(_REFERENCE),
            hint,
        )


def _kind(document: Document) -> str:
    return str(document.data.get("kind", "")) if isinstance(document.data, dict) else ""


def _name(document: Document) -> str:
    return as_text(value_at(document.data, ("metadata", "name")))
