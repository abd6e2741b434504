"""What a kustomization refers to: the files that `kustomize build` needs, and what it may not use.

The tool renders; this module only follows references, so that the tool can be given a copy of
exactly the files that the kustomization names. What is remote, leads out of the tree or would run a
program is found here, before anything starts.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from reconciler.desired.sources.addresses import address_in_plugin, is_address, misspelled_names
from reconciler.desired.sources.tree import (
    BYTES_MAX,
    CopiedFiles,
    OutsideTreeError,
    TreeLimitError,
    join_path,
)
from reconciler.desired.sources.work import LOADS_MAX, MeteredTree
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, as_list, as_text
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import field_path
from reconciler.source.schema import value_at

NAMES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
OVERLAY: Final = ".reconciler-overlay"
"""The folder of the copy with the settings that a Flux or Argo CD object adds."""

_FOLDERS: Final = ("resources", "bases", "components")
_PLUGINS: Final = ("generators", "transformers", "validators")
_FILES: Final = ("configurations", "crds", "patchesStrategicMerge", "patches")
_PATHS: Final = ("patches", "patchesJson6902", "replacements")
_GENERATORS: Final = ("configMapGenerator", "secretGenerator")
_HELM: Final = ("helmCharts", "helmChartInflationGenerator")
_NAMES: Final = frozenset(
    {*_FOLDERS, *_PLUGINS, *_FILES, *_PATHS, *_GENERATORS, *_HELM, "helmGlobals", "openapi"}
)
_ORIGINS: Final = "originAnnotations"
_FUNCTION: Final = "config.kubernetes.io/function"
_REMOTE: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://|git::|git@|[^/@\s]+@[^/:\s]+:|"
    r"(?:github\.com|gitlab\.com|bitbucket\.org|[a-z0-9-]+(?:\.[a-z0-9-]+)+)[/:].*(?://|\?ref=|\.git)|"
    r"(?:github\.com|gitlab\.com|bitbucket\.org)/"
)
_KUSTOMIZATIONS_MAX: Final = 500
REFERENCES_MAX: Final = 5_000
"""The maximum number of files and folders that one kustomization names, with repetitions."""


class Reference(NamedTuple):
    """A path or address in a kustomization, and the field that holds it."""

    pointer: Pointer
    text: str
    may_be_folder: bool = False
    is_plugin: bool = False


@dataclass
class _Loads:
    """The bytes of files that one kustomization loads, and the folders, with repetitions."""

    size: int = 0
    folders: list[str] = field(default_factory=list)


@dataclass
class Closure:
    """The files that a kustomization is rendered from, and what was refused.

    ``folders`` are the kustomizations in it, the root first. ``plugins`` are those that configure
    plugins. ``patches`` are the files that only change objects of others.
    """

    root: str
    copied: CopiedFiles = field(default_factory=CopiedFiles)
    folders: list[str] = field(default_factory=list)
    plugins: set[str] = field(default_factory=set)
    patches: list[str] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    name_prefix: str = ""
    name_suffix: str = ""
    loads: dict[str, _Loads] = field(default_factory=lambda: defaultdict(_Loads))

    def check_loads(self, others: Iterable[Closure] = ()) -> None:
        """Check how much kustomize would load, which loads a folder for each reference to it.

        ``others`` are loaded beside this one.

        Raises:
            TreeLimitError: it is too much.
        """
        loads = [closure.count_loads() for closure in (self, *others)]
        if sum(count for count, _ in loads) > LOADS_MAX:
            raise TreeLimitError(f"more than {LOADS_MAX:,} kustomizations, with repetitions")
        if sum(size for _, size in loads) > BYTES_MAX:
            raise TreeLimitError(f"more than {BYTES_MAX >> 20} MiB, with repetitions")

    def count_loads(self) -> tuple[int, int]:
        """Return the number of kustomizations and bytes; a circle ends early, and counts once."""
        done: dict[str, tuple[int, int]] = {}
        opened: set[str] = set()
        stack = [self.root]
        while stack:
            here = stack[-1]
            below = self.loads[here].folders
            if here not in opened:
                opened.add(here)
                stack += [folder for folder in below if folder not in opened]
                continue
            stack.pop()
            if here not in done:
                parts = [done.get(folder, (0, 0)) for folder in below]
                size = self.loads[here].size + sum(size for _, size in parts)
                done[here] = 1 + sum(count for count, _ in parts), size
        return done[self.root]

    def add_load(self, folder: str, size: int, below: Sequence[str] = ()) -> None:
        """Note what the kustomization in a folder loads: bytes of files, and other folders."""
        self.loads[folder].size += size
        self.loads[folder].folders += below

    @property
    def files(self) -> Mapping[str, bytes]:
        """The content by path."""
        return self.copied.files


def kustomization_file(tree: MeteredTree, folder: str) -> str | None:
    """Return the path of the kustomization in a folder, None if there is none."""
    names = {entry.name for entry in tree.entries(folder) or () if not entry.is_folder}
    for name in NAMES:
        if name in names:
            return posixpath.normpath(posixpath.join(folder, name))
    return None


def closure_of(tree: MeteredTree, folder: str) -> Closure:
    """Return the files that the kustomization in ``folder`` is rendered from.

    Raises:
        TreeLimitError: there are too many, or they are too large.
    """
    found = Closure(folder)
    queue = [folder]
    read: set[tuple[str, bool]] = set()
    while queue:
        here = queue.pop(0)
        key = (here, here in found.plugins)
        if key in read:
            continue
        read.add(key)
        if len(found.folders) >= _KUSTOMIZATIONS_MAX:
            where = Place(here, 1, 1)
            message = f"more than {_KUSTOMIZATIONS_MAX} kustomizations"
            found.findings.append(Diagnostic(Severity.ERROR, "too-large", message, where))
            break
        if here not in found.folders:
            found.folders.append(here)
        queue += _read_kustomization(tree, here, found)
    return found


def _parse_kustomization(
    tree: MeteredTree, path: str, content: bytes, found: Closure
) -> Document | None:
    """Return the mapping in a kustomization, None with a finding if it is none."""
    documents, findings = tree.documents(path, content)
    found.findings += findings
    if findings:
        return None
    if documents and isinstance(documents[0].data, dict):
        return documents[0]
    message = "a kustomization must be a mapping" if documents else "the kustomization is empty"
    found.findings.append(Diagnostic(Severity.ERROR, "wrong-type", message, Place(path, 1, 1)))
    return None


def _read_kustomization(tree: MeteredTree, folder: str, found: Closure) -> list[str]:
    """Add the files of one kustomization; return the kustomizations that it refers to."""
    path = kustomization_file(tree, folder)
    content = tree.read(path) if path is not None else None
    found.loads.pop(folder, None)  # it may have been read before, as a resource or a plugin
    if path is None or content is None:
        return []
    document = _parse_kustomization(tree, path, content, found)
    if document is None:
        return []
    data: JsonDict = document.data
    dropped: list[Pointer] = []
    for pointer, refusal in _refused_fields(document, data, folder):
        found.findings.append(refusal)
        dropped.append(pointer)
    folders = list(_add_references(tree, folder, document, found, dropped))
    if folder == found.root:
        found.name_prefix = as_text(data.get("namePrefix"))
        found.name_suffix = as_text(data.get("nameSuffix"))
    found.add_load(folder, len(content), folders)
    found.copied.add(path, _rewrite(data, content, dropped, is_root=folder == found.root))
    return folders


def _limited_references(data: JsonDict) -> list[Reference]:
    """Return what ``references`` yields.

    Raises:
        TreeLimitError: it is too much.
    """
    named = list(islice(references(data), REFERENCES_MAX + 1))
    if len(named) > REFERENCES_MAX:
        raise TreeLimitError(f"more than {REFERENCES_MAX:,} references in a kustomization")
    return named


def references(data: JsonDict) -> Iterator[Reference]:
    """Yield the paths and addresses in a kustomization; inline patches and plugins have none."""
    for name in (*_FOLDERS, *_PLUGINS, *_FILES):
        may_be_folder = name in (*_FOLDERS, *_PLUGINS)
        for number, item in enumerate(as_list(data.get(name))):
            if isinstance(item, str) and not _is_inline(item):
                yield Reference((name, number), item, may_be_folder, name in _PLUGINS)
    yield from _nested_references(data)


def _nested_references(data: JsonDict) -> Iterator[Reference]:
    """Yield the paths that are fields of patches, replacements and generators."""
    for name in _PATHS:
        for number, item in enumerate(as_list(data.get(name))):
            if isinstance(item, dict) and isinstance(item.get("path"), str):
                yield Reference((name, number, "path"), item["path"])
    path = value_at(data, ("openapi", "path"))
    if isinstance(path, str):
        yield Reference(("openapi", "path"), path)
    for name in _GENERATORS:
        for number, item in enumerate(as_list(data.get(name))):
            if isinstance(item, dict):
                yield from _generator_references((name, number), item)


def _generator_references(at: Pointer, item: JsonDict) -> Iterator[Reference]:
    for key in ("files", "envs"):
        for number, text in enumerate(as_list(item.get(key))):
            if isinstance(text, str):
                path = text.partition("=")[2] if key == "files" and "=" in text else text
                yield Reference((*at, key, number), path)
    if isinstance(item.get("env"), str):
        yield Reference((*at, "env"), item["env"])


def _add_references(
    tree: MeteredTree, folder: str, document: Document, found: Closure, dropped: list[Pointer]
) -> Iterator[str]:
    """Add what a kustomization refers to, and what is refused; yield the folders of others."""
    for reference in _limited_references(document.data):
        if folder in found.plugins and reference.may_be_folder:
            reference = reference._replace(is_plugin=True)
        target = _add_reference(tree, folder, reference, document, found)
        if target is None:
            dropped.append(reference.pointer)
        elif target:
            yield target


def _items(data: JsonDict, names: Iterable[str]) -> Iterator[tuple[Pointer, object]]:
    """Yield the items of several lists, each with its pointer."""
    for name in names:
        yield from (((name, number), item) for number, item in enumerate(as_list(data.get(name))))


def _refused_fields(
    document: Document, data: JsonDict, folder: str
) -> Iterator[tuple[Pointer, Diagnostic]]:
    """Yield the fields that need a program, a plugin or the network, with the finding on each."""
    for pointer, item in _items(data, _HELM):
        chart = item.get("name") or item.get("chartName") if isinstance(item, dict) else None
        message = (
            f"Helm chart {quote_value(chart)} is not rendered: "
            "kustomize would run Helm with network access"
        )
        command = f"kustomize build --enable-helm {folder} > rendered.yaml"
        hint = f"vendor it: `{command}`, and pass that file with -f"
        refusal = _refusal(document, pointer, "remote-source", message, hint, Severity.WARNING)
        yield pointer, refusal
    for pointer, item in _items(data, _PLUGINS):
        if isinstance(item, str) and _is_inline(item):
            inline = _plugin_refusal(item.encode(), document, pointer)
            if inline is not None:
                yield pointer, inline
    for pointer in misspelled_names(data, _NAMES):
        message, hint = _misspelling(pointer)
        yield pointer, _refusal(document, pointer, "unknown-field", message, hint)
    if "helmGlobals" in data:
        at, message = ("helmGlobals",), "Helm is not run by kustomize"
        yield at, _refusal(document, at, "remote-source", message, "", Severity.INFO)


def _misspelling(pointer: Pointer) -> tuple[str, str]:
    message = f"{quote_value(pointer[-1])} is not the name of a field"
    return message, "write the names of fields as the documentation of kustomize does"


def overlay_refusals(fields: JsonDict, place: Place) -> Iterator[Diagnostic]:
    """Yield why the fields that a Flux or Argo CD object adds to a kustomization are refused."""
    for pointer in misspelled_names(fields, _NAMES):
        message, hint = _misspelling(pointer)
        yield Diagnostic(Severity.ERROR, "unknown-field", message, place, hint=hint)
    for reference in references(fields):
        if is_address(reference.text):
            message = f"{quote_value(without_secrets(reference.text))} is remote and is not read"
            hint = "write the patch into the object, or refer to a file of the repository"
            yield Diagnostic(Severity.ERROR, "remote-source", message, place, hint=hint)


def _add_reference(
    tree: MeteredTree, folder: str, reference: Reference, document: Document, found: Closure
) -> str | None:
    """Add what a reference names.

    Returns the folder of a kustomization, "" for files, and None if it was refused.
    """
    text, pointer = reference.text, reference.pointer
    if is_address(text):  # also where a file has that path
        found.findings.append(_remote_refusal(document, pointer, text))
        return None
    try:
        path = join_path(folder, text)
        content = tree.read(path)
        is_folder = content is None and tree.entries(path) is not None
    except OutsideTreeError:
        if _is_remote(text):
            found.findings.append(_remote_refusal(document, pointer, text))
            return None
        message = f"{quote_value(text)} leads out of the fleet"
        hint = "refer only to files of the repository"
        found.findings.append(_refusal(document, pointer, "outside-source", message, hint))
        return None
    if content is not None:
        found.add_load(folder, len(content))
        return _add_file(path, content, reference, document, found)
    if is_folder and reference.may_be_folder and kustomization_file(tree, path) is not None:
        if reference.is_plugin:
            found.plugins.add(path)
        return path
    if not is_folder and _is_remote(text):
        found.findings.append(_remote_refusal(document, pointer, text))
        return None
    message = f"{quote_value(text)} does not exist"
    hint = "correct the path"
    if is_folder:
        message = f"{quote_value(text)} is a folder without a kustomization.yaml"
        hint = "add one, or list its files"
    found.findings.append(_refusal(document, pointer, "missing-source", message, hint))
    return None


def _add_file(
    path: str, content: bytes, reference: Reference, document: Document, found: Closure
) -> str | None:
    """Add one file; return None if it configures a plugin that is refused."""
    pointer = reference.pointer
    refusal = _plugin_refusal(content, document, pointer) if reference.is_plugin else None
    if refusal is not None:
        found.findings.append(refusal)
        return None
    found.copied.add(path, content)
    if pointer[0] in ("patches", "patchesStrategicMerge", "patchesJson6902"):
        found.patches.append(path)
    return ""


def _is_remote(text: str) -> bool:
    return _REMOTE.match(text) is not None


def _remote_refusal(document: Document, pointer: Pointer, text: str) -> Diagnostic:
    from shlex import quote

    shown = without_secrets(text)
    is_file = "://" in text and posixpath.splitext(text.partition("?")[0])[1] in (".yaml", ".yml")
    name = posixpath.basename(text.partition("?")[0]) if is_file else "base.yaml"
    command = f"curl -fsSL {quote(shown)}" if is_file else f"kustomize build {quote(shown)}"
    message = f"{quote_value(shown)} is remote and is not read"
    hint = f"vendor it: `{command} > {quote(name)}`, and refer to that file"
    return _refusal(document, pointer, "remote-source", message, hint)


def _plugin_refusal(content: bytes, document: Document, pointer: Pointer) -> Diagnostic | None:
    """Return why the configuration of a plugin is refused, None if it is not."""
    if _runs_program(content):
        return _function_refusal(document, pointer)
    address = address_in_plugin(content)
    return _remote_refusal(document, pointer, address) if address else None


def _function_refusal(document: Document, pointer: Pointer) -> Diagnostic:
    message = "names a plugin or function, which would run a program"
    hint = "use kustomize's built-in transformers, or pass rendered YAML with -f"
    return _refusal(document, pointer, "plugin-source", message, hint)


def _refusal(
    document: Document, pointer: Pointer, code: str, message: str, hint: str,
    severity: Severity = Severity.ERROR,
) -> Diagnostic:  # fmt: skip
    return Diagnostic(severity, code, message, document.place(pointer), field_path(pointer), hint)


def _runs_program(content: bytes) -> bool:
    """Return whether a plugin's configuration is not of a built-in one; unreadable counts as such.

    Built-in ones have the apiVersion ``builtin``; any other names a program or a container.
    """
    documents, findings = parse_documents("", content)
    if findings:
        return True
    for document in documents:
        data = document.data
        if not isinstance(data, dict) or data.get("apiVersion") != "builtin":
            return True
        annotations = value_at(data, ("metadata", "annotations"))
        if isinstance(annotations, dict) and _FUNCTION in annotations:
            return True
        if data.get("kind") in ("HelmChartInflationGenerator", "IAMPolicyGenerator"):
            return True
    return False


def _rewrite(data: JsonDict, content: bytes, dropped: list[Pointer], *, is_root: bool) -> bytes:
    """Return the kustomization of the copy: without what was refused, and with origins."""
    if not dropped and not is_root:
        return content
    from reconciler.source.plainyaml import dump

    copy = dict(data)
    lists: dict[Pointer, set[int]] = {}
    for pointer in dropped:
        match pointer:
            case (*above, int(number)):
                lists.setdefault(tuple(above), set()).add(number)
            case (name, int(number), *_):  # the path of a patch: the patch goes with it
                lists.setdefault((name,), set()).add(number)
            case _:
                copy.pop(str(pointer[0]), None)
    for at, numbers in sorted(lists.items(), key=lambda item: -len(item[0])):
        copy = _without_items(copy, at, numbers)
    if is_root:
        metadata = [item for item in as_list(copy.get("buildMetadata")) if item != _ORIGINS]
        copy["buildMetadata"] = [*metadata, _ORIGINS]
    return dump(copy, sort_keys=False).encode()


def _without_items(data: JsonDict, at: Pointer, numbers: set[int]) -> JsonDict:
    """Return a copy of ``data`` whose list at ``at`` lacks the items with these numbers."""
    import copy

    changed = copy.deepcopy(data)
    above = value_at(changed, at[:-1]) if len(at) > 1 else changed
    if isinstance(above, dict):
        items = as_list(above.get(str(at[-1])))
        above[str(at[-1])] = [v for n, v in enumerate(items) if n not in numbers]
    return changed


def _is_inline(text: str) -> bool:
    return "\n" in text or text.lstrip()[:1] in ("{", "[")


def listing(files: list[str], folder: str) -> bytes:
    """Return a kustomization in ``folder`` that lists files, as Flux generates one."""
    from reconciler.source.plainyaml import dump

    names = [posixpath.relpath(path, folder) for path in files]
    return dump({"resources": names, "buildMetadata": [_ORIGINS]}, sort_keys=False).encode()


def add_overlay(found: Closure, fields: JsonDict) -> str:
    """Add a kustomization with further fields around the root; return its folder."""
    from reconciler.source.plainyaml import dump

    below = posixpath.relpath(found.root, OVERLAY)
    data = {"resources": [below], **fields, "buildMetadata": [_ORIGINS]}
    found.copied.add(f"{OVERLAY}/kustomization.yaml", dump(data, sort_keys=False).encode())
    prefix, suffix = as_text(fields.get("namePrefix")), as_text(fields.get("nameSuffix"))
    found.name_prefix = prefix + found.name_prefix
    found.name_suffix = found.name_suffix + suffix
    return OVERLAY
