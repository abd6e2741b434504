"""Filters of Describe calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the filters of a tag term: all of them must hold, ``*`` means any value."""
    return [
        {"Name": "tag-key", "Values": [key]}
        if value == "*"
        else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(tags.items())
    ]
