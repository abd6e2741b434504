"""Where a state is: the URL of a server, or a folder with one file. Loads no database library."""

from __future__ import annotations

import os
from typing import Final

FILE: Final = "state.db"
"""The file of the embedded database in its folder."""

SIMULATED: Final = "simulated"
"""The folder, in that of a fleet's state, of the state that ``--simulated`` acts with."""


def is_url(location: str) -> bool:
    """Return whether ``location`` names a server rather than a folder."""
    return "://" in location


def may_exist(location: str) -> bool:
    """Return whether there is a state; for a server the answer needs a connection.

    A broken link in its place counts, because opening the state must then fail.
    """
    return is_url(location) or os.path.lexists(os.path.join(location, FILE))
