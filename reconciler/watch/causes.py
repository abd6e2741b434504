"""Why a prediction was wrong, by what Events and taints of the cluster state.

Karpenter reports in Events what kept it from a decision. Events are listed only when a prediction
was wrong, by reason, so that watching costs nothing while predictions are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from reconciler.adapters.kubernetes.api import list_objects
from reconciler.adapters.kubernetes.kinds import EVENT
from reconciler.model.decode import decode_json
from reconciler.model.karpenter.labels import DISRUPTED_TAINT
from reconciler.model.karpenter.nodeclaim import DISRUPTION_REASON
from reconciler.model.text.visible import one_line

if TYPE_CHECKING:
    from reconciler.adapters.kubernetes.api import Api
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.model.karpenter.prediction import CommandFacts, Prediction, Score

_BLOCKED: Final = ("DisruptionBlocked", "Unconsolidatable", "ConsolidationRejected")
"""Reasons of Events about a Node, a NodeClaim or a NodePool that was not disrupted."""
_NO_CAPACITY: Final = ("InsufficientCapacityError", "NodeClassNotReady")
"""Reasons of Events about a NodeClaim or NodePool that was not launched as wanted."""
_NOT_SCHEDULED: Final = ("FailedScheduling",)
"""Reasons of Events about a pod; kube-scheduler uses the same one."""
REASONS: Final = (*_BLOCKED, *_NO_CAPACITY, *_NOT_SCHEDULED)
EVENTS_MAX: Final = 2_000
"""How many Events of one reason are read, in the order of the API: by namespace and name. Whoever
may create pods causes as many as they like; three of them become part of a cause."""
_KARPENTER: Final = "karpenter"
_VALID_FOR: Final = timedelta(minutes=16)
"""Karpenter does not repeat an Event for up to 15 minutes."""
_TEXT_MAX: Final = 300
_NAME_MAX: Final = 253
_CLUSTER_SCOPED: Final = frozenset({"Node", "NodeClaim", "NodePool"})
_CAUSES_MAX: Final = 3


class _Source(msgspec.Struct, frozen=True):
    component: str = ""


class _Object(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    """An Event of ``events.k8s.io/v1``; older recorders fill the deprecated fields."""

    reason: str = ""
    note: str = ""
    regarding: _Object = _Object()
    reporting_controller: str = ""
    deprecated_source: _Source = _Source()
    event_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    deprecated_last_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    series: _Series | None = None

    @property
    def at(self) -> datetime | None:
        """When it was last observed."""
        last = None if self.series is None else self.series.last_observed_time
        return last or self.deprecated_last_timestamp or self.event_time


class KarpenterEvent(NamedTuple):
    """What Karpenter reported about an object; ``text`` is one line of limited length."""

    reason: str
    kind: str
    name: str
    text: str
    at: datetime


def read_events(api: Api) -> list[KarpenterEvent]:
    """Return Karpenter's Events that may explain a decision, oldest first.

    Raises:
        ClusterError: they cannot be listed.
    """
    found = (
        event
        for reason in REASONS
        for item in list_objects(api, EVENT, _selector(reason), EVENTS_MAX).items
        if (event := _event_of(item, reason)) is not None
    )
    return sorted(found, key=lambda event: (event.at, event.kind, event.name))


def _selector(reason: str) -> str:
    """Return the field selector of the Events for a reason.

    Those about nodes are in one namespace, which keeps tenants from adding to the list: Kubernetes
    puts an Event about an object without a namespace there.
    """
    where = "" if reason in _NOT_SCHEDULED else ",metadata.namespace=default"
    return f"reason={reason}{where}"


def _event_of(item: bytes | msgspec.Raw, reason: str) -> KarpenterEvent | None:
    """Return an Event, None if it is not one of Karpenter for this reason, or cannot be read.

    Whoever may create Events in a namespace may name any reporter, and API servers compare the kind
    of an object with its namespace only for kinds of their own.
    """
    try:
        event = decode_json(item, _Event)
    except msgspec.MsgspecError:
        return None
    reporters = (event.reporting_controller, event.deprecated_source.component)
    if _KARPENTER not in reporters or event.reason != reason or event.at is None:
        return None
    about = event.regarding
    if about.kind not in ("Pod", *_CLUSTER_SCOPED):
        return None
    if about.namespace and about.kind in _CLUSTER_SCOPED:
        return None
    name = f"{about.namespace}/{about.name}" if about.kind == "Pod" else about.name
    name, text = one_line(name)[:_NAME_MAX], one_line(event.note)[:_TEXT_MAX]
    return KarpenterEvent(event.reason, about.kind, name, text, event.at)


class Evidence(NamedTuple):
    """What is known when a prediction was wrong.

    ``claims`` and ``objects`` are those of the observation that it was made from, and of now.
    """

    events: Sequence[KarpenterEvent]
    claims: Sequence[NodeClaim]
    objects: Sequence[JsonDict]


def explain_miss(score: Score, prediction: Prediction, evidence: Evidence) -> str:
    """Return the cause of a wrong prediction, continued with what the cluster says about it."""
    since = score.action.at - _VALID_FOR
    until = score.action.at + _VALID_FOR
    events = [event for event in evidence.events if since <= event.at <= until]
    if score.action.command is not None:
        found = _causes_of_command(score.action.command, prediction, evidence, events)
    else:
        found = _causes_of_launch(score, prediction, evidence, events)
    causes = list(dict.fromkeys(found))[:_CAUSES_MAX]
    return "; ".join([score.cause, *causes])


def _causes_of_command(
    command: CommandFacts,
    prediction: Prediction,
    evidence: Evidence,
    events: Sequence[KarpenterEvent],
) -> Iterator[str]:
    """Yield why the nodes of the predicted commands were not disrupted, but those of another."""
    done = {node.name for node in command.nodes}
    expected = [n for c in prediction.commands for n in c.nodes if n.name not in done]
    if not expected:
        return
    claims = {claim.node_or_claim_name: claim.name for claim in evidence.claims}
    tainted = set(_tainted_nodes(evidence.objects))
    for node in expected:
        if node.name in tainted:
            yield f"node {node.name} had the taint {DISRUPTED_TAINT} already"
        claim = claims.get(node.name, "")
        yield from _newest(events, _BLOCKED, {("Node", node.name), ("NodeClaim", claim)})
    yield from _newest(events, _BLOCKED, {("NodePool", node.node_pool) for node in expected})


def _causes_of_launch(
    score: Score, prediction: Prediction, evidence: Evidence, events: Sequence[KarpenterEvent]
) -> Iterator[str]:
    """Yield why other nodes were launched: missing capacity, and pods of nodes that go."""
    launched = score.action.launches
    for event in events:
        if event.reason in _NO_CAPACITY:
            yield _format(event)
    if len(launched) > len(prediction.launches):
        for name in _going_without_command(evidence):
            yield f"pods of {name} need a node, which has the taint {DISRUPTED_TAINT}"
    if len(launched) < len(prediction.launches):
        for event in events:
            if event.reason in _NOT_SCHEDULED:
                yield _format(event)


def _newest(
    events: Iterable[KarpenterEvent], reasons: Sequence[str], about: set[tuple[str, str]]
) -> Iterator[str]:
    """Yield the newest Event about one of these objects, if there is one."""
    found = [e for e in events if e.reason in reasons and (e.kind, e.name) in about]
    if found:
        yield _format(found[-1])


def _format(event: KarpenterEvent) -> str:
    return f"{event.kind} {event.name}: {event.reason}, {event.text}"


def _tainted_nodes(objects: Iterable[JsonDict]) -> Iterator[str]:
    """Yield the names of the Nodes that Karpenter has marked as disrupted."""
    for item in objects:
        if item["kind"] == "Node":
            taints = (item.get("spec") or {}).get("taints") or ()
            if any(taint.get("key") == DISRUPTED_TAINT for taint in taints):
                yield item["metadata"]["name"]


def _going_without_command(evidence: Evidence) -> list[str]:
    """Return the tainted nodes that no command has: they expired, failed or were deleted."""
    commanded = {
        claim.status.node_name
        for claim in evidence.claims
        if any(c.type == DISRUPTION_REASON and c.status == "True" for c in claim.status.conditions)
    }
    return sorted(set(_tainted_nodes(evidence.objects)) - commanded)
