"""A wrong prediction with what it was made from, as one file that can be replayed.

The format is that of the recordings of a real Karpenter: a snapshot, the NodePools, the time, the
nodes before and after, and what Karpenter did in the form of its log.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from reconciler.model.errors import UnreadableError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, NODEPOOL, ZONE
from reconciler.model.karpenter.prediction import (
    CommandFacts,
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    Score,
    offering_of,
)

_CREATED: Final = "created nodeclaim"
_DISRUPTING: Final = "disrupting node(s)"
_FOUND_PODS: Final = "found provisionable pod(s)"
_SIZE_MAX: Final = 1 << 30
"""The maximum size of an episode once it is decompressed."""

Episode = JsonDict


class EpisodeAction(msgspec.Struct, frozen=True):
    """An action of Karpenter in an episode, with the objects and time to predict it from."""

    action: KarpenterAction
    objects: Sequence[JsonDict]
    now: datetime


def episode_of(
    score: Score, prediction: Prediction, objects: Sequence[JsonDict], now: datetime
) -> Episode:
    """Return the episode of a scored action; ``objects`` are those that were planned."""
    action = score.action
    before = [_row_of_claim(o) for o in objects if o["kind"] == "NodeClaim"]
    created = list(action.launches)
    removed: set[str] = set()
    if action.command is not None:
        created += action.command.replacements
        removed = {node.name for node in action.command.nodes}
    at = _text_of(action.at)
    kept = [row for row in before if row["node"] not in removed]
    return {
        "name": f"{action.kind}-{action.at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{prediction.sequence}",
        "about": f"{score.verdict}: {score.cause}",
        "now": _text_of(prediction.at),
        "pools": [o for o in objects if o["kind"] == "NodePool"],
        "before": before,
        "after": [*kept, *map(_row, created)],
        "pending": [],
        "rested": False,
        "seconds": int((now - prediction.at).total_seconds()),
        "log": list(_log(action, at)),
        "created": [_created(node, action.at, prediction.at) for node in created],
        "removed": [{"name": name, "at": 0} for name in sorted(removed)],
        "predicted": msgspec.to_builtins(prediction),
        "snapshot": {"apiVersion": "v1", "kind": "List", "items": list(objects)},
    }


def _log(action: KarpenterAction, at: str) -> Iterator[JsonDict]:
    """Yield what Karpenter did, as its log would state it."""
    if action.command is not None:
        command = action.command
        yield {
            "time": at,
            "message": _DISRUPTING,
            "command": f"{command.reason}/{at}",
            "disrupted-nodes": [{"Node": {"name": node.name}} for node in command.nodes],
            "disrupted-node-count": len(command.nodes),
            "replacement-node-count": len(command.replacements),
            "replacement-nodes": [
                {"instance-types": node.instance_type} for node in command.replacements
            ],
        }
        return
    yield {"time": at, "message": _FOUND_PODS}
    for node in action.launches:
        yield {"time": at, "message": _CREATED, "NodeClaim": {"name": node.name}}


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


def encode_episode(episode: Episode) -> bytes:
    """Return the content of the file of an episode."""
    return gzip.compress(msgspec.json.encode(episode), mtime=0)


def decode_episode(content: bytes, name: str) -> Episode:
    """Return an episode from its file.

    Raises:
        UnreadableError: it is not an episode.
    """
    import zlib

    inflate = zlib.decompressobj(31)
    try:
        plain = inflate.decompress(content, _SIZE_MAX) if content[:2] == b"\x1f\x8b" else content
        found = msgspec.json.decode(plain, type=JsonDict)
        _expect_episode(found)
    except (zlib.error, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(
            f"not an episode: {' '.join(str(error).split())}",
            where=name,
            remedy="pass a file that `reconciler watch` has saved",
        ) from error
    return found


def _expect_episode(found: Episode) -> None:
    for key in ("now", "pools", "log", "created", "snapshot", "before"):
        if key not in found:
            raise ValueError(f"{key} is missing")
    actions_of(found)


def actions_of(episode: Episode) -> list[EpisodeAction]:
    """Return what can be predicted in an episode: its first launches, and each command.

    A command is predicted from the objects that were captured right before it, or from those of
    the start if nothing happened in between.
    """
    start = _time(episode["now"])
    objects = [
        *(o for o in episode["snapshot"]["items"] if o["kind"] != "NodePool"),
        *({"apiVersion": "karpenter.sh/v1", "kind": "NodePool"} | p for p in episode["pools"]),
    ]
    found = []
    launches = _first_launches(episode)
    if launches is not None:
        found.append(EpisodeAction(launches, objects, start))
    steps = episode.get("steps") or []
    for step in steps:
        if not _is_stale(episode, step):
            items = step["snapshot"]["items"]
            action = _command(step["command"], _nodes_in(episode, items))
            found.append(EpisodeAction(action, items, _time(step["now"])))
    disrupting = [line for line in episode["log"] if line["message"] == _DISRUPTING]
    if disrupting and launches is None and not steps:
        action = _command(disrupting[0], _nodes_in(episode, objects))
        found.append(EpisodeAction(action, objects, max(start, action.at)))
    return found


def _first_launches(episode: Episode) -> KarpenterAction | None:
    """Return the launches of the first pass, None if a command came before or there are none."""
    log = episode["log"]
    created = {claim["name"]: claim for claim in episode["created"]}
    stops = [line["time"] for line in log if line["message"] == _DISRUPTING][:1]
    stops += [line["time"] for line in log if line["message"] == _FOUND_PODS][1:2]
    until = min(stops, default="9")
    first = [line for line in log if line["message"] == _CREATED and line["time"] < until]
    nodes = [created[n] for line in first if (n := line["NodeClaim"]["name"]) in created]
    if not nodes:
        return None
    facts = tuple(
        NodeFacts(claim["nodePool"], *offering_of(claim["labels"]), None, claim["name"])
        for claim in nodes
    )
    return KarpenterAction(_time(first[0]["time"]), KarpenterActionKind.LAUNCH, facts)


def _is_stale(episode: Episode, step: JsonDict) -> bool:
    """Return whether nodes or commands came between a snapshot and the decision."""
    taken = _time(step["now"]).timestamp() - 0.6
    messages = (_DISRUPTING, _CREATED, "registered nodeclaim")
    times = (_time(x["time"]).timestamp() for x in episode["log"] if x["message"] in messages)
    return any(taken - 1 < at < taken + step["age"] + 1.2 for at in times)


def _command(line: JsonDict, nodes: dict[str, NodeFacts]) -> KarpenterAction:
    names = sorted(item["Node"]["name"] for item in line["disrupted-nodes"])
    replacement = NodeFacts("", "", "", "", None)
    command = CommandFacts(
        line["command"].split("/")[0],
        tuple(nodes.get(name) or NodeFacts("", "", "", "", None, name) for name in names),
        (replacement,) * line["replacement-node-count"],
    )
    return KarpenterAction(_time(line["time"]), KarpenterActionKind.COMMAND, (), command)


def _nodes_in(episode: Episode, objects: Sequence[JsonDict]) -> dict[str, NodeFacts]:
    claims = (_row_of_claim(item) for item in objects if item["kind"] == "NodeClaim")
    return {row["node"]: _facts_of_row(row) for row in (*claims, *episode["before"])}


def _facts_of_row(row: JsonDict) -> NodeFacts:
    return NodeFacts(
        row["nodePool"],
        row["instanceType"],
        row["zone"],
        row["capacityType"],
        row.get("price"),
        row["node"],
    )


def _text_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
