"""Documents as they are parsed: mappings whose values the type checker does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
"""An object of JSON or YAML that is only read.

Its form is defined by a schema in ``schemas/`` or by another program's API, which the type checker
cannot read. Code that only passes a value on or compares it uses ``object``.
"""

JsonDict = dict[str, Any]
"""An object of JSON or YAML that is being made or changed."""
