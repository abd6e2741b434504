"""Episodes as they are read: from `watch`, recordings of a real Karpenter, or strangers.

A file is read into the types below, so that nothing in it reaches the planner unseen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import ChainMap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Final

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch, expect_values
from reconciler.model.errors import UnreadableError
from reconciler.model.history import RecordedNode
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.prediction import (
    CommandFacts,
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    offering_of,
)
from reconciler.source.compressed import decompress
from reconciler.watch.episodes.episode import CREATED, DISRUPTING, FOUND_PODS
from reconciler.watch.observing import facts_of_claim

REGISTERED: Final = "registered nodeclaim"
BYTES_MAX: Final = 1 << 30
"""The maximum size of an episode once it is decompressed."""
_REPLACEMENTS_MAX: Final = 10_000
_YEARS: Final = range(2000, 2400)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_EXPECTED: Final = "pass a file that `reconciler watch` has saved"

_Time = Annotated[datetime, msgspec.Meta(tz=True)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_REPLACEMENTS_MAX)]


class Named(msgspec.Struct, frozen=True):
    """The name of an object."""

    name: str


class DisruptedNode(msgspec.Struct, frozen=True):
    """A node of a command."""

    node: Named = msgspec.field(name="Node")


class LogLine(msgspec.Struct, frozen=True, rename="kebab"):
    """A line of Karpenter's log."""

    time: _Time
    message: str
    command: str = ""
    disrupted_nodes: tuple[DisruptedNode, ...] = ()
    replacement_node_count: _Count = 0
    node_claim: Named | None = msgspec.field(name="NodeClaim", default=None)


class EpisodeNode(RecordedNode, frozen=True):
    """A node that there was at the start or at the end."""

    price: float | None = None


class CreatedClaim(msgspec.Struct, frozen=True, rename="camel"):
    """A NodeClaim that Karpenter created."""

    name: str
    node_pool: str
    labels: dict[str, str]


class CapturedObjects(msgspec.Struct, frozen=True):
    """Objects of the cluster at one time."""

    items: tuple[JsonDict, ...]


class EpisodeStep(msgspec.Struct, frozen=True):
    """A command with the objects right before it, captured ``age`` seconds before."""

    now: _Time
    age: float
    command: LogLine
    snapshot: CapturedObjects


class EpisodeFile(msgspec.Struct, frozen=True):
    """The parts of an episode that predictions need.

    ``after`` are the nodes at its end, which is that of the fleet if it ``rested``.
    """

    now: _Time
    pools: tuple[JsonDict, ...]
    before: tuple[EpisodeNode, ...]
    log: tuple[LogLine, ...]
    created: tuple[CreatedClaim, ...]
    snapshot: CapturedObjects
    steps: tuple[EpisodeStep, ...] = ()
    after: tuple[EpisodeNode, ...] = ()
    rested: bool = False


class EpisodeAction(msgspec.Struct, frozen=True):
    """An action of Karpenter, with what it is predicted from: objects, NodeClaims and time."""

    action: KarpenterAction
    objects: Sequence[JsonDict]
    claims: Sequence[NodeClaim]
    now: datetime


def decode_episode(content: bytes, name: str) -> EpisodeFile:
    """Return an episode from its file.

    Raises:
        UnreadableError: it is not an episode.
    """
    plain = decompress(content, BYTES_MAX, name)
    expect_values(plain, name, remedy=_EXPECTED)
    try:
        found = decode_json(plain, EpisodeFile)
    except msgspec.MsgspecError as error:
        raise _not_an_episode(describe_mismatch(error), name) from error
    _check_kinds_and_times(found, name)
    return found


def _check_kinds_and_times(found: EpisodeFile, name: str) -> None:
    listed = chain(found.snapshot.items, *(step.snapshot.items for step in found.steps))
    if not all(isinstance(item.get("kind"), str) for item in listed):
        raise _not_an_episode("an object without a kind", name)
    times = (found.now, *(s.now for s in found.steps), *(line.time for line in found.log))
    if any(at.year not in _YEARS for at in times):
        raise _not_an_episode(f"a time before {_YEARS.start} or after {_YEARS.stop}", name)


def _not_an_episode(why: str, name: str) -> UnreadableError:
    return UnreadableError(f"not an episode: {why}", where=name, remedy=_EXPECTED)


def actions_of(episode: EpisodeFile) -> list[EpisodeAction]:
    """Return what can be predicted in an episode: its first launches, and each command.

    A command is predicted from the objects that were captured right before it, or from those of
    the start if nothing happened in between.
    """
    objects = objects_at_start(episode)
    claims = _claims_in(objects)
    found = []
    changes = _times_of_changes(episode)
    before = {row.node: facts_of_row(row) for row in episode.before}
    launches = _first_launches(episode)
    if launches is not None:
        found.append(EpisodeAction(launches, objects, claims, episode.now))
    for step in episode.steps:
        if not _is_stale(step, changes):
            items = step.snapshot.items
            there = _claims_in(items)
            action = _command(step.command, ChainMap(before, _nodes_of(there)))
            found.append(EpisodeAction(action, items, there, step.now))
    disrupting = _lines_of(episode.log, DISRUPTING)
    if disrupting and launches is None and not episode.steps:
        action = _command(disrupting[0], ChainMap(before, _nodes_of(claims)))
        found.append(EpisodeAction(action, objects, claims, max(episode.now, action.at)))
    return found


def objects_at_start(episode: EpisodeFile) -> list[JsonDict]:
    """Return the objects of the snapshot, with the NodePools as they were changed."""
    return [
        *(o for o in episode.snapshot.items if o["kind"] != "NodePool"),
        *({"apiVersion": "karpenter.sh/v1", "kind": "NodePool"} | p for p in episode.pools),
    ]


def _claims_in(objects: Sequence[JsonDict]) -> list[NodeClaim]:
    """Return the NodeClaims among objects; one that cannot be read is left out, as in a plan."""
    found = []
    for item in objects:
        if item["kind"] == "NodeClaim":
            try:
                found.append(msgspec.convert(item, NodeClaim))
            except msgspec.ValidationError:
                continue
    return found


def _first_launches(episode: EpisodeFile) -> KarpenterAction | None:
    """Return the launches of the first pass, None if a command came before or there are none."""
    created = {claim.name: claim for claim in episode.created}
    end = _end_of_first_pass(episode.log)
    first = [line for line in _lines_of(episode.log, CREATED) if line.time < end]
    named = [line.node_claim.name for line in first if line.node_claim is not None]
    nodes = [created[name] for name in named if name in created]
    if not nodes:
        return None
    facts = tuple(
        NodeFacts(claim.node_pool, *offering_of(claim.labels), None, claim.name) for claim in nodes
    )
    return KarpenterAction(first[0].time, KarpenterActionKind.LAUNCH, facts)


def _end_of_first_pass(log: Sequence[LogLine]) -> datetime:
    """Return when a command was started or pods were found again, whichever came first."""
    following = (*_lines_of(log, DISRUPTING)[:1], *_lines_of(log, FOUND_PODS)[1:2])
    return min((line.time for line in following), default=_NEVER)


def _lines_of(log: Sequence[LogLine], message: str) -> list[LogLine]:
    return [line for line in log if line.message == message]


def _times_of_changes(episode: EpisodeFile) -> list[float]:
    """Return when nodes and commands came, oldest first."""
    messages = (DISRUPTING, CREATED, REGISTERED)
    return sorted(line.time.timestamp() for line in episode.log if line.message in messages)


def _is_stale(step: EpisodeStep, changes: Sequence[float]) -> bool:
    """Return whether nodes or commands came between a snapshot and the decision."""
    taken = step.now.timestamp() - 0.6
    following = bisect_right(changes, taken - 1)
    return following < len(changes) and changes[following] < taken + step.age + 1.2


def _command(line: LogLine, nodes: Mapping[str, NodeFacts]) -> KarpenterAction:
    names = sorted(item.node.name for item in line.disrupted_nodes)
    replacement = NodeFacts("", "", "", "", None)
    command = CommandFacts(
        line.command.split("/")[0],
        tuple(nodes.get(name) or NodeFacts("", "", "", "", None, name) for name in names),
        (replacement,) * line.replacement_node_count,
    )
    return KarpenterAction(line.time, KarpenterActionKind.COMMAND, (), command)


def _nodes_of(claims: Sequence[NodeClaim]) -> dict[str, NodeFacts]:
    return {claim.node_or_claim_name: facts_of_claim(claim, {}) for claim in claims}


def facts_of_row(row: EpisodeNode) -> NodeFacts:
    """Return a node by what it costs."""
    return NodeFacts(
        row.node_pool, row.instance_type, row.zone, row.capacity_type, row.price, row.node
    )
