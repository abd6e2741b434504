"""Generators of Argo CD's ApplicationSets: the parameters of each Application that they make.

List, git directories and git files are read, and matrix and merge of these. ``clusters`` makes the
parameters of the clusters whose Secrets are in the repository. Without any, one that selects every
cluster makes one set of parameters, since it selects the cluster of the fleet as well; its names
and labels stay in the text. What asks Argo CD, the cluster or a service is not known offline.

The parameters of a generator are those of Argo CD 2.x and 3.x
(argo-cd.readthedocs.io/en/stable/operator-manual/applicationset/Generators).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from reconciler.desired.sources.tree import TreeLimitError, folder_of
from reconciler.desired.sources.work import MeteredTree
from reconciler.model.grouping import group_pairs
from reconciler.model.json import JsonDict, as_list, as_mapping, as_mappings, as_text
from reconciler.model.text.globs import PATTERN_MAX, matching_steps
from reconciler.source.document import parse_documents
from reconciler.source.schema import value_at

_ASKS: Final = {
    "clusters": "the labels of clusters, whose Secrets are not in this repository",
    "scmProvider": "a service for the repositories of an organization",
    "pullRequest": "a service for pull requests",
    "clusterDecisionResource": "the cluster for a resource",
    "plugin": "a plugin",
}
"""What each generator that cannot be read depends on."""
_EVERY_CLUSTER: Final = {"matchLabels": {"argocd.argoproj.io/secret-type": "cluster"}}
"""The selector of all clusters that have a Secret."""
_TEMPLATE: Final = re.compile(r"\{\{-?([^{}\n]*(?:(?:\{(?!\{)|\}(?!\}))[^{}\n]*)*)\}\}")
_INDEX: Final = re.compile(r"index\s+\.?([\w.]+)\s+([0-9]{1,9})|([\w.]+)\[([0-9]{1,9})\]")
"""An index; no list has one of more digits."""
_KEY: Final = re.compile(r"""index\s+\.?([\w.]+)\s+["'`]([^"'`]+)["'`]""")
_BESIDE: Final = ("selector", "template")
"""Fields beside the one that names a generator."""
_ELEMENTS_MAX: Final = 1000
_CHARACTERS_OF_A_STEP: Final = 50
_DEPTH_MAX: Final = 2
"""A matrix or merge may contain one more level of them."""


class UnknownGeneratorError(Exception):
    """The parameters of a generator are not known without its cluster or its service."""


class Surroundings(NamedTuple):
    """What generators read: the tree, the folder that paths start at, and the clusters in it.

    A cluster is the data of its Secret.
    """

    tree: MeteredTree
    folder: str
    clusters: Sequence[JsonDict] = ()


def _all_elements(
    kinds: Sequence[str], generator: JsonDict, around: Surroundings, depth: int
) -> list[JsonDict] | None:
    match kinds:
        case ["list"]:
            return _listed(as_mapping(generator["list"]))
        case ["git"]:
            return _of_git(as_mapping(generator["git"]), around.tree, around.folder)
        case ["clusters"]:
            return _of_clusters(as_mapping(generator["clusters"]), around)
        case ["matrix"] if depth < _DEPTH_MAX:
            inner = as_mappings(value_at(generator, ("matrix", "generators")))
            return _product(inner, around, depth)
        case ["merge"] if depth < _DEPTH_MAX:
            return _merged(as_mapping(generator["merge"]), around, depth)
    return None


def elements_of(generator: JsonDict, around: Surroundings, depth: int = 0) -> list[JsonDict]:
    """Return the parameters of each Application, at most about a thousand.

    Raises:
        UnknownGeneratorError: they are not known offline.
    """
    kinds = [name for name in generator if name not in _BESIDE]
    found = _all_elements(kinds, generator, around, depth)
    if found is None:
        named = ", ".join(sorted(kinds))[:60]
        asks = f": it asks {_ASKS[named]}" if named in _ASKS else ""
        raise UnknownGeneratorError(f"the generator {named} cannot be read offline{asks}")
    selector = as_mapping(generator.get("selector"))
    return [element for element in found[:_ELEMENTS_MAX] if _is_selected(element, selector)]


def files_of(element: JsonDict, folder: str) -> Iterator[str]:
    """Yield the files that parameters were read from, as paths from the top of the tree."""
    for value in element.values():
        inner = as_mapping(value)
        at = inner if "filename" in inner else as_mapping(inner.get("path"))
        if "filename" in at and "path" in at:
            path = posixpath.join(folder, as_text(at["path"]), as_text(at["filename"]))
            yield posixpath.normpath(path)


def find_own_template(generator: JsonDict) -> object:
    """Return the template of a generator, which replaces fields of that of the ApplicationSet."""
    kind = next((name for name in generator if name not in _BESIDE), "")
    return value_at(generator, (kind, "template"))


def _listed(spec: JsonDict) -> list[JsonDict] | None:
    if "elementsYaml" not in spec:
        return as_mappings(spec.get("elements"))
    data = _parsed(as_text(spec["elementsYaml"]).encode())
    return as_mappings(data) if isinstance(data, list) else None


def _of_clusters(spec: JsonDict, around: Surroundings) -> list[JsonDict] | None:
    """Return the parameters of the clusters that a selector chooses, None if none is known."""
    selector = as_mapping(spec.get("selector"))
    if not around.clusters:
        return _with_values([{}], spec, around.tree) if selector in ({}, _EVERY_CLUSTER) else None
    chosen = [
        _of_cluster(secret)
        for secret in around.clusters
        if _is_selected(as_mapping(value_at(secret, ("metadata", "labels"))), selector)
    ]
    return _with_values(chosen, spec, around.tree)


def _of_cluster(secret: JsonDict) -> JsonDict:
    """Return the parameters of the cluster of a Secret; a name in base64 is not decoded."""
    stated, metadata = as_mapping(secret.get("stringData")), as_mapping(secret.get("metadata"))
    name = as_text(stated.get("name")) or as_text(metadata.get("name"))
    kept = {key: as_mapping(metadata.get(key)) for key in ("labels", "annotations")}
    return {
        "name": name,
        "nameNormalized": _normalized(name),
        "server": as_text(stated.get("server")),
        "metadata": kept,
    }


def _of_git(spec: JsonDict, tree: MeteredTree, folder: str) -> list[JsonDict] | None:
    directories, files = spec.get("directories"), spec.get("files")
    prefix = as_text(spec.get("pathParamPrefix"))
    if isinstance(directories, list):
        paths = _matching(tree, tree.folders_below(folder), as_mappings(directories), folder)
        return _with_values([_with_path({}, path, "", prefix) for path in paths], spec, tree)
    if not isinstance(files, list):
        return None
    found: list[JsonDict] = []
    for path in _matching(tree, tree.files_below(folder), as_mappings(files), folder):
        data = _parsed_file(tree, posixpath.normpath(posixpath.join(folder, path)))
        above, name = folder_of(path), posixpath.basename(path)
        found += [
            _with_path(one, above, name, prefix)
            for one in (as_mappings(data) if isinstance(data, list) else [as_mapping(data)])
        ]
    return _with_values(found, spec, tree)


def _parsed_file(tree: MeteredTree, path: str) -> object:
    """Return the data of a YAML or JSON file of the tree, None if it is neither."""
    documents, findings = tree.documents(path, tree.read(path) or b"")
    return documents[0].data if documents and not findings else None


def _parsed(content: bytes) -> object:
    """Return the data of a YAML or JSON file, None if it is neither."""
    documents, findings = parse_documents("", content)
    return documents[0].data if documents and not findings else None


def _with_path(data: JsonDict, path: str, filename: str, prefix: str) -> JsonDict:
    """Return parameters with those of a path."""
    base = posixpath.basename(path)
    at: JsonDict = {
        "path": path,
        "basename": base,
        "basenameNormalized": _normalized(base),
        "segments": path.split("/"),
    }
    if filename:
        at |= {"filename": filename, "filenameNormalized": _normalized(filename)}
    return {**data, prefix: {"path": at}} if prefix else {**data, "path": at}


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9.-]", "-", name.lower())


def _with_values(found: list[JsonDict], spec: JsonDict, tree: MeteredTree) -> list[JsonDict]:
    """Return parameters with ``values`` of their generator, which may refer to the others."""
    values = as_mapping(spec.get("values"))
    return [{**one, "values": fill(values, one, tree)} for one in found] if values else found


def _product(
    generators: Sequence[JsonDict], around: Surroundings, depth: int
) -> list[JsonDict] | None:
    """Return each combination; a generator may refer to the parameters of those before it."""
    if not generators:
        return None
    found: list[JsonDict] = [{}]
    for generator in generators:
        combined: list[JsonDict] = []
        for before in found:
            filled = as_mapping(fill(generator, before, around.tree))
            for element in elements_of(filled, around, depth + 1):
                combined.append(_over(before, element))
                if len(combined) > _ELEMENTS_MAX:
                    return combined
        found = combined
    return found


def _merged(spec: JsonDict, around: Surroundings, depth: int) -> list[JsonDict] | None:
    """Return the parameters of the first generator, with those of others that agree in the keys."""
    keys = strings(spec.get("mergeKeys"))
    generators = as_mappings(spec.get("generators"))
    if not keys or not generators:
        return None
    first, *others = (elements_of(one, around, depth + 1) for one in generators)
    for other in others:
        by_keys = {_values_of_keys(element, keys): element for element in other}
        first = [_over(one, by_keys.get(_values_of_keys(one, keys), {})) for one in first]
    return first


def _values_of_keys(element: JsonDict, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(plain(_parameter(element, key)) for key in keys)


def _over(before: JsonDict, after: JsonDict) -> JsonDict:
    """Return parameters with later ones over them; those of one name are merged."""
    merged = dict(before)
    for key, value in after.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _over(old, value)
        merged[key] = value
    return merged


def _is_selected(element: JsonDict, selector: JsonDict) -> bool:
    """Return whether parameters match a label selector, with the parameters as labels."""
    for key, value in as_mapping(selector.get("matchLabels")).items():
        if plain(_parameter(element, key)) != plain(value):
            return False
    for one in as_mappings(selector.get("matchExpressions")):
        found = _parameter(element, as_text(one.get("key")))
        is_in = plain(found) in strings(one.get("values"))
        if not {
            "In": found is not None and is_in,
            "NotIn": found is None or not is_in,
            "Exists": found is not None,
            "DoesNotExist": found is None,
        }.get(as_text(one.get("operator")), False):
            return False
    return True


def _matching(
    tree: MeteredTree, paths: Sequence[str], patterns: Sequence[JsonDict], folder: str
) -> Iterator[str]:
    """Yield the paths, relative to a folder, that the patterns choose and do not exclude."""
    by_exclusion = group_pairs((p.get("exclude") is True, _names(p)) for p in patterns)
    chosen, excluded = by_exclusion.get(False, []), by_exclusion.get(True, [])
    steps = sum(1 + sum(map(matching_steps, names)) for names in (*chosen, *excluded))
    start = 0 if folder == "." else len(folder) + 1
    for path in paths:
        tree.charge(steps)
        below = path[start:]
        parts = below.split("/")
        if not any(_matches(parts, names) for names in excluded) and any(
            _matches(parts, names) for names in chosen
        ):
            yield below


def limited_pattern(written: object) -> str:
    """Return a pattern of paths, empty if there is none.

    Raises:
        TreeLimitError: it is too long.
    """
    pattern = as_text(written)
    if len(pattern) > PATTERN_MAX:
        raise TreeLimitError(f"a pattern of more than {PATTERN_MAX:,} characters")
    return pattern


def _names(pattern: JsonDict) -> list[str]:
    """Return the names in a pattern of paths, with each ``**`` once in a row."""
    names = posixpath.normpath(limited_pattern(pattern.get("path"))).split("/")
    return [n for at, n in enumerate(names) if n != "**" or names[at - 1 : at] != ["**"]]


def _matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a path matches a pattern, in which ``**`` stands for any folders."""
    anywhere = {at for at, name in enumerate(names) if name == "**"}
    reached = {0} | ({1} if 0 in anywhere else set())
    for part in parts:
        following: set[int] = set()
        for at in reached:
            if at in anywhere:
                following |= {at, at + 1}
            elif at < len(names) and fnmatch.fnmatchcase(part, names[at]):
                following.add(at + 1)
        reached = following | {at + 1 for at in following & anywhere}
    return len(names) in reached


def fill(value: object, element: JsonDict, tree: MeteredTree) -> object:
    """Return a template with the parameters of an element filled in; others stay as they are.

    Raises:
        TreeLimitError: the text becomes too long.
    """
    if isinstance(value, dict):
        return {k: fill(v, element, tree) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(v, element, tree) for v in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = _parameter(element, match[1].strip().removesuffix("-").strip())
        filled = plain(found) if isinstance(found, str | int | bool) else match[0]
        tree.charge(1 + len(filled) // _CHARACTERS_OF_A_STEP)
        return filled

    return _TEMPLATE.sub(replace, value)


def _item(listed: object, number: int) -> object:
    """Return an item of a list, or of the folders of a path, None if there is none."""
    items = listed.split("/") if isinstance(listed, str) else as_list(listed)
    return items[number] if number < len(items) else None


def _parameter(element: JsonDict, name: str) -> object:
    """Return a parameter by its name in either kind of template, None if there is none."""
    index = _INDEX.fullmatch(name)
    if index is not None:
        listed = _parameter(element, index[1] or index[3])
        return _item(listed, int(index[2] or index[4]))
    key = _KEY.fullmatch(name)
    if key is not None:
        return as_mapping(_parameter(element, key[1])).get(key[2])
    name = name.lstrip(".")
    if name in element and not isinstance(element[name], dict):
        return element[name]
    found = value_at(element, tuple(name.split(".")))
    if isinstance(found, dict) and name.rpartition(".")[2] == "path":
        return found.get("path")
    for kind in ("labels", "annotations"):  # their keys contain dots
        prefix = f"metadata.{kind}."
        if found is None and name.startswith(prefix):
            found = value_at(element, ("metadata", kind, name.removeprefix(prefix)))
    return found


def strings(value: object) -> list[str]:
    """Return the strings of a list."""
    return [item for item in as_list(value) if isinstance(item, str)]


def plain(value: object) -> str:
    """Return a scalar as YAML writes it, an empty string for null."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
