"""Detailed answers, where the inputs of a plan are available: the alternatives and their prices.

A recorded plan keeps what was decided. With its inputs, the scheduler can answer more: where a pod
could go if it were the only pending one, and what the pods would cost without one constraint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import parse_resources
from reconciler.model.text.money import format_dollars
from reconciler.placement.explain.constraints import (
    Constraint,
    constraints_of,
    remove_constraint,
    remove_pool_constraint,
)
from reconciler.placement.explain.exclusion import no_types_rejection
from reconciler.placement.explain.survey import Filters, PoolVerdict, PricedOffering, claim_filters
from reconciler.placement.pods.headroom import buffer_of
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import LaunchPool, Placement, Question, Rejection
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.explain.answer import (
    ConstraintCost,
    Decision,
    Explanation,
    FilterCount,
    NodesAnswer,
    PoolAnswer,
)
from reconciler.plan.make.actions import launch_offering, unlaunched_claim
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.pools import NO_INSTANCE_TYPES
from reconciler.plan.value.nodes import LaunchOffering, LaunchReason, PlannedNodeClaim
from reconciler.plan.value.plan import Plan

CONSTRAINTS_MAX: Final = 16
"""The maximum number of constraints: the pods are placed once for each."""

_OFFERINGS_SHOWN: Final = 5


class Inquiry:
    """Answers from a plan and the facts that it was made from."""

    def __init__(self, facts: Facts, plan: Plan) -> None:
        self._plan = plan
        self._facts = facts
        self._by_key = {pod.key: pod for pod in self._facts.cluster.pods}
        self._scheduler = self._scheduler_for(self._facts.types.ready)

    def _scheduler_for(self, pools: Iterable[LaunchPool]) -> Scheduler:
        facts = self._facts
        return Scheduler(pools, facts.cluster, facts.settings, facts.now)

    # pods

    def explain_unplanned_pod(self, name: str) -> Explanation | None:
        """Return the answer about a pod that is not in the plan, None if there is none.

        ``name`` may omit the namespace if only one pod has that name.
        """
        keys = [name] if name in self._by_key else []
        keys = keys or [key for key in self._by_key if key.rpartition("/")[2] == name]
        if len(keys) != 1:
            return None
        name, pod = keys[0], self._by_key[keys[0]]
        return Explanation(kind="Pod", name=name, verdict=self._verdict_on(pod))

    def _verdict_on(self, pod: Pod) -> str:
        """Return why a pod is not in the plan."""
        if pod.is_daemon:
            return "a DaemonSet runs it on its own node; it is not scheduled by a plan"
        if pod.is_virtual:
            return f"it is a virtual pod of CapacityBuffer {buffer_of(pod)}; explain that buffer"
        host = self._facts.cluster.node_of(pod)
        if host is not None and host.node is None:
            return f"it is nominated to NodeClaim {host.name}, whose node has not joined yet"
        if pod.spec.node_name:
            return f"it runs on node {pod.spec.node_name} and stays there"
        return "it is not waiting for a node of a NodePool"

    def explain_pod(self, answer: Explanation) -> Explanation:
        """Return the answer with every possible node of the pod if it were the only pending one."""
        pod = self._by_key.get(answer.name)
        if pod is None or pod.is_daemon:
            return answer
        found = self._scheduler.survey(pod)
        if isinstance(found, Rejection):
            reason = Decision(kind="Pod", name=answer.name, code=found.code, message=found.message)
            return replace(answer, reasons=tuple(dict.fromkeys((*answer.reasons, reason))))
        nodes = NodesAnswer(total=found.nodes_total, suited=found.nodes_suited, takers=found.nodes)
        return replace(answer, nodes=nodes, pools=tuple(map(self._pool_answer, found.pools)))

    def explain_pool(self, answer: Explanation) -> Explanation:
        """Return the answer with the reasons why the NodePool cannot launch any node."""
        prefix = f"NodePool {answer.name} cannot launch nodes: "
        found = [
            Decision(
                kind="NodePool",
                name=answer.name,
                code=finding.code,
                message=finding.message.removeprefix(prefix),
            )
            for finding in self._facts.types.findings
            if finding.message.startswith(prefix) and finding.code != NO_INSTANCE_TYPES
        ]
        template = self._scheduler.template(answer.name)
        if template is not None and not template.types:
            why = no_types_rejection(template)
            message = why.message.removeprefix(prefix)
            found.append(
                Decision(kind="NodePool", name=answer.name, code=why.code, message=message)
            )
        return replace(answer, reasons=(*found, *answer.reasons))

    def explain_buffer(self, answer: Explanation) -> Explanation:
        """Return the answer with every possible node of one pod of the buffer alone."""
        room = next((r for r in self._facts.headroom if r.buffer == answer.name and r.pods), None)
        if room is None:
            return answer
        found = self.explain_pod(replace(answer, name=room.pods[0].key))
        return replace(found, name=answer.name)

    def _pool_answer(self, verdict: PoolVerdict) -> PoolAnswer:
        rejection = verdict.rejection
        facts = rejection.facts if rejection is not None else {}
        return PoolAnswer(
            node_pool=verdict.node_pool,
            filters=_filter_counts(verdict.filters),
            code=rejection.code if rejection is not None else "",
            message=rejection.message if rejection is not None else "",
            nearest_type=str(facts.get("nearest type", "")),
            lacks=str(facts.get("nearest type lacks", "")),
            launch=self._launch_offering(verdict.node_pool, verdict.cheapest),
        )

    def _launch_offering(
        self, node_pool: str, price: PricedOffering | None
    ) -> LaunchOffering | None:
        """Return the offering as a plan lists it, with its price before overlays."""
        if price is None:
            return None
        types = self._facts.types.by_name[node_pool].types
        kind = types.get(price.instance_type)
        assert kind is not None, price.instance_type
        where = (price.zone, price.capacity_type, price.price)
        offering = next(o for o in kind.offerings if (o.zone, o.capacity_type, o.price) == where)
        return launch_offering(kind.name, offering, types)

    # node claims

    def node_and_claim(self, name: str, *, is_claim: bool) -> tuple[str, str] | None:
        """Return the names of node and claim of an existing machine, None if there is none."""
        for node in self._facts.cluster.nodes:
            if node.claim is not None and name == (node.claim.name if is_claim else node.name):
                return node.name, node.claim.name
        return None

    def explain_claim(self, answer: Explanation) -> Explanation:
        """Return the answer with the selection of its types, and the cost of each constraint."""
        planned = next((c for c in self._plan.node_claims if c.name == answer.name), None)
        if planned is None:
            return self._explain_existing_claim(answer)
        template = self._scheduler.template(planned.node_pool)
        filters: Filters = ()
        if template is not None:
            filters = claim_filters(
                template,
                requirements_of(planned.requirements),
                parse_resources(planned.requests),
                planned.instance_types_total,
            )
        return replace(
            answer,
            filters=_filter_counts(filters),
            offerings=self._cheapest_offerings(planned),
            constraints=self._constraint_costs(planned),
        )

    def _cheapest_offerings(self, planned: PlannedNodeClaim) -> tuple[LaunchOffering, ...]:
        """Return the cheapest offering of each of its first types, the expected launch first."""
        pool = self._facts.types.by_name[planned.node_pool]
        requirements = requirements_of(planned.requirements)
        found = [planned.launch]
        for name in planned.instance_types[1:_OFFERINGS_SHOWN]:
            kind = pool.types.get(name)
            offering = kind.cheapest_offering(requirements) if kind is not None else None
            if offering is not None:
                found.append(launch_offering(name, offering, pool.types))
        return tuple(found)

    def _explain_existing_claim(self, answer: Explanation) -> Explanation:
        """Return the answer about an existing claim, with the cheapest offerings it allows now."""
        node = next(
            (n for n in self._facts.cluster.nodes if n.claim and n.claim.name == answer.name), None
        )
        if node is None or node.claim is None:
            return answer
        pool = self._facts.types.by_name.get(node.node_pool)
        cheapest = unlaunched_claim(node.claim, pool).launch
        if cheapest is None:
            return answer
        fact = (
            "cheapest offering that its requirements allow now: "
            f"{cheapest.instance_type} {cheapest.capacity_type} in {cheapest.zone}"
            f" for {format_dollars(cheapest.price)}/hour"
        )
        return replace(answer, facts=(*answer.facts, fact), offerings=(cheapest,))

    # what constraints cost

    def _constraint_costs(self, planned: PlannedNodeClaim) -> tuple[ConstraintCost, ...]:
        question = self._question_of_claim(planned)
        own = [self._by_key[name] for name in planned.pods if name in self._by_key]
        if question is None or not own:
            return ()
        pool = self._facts.types.by_name[planned.node_pool].node_pool
        known = constraints_of((pod.spec for pod in own), pool)[:CONSTRAINTS_MAX]
        workloads = {_workload(pod) for pod in own}
        now = _placement_totals(self._scheduler.place(question))
        found = [
            self._constraint_cost(constraint, question, workloads, planned.node_pool, now)
            for constraint in known
        ]
        return tuple(sorted(found, key=lambda c: (-c.placed, -c.saves, c.constraint)))

    def _question_of_claim(self, planned: PlannedNodeClaim) -> Question | None:
        """Return the question that led to the claim; None if there is none."""
        facts, plan = self._facts, self._plan
        if planned.reason in (LaunchReason.UNSCHEDULABLE, LaunchReason.HEADROOM):
            return Question(pods=pods_to_place(facts.cluster, facts.now))
        command = next((c for c in plan.commands if planned.name in c.replacements), None)
        if command is None:
            return None
        placed_pods = [p.pod for p in plan.placements if p.node_claim in command.replacements]
        pods = [self._by_key[name] for name in placed_pods if name in self._by_key]
        return Question(pods=pods, without=frozenset(command.nodes))

    def _constraint_cost(
        self,
        constraint: Constraint,
        question: Question,
        workloads: Collection[tuple[str, str]],
        node_pool: str,
        now: _PlacementTotals,
    ) -> ConstraintCost:
        """Return what is saved if the workloads of a claim, and its pool, drop a constraint."""
        pods = [
            replace(pod, spec=remove_constraint(pod.spec, constraint))
            if _workload(pod) in workloads
            else pod
            for pod in question.pods
        ]
        pools = [
            LaunchPool(remove_pool_constraint(p.node_pool, constraint), p.types)
            if p.node_pool.name == node_pool
            else p
            for p in self._facts.types.ready
        ]
        then = _placement_totals(self._scheduler_for(pools).place(replace(question, pods=pods)))
        placed = now.unplaced - then.unplaced
        # Packing order is a heuristic, so fewer constraints can cost more; that does not count.
        saves = now.cost - then.cost if placed > 0 else max(now.cost - then.cost, 0.0)
        return ConstraintCost(
            constraint=str(constraint),
            saves=round(saves, 9) if placed >= 0 else 0.0,
            nodes=now.nodes - then.nodes if placed >= 0 else 0,
            placed=max(placed, 0),
        )


class _PlacementTotals(NamedTuple):
    unplaced: int
    nodes: int
    cost: float


def _placement_totals(placement: Placement) -> _PlacementTotals:
    return _PlacementTotals(
        len(placement.unschedulable) + len(placement.deferred),
        len(placement.claims),
        sum(claim.launch[1].price for claim in placement.claims),
    )


def _workload(pod: Pod) -> tuple[str, str]:
    """Return the owner of a pod: its namespace and its first owner, otherwise itself."""
    owners = pod.metadata.owner_references
    return pod.namespace, f"{owners[0].kind}/{owners[0].name}" if owners else pod.key


def _filter_counts(filters: Filters) -> tuple[FilterCount, ...]:
    return tuple(FilterCount(filter=name, types=count) for name, count in filters)
