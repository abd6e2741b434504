"""Recorded states for tests that are not about the lease."""

from __future__ import annotations

from functools import partial

from reconciler.adapters.database import state

open_state = partial(state.open_state, needs_lease=False)
"""Open a state that may be written without its lease, as ``reconciler resume`` does."""
