"""Announcements about pods, nodes and NodePools, where ``kubectl describe`` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something to know about an object of the cluster: a Kubernetes Event.

    ``reason`` is Karpenter's word for it, ``action`` what was done or tried. ``uid`` is that of the
    object, empty where the cluster does not have it.
    """

    kind: str
    name: str
    reason: str
    action: str
    message: str
    namespace: str = ""
    uid: str = ""
    is_warning: bool = False


class Announcer(Protocol):
    """Publishes announcements. It neither raises nor waits."""

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Publish what was not published a short while ago, as fast as the limits allow."""
