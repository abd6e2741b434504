"""Removes names from an episode, so that it can be shared in the report of a bug.

Its objects are anonymized as those of a snapshot of a cluster without files: the names of NodePools
and node classes stay, and so do the labels that NodePools name. Of what Karpenter did, only what a
replay reads remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, ZONE
from reconciler.watch.episodes.episode import CREATED, DISRUPTING, FOUND_PODS, encode_episode
from reconciler.watch.episodes.file import (
    REGISTERED,
    CapturedObjects,
    CreatedClaim,
    DisruptedNode,
    EpisodeFile,
    EpisodeNode,
    LogLine,
    Named,
    decode_episode,
)

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.observed.anonymization import Anonymizer
    from reconciler.watch.episodes.episode import Episode

_REPLAYED: Final = (CREATED, DISRUPTING, FOUND_PODS, REGISTERED)


def anonymize_episode(episode: EpisodeFile, request: FleetRequest) -> EpisodeFile:
    """Return an episode without names; ``request`` names a catalog of the user's own, if any.

    Raises:
        UsageError: the key of the environment is too short.
        UnreadableError: an object or the catalog cannot be read.
    """
    from reconciler.assembly.capturing import anonymize_lists

    pools = [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **p} for p in episode.pools]
    lists = [episode.snapshot.items, pools, *(step.snapshot.items for step in episode.steps)]
    found, anonymizer = anonymize_lists(
        lists, request, has_fleet=False, names=list(_names(episode))
    )
    objects, pools, *steps = found
    rewriting = _Rewriting(anonymizer)
    return EpisodeFile(
        now=episode.now,
        pools=tuple(pools),
        before=tuple(map(rewriting.row, episode.before)),
        log=tuple(rewriting.line(line) for line in episode.log if line.message in _REPLAYED),
        created=tuple(map(rewriting.created, episode.created)),
        snapshot=CapturedObjects(tuple(objects)),
        steps=tuple(
            replace(
                step,
                command=rewriting.line(step.command),
                snapshot=CapturedObjects(tuple(items)),
            )
            for step, items in zip(episode.steps, steps, strict=True)
        ),
        after=tuple(map(rewriting.row, episode.after)),
        rested=episode.rested,
    )


def encoder_without_names(request: FleetRequest) -> Callable[[Episode], bytes]:
    """Return what encodes a saved episode without names.

    Raises:
        UsageError: the key of the environment is too short.
    """
    from reconciler.assembly.capturing import read_key

    read_key()

    def encode(episode: Episode) -> bytes:
        found = decode_episode(encode_episode(episode), str(episode["name"]))
        return encode_episode(anonymize_episode(found, request))

    return encode


def _names(episode: EpisodeFile) -> Iterator[str]:
    """Yield the names that the objects may not have."""
    yield from (row.node for row in (*episode.before, *episode.after))
    yield from (claim.name for claim in episode.created)
    for line in (*episode.log, *(step.command for step in episode.steps)):
        if line.node_claim is not None:
            yield line.node_claim.name
        yield from (disrupted.node.name for disrupted in line.disrupted_nodes)


class _Rewriting:
    """The parts of an episode with the names of an anonymizer."""

    def __init__(self, anonymizer: Anonymizer) -> None:
        self._name = anonymizer.name
        self._labels = anonymizer.labels

    def line(self, line: LogLine) -> LogLine:
        reason = line.command.partition("/")[0]
        claim = line.node_claim
        return LogLine(
            line.time,
            line.message,
            f"{reason}/" if reason in frozenset(DisruptionReason) else "",
            tuple(
                DisruptedNode(Named(self._name(disrupted.node.name)))
                for disrupted in line.disrupted_nodes
            ),
            line.replacement_node_count,
            None if claim is None else Named(self._name(claim.name)),
        )

    def row(self, row: EpisodeNode) -> EpisodeNode:
        return EpisodeNode(
            self._name(row.node),
            self._label(NODEPOOL, row.node_pool),
            self._label(INSTANCE_TYPE, row.instance_type),
            self._label(ZONE, row.zone),
            self._label(CAPACITY_TYPE, row.capacity_type),
            row.price,
        )

    def created(self, claim: CreatedClaim) -> CreatedClaim:
        pool = self._label(NODEPOOL, claim.node_pool)
        return CreatedClaim(self._name(claim.name), pool, self._labels(claim.labels))

    def _label(self, key: str, value: str) -> str:
        return str(self._labels({key: value})[key])
