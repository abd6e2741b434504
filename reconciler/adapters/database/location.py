"""Where a state is: the URL of a server, or a folder with one file. Loads no database library."""

from __future__ import annotations

import os
from typing import Final

FILE: Final = "state.db"
"""The file of the embedded database in its folder."""


def is_url(location: str) -> bool:
    """Return whether ``location`` names a server rather than a folder."""
    return "://" in location


def may_exist(location: str) -> bool:
    """Return whether there is a state: a server is only known once it is asked.

    A broken link in its place counts, because whoever opens the state must refuse it.
    """
    return is_url(location) or os.path.lexists(os.path.join(location, FILE))
