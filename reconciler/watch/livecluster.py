"""The cluster as ``watch`` reads it: copies of its objects that watches keep up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Generic, TypeVar, overload

import msgspec

from reconciler.adapters.kubernetes.api import Api, ObjectList
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, NODE_POOL, OBSERVED, OF_KARPENTER, Kind
from reconciler.adapters.kubernetes.nodeclasses import other_node_classes
from reconciler.model.decode import decode, decode_json
from reconciler.model.json import JsonDict, as_list
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import Settings

T = TypeVar("T")

KINDS: Final = (*OBSERVED, *OF_KARPENTER)
"""Pods come after nodes, for the reason that ``OBSERVED`` states."""

_Item = bytes | msgspec.Raw
_Lists = tuple[tuple[_Item, ...], ...]
_UNRELATED: Final = ("managedFields", "resourceVersion")
"""Metadata that changes with every write, whatever is written."""
_TYPE: Final = ("apiVersion", "kind")
"""A list of the API states them once, an event of a watch in each object."""


@dataclass(frozen=True)
class CachedObservation:
    """The JSON of every object of each kind, and the node classes of other providers.

    Two are equal if nothing that a plan reads has changed: the heartbeats of nodes do not count.
    """

    lists: _Lists = field(compare=False)
    facts: tuple[bytes, ...]
    claims: tuple[NodeClaim, ...]
    node_classes: tuple[JsonDict, ...]

    def objects(self) -> Sequence[JsonDict]:
        """Return every object with its kind; each is decoded when it is read, and not kept."""
        return _DecodedObjects(self.lists, self.node_classes)

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the NodeClaims."""
        return self.claims


class _DecodedObjects(Sequence[JsonDict]):
    """The objects of a cluster, which decoded all at once would take many times their size."""

    def __init__(self, lists: _Lists, others: Sequence[JsonDict]) -> None:
        self._lists, self._others = lists, others

    def __iter__(self) -> Iterator[JsonDict]:
        for kind, items in zip(KINDS, self._lists, strict=True):
            yield from named(kind, items)
        yield from self._others

    def __len__(self) -> int:
        return sum(map(len, self._lists)) + len(self._others)

    @overload
    def __getitem__(self, place: int) -> JsonDict: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[JsonDict]: ...

    def __getitem__(self, place: int | slice) -> JsonDict | Sequence[JsonDict]:
        return list(self)[place]


def named(kind: Kind, items: Sequence[_Item]) -> Iterator[JsonDict]:
    """Yield objects with their kind, which a list of the API does not repeat."""
    stated = {"apiVersion": kind.api_version, "kind": kind.kind}
    for item in items:
        yield stated | kind.decode(item)


def facts_of(item: _Item) -> bytes:
    """Return a digest of what a plan reads of an object."""
    data = decode_json(item, JsonDict)
    for name in _TYPE:
        data.pop(name, None)
    metadata = data.get("metadata")
    if isinstance(metadata, dict):
        for name in _UNRELATED:
            metadata.pop(name, None)
    status = data.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in as_list(conditions):
        if isinstance(condition, dict):
            condition.pop("lastHeartbeatTime", None)
    content = msgspec.json.encode(data, order="deterministic")
    return blake2b(content, digest_size=16).digest()


class _Remembered(Generic[T]):
    """What was computed for the objects of the last observation, by the object itself."""

    def __init__(self, compute: Callable[[_Item], T]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[_Item, T]] = {}

    def of(self, items: Iterable[_Item]) -> tuple[T, ...]:
        """Return the results for these objects, and forget all others."""
        known = self._known
        self._known = {
            id(item): known[id(item)] if id(item) in known else (item, self._compute(item))
            for item in items
        }
        return tuple([result for _, result in self._known.values()])


@dataclass
class _KindCopy:
    """The objects of one kind at a version, and what a plan reads of them."""

    version: str = ""
    items: tuple[_Item, ...] = ()
    facts: bytes = b""
    _of_items: _Remembered[bytes] = field(default_factory=lambda: _Remembered(facts_of))

    def update(self, found: ObjectList) -> None:
        """Take over a list; one of the same version has the same objects."""
        if found.version and found.version == self.version:
            return
        self.version, self.items = found.version, tuple(found.items)
        self.facts = b"".join(self._of_items.of(self.items))


@dataclass
class LiveCluster:
    """Reads a cluster through watches; it makes no call that writes.

    An object that has not changed is the same object in the copies, and is read once.
    """

    api: Api
    cache: ClusterCache
    _copies: dict[Kind, _KindCopy] = field(default_factory=lambda: {k: _KindCopy() for k in KINDS})
    _pools: tuple[_Item, ...] | None = None
    _node_classes: tuple[JsonDict, ...] = field(default=())
    _listed_claims: tuple[_Item, ...] | None = None
    _claims: tuple[NodeClaim, ...] = ()
    _claims_of: _Remembered[NodeClaim | None] = field(
        default_factory=lambda: _Remembered(_claim_of)
    )

    def observe(self) -> CachedObservation:
        """Return the objects of the cluster now.

        Raises:
            ClusterError: a list could not be read to its end.
        """
        for kind, copy in self._copies.items():
            copy.update(self.cache.read(kind, self.api))
        pools = self._copies[NODE_POOL].items
        if pools != self._pools:
            self._node_classes = tuple(other_node_classes(self.api, named(NODE_POOL, pools)))
            self._pools = pools
        listed = self._copies[NODE_CLAIM].items
        if listed is not self._listed_claims:
            found = self._claims_of.of(listed)
            self._claims = tuple([claim for claim in found if claim is not None])
            self._listed_claims = listed
        return CachedObservation(
            tuple(copy.items for copy in self._copies.values()),
            tuple(copy.facts for copy in self._copies.values()),
            self._claims,
            self._node_classes,
        )


def _claim_of(item: _Item) -> NodeClaim | None:
    """Return a NodeClaim, None if it cannot be read: it stops nothing, and a plan reports it."""
    try:
        return decode(decode_json(item), NodeClaim)
    except msgspec.MsgspecError:
        return None


@contextmanager
def watched_cluster(api: Api, watching: Api, settings: Settings) -> Iterator[LiveCluster]:
    """Yield the cluster while watches keep its copies up to date; ``watching`` is theirs alone."""
    freshness = Freshness.of_settings(settings)
    cache = ClusterCache(watching, freshness, kinds=KINDS)
    with cache.run_in_background():
        yield LiveCluster(api, cache)
