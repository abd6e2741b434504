"""Kubernetes Events (events.k8s.io/v1), deduplicated and limited as Karpenter's recorder does.

The same text about the same object is written once in two minutes. For one reason, at most ten are
written at once, then five a second; the rest is dropped, because an Event is information for people
and not a record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.kinds import EVENT
from reconciler.model.json import JsonDict
from reconciler.ports.announcements import Announcement
from reconciler.ports.calls import Calls
from reconciler.ports.clock import Clock

SILENT_S: Final = 120.0
BURST: Final = 10.0
RATE: Final = 5.0
"""Events a second for one reason, after the burst."""
_GROUPS: Final = {"Pod": "v1", "Node": "v1", "NodePool": "karpenter.sh/v1"}
_NAMESPACE: Final = "default"
"""Where Events about objects without a namespace are."""
_CONTROLLER: Final = "reconciler"


class ClusterEvents:
    """The port ``Announcer`` over the Kubernetes API."""

    def __init__(self, api: Api, calls: Calls, clock: Clock, instance: str) -> None:
        self._api = api
        self._calls = calls
        self._clock = clock
        self._instance = instance
        self._written: dict[Announcement, datetime] = {}
        self._tokens: dict[str, tuple[float, datetime]] = {}

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Write new Events, outside the pass; rejected ones are not retried."""
        now = self._clock.now()
        self._written = {a: at for a, at in self._written.items() if _age(at, now) < SILENT_S}
        due = []
        for item in announcements:
            if item not in self._written and self._may_write(item.reason, now):
                self._written[item] = now
                due.append(item)
        self._calls.answer("events")
        if due:
            self._calls.start("events", lambda: self._write(due, now))

    def _may_write(self, reason: str, now: datetime) -> bool:
        """Return whether one more Event of this reason is within the limits, and count it."""
        left, at = self._tokens.get(reason, (BURST, now))
        left = min(BURST, left + max(_age(at, now), 0.0) * RATE)
        self._tokens[reason] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        return left >= 1.0

    def _write(self, due: Sequence[Announcement], now: datetime) -> None:
        for item in due:
            namespace = item.namespace or _NAMESPACE
            path = f"/apis/{EVENT.group}/{EVENT.version}/namespaces/{namespace}/{EVENT.resource}"
            self._api.call("POST", path, body=self._event(item, namespace, now))

    def _event(self, item: Announcement, namespace: str, now: datetime) -> JsonDict:
        stamp = f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"
        facts = f"{item.kind}/{namespace}/{item.name}/{item.reason}/{item.message}/{stamp}"
        regarding = {"apiVersion": _GROUPS[item.kind], "kind": item.kind, "name": item.name}
        more = {"namespace": item.namespace, "uid": item.uid}
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                "name": f"{item.name[:200]}.{hashlib.sha256(facts.encode()).hexdigest()[:16]}",
                "namespace": namespace,
            },
            "eventTime": stamp,
            "type": "Warning" if item.is_warning else "Normal",
            "reason": item.reason,
            "action": item.action,
            "note": item.message,
            "regarding": regarding | {key: value for key, value in more.items() if value},
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance[:128] or _CONTROLLER,
        }


def _age(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()
