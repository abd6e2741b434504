"""Nodes among which a decision has no reason to choose."""

from __future__ import annotations

from reconciler.model.decision.part import Part


class EqualCandidates(Part, frozen=True, kw_only=True):
    """Nodes that are equal candidates of a command, which removes ``count`` of them.

    They are sorted by name, and include those that other commands of the pass remove.
    """

    count: int
    nodes: tuple[str, ...]
