"""The health of instances as DescribeInstanceStatus tells it: moto knows no ill ones.

All running instances are well but for those of which a test or a demo says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from reconciler.adapters.simulated.wire import Answer, Request, nested, xml

_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Health:
    """What ails the instances of an account."""

    def __init__(self) -> None:
        self._impaired: dict[tuple[str, str], datetime] = {}
        self._events: dict[str, list[dict[str, str]]] = {}

    def impair(self, instance: str, since: datetime, *, check: str = "instance") -> None:
        """Let a check of an instance fail, that of the ``instance`` or of its ``system``."""
        self._impaired[instance, check] = since

    def recover(self, instance: str) -> None:
        """Let all checks of an instance pass again, and its events be off."""
        self._impaired = {k: v for k, v in self._impaired.items() if k[0] != instance}
        self._events.pop(instance, None)

    def announce(self, instance: str, code: str, not_before: datetime, text: str = "") -> None:
        """Set an event for an instance, such as ``instance-retirement``."""
        events = self._events.setdefault(instance, [])
        number = f"instance-event-{len(events):017x}"
        events.append(
            {
                "instanceEventId": number,
                "code": code,
                "description": text or f"The instance is due for {code}",
                "notBefore": _moment(not_before),
            }
        )

    def answer(self, request: Request, living: Collection[str]) -> Answer:
        """Return the answer about the running instances that all filters of a call accept."""
        filters = nested(request.form).get("Filter") or []
        rows = [
            self._row(instance)
            for instance in sorted(living)
            if all(self._is_asked_for(instance, f) for f in filters)
        ]
        content = xml({"requestId": "request-id", "instanceStatusSet": rows})
        name = "DescribeInstanceStatusResponse"
        body = f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'
        return Answer(200, body.encode(), {"Content-Type": "text/xml;charset=UTF-8"})

    def _is_asked_for(self, instance: str, asked: Mapping[str, Any]) -> bool:
        name, values = asked["Name"], asked["Value"]
        if name == "event.code":
            return any(event["code"] in values for event in self._events.get(instance, ()))
        return self._status(instance, name.partition("-")[0]) in values

    def _status(self, instance: str, check: str) -> str:
        return "impaired" if (instance, check) in self._impaired else "ok"

    def _row(self, instance: str) -> dict[str, Any]:
        return {
            "instanceId": instance,
            "instanceState": {"code": "16", "name": "running"},
            "eventsSet": self._events.get(instance, []),
            "instanceStatus": self._summary(instance, "instance"),
            "systemStatus": self._summary(instance, "system"),
        }

    def _summary(self, instance: str, check: str) -> dict[str, Any]:
        since = self._impaired.get((instance, check))
        detail = {"name": "reachability", "status": "passed"}
        if since is not None:
            detail |= {"status": "failed", "impairedSince": _moment(since)}
        return {"status": self._status(instance, check), "details": [detail]}


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.000Z"
