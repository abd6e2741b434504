"""A declarative reconciliation engine for EC2 node fleets, driven by a git repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

DISTRIBUTION = "fleet-reconciler"
"""The name on the package index; ``reconciler`` is another project there."""

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Return the version that was installed, which the build took from the tags of git."""
        if name != "__version__":
            raise AttributeError(f'module "{__name__}" has no attribute "{name}"')
        return _installed_version() or "0.0.0"  # a tree that runs without having been installed


def _installed_version() -> str:
    """Return the version in the name of the installation's folder, empty if there is none.

    A wheel is installed beside ``NAME-VERSION.dist-info``. Importing ``importlib.metadata`` for
    the same answer would take as long as starting Python twice.
    """
    import os
    import sys

    start = f"{DISTRIBUTION.replace('-', '_')}-"
    for path in sys.path:
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(start) and name.endswith(".dist-info"):
                return name.removesuffix(".dist-info").partition("-")[2]
    return ""
