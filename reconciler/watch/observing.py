"""Finds what Karpenter did in successive observations of its NodeClaims.

Karpenter names its decisions in the NodeClaims only: a new one is a launch, and the condition
``DisruptionReason`` marks those of a command. Karpenter writes the marks one after another, and the
time of each has a resolution of one second. So marks with the same reason, each at most a second
after the one before, form one command. A replacement is created right after its
command starts; nothing else distinguishes it from a launch for pending pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Final

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import DISRUPTION_REASON, NodeClaim
from reconciler.model.karpenter.prediction import (
    CommandFacts,
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    offering_of,
)

Prices = Mapping[tuple[str, str, str], float]
"""USD an hour by instance type, zone and capacity type."""

_REPLACED_WITHIN: Final = timedelta(seconds=3)
"""How long after the start of a command its replacements may be created."""
_REPLACEMENTS_MAX: Final[Mapping[str, int]] = {
    DisruptionReason.EMPTY: 0,
    DisruptionReason.UNDERUTILIZED: 1,
}
"""How many replacements a command has at most; one for drift may have any number."""
_QUIET: Final = timedelta(seconds=5)
"""A batch is complete when nothing has been added to it for this long."""
_UNKNOWN_AFTER: Final = timedelta(minutes=2)
"""How long to wait for the instance type of a launched NodeClaim."""
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ObservedAction:
    """An action with the prediction that was in force when it was first seen."""

    action: KarpenterAction
    prediction: Prediction


@dataclass(slots=True)
class _Disrupted:
    """A NodeClaim that a command disrupts."""

    reason: str
    at: datetime
    node: NodeFacts
    prediction: Prediction


@dataclass(slots=True)
class _Launched:
    """A new NodeClaim; ``node`` is without an instance type until the instance exists."""

    at: datetime
    node: NodeFacts
    prediction: Prediction


@dataclass
class KarpenterActions:
    """The actions of Karpenter since the first observation, which is only remembered."""

    _known: set[str] | None = None
    _marked: set[tuple[str, datetime]] = field(default_factory=set)
    _launched: dict[str, _Launched] = field(default_factory=dict)
    _disrupted: list[_Disrupted] = field(default_factory=list)
    _changed_at: datetime | None = None
    _seen: Sequence[NodeClaim] | None = None

    def observe(
        self,
        claims: Sequence[NodeClaim],
        now: datetime,
        prediction: Prediction,
        prices: Prices,
    ) -> list[ObservedAction]:
        """Return the actions that are complete by ``now``, oldest first.

        ``prediction`` is the last one that was recorded before this observation. The same sequence
        as before has the same NodeClaims, which are not compared again.
        """
        if claims is not self._seen:
            self._compare(claims, now, prediction, prices)
            self._seen = claims
        return self._complete(now)

    def _compare(
        self, claims: Sequence[NodeClaim], now: datetime, prediction: Prediction, prices: Prices
    ) -> None:
        """Add what is new in these NodeClaims."""
        known, self._known = self._known, {claim.name for claim in claims}
        newly_marked = self._mark(claims)
        if known is None:
            return
        for claim, (reason, at) in newly_marked:
            node = facts_of_claim(claim, prices)
            self._disrupted.append(_Disrupted(reason, at, node, prediction))
            self._changed_at = now
        for claim in claims:
            if claim.name in self._launched:
                self._launched[claim.name].node = facts_of_claim(claim, prices)
            elif claim.name not in known:
                at = claim.metadata.creation_timestamp or now
                node = facts_of_claim(claim, prices)
                self._launched[claim.name] = _Launched(at, node, prediction)
                self._changed_at = now

    def _mark(self, claims: Sequence[NodeClaim]) -> list[tuple[NodeClaim, tuple[str, datetime]]]:
        """Return the NodeClaims with a mark that was not there before, and remember all marks."""
        names = {claim.name for claim in claims}
        known = {(name, at) for name, at in self._marked if name in names}
        marks = [(claim, mark) for claim in claims if (mark := _mark_of(claim)) is not None]
        self._marked = known | {(claim.name, at) for claim, (_, at) in marks}
        return [(claim, mark) for claim, mark in marks if (claim.name, mark[1]) not in known]

    def _complete(self, now: datetime) -> list[ObservedAction]:
        """Return what is complete, and forget it."""
        if self._changed_at is None or now - self._changed_at < _QUIET:
            return []
        waits = any(not launched.node.instance_type for launched in self._launched.values())
        if waits and now - self._changed_at < _UNKNOWN_AFTER:
            return []
        commands = self._commands()
        actions = [*commands, *self._launches()]
        self._launched, self._disrupted, self._changed_at = {}, [], None
        return sorted(actions, key=lambda found: found.action.at)

    def _commands(self) -> list[ObservedAction]:
        """Return the commands; their replacements are no longer among the launches."""
        found = []
        groups: list[list[_Disrupted]] = []
        for one in sorted(self._disrupted, key=lambda d: (d.reason, d.at)):
            last = groups[-1][-1] if groups else None
            if last is None or last.reason != one.reason or one.at - last.at > _SECOND:
                groups.append([])
            groups[-1].append(one)
        replacements = self._take_replacements([(group[0].reason, group[0].at) for group in groups])
        for group, replaced in zip(groups, replacements, strict=True):
            reason, at = group[0].reason, group[0].at
            nodes = tuple(sorted((d.node for d in group), key=lambda n: n.name))
            command = CommandFacts(reason, nodes, tuple(replaced))
            action = KarpenterAction(at, KarpenterActionKind.COMMAND, command=command)
            found.append(ObservedAction(action, group[0].prediction))
        return found

    def _take_replacements(self, commands: Sequence[tuple[str, datetime]]) -> list[list[NodeFacts]]:
        """Return the replacements of each command, given its reason and its start.

        Karpenter creates them before it starts the next command, so each belongs to the last
        command that had started.
        """
        taken: list[list[NodeFacts]] = [[] for _ in commands]
        for created, name in sorted((one.at, name) for name, one in self._launched.items()):
            open_ones = [
                (at <= created, -abs(created - at), number)
                for number, (reason, at) in enumerate(commands)
                if at - _SECOND <= created <= at + _REPLACED_WITHIN
                and len(taken[number]) < _REPLACEMENTS_MAX.get(reason, inf)
            ]
            if open_ones:
                taken[max(open_ones)[2]].append(self._launched.pop(name).node)
        return taken

    def _launches(self) -> list[ObservedAction]:
        """Return the launches in batches.

        Karpenter creates the NodeClaims of one pass within a second, and waits longer than that
        for pods before the next. An observation may see a part of a batch: the prediction that
        counts is that before its first NodeClaim was seen.
        """
        batches: list[list[_Launched]] = []
        for one in sorted(self._launched.values(), key=lambda one: (one.at, one.node.name)):
            if not batches or one.at - batches[-1][-1].at > _SECOND:
                batches.append([])
            batches[-1].append(one)
        return [
            ObservedAction(
                KarpenterAction(
                    batch[0].at,
                    KarpenterActionKind.LAUNCH,
                    launches=tuple(one.node for one in batch),
                ),
                min((one.prediction for one in batch), key=lambda known: known.sequence),
            )
            for batch in batches
        ]


def _mark_of(claim: NodeClaim) -> tuple[str, datetime] | None:
    """Return the reason why a command disrupts a NodeClaim, and since when."""
    known = claim.condition(DISRUPTION_REASON)
    if known is None or known.status != "True" or known.last_transition_time is None:
        return None
    return known.reason, known.last_transition_time


def facts_of_claim(claim: NodeClaim, prices: Prices) -> NodeFacts:
    """Return a NodeClaim by its Node, its offering and its price."""
    offering = offering_of(claim.metadata.labels)
    return NodeFacts(claim.node_pool, *offering, prices.get(offering), claim.node_or_claim_name)
