"""What a loop of passes remembers of its last questions, part by part."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from reconciler.plan.make.pools import TypesRecall

if TYPE_CHECKING:
    from reconciler.diff.drift import DriftRecall
    from reconciler.disruption.consolidation.recall import RefusalRecall


class FactsRecall:
    """What follows from the last question of a loop of passes, for a question that is alike."""

    def __init__(self) -> None:
        self.types = TypesRecall()

    @cached_property
    def drift(self) -> DriftRecall:
        """What had drifted; loaded on use, like drift itself."""
        from reconciler.diff.drift import DriftRecall

        return DriftRecall()

    @cached_property
    def refusals(self) -> RefusalRecall:
        """What consolidation had rejected; loaded on use, like disruption itself."""
        from reconciler.disruption.consolidation.recall import RefusalRecall

        return RefusalRecall()
