"""How long a command may take before it counts as failed and is rolled back."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_FOR_EACH_NODE: Final = timedelta(milliseconds=80)
_LEAST: Final = timedelta(minutes=10)
_MOST: Final = timedelta(hours=1)


def command_timeout(queued: int) -> timedelta:
    """Return the time that a command has while ``queued`` nodes are in commands together.

    Launches are slower when many are asked for at once; but after an hour something is wrong
    (Karpenter ``queue.go``).
    """
    return min(max(_FOR_EACH_NODE * queued, _LEAST), _MOST)
