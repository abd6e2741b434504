"""A fleet in an editor, without the protocol: a text with ``|`` at the cursor."""

from __future__ import annotations

from pathlib import Path

from reconciler.assembly.inputs.checking import check_context
from reconciler.lsp.session import Completions, EditorSession

CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: node
  amiSelectorTerms: [{alias: al2023@v20250620}]
  subnetSelectorTerms: [{tags: {fleet: web}}]
  securityGroupSelectorTerms: [{tags: {fleet: web}}]
"""
START = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: web}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
"""
POOL = f"""\
{START}      requirements:
        - key: karpenter.k8s.aws/instance-category
          operator: In
          values: [c]
        - key: karpenter.sh/capacity-type
          operator: In
          values: [on-demand]
"""


def fleet(folder: Path, **files: str) -> Path:
    """Write a fleet with a class; ``files`` are further ones by name, without their suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"reconciler": "aws: {region: us-east-1}\n", "class": CLASS, **files}
    for name, content in contents.items():
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    return folder


def session_of(folder: Path, **texts: str) -> EditorSession:
    """Return a session whose workspace is a folder, with open texts by name."""
    session = EditorSession(check_context(()), (str(folder.resolve()),))
    for name, text in texts.items():
        session.texts[path_of(folder, name)] = text
    return session


def path_of(folder: Path, name: str = "pool") -> str:
    return str(folder.resolve() / f"{name}.yaml")


def cursor_in(text: str) -> tuple[str, int, int]:
    """Return a text without the cursor, and the line and column of that."""
    before, _, after = text.partition("|")
    line = before.count("\n")
    return before + after, line, len(before.rpartition("\n")[2])


def completions(folder: Path, marked: str, name: str = "pool") -> Completions | None:
    text, line, column = cursor_in(marked)
    session = session_of(folder, **{name: text})
    return session.complete(path_of(folder, name), line, column)


def words(folder: Path, marked: str, name: str = "pool") -> list[str]:
    found = completions(folder, marked, name)
    return [] if found is None else [one.label for one in found.proposals]


def hover(folder: Path, marked: str, name: str = "pool") -> str:
    text, line, column = cursor_in(marked)
    session = session_of(folder, **{name: text})
    found = session.hover(path_of(folder, name), line, column)
    return "" if found is None else found.text
