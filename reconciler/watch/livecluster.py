"""The cluster as ``watch`` reads it: copies of its objects that watches keep up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, NODE_POOL, OBSERVED, OF_KARPENTER
from reconciler.adapters.kubernetes.nodeclasses import other_node_classes
from reconciler.model.decode import decode
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim

if TYPE_CHECKING:
    from reconciler.adapters.kubernetes.api import Api
    from reconciler.adapters.kubernetes.kinds import Kind
    from reconciler.model.settings import Settings

KINDS: Final = (*OBSERVED, *OF_KARPENTER)
"""Pods come after nodes, for the reason that ``OBSERVED`` states."""

_Lists = tuple[tuple[bytes | msgspec.Raw, ...], ...]


@dataclass(frozen=True)
class CachedObservation:
    """The JSON of every object of each kind, and the node classes of other providers."""

    lists: _Lists
    node_classes: tuple[JsonDict, ...]

    def objects(self) -> Sequence[JsonDict]:
        """Return every object with its kind."""
        found = [
            item for kind, raw in zip(KINDS, self.lists, strict=True) for item in named(kind, raw)
        ]
        return [*found, *self.node_classes]

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the NodeClaims."""
        raw = self.lists[KINDS.index(NODE_CLAIM)]
        return [decode(msgspec.json.decode(item), NodeClaim) for item in raw]


def named(kind: Kind, items: Sequence[bytes | msgspec.Raw]) -> Iterator[JsonDict]:
    """Yield objects with their kind, which a list of the API does not repeat."""
    stated = {"apiVersion": kind.api_version, "kind": kind.kind}
    for item in items:
        yield stated | msgspec.json.decode(item, type=JsonDict)


@dataclass
class LiveCluster:
    """Reads a cluster through watches; it makes no call that writes."""

    api: Api
    cache: ClusterCache
    _pools: tuple[bytes | msgspec.Raw, ...] | None = None
    _node_classes: tuple[JsonDict, ...] = field(default=())

    def observe(self) -> CachedObservation:
        """Return the objects of the cluster now.

        Raises:
            ClusterError: a list could not be read to its end.
        """
        lists = tuple(tuple(self.cache.read(kind, self.api).items) for kind in KINDS)
        pools = lists[KINDS.index(NODE_POOL)]
        if pools != self._pools:
            self._node_classes = tuple(other_node_classes(self.api, named(NODE_POOL, pools)))
            self._pools = pools
        return CachedObservation(lists, self._node_classes)


@contextmanager
def watched_cluster(api: Api, watching: Api, settings: Settings) -> Iterator[LiveCluster]:
    """Yield the cluster while watches keep its copies up to date; ``watching`` is theirs alone."""
    freshness = Freshness(
        resync_s=settings.kube_resync_interval.total_seconds(),
        stale_after_s=settings.kube_stale_after.total_seconds(),
        first_list_s=settings.kube_timeout.total_seconds(),
    )
    cache = ClusterCache(watching, freshness, kinds=KINDS)
    with cache.run_in_background():
        yield LiveCluster(api, cache)
