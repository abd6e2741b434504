"""Lists of objects, page after page: all of them, or an error.

The items of a page are cut apart without looking inside; whoever reads them knows their kind, which
the API does not repeat in every item.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.errors import GONE, NOT_FOUND, ApiError
from reconciler.adapters.kubernetes.kinds import Kind
from reconciler.model.errors import ClusterError

PAGE: Final = 500
_STARTS: Final = 3


class _Metadata(msgspec.Struct, frozen=True):
    continuation: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A part of a list; an empty list of the API may have no items at all."""

    kind: str
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


def listed(api: Api, kind: Kind, selector: str = "") -> list[msgspec.Raw]:
    """Return the JSON of every object of a kind, of those that a field selector selects.

    A list is started again if its continue token has expired.

    Raises:
        ClusterError: it could not be read to its end; a part is never taken for the whole.
    """
    for left in reversed(range(_STARTS)):
        try:
            return [item for page in _pages(api, kind, selector) for item in page]
        except ApiError as error:
            if error.status == NOT_FOUND and kind.optional:
                return []
            if error.status != GONE or not left:
                raise
    raise AssertionError("the last start returns or raises")


def _pages(api: Api, kind: Kind, selector: str) -> Iterator[list[msgspec.Raw]]:
    query = {"limit": str(PAGE)} | ({"fieldSelector": selector} if selector else {})
    known: set[str] = set()
    while True:
        page = _page(api.call("GET", kind.path, query), kind)
        yield page.items or []
        after = page.metadata.continuation
        if not after:
            return
        if after in known:
            raise ClusterError("the list does not end", where=f"GET {kind.path}")
        known.add(after)
        query["continue"] = after


def _page(content: bytes, kind: Kind) -> Page:
    try:
        page = msgspec.json.decode(content, type=Page)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"invalid list: {error}", where=f"GET {kind.path}") from error
    if page.kind not in (f"{kind.kind}List", "List"):
        raise ClusterError(f"expected a list, got a {page.kind[:80]}", where=f"GET {kind.path}")
    return page
