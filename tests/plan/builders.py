"""Plans with defaults: a test names only what it is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from reconciler.model.decision.changes import Change, DriftedClaim, FieldChange, Side
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget, WaitsFor
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.plan.make.actions import OwnedNode, actions_of
from reconciler.plan.value.actions import Action, BlockedNode, PlannedCommand
from reconciler.plan.value.costs import AtRest, Cost, PoolAtRest, PoolChange, PoolCost, StuckNode
from reconciler.plan.value.nodes import (
    LaunchOffering,
    OfferedTypes,
    OffersChange,
    PlacedPod,
    PlannedHeadroom,
    PlannedNodeClaim,
    Reason,
    UnschedulablePod,
)
from reconciler.plan.value.plan import Plan, Revision
from reconciler.plan.value.ranges import FleetAtRest

NOW = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
HEAD = "4f2c9e1ab0c3d4e5f60718293a4b5c6d7e8f9012"
BASE = "9012f4e5d6c7b8a90102030405060708090a0b0c"


def a_plan(**fields: object) -> Plan:
    defaults: dict[str, object] = {
        "fleet": "web",
        "at": NOW,
        "revision": Revision(head=HEAD),
        "cost": Cost(before=0.0, after=0.0),
    }
    return Plan(**{**defaults, **fields})


def an_action(name: str, *, after: tuple[str, ...] = (), **fields: object) -> Action:
    return Action(**{"id": name, "kind": "provision", "depends_on": after, **fields})


def a_claim(name: str, pool: str = "general", **fields: object) -> PlannedNodeClaim:
    defaults: dict[str, object] = {
        "name": name,
        "node_pool": pool,
        "node_class": "default",
        "reason": "Unschedulable",
        "instance_types": ("m7g.large", "m6g.large", "c7g.xlarge"),
        "instance_types_total": 212,
        "requests": {"cpu": "1800m", "memory": "5Gi", "pods": "6"},
        "requirements": (
            NodeSelectorRequirement("karpenter.sh/capacity-type", Operator.IN, ("spot",)),
            NodeSelectorRequirement("kubernetes.io/arch", Operator.EXISTS),
        ),
        "launch": LaunchOffering(
            instance_type="m7g.large", zone="us-west-2a", capacity_type="spot", price=0.0321
        ),
    }
    return PlannedNodeClaim(**{**defaults, **fields})


def a_node(name: str, pool: str = "general", **fields: object) -> OwnedNode:
    defaults: dict[str, object] = {
        "node_claim": f"{pool}-{name.split('.', maxsplit=1)[0][-5:].replace('-', 'x')}",
        "node_pool": pool,
        "instance_type": "m5.large",
        "zone": "us-west-2b",
        "capacity_type": "on-demand",
        "price": 0.096,
    }
    return OwnedNode(name=name, **{**defaults, **fields})


def nothing_to_do() -> Plan:
    return a_plan(
        cost=Cost(
            before=1.152,
            after=1.152,
            by_node_pool={
                "general": PoolCost(nodes_before=12, nodes_after=12, before=1.152, after=1.152)
            },
        )
    )


def first_nodes() -> Plan:
    """A new fleet: pods are pending, two pools launch."""
    pods = [f"web/api-{i}" for i in range(30)] + [f"web/worker-{i}" for i in range(11)]
    claims = tuple(
        a_claim(
            f"general-{letter}1b2c",
            pods=tuple(pods[i * 14 : (i + 1) * 14]),
            launch=LaunchOffering(
                instance_type="m7g.xlarge",
                zone=f"us-west-2{letter}",
                capacity_type="spot",
                price=0.0652,
                estimated=True,
            ),
        )
        for i, letter in enumerate("abc")
    )
    gpu = a_claim(
        "gpu-9f8e7",
        "gpu",
        reason="Static",
        launch=LaunchOffering(
            instance_type="g5.xlarge", zone="us-west-2a", capacity_type="on-demand", price=1.006
        ),
        instance_types_total=1,
    )
    return a_plan(
        compared_with="records",
        revision=Revision(head=HEAD, dirty=True),
        changes=(
            Change(op="create", kind="NodePool", name="general", file="pools/general.yaml", line=1),
            Change(op="create", kind="NodePool", name="gpu", file="pools/gpu.yaml", line=1),
        ),
        node_claims=(*claims, gpu),
        placements=tuple(PlacedPod(pod=pod, node_claim=c.name) for c in claims for pod in c.pods),
        actions=actions_of((*claims, gpu), (), (), {}),
        cost=Cost(
            before=0.0,
            after=1.2016,
            by_node_pool={
                "general": PoolCost(nodes_after=3, after=0.1956),
                "gpu": PoolCost(nodes_after=1, after=1.006),
            },
        ),
        diagnostics=(
            PlanFinding(
                severity="info",
                code="spot-estimated",
                message="spot prices are estimates: 61% of on-demand",
            ),
            PlanFinding(
                severity="info",
                code="skipped-kinds",
                message="skipped 3 objects that no decision reads: ConfigMap 2, Service 1",
            ),
        ),
    )


def pull_request() -> Plan:
    """A template changes: some nodes are replaced now, others wait, are blocked, or do not fit."""
    nodes = [a_node(f"ip-10-0-{i // 8}-{10 + i}.us-west-2.compute.internal") for i in range(12)]
    spare = a_node(
        "ip-10-0-7-99.us-west-2.compute.internal",
        "batch",
        instance_type="c6i.2xlarge",
        capacity_type="spot",
        price=0.1312,
    )
    old = a_node(
        "ip-10-0-8-80.us-west-2.compute.internal",
        "batch",
        instance_type="c6i.2xlarge",
        capacity_type="spot",
        price=0.1312,
    )
    drifted = tuple(
        DriftedClaim(
            node_claim=n.node_claim,
            node=n.name,
            node_pool="general",
            reason="NodePoolDrifted",
            recorded_hash="12345678901234567890",
            desired_hash="98765432109876543210",
            fields=(
                FieldChange(
                    path="spec.template.spec.expireAfter", old="720h", new="360h", drifts=True
                ),
            ),
            side=Side.GIT,
        )
        for n in nodes
    )
    new = tuple(
        a_claim(f"general-new{i}", reason="Drifted", pods=(f"web/api-{i}", f"web/db-{i}"))
        for i in range(2)
    )
    commands = (
        *(
            PlannedCommand(
                id=f"drifted-{i}",
                reason="Drifted",
                decision="replace",
                nodes=(nodes[i].name,),
                node_claims=(nodes[i].node_claim,),
                replacements=(new[i].name,),
                savings=0.0639,
                pods_evicted=9,
            )
            for i in range(2)
        ),
        PlannedCommand(
            id="empty-1",
            reason="Empty",
            decision="delete",
            nodes=(spare.name,),
            node_claims=(spare.node_claim,),
            savings=0.1312,
        ),
        PlannedCommand(
            id="expired-1",
            reason="Expired",
            decision="delete",
            nodes=(old.name,),
            node_claims=(old.node_claim,),
            pods_evicted=3,
            forceful=True,
        ),
    )
    owned = {n.node_claim: n for n in (*nodes, spare, old)}
    return a_plan(
        compared_with="base",
        revision=Revision(
            head=HEAD, base=BASE, repo="https://github.com/acme/fleet", path="clusters/web"
        ),
        changes=(
            Change(
                op="update",
                kind="NodePool",
                name="general",
                file="pools/general.yaml",
                line=1,
                fields=(
                    FieldChange(
                        path="spec.disruption.budgets",
                        old=[{"nodes": "10%"}],
                        new=[
                            {"nodes": "20%"},
                            {"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"},
                        ],
                    ),
                    FieldChange(
                        path="spec.template.spec.expireAfter", old="720h", new="360h", drifts=True
                    ),
                    FieldChange(
                        path="spec.template.spec.requirements",
                        old=[
                            {
                                "key": "karpenter.sh/capacity-type",
                                "operator": "In",
                                "values": ["on-demand"],
                            }
                        ],
                        new=[
                            {
                                "key": "karpenter.sh/capacity-type",
                                "operator": "In",
                                "values": ["spot", "on-demand"],
                            }
                        ],
                    ),
                ),
                drifted=tuple(n.node_claim for n in nodes),
            ),
            Change(op="delete", kind="NodeOverlay", name="discount"),
        ),
        node_claims=new,
        placements=tuple(PlacedPod(pod=pod, node_claim=c.name) for c in new for pod in c.pods),
        unschedulable=tuple(
            UnschedulablePod(
                pod=f"ml/train-{i}",
                reasons=(
                    Reason(
                        node_pool="batch",
                        code="Resources",
                        message="requests 70 cpu, but the largest allowed instance type has 63.77",
                    ),
                    Reason(
                        node_pool="general",
                        code="Taint",
                        message="does not tolerate dedicated=web:NoSchedule",
                    ),
                ),
            )
            for i in range(3)
        ),
        drift=drifted,
        commands=commands,
        blocked=(
            BlockedNode(
                node=nodes[11].name,
                node_pool="general",
                reason="Drifted",
                code="PodDoNotDisrupt",
                message='pod has "karpenter.sh/do-not-disrupt" annotation (Pod=web/db-0)',
            ),
            BlockedNode(
                node=nodes[10].name,
                node_pool="general",
                reason="Drifted",
                code="PodDisruptionBudget",
                message="pdb prevents pod evictions (PodDisruptionBudget=[web/api])",
            ),
        ),
        blockers=(
            Blocker(
                kind="PodDisruptionBudget",
                name="web/api",
                code="PodDisruptionBudget",
                message="pdb prevents pod evictions (PodDisruptionBudget=[web/api])",
                nodes=(nodes[10].name,),
                node_pools=("general",),
                reasons=("Drifted",),
                since=NOW - timedelta(days=12),
                forgone=0.0639,
            ),
            Blocker(
                kind="Pod",
                name="web/db-0",
                code="PodDoNotDisrupt",
                message="the pod is annotated karpenter.sh/do-not-disrupt",
                owner="StatefulSet web/db",
                nodes=(nodes[11].name,),
                node_pools=("general",),
                reasons=("Drifted",),
                unpriced=1,
            ),
        ),
        budgets=(
            PoolBudget(
                node_pool="general",
                reason="Drifted",
                total=12,
                disrupting=0,
                allowed=2,
                binding=0,
                next_change=NOW + timedelta(days=1),
            ),
        ),
        actions=actions_of(new, (), commands, owned),
        deferred=(
            *(
                DeferredClaim(
                    node_claim=n.node_claim,
                    node=n.name,
                    node_pool="general",
                    reason="Drifted",
                    waits_for=WaitsFor.BUDGET,
                    not_before=None,
                    message="budget 0 of NodePool general (20%) lets 2 of 12 nodes go at once",
                )
                for n in nodes[2:8]
            ),
            DeferredClaim(
                node_claim=nodes[8].node_claim,
                node=nodes[8].name,
                node_pool="general",
                reason="Underutilized",
                waits_for=WaitsFor.CONSOLIDATE_AFTER,
                not_before=NOW + timedelta(hours=14, minutes=30),
                message="a pod came or went 20m ago; consolidateAfter is 15h",
            ),
        ),
        at_rest=AtRest(
            before=FleetAtRest(nodes=12, per_hour=1.152),
            after=FleetAtRest(nodes=11, per_hour=0.8812),
            per_hour=-0.2708,
            per_month=-197.684,
            unschedulable=("ml/train-0", "ml/train-1", "ml/train-2"),
            replaced=10,
            rollout="PT2H10M",
            stuck=(
                StuckNode(
                    node_claim=nodes[11].node_claim,
                    node=nodes[11].name,
                    node_pool="general",
                    reason="Drifted",
                    message="pdb prevents pod evictions (PodDisruptionBudget=[web/db])",
                ),
            ),
            by_node_pool={
                "general": PoolChange(
                    before=PoolAtRest(nodes=12, per_hour=1.152, types={"m5.large on-demand": 12}),
                    after=PoolAtRest(
                        nodes=11,
                        per_hour=0.8812,
                        types={"m7g.large spot": 9, "m5.large on-demand": 2},
                    ),
                ),
            },
            evictions=96,
        ),
        offers={
            "general": OffersChange(
                before=OfferedTypes(types=311, cheapest="c6g.medium on-demand", per_vcpu=0.034),
                after=OfferedTypes(types=311, cheapest="c6g.medium spot", per_vcpu=0.0131),
            ),
        },
        cost=Cost(
            before=1.4144,
            after=1.0242,
            by_node_pool={
                "batch": PoolCost(nodes_before=2, nodes_after=0, before=0.2624, after=0.0),
                "general": PoolCost(nodes_before=12, nodes_after=12, before=1.152, after=1.0242),
            },
        ),
        diagnostics=(
            PlanFinding(
                severity="warning",
                code="budget-unreachable",
                message="budget 1 never opens",
                path="spec.disruption.budgets[1]",
                file="pools/general.yaml",
                line=31,
                column=9,
                hint="give it a duration below 24h",
            ),
            PlanFinding(
                severity="info", code="spot-estimated", message="spot prices are estimates"
            ),
        ),
    )


def closed_window() -> Plan:
    """A rollout that a window and a budget hold up, beside capacity that buffers reserve."""
    plan = pull_request()
    later = NOW + timedelta(hours=10)
    return msgspec.structs.replace(
        plan,
        unschedulable=(),
        at_rest=None,
        offers={},
        blockers=(
            Blocker(
                kind="Schedule",
                name="batch/Empty",
                message="the window of NodePool batch is closed",
                nodes=("ip-10-0-7-98.us-west-2.compute.internal",),
                node_pools=("batch",),
                reasons=("Empty",),
                since=NOW - timedelta(hours=3),
                until=later,
                forgone=0.1312,
            ),
            *plan.blockers,
        ),
        deferred=(
            DeferredClaim(
                node_claim="batch-7x98",
                node="ip-10-0-7-98.us-west-2.compute.internal",
                node_pool="batch",
                reason="Empty",
                waits_for="schedule",
                not_before=later,
                message="the window of NodePool batch is closed",
            ),
            *plan.deferred,
        ),
        headroom=(
            PlannedHeadroom(
                buffer="web/spare",
                replicas=3,
                nodes={"ip-10-0-0-10": 1},
                unschedulable=2,
                code="Unschedulable",
                message="capacity for 1 pod on existing nodes; 2 pods fit nowhere",
                reasons=(
                    Reason(
                        node_pool="general",
                        code="TooLarge",
                        message="requests 70 cpu, but the largest allowed instance type has 63.77",
                    ),
                ),
            ),
        ),
    )


PLANS = {
    "nothing_to_do": nothing_to_do,
    "first_nodes": first_nodes,
    "pull_request": pull_request,
    "closed_window": closed_window,
}
