"""The exit codes that CI jobs rely on."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
"""Done. For ``plan --detailed-exitcode``: there is nothing to do."""
FAILED: Final = 1
"""Any error, wrong usage of the command line included."""
CHANGES: Final = 2
"""``plan --detailed-exitcode``: there are changes. Nothing else exits with 2."""
REFUSED: Final = 3
"""A policy of the repository forbids the plan, or the desired state is invalid (``validate``)."""
STALE: Final = 4
"""``apply PLAN``: the saved plan is stale, or was applied before; the message says why."""
INTERRUPTED: Final = 130
"""Interrupted by Ctrl-C."""
