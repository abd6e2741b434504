"""What is remembered of the memory that nodes reported (see ``discovered``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """Memory of a node in thousandths of a byte, and when a node last confirmed it."""

    amount: int
    seen_at: datetime


Discoveries = Mapping[str, Mapping[str, Memory]]
"""Memory by the key of a class's images, then by instance type."""
