"""Read and write plain YAML without positions.

The input must not have aliases or deep nesting, so a small file cannot become a large value.
Scalars have Kubernetes' meaning in both directions: a text that Kubernetes would read as another
type is quoted. Only ``y`` and ``n`` are read as text, because many programs write such texts
without quotes.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import DocumentStartEvent, MappingStartEvent, StreamEndEvent
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from reconciler.model.json import JsonDict
from reconciler.source.scalars import format_key, resolve_scalar
from reconciler.source.yamlevents import YamlEvent, yaml_parser

BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of YAML that is read at once; JSON may be larger."""

DEPTH_MAX: Final = 100
"""The maximum nesting depth of its values."""

_TAGS: Final = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_TEXT_TAGS: Final = ("!", "tag:yaml.org,2002:str")
_LETTERS: Final = ("y", "Y", "n", "N")
_MERGE: Final = object()


def load_all(content: bytes) -> list[object]:
    """Return the documents without empty ones; of a duplicate key the last value counts.

    Raises:
        YAMLError: (of ruamel.yaml) it is not YAML, is too large or too deep, or has an alias.
    """
    if len(content) > BYTES_MAX:
        raise YAMLError(f"more than {BYTES_MAX // 2**20} MiB of YAML; write it as JSON")
    try:
        text = content.decode().removeprefix("\ufeff")
        return [d for d in _Reader(text).documents() if d is not None]
    except UnicodeDecodeError as error:
        raise YAMLError(f"byte 0x{content[error.start]:02x} is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise YAMLError(str(error)) from error


def is_mapping(text: str) -> bool:
    """Return whether a text is YAML with a single document that is a mapping."""
    documents, first = 0, None
    try:
        parser = yaml_parser(text)
        while not isinstance(event := parser.get_event(), StreamEndEvent):
            if isinstance(event, DocumentStartEvent):
                documents += 1
                first = parser.get_event()
    except (YAMLError, ValueError):
        return False
    return documents == 1 and isinstance(first, MappingStartEvent)


class _Reader:
    """Composes data from the events of a text."""

    def __init__(self, text: str) -> None:
        self.events: Any = events
        self.error = MarkedYAMLError
        self.next = yaml_parser(text).get_event

    def documents(self) -> Iterable[object]:
        self.next()
        while isinstance(self.next(), self.events.DocumentStartEvent):
            yield self._value(self.next(), 1)
            self.next()

    def _error(self, problem: str, event: YamlEvent) -> Exception:
        return self.error(None, None, problem, event.start_mark)

    def _value(self, event: YamlEvent, depth: int) -> object:
        events = self.events
        if isinstance(event, events.AliasEvent):
            raise self._error("an alias is not read here", event)
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event)
        if depth > DEPTH_MAX:
            raise self._error(f"nested more than {DEPTH_MAX} levels deep", event)
        if event.tag not in _TAGS:
            raise self._error(f"the tag {event.tag[:60]} is not supported", event)
        if isinstance(event, events.MappingStartEvent):
            return self._mapping(depth)
        items = []
        while not isinstance(event := self.next(), events.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> JsonDict:
        data: dict[str, object] = {}
        merged: dict[str, object] = {}
        while not isinstance(event := self.next(), self.events.MappingEndEvent):
            key = self._key(event)
            at = self.next()
            value = self._value(at, depth + 1)
            if key is not _MERGE:
                data[key] = value
                continue
            for source in reversed(value if isinstance(value, list) else [value]):
                if not isinstance(source, dict):
                    raise self._error("<< takes a mapping or a list of mappings", at)
                merged.update(source)
        return {**merged, **data} if merged else data

    def _key(self, event: YamlEvent) -> Any:
        if not isinstance(event, self.events.ScalarEvent):
            raise self._error("a key must be a string, not a list, mapping or alias", event)
        if event.value == "<<" and event.implicit[0]:
            return _MERGE
        key = format_key(self._scalar(event))
        if key is None:
            raise self._error("a key must be a string, not null", event)
        return key

    def _scalar(self, event: YamlEvent) -> Any:
        text: str = event.value
        if event.tag is None:
            return resolve_scalar(text) if event.implicit[0] and text not in _LETTERS else text
        if event.tag not in _TEXT_TAGS:
            raise self._error(f"the tag {event.tag[:60]} is not supported", event)
        return text


def dump(data: object, *, sort_keys: bool = True) -> str:
    """Return data as one YAML document in block style, for readers of YAML 1.1 and 1.2."""
    stream = StringIO()
    _writer(sort_keys=sort_keys).dump(data, stream)
    return stream.getvalue().removesuffix("...\n")


def _writer(*, sort_keys: bool) -> Any:
    """Return ruamel.yaml's writer, which quotes texts that either version of YAML misreads."""

    class Resolver(VersionedResolver):
        """The rules of YAML 1.1, without requiring a directive in every file."""

        @property
        def processing_version(self) -> object:
            return (1, 1)

    class Representer(SafeRepresenter):
        """Writes equal values in full instead of as aliases."""

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

        def represent_str(self, data: str) -> object:
            style = None if isinstance(resolve_scalar(data), str) else "'"
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Representer.add_representer(str, Representer.represent_str)

    writer: Any = YAML(typ="safe", pure=True)
    writer.Resolver = Resolver
    writer.Representer = Representer
    writer.default_flow_style = False
    writer.width = 10**6
    writer.sort_base_mapping_type_on_output = sort_keys
    return writer
