"""YAML of others that is read as a whole: without what makes a small file a large value.

libyaml composes by recursion and copies merged mappings, so a file of a few kilobytes can end the
process or fill its memory. What a person or kubectl writes has no aliases and little depth.
"""

from __future__ import annotations

from typing import Any, Final

BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of YAML that is read as a whole; JSON may be larger."""

DEPTH_MAX: Final = 100
"""How deep its values may be nested."""


def load_all(content: bytes) -> list[Any]:
    """Return the documents, empty ones left out.

    Raises:
        yaml.YAMLError: it is not YAML, is too large or too deep, or has an alias.
    """
    import yaml

    if len(content) > BYTES_MAX:
        raise yaml.YAMLError(f"more than {BYTES_MAX // 2**20} MiB of YAML; write it as JSON")
    _check(content)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [d for d in yaml.load_all(content, Loader=loader) if d is not None]
    except (ValueError, TypeError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error


def _check(content: bytes) -> None:
    import yaml
    from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        mark: Any = event.start_mark
        if isinstance(event, AliasEvent):
            raise yaml.MarkedYAMLError(None, None, "an alias is not read here", mark)
        if isinstance(event, CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                problem = f"nested more than {DEPTH_MAX} levels deep"
                raise yaml.MarkedYAMLError(None, None, problem, mark)
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
