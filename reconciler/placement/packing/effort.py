"""How much is tried: counted in lots held against nodes, never in time."""

from __future__ import annotations


class Effort:
    """What was done of the work that all packings of one question may do together."""

    __slots__ = ("done", "most")

    def __init__(self, most: int) -> None:
        self.done = 0
        self.most = most

    @property
    def left(self) -> int:
        """How much may still be begun."""
        return max(0, self.most - self.done)
