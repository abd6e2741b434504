"""Taking what is settled and old out of the records, once a day.

The daemon does it after a pass that has seen EC2, so that whatever a launch left behind has been
dealt with by the record of it; launches whose instances are still shown are kept in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from reconciler.engine.observation import Observation
from reconciler.engine.ownership import INTENT_TAG
from reconciler.engine.world import World
from reconciler.model.duration import NEVER, format_duration, parse_span
from reconciler.model.errors import StateError
from reconciler.model.history import DAY
from reconciler.model.settings import Settings

EVERY: Final = DAY


@dataclass
class Pruning:
    """The care of one daemon for the size of its records."""

    world: World
    _done_at: datetime | None = None

    def after(self, seen: Observation, settings: Settings) -> None:
        """Remove what is too old, if a day has passed since the last time in this process.

        Records that cannot be used now are tried again a day later: nothing waits for it.
        """
        if settings.history_keep == NEVER:
            return
        now = self.world.clock.now()
        if self._done_at is not None and now - self._done_at < EVERY:
            return
        self._done_at = now
        keep = parse_span(settings.history_keep)
        needed = frozenset(instance.tags.get(INTENT_TAG, "") for instance in seen.instances)
        try:
            gone = self.world.prune(now, keep, needed)
        except StateError as error:
            self.world.tell("Retrying", f"cannot prune old records, retrying in a day: {error}")
            return
        if gone:
            text = f"removed {gone} settled records older than {format_duration(keep)}"
            self.world.tell("Pruned", f"{text} (history.keep)")
