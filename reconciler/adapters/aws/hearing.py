"""All ways in which EC2's word of interruptions comes in, as one."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.ports import Interruption, Interruptions


class Hearing:
    """The port ``Interruptions`` over several others; each knows its own words by their ids."""

    def __init__(self, *ways: Interruptions) -> None:
        self._ways = ways

    def arrived(self) -> Sequence[Interruption]:
        """Return what was heard and is not settled, one way after the other."""
        return [word for way in self._ways for word in way.arrived()]

    def settle(self, heard: Sequence[Interruption]) -> None:
        """Take the words off whichever list they are on."""
        for way in self._ways:
            way.settle(heard)

    def has_news(self) -> bool:
        """Return whether ``arrived`` would give something."""
        return any(way.has_news() for way in self._ways)

    def problem(self) -> str:
        """Return why some of it cannot be heard at present, empty where all is well."""
        return "; ".join(problem for way in self._ways if (problem := way.problem()))
