"""Finds the Kubernetes objects in the files of Terraform modules, with what is known filled in."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final, NamedTuple

from reconciler.desired.migration.controller import ControllerSettings
from reconciler.desired.sources.requested import Rendering
from reconciler.desired.terraform.environments import infer_variables, relevant
from reconciler.desired.terraform.expressions import attribute_value, evaluate, render
from reconciler.desired.terraform.facts import stated_settings
from reconciler.desired.terraform.filesets import files_below
from reconciler.desired.terraform.functions import Unknown, Value, plain
from reconciler.desired.terraform.hcl import Attribute, HclBlock, HclError, heredoc_at, parse_hcl
from reconciler.desired.terraform.instances import (
    Names,
    disabled_instances,
    instances_of,
    multiplier,
)
from reconciler.desired.terraform.releases import read_release
from reconciler.desired.terraform.rendered import left_out_parts, templates_in_locals
from reconciler.desired.terraform.scope import (
    ListFiles,
    ModuleCall,
    ModuleScope,
    ReadFile,
    TotalWork,
)
from reconciler.desired.terraform.types import defaults_of
from reconciler.desired.terraform.variables import read_values, set_variable, values_files
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value

_MANIFESTS: Final = {
    "kubectl_manifest": ("yaml_body", "yaml_body_parsed"),
    "kubernetes_manifest": ("manifest",),
    "k8s_manifest": ("content",),
    "kubernetes_yaml": ("content",),
}
_FILES: Final = ("local_file", "local_sensitive_file")
"""Resources that write a file, which may contain objects."""
_DOCUMENTS: Final = ("kubectl_path_documents", "kubectl_file_documents", "kubectl_filename_list")
_HEREDOC: Final = re.compile(r"<<-?[ \t]{0,8}+[\"']?\\?([A-Za-z_]\w{0,63}+)[\"']?[^\n]{0,200}+\n")
_OBJECT: Final = re.compile(r"^\s*kind:\s*[\"']?[A-Z]\w+", re.MULTILINE)
_INDEX: Final = re.compile(r"\[[^\[\]]*+\]")
_DEPTH: Final = 4
"""How many calls deep values are passed on, and how deep a heredoc in others is read."""
DISABLED: Final = "disabled-resource"
"""The code of a finding on a resource without instances that is taken over all the same."""
_NONE: Final = Attribute("", 0)


@dataclass(frozen=True, slots=True)
class FoundText:
    """The text of one or more objects: its file, the line at which it starts, and the text.

    ``is_verbatim`` is whether its lines are those of the file, and not made from expressions.
    """

    path: str
    line: int
    text: str
    is_verbatim: bool = True


@dataclass
class FoundObjects:
    """What the files of Terraform contain: texts, the files that they use, and what is unknown.

    ``releases`` are those of charts in the repository. ``settings`` are the name and the region of
    the cluster, by dotted key, where they are stated. ``has_disabled`` is whether a resource has no
    instances with these values.
    """

    texts: list[FoundText] = field(default_factory=list)
    settings: JsonDict = field(default_factory=dict)
    used_files: set[str] = field(default_factory=set)
    releases: list[Rendering] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    has_disabled: bool = False

    def warn(self, message: str, place: Place, hint: str, code: str = "left-out") -> None:
        """Add a warning about something that is not taken over as it is."""
        self.findings.append(Diagnostic(Severity.WARNING, code, message, place, hint=hint))


ZonesOf = Callable[[str], Sequence[str]]


def _parse_modules(files: Mapping[str, str], found: FoundObjects) -> dict[str, dict[str, HclBlock]]:
    """Return the blocks of each file by its folder, which is a module."""
    modules: dict[str, dict[str, HclBlock]] = {}
    for path, text in sorted(files.items()):
        folder = posixpath.dirname(path) or "."
        try:
            modules.setdefault(folder, {})[path] = parse_hcl(text)
        except (HclError, RecursionError) as error:
            found.findings.append(_not_terraform(path, error))
    return modules


def _read_module(
    blocks: Mapping[str, HclBlock],
    files: Mapping[str, str],
    scope: ModuleScope,
    found: FoundObjects,
) -> None:
    for path, file in blocks.items():
        try:
            _FileReader(path, files[path], file, scope, found).read()
        except (HclError, RecursionError) as error:  # a part of it that is a text of its own
            found.findings.append(_not_terraform(path, error))
    for path, text, here in templates_in_locals(scope):
        if _OBJECT.search(text):
            scope.used_files.append(path)
            _note_left_out("a template of a local value", here, Place(path, 1, 1), found)
            found.texts.append(FoundText(path, 1, text, is_verbatim=False))
    found.used_files |= set(scope.used_files)


def find_objects(
    files: Mapping[str, str],
    read: ReadFile,
    values: Collection[str] = (),
    prefer: Sequence[str] = (),
    zones_of: ZonesOf = lambda _: (),
    *,
    list_files: ListFiles = lambda _: (),
    takes_disabled: bool = False,
) -> FoundObjects:
    """Return the objects in the ``.tf`` files of a repository.

    ``files`` are their texts by path, ``read`` returns another file and ``list_files`` those of a
    folder. ``values`` are paths of files with values of variables; of several for one module, one
    of ``prefer`` counts. ``zones_of`` returns the zones of a region, "" where the files state none.
    With ``takes_disabled``, resources that have no instances with these values are read as well.
    """
    found = FoundObjects()
    modules = _parse_modules(files, found)
    total = TotalWork()
    scopes = {folder: _scope_of(total.scope(folder, read), b) for folder, b in modules.items()}
    chosen = values_files(values, modules, prefer)
    found.findings += chosen.findings
    for folder, paths in chosen.by_module.items():
        for path in paths:
            read_values(path, scopes[folder])
    assumed = [
        finding
        for folder, blocks in modules.items()
        for finding in infer_variables({path: files[path] for path in blocks}, scopes[folder])
    ]
    zones = cache(partial(zones_of, stated_settings(modules, scopes).get("aws.region", "")))
    for scope in scopes.values():
        scope.zones = zones
        scope.list_files = list_files
        scope.takes_disabled = takes_disabled
    _pass_arguments(modules, scopes)
    found.settings |= stated_settings(modules, scopes)
    for folder, blocks in modules.items():
        _read_module(blocks, files, scopes[folder], found)
    found.findings += relevant(assumed, (text.text for text in found.texts))
    return found


def _not_terraform(path: str, error: Exception) -> Diagnostic:
    message = f"is not read as Terraform: {error}"
    return Diagnostic(Severity.WARNING, "left-out", message, Place(path, 1, 1))


def _scope_of(scope: ModuleScope, blocks: Mapping[str, HclBlock]) -> ModuleScope:
    for file in blocks.values():
        for block in file.blocks:
            _add_definition(block, scope)
    return scope


def _add_variable(name: str, named: Mapping[str, Attribute], scope: ModuleScope) -> None:
    """Add a variable with its default; of an object that has none, what its type gives it."""
    scope.types[name] = named.get("type", _NONE).text
    value = evaluate(named.get("default", _NONE).text, scope.without_values())
    if "default" in named and value not in (None, ""):
        set_variable(scope, name, value)
    elif "default" in named:
        scope.unset[name] = value
    elif stated := defaults_of(scope.types[name], scope):
        scope.variables[name] = stated


def _add_definition(block: HclBlock, scope: ModuleScope) -> None:
    """Add what a block defines for a whole module."""
    named = block.attributes
    match block.type, block.labels:
        case "variable", (name, *_):
            _add_variable(name, named, scope)
        case "output", (name, *_) if "value" in named:
            scope.outputs[name] = named["value"].text
        case "locals", _:
            scope.locals |= {key: attribute.text for key, attribute in named.items()}
        case "resource", (kind, name) if kind in _MANIFESTS:
            _add_manifest(kind, name, named, scope)
        case "data", ("template_file", *_):
            arguments = named.get("vars", _NONE).text or "{}"
            scope.templates[block.labels[-1]] = (named.get("template", _NONE).text, arguments)


def _add_manifest(kind: str, name: str, named: Mapping[str, Attribute], scope: ModuleScope) -> None:
    """Add the objects that a resource applies."""
    if "for_each" in named:
        scope.applied.append(named["for_each"].text)
    for attribute in _MANIFESTS[kind]:
        if attribute in named:
            scope.applied.append(named[attribute].text)
            scope.manifests[kind, name] = named[attribute].text


def _read_calls(
    modules: Mapping[str, Mapping[str, HclBlock]], scopes: dict[str, ModuleScope]
) -> dict[str, list[tuple[ModuleScope, HclBlock]]]:
    """Add its calls to each module, and return those of modules in the repository by folder."""
    calls: dict[str, list[tuple[ModuleScope, HclBlock]]] = {}
    for folder, blocks in modules.items():
        scope = scopes[folder]
        for block in (b for file in blocks.values() for b in file.inner("module")):
            named = attribute_value(block, "source", scope)
            if not isinstance(named, str) or not block.labels:
                continue
            arguments = {name: a.text for name, a in block.attributes.items()}
            is_common = "terraform-aws-modules/" in named
            scope.calls[block.labels[0]] = ModuleCall(arguments, is_common=is_common)
            if named.startswith("."):
                target = posixpath.normpath(posixpath.join(folder, named))
                calls.setdefault(target, []).append((scope, block))
    return calls


def _pass_arguments(
    modules: Mapping[str, Mapping[str, HclBlock]], scopes: dict[str, ModuleScope]
) -> None:
    """Give the arguments of calls to the modules in the repository that are called only once.

    Every module learns what its calls are, for their outputs.
    """
    calls = _read_calls(modules, scopes)
    single = {t: callers[0] for t, callers in calls.items() if t in scopes and len(callers) == 1}
    for target, (scope, block) in single.items():
        call = scope.calls[block.labels[0]]
        scope.calls[block.labels[0]] = replace(call, target=scopes[target])
    for _ in range(_DEPTH):  # an argument may be the output of a module that is passed later
        for target, (scope, block) in single.items():
            for name, attribute in block.attributes.items():
                value = evaluate(attribute.text, scope)
                if not isinstance(value, Unknown) or name not in scopes[target].variables:
                    set_variable(scopes[target], name, value)


class _Evaluated(NamedTuple):
    """The value of an attribute in one instance, and the files that it was read from."""

    value: Value
    used_files: Sequence[str]


def _evaluated(attribute: Attribute, scope: ModuleScope) -> _Evaluated:
    before = len(scope.used_files)
    return _Evaluated(evaluate(attribute.text, scope), scope.used_files[before:])


@dataclass(frozen=True, slots=True)
class _FileReader:
    """Reads the objects in one file of a module."""

    path: str
    text: str
    file: HclBlock
    scope: ModuleScope
    found: FoundObjects

    def read(self) -> None:
        covered: list[tuple[int, int]] = []
        self.scope.left_out.clear()
        for block in self.file.inner("resource"):
            kind = block.labels[0] if block.labels else ""
            for name in _MANIFESTS.get(kind, ()):
                attribute = block.attributes.get(name)
                if attribute is not None:
                    covered.append((attribute.start, attribute.start + len(attribute.text)))
                    self._read_manifest(block, attribute)
            if kind in _FILES and "content" in block.attributes:
                covered += self._read_written_file(block)
            covered += self._read_release(block) if kind == "helm_release" else []
        self._read_heredocs(covered)
        _read_documents(self.file, self.scope, self.found)

    def _read_written_file(self, block: HclBlock) -> list[tuple[int, int]]:
        """Read a file that Terraform writes; return the range of its text if it has objects."""
        content = block.attributes["content"]
        instances = instances_of(block, self.scope)
        first = _evaluated(content, self.scope.with_names(instances[0] if instances else {}))
        if not isinstance(first.value, str) or not _OBJECT.search(first.value):
            self.scope.left_out.clear()
            return []
        self._read_manifest(block, content, first if instances else None)
        return [(content.start, content.start + len(content.text))]

    def _read_release(self, block: HclBlock) -> list[tuple[int, int]]:
        """Read the instances of a release; return the range of its values if they have objects."""
        place = Place(self.path, self.text.count("\n", 0, block.start) + 1, 1)
        covered: list[tuple[int, int]] = []
        is_local = any(w in block.text_of("chart") for w in ("./", "path."))
        instances = self._instances(block, place) if is_local else instances_of(block, self.scope)
        for names in instances:
            here = self.scope.with_names(names)
            before = len(self.scope.used_files)
            items = list(read_release(block, here, place))
            used = self.scope.used_files[before:]
            _note_left_out(" ".join(block.labels), here, place, self.found)
            for item in items:
                if isinstance(item, Rendering):
                    self.found.releases.append(item)
                elif isinstance(item, Diagnostic):
                    self.found.findings.append(item)
                elif isinstance(item, ControllerSettings):
                    self.found.settings = {**item.values, **self.found.settings}
                else:
                    values = block.attributes["values"]
                    covered.append((values.start, values.start + len(values.text)))
                    start = self.text.count("\n", 0, values.start) + 1
                    self.found.texts.append(
                        _manifest(item, self.path, start, list(dict.fromkeys(used)))
                    )
        return covered

    def _read_manifest(
        self, block: HclBlock, attribute: Attribute, first: _Evaluated | None = None
    ) -> None:
        """Read the objects of an attribute, in each instance; ``first`` is its first value."""
        heredoc = heredoc_at(attribute.text, 0)
        line = self.text.count("\n", 0, attribute.start) + (1 if heredoc is None else 2)
        place = Place(self.path, line, 1)
        for names in self._instances(block, place):
            here = self.scope.with_names(names)
            value, used = first or _evaluated(attribute, here)
            first, what = None, " ".join(block.labels)
            _note_left_out(what, here, place, self.found)
            if isinstance(value, Unknown):
                if any(f"data.{kind}." in value.text for kind in _DOCUMENTS):
                    continue  # they are read with the data source
                named = quote_value(value.text[:80])
                message = f"{what} depends on {named}, which is not known from the files"
                self.found.warn(message, place, "pass the output of `terraform show -json`")
                continue
            self.found.texts.append(
                _manifest(value, self.path, line, used, is_verbatim=heredoc is not None)
            )

    def _instances(self, block: HclBlock, place: Place) -> list[Names]:
        """Return the instances of a resource; one without any, which variables decide, is noted."""
        instances = instances_of(block, self.scope)
        if instances:
            return instances
        self.found.has_disabled = True
        message = f"{' '.join(block.labels)} has no instances: {multiplier(block)}"
        if self.scope.takes_disabled:
            hint = (
                "it is taken over all the same; set its variables in terraform.tfvars, or remove it"
            )
            self.found.warn(message, place, hint, code=DISABLED)
            return disabled_instances(block, self.scope)
        hint = "set its variables in terraform.tfvars, or pass the output of `terraform show -json`"
        self.found.warn(message, place, hint)
        return []

    def _read_heredocs(self, covered: Sequence[tuple[int, int]]) -> None:
        """Take the other heredocs that contain objects: of modules, locals and scripts."""
        position = 0
        while (match := _HEREDOC.search(self.text, position)) is not None:
            position = match.end()
            if any(start <= match.start() < end for start, end in covered):
                continue
            try:
                heredoc = heredoc_at(self.text, match.start())
            except HclError:
                continue
            if heredoc is None or not _OBJECT.search(heredoc.text):
                continue
            position = heredoc.end
            line = self.text.count("\n", 0, heredoc.start) + 1
            whole = FoundText(self.path, line, heredoc.text)
            for one in list(script_objects(self.path, heredoc.text, line)) or [whole]:
                value = render(one.text, self.scope)
                _note_left_out(
                    "an object in a heredoc", self.scope, Place(self.path, one.line, 1), self.found
                )
                if isinstance(value, str):
                    self.found.texts.append(FoundText(self.path, one.line, value))


def _manifest(
    value: Value, path: str, line: int, used: Sequence[str], *, is_verbatim: bool = False
) -> FoundText:
    """Return a value as text, from the only file that it uses or else from its expression."""
    from reconciler.source.plainyaml import dump

    body = value if isinstance(value, str) else dump(plain(value), sort_keys=False)
    where = (used[0], 1) if len(used) == 1 else (path, line)
    return FoundText(*where, body, is_verbatim or len(used) == 1)


def _note_left_out(what: str, scope: ModuleScope, place: Place, found: FoundObjects) -> None:
    """Note the parts of a template whose conditions are not known."""
    found.findings += left_out_parts(what, scope.left_out, place)
    scope.left_out.clear()


def _document_sources(file: HclBlock, scope: ModuleScope) -> list[HclBlock]:
    """Return the data sources of documents.

    One that no resource takes its objects from only counts them, which works around a limit of
    Terraform: it is not read where another one is.
    """
    blocks = [b for b in file.inner("data") if b.labels and b.labels[0] in _DOCUMENTS]
    taken = [b for b in blocks if any(_refers_to(b, text) for text in scope.applied)]
    return taken or blocks


def _read_documents(file: HclBlock, scope: ModuleScope, found: FoundObjects) -> None:
    """Take the templates that a data source of the kubectl provider names, with its variables."""
    for block in _document_sources(file, scope):
        named = attribute_value(block, "pattern", scope)
        if isinstance(named, str):
            names: dict[str, Value] = {}
            for key in ("vars", "sensitive_vars"):
                value = attribute_value(block, key, scope)
                if isinstance(value, Mapping):
                    names |= {str(k): v for k, v in value.items()}
            texts = list(_templates(named, scope, names, found))
            found.texts += texts if instances_of(block, scope) or scope.takes_disabled else ()


def _refers_to(data: HclBlock, text: str) -> bool:
    """Return whether an expression refers to a data source."""
    return f"{'.'.join(('data', *data.labels))}." in f"{_INDEX.sub('', text)}."


def _templates(
    pattern: str, scope: ModuleScope, names: Mapping[str, Value], found: FoundObjects
) -> Iterator[FoundText]:
    path = posixpath.normpath(
        pattern if pattern.startswith(scope.folder) else posixpath.join(scope.folder, pattern)
    )
    folder = posixpath.dirname(path)
    inner = scope.with_names(names)
    for name in files_below(folder, posixpath.basename(path), scope):
        one = posixpath.join(folder, name)
        value = render(scope.read(one) or "", inner)
        found.used_files.add(one)
        if isinstance(value, str):
            yield FoundText(one, 1, value)


def script_objects(
    path: str, text: str, first_line: int = 1, depth: int = 0
) -> Iterator[FoundText]:
    """Yield the objects in the heredocs of a shell script that starts at ``first_line``.

    Of a heredoc with commands, the objects in its own heredocs are meant, to a small ``depth``.
    """
    position = 0
    while (match := _HEREDOC.search(text, position)) is not None:
        position = match.end()
        close = re.compile(rf"^[ \t]*{re.escape(match[1])}[ \t]*$", re.MULTILINE)
        end = close.search(text, match.end())
        if end is None:
            continue
        body = text[match.end() : end.start()]
        position = end.end()
        if _OBJECT.search(body):
            whole = FoundText(path, text.count("\n", 0, match.end()) + first_line, body)
            below = depth < _DEPTH
            inner = list(script_objects(path, body, whole.line, depth + 1)) if below else []
            yield from inner or [whole]
