"""A wrong prediction with what it was made from, as one file that can be replayed.

The format is that of the recordings of a real Karpenter: a snapshot, the NodePools, the time, the
nodes before and after, and what Karpenter did in the form of its log.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.desired.migration.captured import without_environments
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, ZONE
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    NodeFacts,
    Prediction,
    Score,
    offering_of,
)

if TYPE_CHECKING:
    from reconciler.watch.episodes.file import EpisodeFile

CREATED: Final = "created nodeclaim"
DISRUPTING: Final = "disrupting node(s)"
FOUND_PODS: Final = "found provisionable pod(s)"

Episode = JsonDict


def episode_of(
    score: Score,
    prediction: Prediction,
    objects: Sequence[JsonDict],
    now: datetime,
    fleet: Sequence[NodeFacts] = (),
) -> Episode:
    """Return the episode of a scored action; ``objects`` are those that were planned.

    They are kept without environments, which may contain secrets. ``fleet`` are the nodes at the
    end, if that is what was scored.
    """
    action, objects = score.action, [without_environments(item) for item in objects]
    before = [_row_of_claim(o) for o in objects if o["kind"] == "NodeClaim"]
    created, removed = _changes(action, before, fleet)
    at = _text_of(action.at)
    kept = [row for row in before if row["node"] not in removed]
    return {
        "name": _name(action, prediction),
        "about": f"{score.verdict}: {score.cause}",
        "now": _text_of(prediction.at),
        "pools": [o for o in objects if o["kind"] == "NodePool"],
        "before": before,
        "after": [*kept, *map(_row, created)],
        "pending": [],
        "rested": action.end is not None,
        "seconds": int((now - prediction.at).total_seconds()),
        "log": list(_log(action, at)),
        "created": [_created(node, action.at, prediction.at) for node in created],
        "removed": [{"name": name, "at": 0} for name in sorted(removed)],
        "predicted": msgspec.to_builtins(prediction),
        "snapshot": {"apiVersion": "v1", "kind": "List", "items": list(objects)},
    }


def _changes(
    action: KarpenterAction, before: Sequence[JsonDict], fleet: Sequence[NodeFacts]
) -> tuple[list[NodeFacts], set[str]]:
    """Return the nodes that were created, and the names of those that were removed."""
    if action.end is not None:
        known = {row["node"] for row in before}
        created = [node for node in fleet if node.name not in known]
        return created, known - {node.name for node in fleet}
    if action.command is not None:
        removed = {node.name for node in action.command.nodes}
        return [*action.launches, *action.command.replacements], removed
    return list(action.launches), set()


def _name(action: KarpenterAction, prediction: Prediction) -> str:
    """Return a name for the file of an episode; two actions of one second have distinct names."""
    digest = blake2b(msgspec.json.encode(action), digest_size=4).hexdigest()
    at = action.at.astimezone(UTC)
    return f"{action.kind}-{at:%Y%m%dT%H%M%SZ}-{prediction.sequence}-{digest}"


def _log(action: KarpenterAction, at: str) -> Iterator[JsonDict]:
    """Yield what Karpenter did, as its log would state it."""
    if action.command is not None:
        command = action.command
        yield {
            "time": at,
            "message": DISRUPTING,
            "command": f"{command.reason}/{at}",
            "disrupted-nodes": [{"Node": {"name": node.name}} for node in command.nodes],
            "disrupted-node-count": len(command.nodes),
            "replacement-node-count": len(command.replacements),
            "replacement-nodes": [
                {"instance-types": node.instance_type} for node in command.replacements
            ],
        }
    if not action.launches:
        return
    yield {"time": at, "message": FOUND_PODS}
    for node in action.launches:
        yield {"time": at, "message": CREATED, "NodeClaim": {"name": node.name}}


def _row_of_claim(claim: JsonDict) -> JsonDict:
    metadata = claim["metadata"]
    labels = metadata.get("labels") or {}
    instance_type, zone, capacity_type = offering_of(labels)
    return {
        "node": (claim.get("status") or {}).get("nodeName", "") or metadata["name"],
        "claim": metadata["name"],
        "nodePool": labels.get(NODEPOOL, ""),
        "instanceType": instance_type,
        "zone": zone,
        "capacityType": capacity_type,
    }


def _row(node: NodeFacts) -> JsonDict:
    return {
        "node": node.name,
        "claim": node.name,
        "nodePool": node.node_pool,
        "instanceType": node.instance_type,
        "zone": node.zone,
        "capacityType": node.capacity_type,
        "price": node.price,
    }


def _created(node: NodeFacts, at: datetime, start: datetime) -> JsonDict:
    labels = {
        NODEPOOL: node.node_pool,
        INSTANCE_TYPE: node.instance_type,
        ZONE: node.zone,
        CAPACITY_TYPE: node.capacity_type,
    }
    return {
        "name": node.name,
        "at": round(max(0.0, (at - start).total_seconds()), 1),
        "nodePool": node.node_pool,
        "instanceTypes": [node.instance_type],
        "requirements": [],
        "labels": labels,
    }


def encode_episode(episode: Episode | EpisodeFile) -> bytes:
    """Return the content of the file of an episode."""
    return gzip.compress(msgspec.json.encode(episode), mtime=0)


def _text_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
