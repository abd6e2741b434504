"""What is said while it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that happened, for a person to read while it happens."""

    at: datetime
    kind: str
    message: str
    node_pool: str = ""
    node_claim: str = ""
    node: str = ""
    command: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


class Notifier(Protocol):
    """Where progress is told."""

    def notify(self, progress: Progress) -> None:
        """Tell it; must not fail."""
