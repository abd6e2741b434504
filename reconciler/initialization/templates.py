"""Objects that `init` finds in files which are not YAML: Terraform, scripts, and templates.

Nothing is run. What is known from the files is filled in, and the rest stays as placeholders, which
the report lists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Final

from reconciler.catalog.names import bundled_names
from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.requested import Rendering
from reconciler.desired.templated import templated_documents
from reconciler.desired.terraform.environments import ASSUMED
from reconciler.desired.terraform.modules import (
    FoundObjects,
    FoundText,
    find_objects,
    script_objects,
)
from reconciler.desired.terraform.rendered import without_directives
from reconciler.desired.terraform.variables import SEVERAL, VALUES
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.source.document import LIMITS, Document
from reconciler.source.endings import OTHER_TEMPLATES, SCRIPTS, TAKEN_OVER, TERRAFORM_TEMPLATES

_PAGES: Final = (".md",)
_READ: Final = (*TAKEN_OVER, VALUES, *_PAGES)
_FILES_MAX: Final = 20_000
_BYTES_MAX: Final = 32 * 2**20
_KIND: Final = re.compile(
    r"\bkind[\"']?:\s*[\"']?(?:NodePool|EC2NodeClass|Provisioner|AWSNodeTemplate)\b"
)
_KIND_BYTES: Final = re.compile(_KIND.pattern.encode())


class TemplateText(SourceFile):
    """The text of objects with placeholders, which YAML alone would misread.

    ``first_line`` is the line of the file at which the text starts. If the file does not have the
    same lines (``is_verbatim`` is false), that is the position of each field.
    """

    first_line: int = 1
    is_verbatim: bool = True

    def documents(self) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents with their placeholders as texts."""
        documents, findings = templated_documents(self.path, self.content, self.first_line)
        if not self.is_verbatim:
            documents = [d._replace(mark=(self.first_line, 1, None)) for d in documents]
        return documents, findings


def template_text(found: FoundText) -> TemplateText:
    """Return a text with placeholders as a file of objects."""
    made = TemplateText(found.path, found.text.encode("utf-8", "replace"))
    made.first_line, made.is_verbatim = found.line, found.is_verbatim
    return made


@dataclass
class TemplateObjects:
    """The texts of objects, the files that they are made from, and why some are missing.

    ``unused`` are templates that nothing in the files renders. ``has_disabled`` is whether a
    resource of Terraform has no instances.
    """

    files: list[SourceFile] = field(default_factory=list)
    unused: list[SourceFile] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    settings: JsonDict = field(default_factory=dict)
    releases: list[Rendering] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    has_disabled: bool = False


def read_templates(
    root: str,
    prefer: Sequence[str] = (),
    region: str | None = None,
    *,
    takes_disabled: bool = False,
) -> TemplateObjects:
    """Return the objects in Terraform's files, in scripts and in templates below a folder.

    Of several files with values for one module, that below one of the paths ``prefer`` counts.
    ``region`` is the one whose zones count; by default it is that of the files. With
    ``takes_disabled``, resources of Terraform without instances are read as well.
    """
    texts = dict(_texts(root))
    modules = _with_ending(texts, (".tf",))
    top = os.path.realpath(root)
    terraform = find_objects(
        modules,
        partial(_read_text, top),
        list(_with_ending(texts, (VALUES,))),
        prefer,
        lambda stated: _availability_zones(region or stated),
        list_files=cache(partial(_list_files, top)),
        takes_disabled=takes_disabled,
    )
    unused, left_out = _unused_templates(texts, terraform.used_files)
    found = TemplateObjects(
        files=_text_files([*terraform.texts, *_objects_in(texts, SCRIPTS)]),
        unused=unused,
        used=terraform.used_files,
        settings=terraform.settings,
        releases=terraform.releases,
        findings=[*_relevant_findings(terraform, modules), *left_out],
        has_disabled=terraform.has_disabled,
    )
    if not found.files and not found.unused:
        found.files += _text_files(_objects_in(texts, _PAGES))
    return found


def _unused_templates(
    texts: Mapping[str, str], used: Collection[str]
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the templates of nodes that nothing renders, and what is left out of them."""
    found: list[FoundText] = []
    findings: list[Diagnostic] = []
    for path, text in _with_ending(texts, (*TERRAFORM_TEMPLATES, *OTHER_TEMPLATES)).items():
        if path in used or not _KIND.search(text):
            continue
        made, left_out = without_directives(path, text)
        found.append(FoundText(path, 1, made, is_verbatim=made == text))
        findings += left_out
    return _text_files(found), findings


def _with_ending(texts: Mapping[str, str], endings: tuple[str, ...]) -> dict[str, str]:
    return {path: text for path, text in texts.items() if path.endswith(endings)}


def _objects_in(texts: Mapping[str, str], endings: tuple[str, ...]) -> Iterator[FoundText]:
    """Yield the objects in scripts, or in the examples of pages."""
    for path, text in _with_ending(texts, endings).items():
        yield from script_objects(path, text)


def _relevant_findings(terraform: FoundObjects, modules: Mapping[str, str]) -> list[Diagnostic]:
    """Return the findings about nodes; choices between values count if Terraform makes nodes."""
    makes_nodes = any(_KIND.search(found.text) for found in terraform.texts)
    choices = (SEVERAL, ASSUMED) if makes_nodes else ()
    return [
        finding
        for finding in terraform.findings
        if finding.code in choices or _mentions_nodes(finding, modules)
    ]


def _availability_zones(region: str) -> list[str]:
    """Return the availability zones of a region in order, without its local zones.

    They are the bundled ones; none are returned for a region that is not known.
    """
    if not region:
        return []
    zones = bundled_names().zones.get(region, ())
    return sorted(zone for zone in zones if re.fullmatch(f"{re.escape(region)}[a-z]", zone))


def _text_files(texts: Iterable[FoundText]) -> list[SourceFile]:
    """Return the texts with objects that make nodes, as files."""
    return [template_text(text) for text in texts if _KIND.search(text.text)]


def without_made(
    unused: Sequence[SourceFile], files: Sequence[SourceFile]
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the unused templates whose objects are in no file, and why the others are left out."""
    made = {
        name
        for file in files
        if unused and _KIND_BYTES.search(file.content)
        for name in _names(file)
    }
    kept: list[SourceFile] = []
    findings: list[Diagnostic] = []
    for file in unused:
        if made.isdisjoint(_names(file)):
            kept.append(file)
        else:
            message = "nothing renders this template, and its objects are in another file"
            place = Place(file.path, 1, 1)
            findings.append(Diagnostic(Severity.WARNING, "left-out", message, place))
    return kept, findings


def _names(file: SourceFile) -> set[tuple[str, str]]:
    """Return the kind and name of each object in a file."""
    metadata = [
        (d.data, d.data.get("metadata")) for d in file.documents()[0] if isinstance(d.data, dict)
    ]
    return {
        (str(data.get("kind")), str(about.get("name")))
        for data, about in metadata
        if isinstance(about, dict)
    }


def _mentions_nodes(finding: Diagnostic, modules: Mapping[str, str]) -> bool:
    """Return whether a finding may be about nodes: the file names one of their kinds."""
    if finding.code == "remote-source":
        return True
    text = modules.get(finding.place.file, "") if finding.place is not None else ""
    return any(kind.lower() in text.lower().replace("_", "") for kind in ("nodepool", "nodeclass"))


def _texts(root: str) -> Iterator[tuple[str, str]]:
    top = os.path.realpath(root)
    size = 0
    for path in islice(_paths(top), _FILES_MAX):
        text = _read_text(top, path)
        size += len(text or "")
        if size > _BYTES_MAX:
            return
        if text is not None:
            yield path, text


def _paths(top: str) -> Iterator[str]:
    """Yield the files to read below a folder, without hidden ones and those of charts."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "Chart.yaml" in names:
            folders.clear()  # Helm renders it
            continue
        for name in sorted(names):
            if name.endswith(_READ) and not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), top).replace(os.sep, "/")


def _list_files(top: str, folder: str) -> list[str]:
    """Return the files below a folder of the tree, without hidden ones and links to folders."""
    start = os.path.realpath(os.path.join(top, folder))
    if start != top and not start.startswith(top.rstrip(os.sep) + os.sep):
        return []
    found: list[str] = []
    for here, folders, names in os.walk(start):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = os.path.relpath(here, start).replace(os.sep, "/")
        found += [name if below == "." else f"{below}/{name}" for name in names if name[0] != "."]
        if len(found) > _FILES_MAX:
            break
    return found[:_FILES_MAX]


def _read_text(top: str, path: str) -> str | None:
    """Return the text of a file in a folder; a link that leads out of it is not followed."""
    real = os.path.realpath(os.path.join(top, path))
    if not real.startswith(top.rstrip(os.sep) + os.sep) or not os.path.isfile(real):
        return None
    try:
        with open(real, "rb") as file:
            content = file.read(LIMITS.bytes_max + 1)
    except OSError:
        return None
    if len(content) > LIMITS.bytes_max or b"\0" in content:
        return None
    return content.decode("utf-8", "replace")
