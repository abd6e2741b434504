"""The state of one pass while its methods decide, as if earlier commands had started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from reconciler.disruption.candidates import Candidate, CandidateRefusal, CandidateSet, node_price
from reconciler.disruption.command import DELETE, REBOOT, REPLACE, Block, Command, Reason
from reconciler.disruption.consolidation.balanced import Totals, pool_totals
from reconciler.disruption.consolidation.pricing import estimated_savings
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.disruption.gates.budgets import BudgetLedger
from reconciler.disruption.gates.evictioncost import hourly_eviction_cost
from reconciler.disruption.gates.limits import Limits
from reconciler.disruption.gates.policy import Hold
from reconciler.disruption.simulation import Simulation
from reconciler.model.decision.waiting import DeferredClaim
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import ConsolidationSearch, DecisionRules, Settings
from reconciler.observed.state import StateNode
from reconciler.placement.question import LaunchPool, Placement, PlannedClaim

WORK_MAX: Final = 4_000_000
"""Maximum number of nodes that a pass may examine: a few seconds, instead of Karpenter's timeouts
of one minute for multi-node and three for single-node consolidation.
"""


class Method(Protocol):
    """One way to find nodes to disrupt (Karpenter's ``Method``): one small module each."""

    @property
    def reason(self) -> DisruptionReason:
        """The reason of its commands, whose budgets apply."""
        ...

    def decide(self, work: DisruptionPass) -> None:
        """Start every command that it finds, until it finds no more."""
        ...


@dataclass(eq=False)
class DisruptionPass:
    """A pass: its inputs, its decisions, and its rejections so far.

    A node that a command removes, or that receives pods from one, is no longer a candidate: pods
    move once in a pass. ``has_merged`` is whether several nodes were removed together, ``searched``
    whether the thorough search found them. ``work_max`` is the number of nodes that it may examine.
    ``moves_cost`` is what the moves of consolidation cost so far, in USD an hour.
    ``refusals`` are those of earlier passes. A pass that ``states_reasons`` says which rule keeps a
    node, even where a quick proof shows only that some rule does.
    """

    now: datetime
    settings: Settings
    pools: Mapping[str, LaunchPool]
    limits: Limits
    ledger: BudgetLedger
    candidate_set: CandidateSet
    simulation: Simulation
    nodes: Sequence[StateNode]
    unlaunched: Sequence[NodeClaim] = ()
    excluded_nodes: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    blocks: dict[Block, None] = field(default_factory=dict)
    deferrals: dict[DeferredClaim, None] = field(default_factory=dict)
    limits_hit: list[str] = field(default_factory=list)
    has_merged: bool = False
    used_thorough_search: bool = False
    work_max: int = WORK_MAX
    refusals: RejectionCache = field(default_factory=RejectionCache)
    moves_cost: float = 0.0
    states_reasons: bool = True
    _totals: dict[str, Totals] | None = None

    def candidates(self, selects: Callable[[Candidate], bool]) -> Iterator[Candidate]:
        """Yield the free candidates that a method selects, by name."""
        for candidate in self.candidate_set.candidates:
            if candidate.name not in self.excluded_nodes and selects(candidate):
                yield candidate

    @property
    def starts_one_command(self) -> bool:
        """Whether the pass ends with its first command, as in Karpenter."""
        return self.settings.decide is DecisionRules.KARPENTER

    def is_free(self, candidate: Candidate) -> bool:
        """Return whether no command of this pass affects the node."""
        return candidate.name not in self.excluded_nodes

    def search_of(self, node_pool: str) -> ConsolidationSearch:
        """Return which sets of nodes consolidation considers for a NodePool."""
        return self.settings.pool(node_pool).consolidation_search

    def allowed_disruptions(self, candidate: Candidate, reason: DisruptionReason) -> int:
        """Return how many more nodes of the candidate's pool may be disrupted for the reason."""
        return self.ledger.allowed_disruptions(candidate.pool.name, reason)

    def start(
        self,
        reason: Reason,
        candidates: Sequence[Candidate],
        *,
        replacements: Sequence[PlannedClaim] = (),
        placement: Placement | None = None,
        score: float | None = None,
        message: str = "",
        drain_limit: timedelta | None = None,
        reboots: bool = False,
    ) -> None:
        """Record a command that removes the candidates, or ``reboots`` them.

        ``message`` is added to its reason.
        """
        ordered = sorted(candidates, key=lambda c: c.name)
        names = [candidate.name for candidate in ordered]
        assert self.excluded_nodes.isdisjoint(names), names
        replaced = tuple(replacements)
        self.commands.append(
            Command(
                reason=reason,
                decision=REBOOT if reboots else REPLACE if replaced else DELETE,
                nodes=tuple(names),
                node_claims=tuple(candidate.claim.name for candidate in ordered),
                replacements=replaced,
                placement=placement,
                savings=0.0 if reboots else estimated_savings((c.price for c in ordered), replaced),
                score=score,
                pods_evicted=sum(len(c.reschedulable) for c in ordered),
                graceful=True,
                message=message,
                drain_limit=drain_limit,
            )
        )
        if reason is DisruptionReason.UNDERUTILIZED:
            self.moves_cost += hourly_eviction_cost(ordered, self.settings, self.now)
        gate = reason if isinstance(reason, DisruptionReason) else DisruptionReason.DRIFTED
        for candidate in ordered:
            if candidate.node.is_initialized:  # budgets do not count any other node
                self.ledger.count_disruption(candidate.pool.name, gate)
        moves = placement or Placement()
        if replaced and moves.claims != replaced:
            moves = with_claims(moves, replaced)
        self.excluded_nodes.update(names, moves.on_nodes.values())
        if reboots:
            return  # the nodes stay, and their room comes back
        moved = [p for c in ordered for p in (*c.reschedulable, *c.headroom)]
        self.simulation.commit(names, moves, moved)

    def has_work_left(self, activity: str) -> bool:
        """Return whether the pass has work left; if not, record what was cut short."""
        if self.simulation.spent < self.work_max:
            return True
        text = f"{activity} reached the work limit of one pass; the next pass continues"
        if text not in self.limits_hit:
            self.limits_hit.append(text)
        return False

    @property
    def reached_limit(self) -> bool:
        """Whether something was not examined, or may not have been, for lack of work."""
        return bool(self.limits_hit) or self.simulation.spent >= self.work_max

    def refuse(self, candidate: Candidate, reason: str, refusal: CandidateRefusal) -> None:
        """Record a rejection."""
        self.blocks[refusal.block(candidate.name, reason)] = None

    def defer(self, candidate: Candidate, reason: Reason, hold: Hold) -> None:
        """Record that a node is deferred, and what it waits for."""
        deferral = DeferredClaim(
            node_claim=candidate.claim.name,
            node=candidate.name,
            node_pool=candidate.pool.name,
            reason=reason,
            waits_for=hold.waits_for,
            rule=hold.rule,
            not_before=hold.until,
            message=hold.message,
        )
        self.deferrals[deferral] = None

    def defer_for_budget(
        self,
        candidate: Candidate,
        reason: DisruptionReason,
        *,
        reported_reason: Reason | None = None,
        ledger: BudgetLedger | None = None,
    ) -> None:
        """Record that a node waits for a budget, and for a window if one would allow it.

        ``reported_reason`` is the reason to report if it differs from that of the budget;
        ``ledger`` is the one that had nothing left.
        """
        hold = self.limits.hold(candidate.pool.name, reason, ledger or self.ledger)
        self.defer(candidate, reported_reason or reason, hold)

    @property
    def savings(self) -> float:
        """The savings of the commands so far above what their moves cost, in USD an hour."""
        return sum(command.savings or 0.0 for command in self.commands) - self.moves_cost

    @property
    def totals(self) -> Mapping[str, Totals]:
        """The cost and the disruption cost of each pool at the start of the pass."""
        if self._totals is None:
            graceful = [c for c in self.candidate_set.candidates if c.pod_refusal is None]
            self._totals = pool_totals(self.nodes, graceful, self._price_of)
        return self._totals

    def _price_of(self, node: StateNode) -> float:
        pool = self.pools.get(node.node_pool)
        kind = pool.types.get(node.labels.get(INSTANCE_TYPE, "")) if pool is not None else None
        return node_price(node, kind)


def with_claims(placement: Placement, claims: Iterable[PlannedClaim]) -> Placement:
    """Return the placement with its claims as narrowed by a method."""
    return replace(placement, claims=tuple(claims))
