"""Watches the passes and events of a daemon, and passes notices to the delivery."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.world import World
from reconciler.model.decode import decode_json
from reconciler.model.errors import ReconcilerError
from reconciler.model.notification import Webhook
from reconciler.model.settings import Settings
from reconciler.notifications.delivery import Deliverer
from reconciler.notifications.notices import (
    Notice,
    NoticeMemory,
    PassFacts,
    notices_of_event,
    notices_of_pass,
)
from reconciler.notifications.weekly import report_of
from reconciler.ports.passes import PassTimes, read_passes
from reconciler.ports.progress import Notifier, Progress
from reconciler.ports.state import Shelf

NOTICES_RECORD: Final = "notices"
"""The name of the sent notices in the state of a fleet."""
_EVENTS_MAX: Final = 100
_LOG: Final = logging.getLogger(__name__)


class RecordedNotices:
    """The notices of a fleet: recorded in its state, and delivered to its webhooks."""

    def __init__(
        self, deliverer: Deliverer, shelf: Shelf | None = None, webhooks: Sequence[Webhook] = ()
    ) -> None:
        self.memory = NoticeMemory() if shelf is None else _read_memory(shelf)
        self.webhooks = webhooks
        self._deliverer = deliverer
        self._shelf = shelf

    def deliver(self, memory: NoticeMemory, notices: Sequence[Notice]) -> None:
        """Record first and then deliver: a crash between the two loses a message.

        The other order would repeat it with every crash. If recording fails, nothing is sent: the
        lease may be lost, and another process reports the same.
        """
        if not self.webhooks or (memory != self.memory and not self._has_recorded(memory)):
            return
        self.memory = memory
        for notice in notices:
            for webhook in self.webhooks:
                if webhook.wants(notice.kind):
                    self._deliverer.deliver(notice, webhook)

    def passes(self) -> PassTimes:
        """Return when passes of the fleet ran."""
        return PassTimes() if self._shelf is None else read_passes(self._shelf)

    def _has_recorded(self, memory: NoticeMemory) -> bool:
        if self._shelf is None:
            return True
        try:
            self._shelf.write(NOTICES_RECORD, msgspec.json.encode(memory, order="sorted"))
        except ReconcilerError as error:
            _LOG.warning("cannot record which notifications were sent: %s", error)
            return False
        return True


class NoticeObserver:
    """Watches the passes of a daemon (``engine.loop.PassObserver``) and its events.

    Events may come from any thread; the thread of the loop reports them, after the pass.
    """

    def __init__(self, deliverer: Deliverer) -> None:
        self._deliverer = deliverer
        self._sent = RecordedNotices(deliverer)
        self._fleet = ""
        self._revision = ""
        self._events: deque[Progress] = deque(maxlen=_EVENTS_MAX)

    def follow(self, shelf: Shelf, settings: Settings) -> None:
        """Continue from the notices in the state of the fleet."""
        self._fleet = settings.fleet
        self._sent = RecordedNotices(self._deliverer, shelf, settings.webhooks)

    def record_event(self, event: Progress) -> None:
        """Keep an event for the end of the pass."""
        self._events.append(event)

    def pass_ended(self, world: World, desired: PlannedFleet, result: Pass) -> None:
        """Report the result of the pass, and what happened before and in it."""
        self._fleet, self._revision = desired.settings.fleet, desired.revision
        self._sent.webhooks = desired.settings.webhooks
        memory, notices = self._notices_of_events()
        if self._sent.webhooks:
            fleet, store, plan, at = self._fleet, world.store, result.plan, result.seen.at
            sent = self._sent
            facts = PassFacts(
                at,
                fleet,
                self._revision,
                plan,
                store.commands(),
                lambda since: report_of(fleet, store, sent.passes(), plan, since, at),
            )
            memory, found = notices_of_pass(memory, facts)
            notices += found
        self._sent.deliver(memory, notices)

    def pass_failed(self) -> None:
        """Report what happened in a pass that failed."""
        self._sent.deliver(*self._notices_of_events())

    def _notices_of_events(self) -> tuple[NoticeMemory, list[Notice]]:
        memory, notices = self._sent.memory, list[Notice]()
        while self._events:
            event = self._events.popleft()
            memory, found = notices_of_event(memory, event, self._fleet, self._revision)
            notices += found
        return memory, notices


def _read_memory(shelf: Shelf) -> NoticeMemory:
    content = shelf.read(NOTICES_RECORD)
    if content is None:
        return NoticeMemory()
    try:
        return decode_json(content, NoticeMemory)
    except msgspec.MsgspecError:
        return NoticeMemory()  # of another release: at worst something is reported twice


class NoticeNotifier:
    """Passes events on to another notifier, and reports them if necessary."""

    def __init__(self, then: Notifier, observer: NoticeObserver) -> None:
        self._then = then
        self._observer = observer

    def notify(self, progress: Progress) -> None:
        """Report the event if necessary, and pass it on."""
        self._then.notify(progress)
        self._observer.record_event(progress)
