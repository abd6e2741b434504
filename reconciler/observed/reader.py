"""Reads one snapshot after another, and decodes only what the last one did not contain.

A large cluster is listed repeatedly, and nearly all of it is unchanged. An object with the same
text is the same value: comparing the text costs a tenth of decoding it, and comparing two
observations then costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from reconciler.observed.fingerprint import Pods
from reconciler.observed.positions import SnapshotText
from reconciler.observed.snapshot import (
    Snapshot,
    assemble_snapshot,
    decode_as_kind,
    decode_object,
    snapshot_items,
)


class SnapshotReader:
    """Remembers the objects of the last snapshot by a digest of their text, and no others.

    It returns what ``read_snapshot`` returns; if nothing at all has changed, the same object as
    last time.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}
        self._order: list[bytes] = []
        self._last = Snapshot()

    def read(self, content: bytes, source: str) -> Snapshot:
        """Return the snapshot that ``content`` holds.

        Raises:
            UnreadableError: it is not a snapshot, or an object does not have the shape of its kind.
        """
        known, fresh, order = self._known, dict[bytes, object](), list[bytes]()
        whole = SnapshotText(source, content)
        for number, raw in enumerate(snapshot_items(content, source), 1):
            key = blake2b(raw, digest_size=16).digest()
            item = known.get(key)
            if item is None:
                item = decode_object(raw, whole.place(number))
            fresh[key] = item
            order.append(key)
        return self._keep_snapshot(fresh, order)

    def read_lists(
        self, lists: Iterable[tuple[str, str, Sequence[bytes | msgspec.Raw]]]
    ) -> Snapshot:
        """Return the snapshot of complete lists: of each its source, its kind and its items.

        An object that cannot be read is set aside with a finding.
        """
        known, fresh, order = self._known, dict[bytes, object](), list[bytes]()
        for source, kind, items in lists:
            head = blake2b(kind.encode(), digest_size=16)
            whole = SnapshotText(source, b"")
            for number, raw in enumerate(items, 1):
                text = head.copy()
                text.update(raw)
                key = text.digest()
                item = known.get(key)
                if item is None:
                    item = decode_as_kind(raw, kind, whole.place(number))
                fresh[key] = item
                order.append(key)
        return self._keep_snapshot(fresh, order)

    def _keep_snapshot(self, fresh: dict[bytes, object], order: list[bytes]) -> Snapshot:
        """Keep what was read, and return the snapshot of it."""
        if order != self._order:
            read = assemble_snapshot(fresh[key] for key in order)
            pods = Pods.index_after(read.pods, self._last.indexed_pods)
            self._last = replace(read, pods=pods)
        self._known, self._order = fresh, order
        return self._last
