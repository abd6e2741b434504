"""YAML in tests: fixtures written as text, and the project's own files read as data."""

from typing import Any

from reconciler.source.plainyaml import dump, load_all


def load(text: str) -> Any:
    """Return the first document of a text."""
    return load_all(text.encode())[0]


def dump_all(documents: list[Any]) -> str:
    """Return the documents as one text."""
    return "---\n".join(map(dump, documents))
