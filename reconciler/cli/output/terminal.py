"""What a stream can show: colour, and lines that are written over."""

from __future__ import annotations

import os
from typing import TextIO


def has_colour(out: TextIO) -> bool:
    """Return whether ``out`` is a terminal that shows colours, and nothing disables them.

    ``NO_COLOR`` (with any value but an empty one) and ``TERM=dumb`` turn them off.
    """
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
