"""Values with which a Helm chart may make nodes, where its own values.yaml makes none.

A chart that several repositories share has no nodes of its own: they are in a values file of an
environment, in those that the chart is tested with (``ci/``), or in an example.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.chart import CHART, MAKES_NODES
from reconciler.model.diagnostics import Place
from reconciler.model.json import JsonDict, as_mapping
from reconciler.source.document import parse_documents

VALUES: Final = "values.yaml"
_KEY: Final = re.compile(rb"\.Values\.([A-Za-z_]\w*)|\.Values\s+\"([\w-]+)\"")
_EXAMPLE: Final = re.compile(r"(?:^|/)ci/|example|sample|test")
_FENCE: Final = re.compile(r"^```ya?ml[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OPEN_KEY: Final = re.compile(r"([\w.-]+):(?:\s*(?:\{\s*\}|\[\s*\]|null|~|\"\"|''))?\s*(?:#.*)?")
_FIRST_LINE: Final = re.compile(r"- |[\w./\"'-]+:(?:\s|$)")
_YAML_LINE: Final = re.compile(r"\s*(?:- |#|[a-z0-9_./\"'-][\w./\"'-]*:(?:\s|$)|$)")
"""A line of YAML, but not of prose, whose first word is no key of values."""
_NEWS: Final = ("changelog", "changes", "history", "releases", "upgrading")
_SWITCHES: Final = ("enabled", "enable", "create")
_SUFFIXES: Final = (".yaml", ".yml")


class ValuesOrigin(IntEnum):
    """Where values are written, the most certain first."""

    FILE = 1
    EXAMPLE = 2
    DISABLED = 3
    PAGE = 4
    COMMENT = 5


class ChartValues(NamedTuple):
    """Values that a chart may be rendered with."""

    origin: ValuesOrigin
    place: Place
    values: JsonDict


def makes_nodes(files: Mapping[str, bytes]) -> bool:
    """Return whether a chart of these files has templates of nodes."""
    return any(True for _ in _node_templates(files))


def values_for_nodes(
    folder: str, files: Mapping[str, bytes], others: Iterable[SourceFile]
) -> list[ChartValues]:
    """Return the values that set what the templates of nodes ask for, the most certain first.

    ``files`` are those of the chart in ``folder``, ``others`` the YAML files of the repository.
    """
    keys = _open_keys(folder, files)
    found = list(_in_files(folder, files, others, keys))
    found += _in_pages(files, keys)
    path = posixpath.normpath(posixpath.join(folder, VALUES))
    enabled = _switched_on(_mapping_of(path, files), _used_keys(files))
    if enabled:
        found.append(ChartValues(ValuesOrigin.DISABLED, Place(path, 1, 1), enabled))
    commented, line = _in_comments(files.get(path, b"").decode("utf-8", "replace"), keys)
    if commented:
        found.append(ChartValues(ValuesOrigin.COMMENT, Place(path, line, 1), commented))
    return sorted(found, key=lambda one: (one.origin, one.place))


def merged_values(values: Iterable[JsonDict]) -> JsonDict:
    """Return values over one another, as Helm merges those of several files."""
    merged: JsonDict = {}
    for one in values:
        for key, value in one.items():
            below = merged.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                merged[key] = merged_values((below, value))
            else:
                merged[key] = value
    return merged


def _node_templates(files: Mapping[str, bytes]) -> Iterator[bytes]:
    for path, content in files.items():
        if "/templates/" in f"/{path}" and MAKES_NODES.search(content):
            yield content


def _used_keys(files: Mapping[str, bytes]) -> set[str]:
    """Return the keys of values that templates of nodes use."""
    return {
        (match[1] or match[2]).decode()
        for content in _node_templates(files)
        for match in _KEY.finditer(content)
    }


def _switched_on(values: object, keys: Collection[str] = ()) -> JsonDict:
    """Return the switches below the keys that are off, as on; without keys, all of them."""
    found: JsonDict = {}
    for key, value in as_mapping(values).items():
        if keys and key not in keys:
            continue
        if key in _SWITCHES and value is False:
            found[key] = True
        elif below := _switched_on(value):
            found[key] = below
    return found


def _open_keys(folder: str, files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the values that templates of nodes use and values.yaml leaves empty, or else all."""
    used = _used_keys(files)
    own = _mapping_of(posixpath.normpath(posixpath.join(folder, VALUES)), files)
    left = {key for key in used if not own.get(key)}
    return frozenset(left or used)


def _mapping_of(path: str, files: Mapping[str, bytes]) -> JsonDict:
    documents, _ = parse_documents(path, files.get(path, b""))
    data = documents[0].data if len(documents) == 1 else None
    return as_mapping(data)


def _sets(data: object, keys: Collection[str]) -> bool:
    """Return whether a document is a file of values that sets one of the keys."""
    if not isinstance(data, dict) or ("apiVersion" in data and "kind" in data):
        return False
    return any(data.get(key) for key in keys)


def _is_of_chart_itself(path: str, folder: str) -> bool:
    """Return whether a file describes the chart, or has its defaults or a template of it."""
    own = (posixpath.normpath(posixpath.join(folder, name)) for name in (CHART, VALUES))
    return path in own or "/templates/" in f"/{path}"


def _in_files(
    folder: str, files: Mapping[str, bytes], others: Iterable[SourceFile], keys: Collection[str]
) -> Iterator[ChartValues]:
    every = _yaml_files((*files.items(), *((file.path, file.content) for file in others)))
    charts = _chart_folders(every)
    words = [key.encode() for key in keys]
    for path, content in sorted(every.items()):
        is_of_other = path not in files and path.startswith(charts)
        if is_of_other or _is_of_chart_itself(path, folder) or not any(w in content for w in words):
            continue
        data = _mapping_of(path, {path: content})
        if _sets(data, keys):
            origin = ValuesOrigin.EXAMPLE if _EXAMPLE.search(path.lower()) else ValuesOrigin.FILE
            yield ChartValues(origin, Place(path, 1, 1), data)


def _yaml_files(files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    return {path: content for path, content in files if path.endswith(_SUFFIXES)}


def _chart_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of charts, each with a slash at its end; not the top."""
    names = {path.rpartition("/") for path in paths}
    return tuple(f"{above}/" for above, _, name in names if name == CHART and above)


def _in_pages(files: Mapping[str, bytes], keys: Collection[str]) -> Iterator[ChartValues]:
    """Yield the examples in the chart's documentation."""
    for path, content in sorted(files.items()):
        name = posixpath.basename(path).lower()
        if not name.endswith(".md") or name.startswith(_NEWS):
            continue
        text = content.decode("utf-8", "replace")
        for match in _FENCE.finditer(text):
            data = _mapping_of(path, {path: match[1].encode()})
            if _sets(data, keys):
                line = text.count("\n", 0, match.start(1)) + 1
                yield ChartValues(ValuesOrigin.PAGE, Place(path, line, 1), data)


def _comment_blocks(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line of each block of comments, and the block without `#`.

    Indented comments within it belong to comments, and are left out.
    """
    start, block = 0, list[str]()
    for number, line in enumerate((*lines, "")):
        if line.startswith("#"):
            start = start if block else number
            block.append(line[1:])
        elif block and not line.lstrip().startswith("#"):
            yield start, block
            block = []


def _in_comments(text: str, keys: Collection[str]) -> tuple[JsonDict, int]:
    """Return the values that values.yaml has as comments, and the line of the first."""
    found: JsonDict = {}
    first = 0
    lines = text.split("\n")
    for start, block in _comment_blocks(lines):
        data = _uncommented(block)
        above = _OPEN_KEY.fullmatch(lines[start - 1]) if start else None
        if isinstance(data, dict) and _sets(data, keys):
            values = data
        elif above is not None and above[1] in keys and data:
            values = {above[1]: data}
        else:
            continue
        found |= values
        first = first or start + 1
    return found, first


def _uncommented(lines: list[str]) -> JsonDict | list[object] | None:
    """Return the YAML in the lines of a comment, without the prose before and in it."""
    begin = next((n for n, line in enumerate(lines) if _FIRST_LINE.match(line.lstrip())), None)
    if begin is None:
        return None
    part = lines[begin:]
    for chosen in (part, [line for line in part if _YAML_LINE.match(line)]):
        documents, findings = parse_documents("", textwrap.dedent("\n".join(chosen)).encode())
        data = documents[0].data if len(documents) == 1 and not findings else None
        if isinstance(data, dict | list):
            return data
    return None
