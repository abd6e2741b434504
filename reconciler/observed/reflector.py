"""A local copy of all objects of one kind, kept by a list and the watches that follow it.

A state machine without I/O, named after the Reflector of client-go. Its driver asks ``needs_list``
what to request, and reports what came of it. Times are seconds of a monotonic clock.

::

    LIST --complete_list--> WATCH --end_watch--> WATCH, or LIST once ``resync_s`` have passed
      ^                       |--fail--> WATCH again, from the last version that was received
      '---- expire, an event that does not fit, or a second failure without news

Events may come twice or late. They cannot bring back an older state: an object is replaced only by
a greater ``resourceVersion``, and the answers to our own calls count as well (``accept``,
``forget``). An event that another one has overtaken, or that cannot be read, ends the watch and
leads to a new list, because a copy that may lack an event is not the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import ClusterError
from reconciler.model.text.quoting import quote_value

_GONE: Final = 410
_FAILURES_UNTIL_LIST: Final = 2
_SHORT_WATCH_S: Final = 1.0
_PAUSE_S: Final = 0.5
_MESSAGE_MAX: Final = 300


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None


class _ObjectWithMetadata(msgspec.Struct, frozen=True):
    metadata: _Identity


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One version of an object: its identity, and its JSON as the API sent it."""

    key: str
    uid: str
    version: int
    content: bytes
    is_terminating: bool = False


class Reflector:
    """The objects of one kind, as the last list and the events after it describe them.

    ``source`` names the kind in errors, ``resync_s`` is the time after which a watch that ends is
    followed by a new list, and ``pause_s_max`` limits the pause after failures.
    ``has_bookmarks`` is whether the server has sent a bookmark since that was last unset.
    """

    def __init__(self, source: str, resync_s: float, pause_s_max: float) -> None:
        self.has_bookmarks = False
        self._source = source
        self._resync_s = resync_s
        self._pause_s_max = pause_s_max
        self._objects: dict[str, CachedObject] = {}
        self._listed: list[CachedObject] | None = None
        self._contents: list[bytes] | None = None
        self._deleted: set[str] = set()
        self._version: int | None = None
        self._is_expired = False
        self._begun_s = self._listed_s = 0.0
        self._confirmed_s: float | None = None
        self._failures = 0
        self._accepted: dict[str, CachedObject] = {}
        self._forgotten: set[str] = set()
        self._evicted: dict[str, str] = {}
        self._earlier: frozenset[tuple[str, str]] = frozenset()

    @property
    def version(self) -> int | None:
        """The ``resourceVersion`` that the copy has reached, None before the first list."""
        return self._version

    def needs_list(self, now_s: float) -> bool:
        """Return whether a list is to be requested next; otherwise a watch from ``version`` on."""
        return self._version is None or self._is_expired or self.list_due_s(now_s) <= 0

    def list_due_s(self, now_s: float) -> float:
        """Return the time until the next complete list."""
        return self._listed_s + self._resync_s - now_s

    def age_s(self, now_s: float) -> float | None:
        """Return for how long nothing has confirmed the copy, None before the first list.

        A list confirms it as of its beginning, because that is the state which it shows.
        """
        return None if self._confirmed_s is None else now_s - self._confirmed_s

    def cached_objects(self) -> Sequence[CachedObject]:
        """Return every object, in the order of a list; the same sequence until one changes."""
        if self._listed is None:
            self._listed = [self._objects[key] for key in sorted(self._objects)]
        return self._listed

    def objects(self) -> Sequence[bytes]:
        """Return the JSON of every object, in the order of a list."""
        if self._contents is None:
            self._contents = [item.content for item in self.cached_objects()]
        return self._contents

    def _record_change(self) -> None:
        self._listed = self._contents = None

    def begin_list(self, now_s: float) -> None:
        """Record that a list starts, which shows nothing older than this moment."""
        self._begun_s = now_s
        self._earlier = frozenset(self._evicted.items())
        self._accepted.clear()
        self._forgotten.clear()

    def complete_list(self, items: Iterable[bytes | msgspec.Raw], version: str) -> None:
        """Replace the copy with a list. What was accepted or forgotten meanwhile stays so.

        Raises:
            ClusterError: an item or the list has no usable ``resourceVersion``; nothing changed.
        """
        reached = self._parse_version(version)
        listed: dict[str, CachedObject] = {}
        for raw in items:
            item = self._decode_object(raw)
            if item.uid not in self._forgotten:
                listed[item.key] = self._keep_unchanged(item)
        for key, item in self._accepted.items():
            if item.version > reached:  # what the list has under this key is gone or older
                listed.pop(key, None)
                if item.uid not in self._forgotten:
                    listed[key] = item
        self._deleted = set(self._forgotten)  # the list knows about all earlier deletions
        self._evicted = dict(self._evicted.items() - self._earlier)
        self._objects = listed
        self._record_change()
        self._version, self._is_expired = reached, False
        self._listed_s = self._confirmed_s = self._begun_s

    def begin_watch(self, now_s: float) -> None:
        """Record that a watch starts."""
        self._begun_s = now_s

    def receive(self, line: bytes, now_s: float) -> CachedObject | None:
        """Apply one event of the watch, and return the object that it added or changed.

        Raises:
            ClusterError: the watch is over: the API ended it with an error, or the event cannot be
                read or placed. A new list follows where events may be missing.
        """
        event = self._decode_event(line)
        if event.type == "ERROR":
            raise self._watch_error(event)
        assert self._version is not None, "a watch follows a list"
        item = self._decode_object(event.object)
        self._confirmed_s = now_s
        self._failures = 0
        if event.type == "BOOKMARK":
            self.has_bookmarks = True
            self._version = max(self._version, item.version)
            return None
        if item.version <= self._version:
            self._check_repeated(item, is_deletion=event.type == "DELETED")
            return None
        self._version = item.version
        if event.type != "DELETED":
            return item if self._put(item) else None
        self._drop(item.uid, item.key)
        self._deleted.discard(item.uid)
        return None

    def end_watch(self, now_s: float) -> float:
        """Record that the API ended the watch normally; return the seconds to pause."""
        self._confirmed_s = now_s
        self._failures = 0
        return _PAUSE_S if now_s - self._begun_s < _SHORT_WATCH_S else 0.0

    def fail(self) -> float:
        """Record that a list or a watch failed; return the seconds to pause before the next step.

        Only news of a watch ends a series of failures. Otherwise an API whose watches always fail
        would be asked for one list after another.
        """
        self._failures += 1
        if self._failures >= _FAILURES_UNTIL_LIST:
            self._is_expired = True
        return min(_PAUSE_S * 2.0 ** min(self._failures, 10), self._pause_s_max)

    def expire(self) -> None:
        """Record that no watch can start at ``version`` any more."""
        self._is_expired = True

    def accept(self, content: bytes) -> None:
        """Take an object from the answer to our own call: no older one is shown from now on.

        An answer that the watch has passed already is ignored: the object may be deleted by now.

        Raises:
            ClusterError: the answer has no usable ``resourceVersion``.
        """
        item = self._decode_object(content)
        if item.version > (self._version or 0) and self._put(item):
            self._accepted[item.key] = item

    def forget(self, uid: str) -> None:
        """Remove an object that our own call deleted, and ignore later events about it."""
        self._deleted.add(uid)
        self._forgotten.add(uid)
        for key in [key for key, item in self._objects.items() if item.uid == uid]:
            self._drop(uid, key)

    def expect_termination(self, key: str, uid: str) -> None:
        """Record that our call makes an object terminate; the answer lacks the object."""
        self._evicted[key] = uid

    @property
    def is_behind(self) -> bool:
        """Whether the copy shows an object as running that we have asked to terminate."""
        self._evicted = {
            key: uid for key, uid in self._evicted.items() if self._is_running(key, uid)
        }
        return bool(self._evicted)

    def _is_running(self, key: str, uid: str) -> bool:
        known = self._objects.get(key)
        return known is not None and known.uid == uid and not known.is_terminating

    def _put(self, item: CachedObject) -> bool:
        """Keep an object unless a newer version is known; return whether it is kept."""
        known = self._objects.get(item.key)
        if item.uid in self._deleted or (known is not None and known.version >= item.version):
            return False
        self._objects[item.key] = item
        self._record_change()
        return True

    def _drop(self, uid: str, key: str) -> None:
        known = self._objects.get(key)
        if known is not None and known.uid == uid:
            del self._objects[key]
            self._record_change()

    def _keep_unchanged(self, item: CachedObject) -> CachedObject:
        """Return the object as it is known if its version is the same, so that its text stays."""
        known = self._objects.get(item.key)
        same = known is not None and (known.uid, known.version) == (item.uid, item.version)
        return known if known is not None and same else item

    def _check_repeated(self, item: CachedObject, *, is_deletion: bool) -> None:
        """Tolerate an event whose version has been passed if it contains nothing new.

        Raises:
            ClusterError: another event may have overtaken it.
        """
        known = self._objects.get(item.key)
        if known is None:
            if is_deletion or item.uid in self._deleted:
                return
        elif known.version >= item.version:
            return
        self._is_expired = True
        raise ClusterError(
            f"event of {item.key} at version {item.version}, after version {self._version}",
            where=self._source,
            remedy="the kind is listed again",
        )

    def _watch_error(self, event: _Event) -> ClusterError:
        try:
            failure = decode_json(event.object, _Failure)
        except msgspec.MsgspecError:
            failure = _Failure(message=bytes(event.object).decode(errors="replace"))
        self._is_expired = self._is_expired or failure.code == _GONE
        text = " ".join(failure.message.split())[:_MESSAGE_MAX]
        status = f"HTTP {failure.code} " if failure.code else ""
        return ClusterError(f"the API ended the watch: {status}{text}", where=self._source)

    def _decode_event(self, line: bytes) -> _Event:
        try:
            return decode_json(line, _Event)
        except msgspec.MsgspecError as error:
            self._is_expired = True
            what = f"invalid watch event: {describe_mismatch(error)}"
            raise ClusterError(what, where=self._source) from error

    def _decode_object(self, raw: bytes | msgspec.Raw) -> CachedObject:
        try:
            found = decode_json(raw, _ObjectWithMetadata).metadata
        except msgspec.MsgspecError as error:
            self._is_expired = True
            what = f"invalid object: {describe_mismatch(error)}"
            raise ClusterError(what, where=self._source) from error
        key = f"{found.namespace}/{found.name}" if found.namespace else found.name
        version = self._parse_version(found.resource_version)
        is_terminating = found.deletion_timestamp is not None
        return CachedObject(key, found.uid, version, bytes(raw), is_terminating)

    def _parse_version(self, version: str) -> int:
        if version.isascii() and version.isdecimal():
            return int(version)
        self._is_expired = True
        raise ClusterError(
            f"resourceVersion {quote_value(version, 80)} is not a number, so versions cannot be "
            "compared",
            where=self._source,
            remedy="set kubernetes.watch to false",
        )
