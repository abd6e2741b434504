"""A recorded fleet in operation: one pool rolls out a change, another lacks capacity."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import msgspec

from reconciler.model.decision.changes import DriftedClaim, FieldChange
from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget
from reconciler.model.history import Move, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.karpenter.nodepool import NodeClassRef
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.observed.allocation import WorkloadCost
from reconciler.plan.explain.answer import Decision, decisions_of
from reconciler.plan.value.actions import Action, BlockedNode, PlannedCommand
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.nodes import (
    LaunchOffering,
    PlacedPod,
    PlannedNodeClaim,
    Reason,
    UnschedulablePod,
)
from reconciler.plan.value.plan import Plan, Revision, to_json
from reconciler.ports.cluster import USAGE_RECORD, FleetUsage, NodeUsage, PodUsage
from reconciler.ports.journal import Intent, IntentOutcome, Outcome, Verb
from reconciler.ports.state import (
    CommandPhase,
    RecordedObject,
    RecordedPlan,
    RunningCommand,
    Unavailable,
)
from tests.states import open_state

NOW = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
NOW_ARGUMENT = "--now=2026-01-03T12:00:00Z"
HEAD = "4f2c9e1ab0c3d4e5f60718293a4b5c6d7e8f9012"


def ago(**duration: float) -> datetime:
    return NOW - timedelta(**duration)


def a_claim(name: str, created: datetime, *, reached: int = 3, zone: str = "a") -> NodeClaim:
    """Return a claim of whose three conditions the first ``reached`` are True."""
    pool = name.partition("-")[0]
    launched = reached > 0
    labels = {
        "karpenter.sh/nodepool": pool,
        "karpenter.sh/capacity-type": "spot",
        "node.kubernetes.io/instance-type": "m7g.large",
        "topology.kubernetes.io/zone": f"eu-central-1{zone}",
    }
    kinds = ("Launched", "Registered", "Initialized")
    return NodeClaim(
        metadata=Metadata(
            name=name,
            labels=labels if launched else {"karpenter.sh/nodepool": pool},
            creation_timestamp=created,
        ),
        spec=NodeClaimSpec(
            node_class_ref=NodeClassRef("karpenter.k8s.aws", "EC2NodeClass", "default"),
            expire_after="720h",
        ),
        status=NodeClaimStatus(
            provider_id=f"aws:///eu-central-1{zone}/i-{name}" if launched else "",
            node_name=f"ip-{name}.internal" if reached > 1 else "",
            image_id="ami-0abc" if launched else "",
            capacity={"cpu": "2", "memory": "8Gi"} if launched else {},
            allocatable={"cpu": "1930m", "memory": "7Gi"} if launched else {},
            conditions=tuple(
                Condition(kind, "True", kind, "", created + timedelta(seconds=20 * (n + 1)))
                for n, kind in enumerate(kinds[:reached])
            ),
        ),
    )


def the_plan() -> Plan:
    return Plan(
        fleet="web",
        at=ago(minutes=4),
        serial=6,
        revision=Revision(head=HEAD),
        node_claims=(
            PlannedNodeClaim(
                name="web-new1",
                node_pool="web",
                reason="Drifted",
                pods=("shop/api-1",),
                instance_types_total=212,
                launch=LaunchOffering(
                    instance_type="m7g.large",
                    zone="eu-central-1a",
                    capacity_type="spot",
                    price=0.0321,
                ),
            ),
        ),
        placements=(
            PlacedPod(pod="shop/api-1", node_claim="web-new1", relaxed=("zone spread",)),
            PlacedPod(pod="shop/api-2", node="ip-web-old2.internal"),
        ),
        unschedulable=(
            UnschedulablePod(
                pod="ml/train-0",
                reasons=(
                    Reason(node_pool="batch", code="Resources", message="no type has 12 TiB"),
                    Reason(node_pool="web", code="Taints", message="taint team=web:NoSchedule"),
                ),
            ),
        ),
        drift=(
            DriftedClaim(
                node_claim="web-old1",
                node="ip-web-old1.internal",
                node_pool="web",
                reason="NodePoolDrifted",
                fields=(
                    FieldChange(path="spec.template.spec.expireAfter", old="720h", new="360h"),
                ),
                side="git",
            ),
        ),
        commands=(
            PlannedCommand(
                id="drifted-1",
                reason="Drifted",
                decision="replace",
                nodes=("ip-web-old1.internal",),
                node_claims=("web-old1",),
                replacements=("web-new1",),
                savings=0.0639,
            ),
        ),
        blocked=(
            BlockedNode(
                node="ip-web-old2.internal",
                node_pool="web",
                reason="Underutilized",
                code="PodDisruptionBudget",
                message="shop/api allows no disruption",
            ),
        ),
        blockers=(
            Blocker(
                kind="PodDisruptionBudget",
                name="shop/api",
                message="shop/api allows no disruption",
                nodes=("ip-web-old2.internal",),
                node_pools=("web",),
                reasons=("Underutilized",),
                since=ago(days=4),
                forgone=0.0639,
            ),
        ),
        budgets=(
            PoolBudget(
                node_pool="web",
                reason="Underutilized",
                total=1,
                disrupting=1,
                allowed=0,
                next_change=NOW + timedelta(hours=10),
            ),
        ),
        actions=(
            Action(id="provision-1", kind="provision", node_pool="web", node_claim="web-new1"),
            Action(
                id="replace-1",
                kind="replace",
                command="drifted-1",
                depends_on=("provision-1",),
                wave=1,
                reason="Drifted",
            ),
            Action(
                id="terminate-1",
                kind="terminate",
                node_pool="web",
                node_claim="web-old1",
                node="ip-web-old1.internal",
                command="drifted-1",
                depends_on=("replace-1",),
                wave=2,
                reason="Drifted",
            ),
        ),
        deferred=(
            DeferredClaim(
                node_claim="web-old2",
                node="ip-web-old2.internal",
                node_pool="web",
                reason="Drifted",
                waits_for="schedule",
                not_before=NOW + timedelta(hours=10),
                message="the budget opens at 22:00 UTC",
            ),
        ),
        cost=Cost(before=0.192, after=0.1281),
    )


USAGE = FleetUsage(
    NOW,
    {
        "web-old1": NodeUsage(0.0817, 12, {"cpu": 1500, "memory": 6}, {"cpu": 2000, "memory": 8}),
        "web-old2": NodeUsage(0.0817, 3, {"cpu": 200, "memory": 1}, {"cpu": 2000, "memory": 8}),
        "web-new1": NodeUsage(None, 0, {"cpu": 0, "memory": 0}, {"cpu": 2000, "memory": 8}),
    },
    (
        WorkloadCost("search", "StatefulSet search/index", (), 3, 61_700_000, 51_200_000),
        WorkloadCost("shop", "Deployment shop/api", (("team", "checkout"),), 8, 72_000_000, 9_000),
        WorkloadCost("shop", "Deployment shop/web", (("team", "=storefront"),), 4, 29_700_000, 0),
    ),
    {
        "web-new1": (),
        "web-old2": (
            PodUsage(
                "shop",
                "api-2",
                "Deployment shop/api",
                100,
                1 << 39,
                1000,
                "PodDisruptionBudget shop/api",
            ),
            PodUsage("search", "index-0", "StatefulSet search/index", 50, 1 << 40),
            PodUsage("kube-system", "cni-x", "DaemonSet kube-system/cni", 50, 0, 2_000_001_000),
        ),
    },
)
"""The usage of the nodes that have joined; the price of one of them is unknown."""


def record(folder: Path, fleet: str = "web") -> None:
    """Write the fleet into the new state directory ``folder``."""
    shutil.copytree(_recorded(fleet), folder)


@cache
def _recorded(fleet: str) -> str:
    """Return a state directory with the fleet, created once for a test process."""
    folder = tempfile.mkdtemp(prefix="reconciler-recorded-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(f"{folder}/state", fleet)
    return f"{folder}/state"


def _write(folder: str, fleet: str) -> None:
    with open_state(folder, fleet) as state:
        store, journal = state.store, state.journal
        store.put_objects(_objects(), HEAD, ago(hours=5))
        plan = the_plan()
        body = to_json(plan)
        state.history.put_decisions(
            "0a1b2c3d4e5f",
            ago(days=1),
            [Decision(kind="Node", name="ip-web-old2.internal", code="Young", message="too young")],
        )
        store.put_plan(RecordedPlan("3b0fa1c2d4e5", HEAD, plan.at, 6, body, ago(minutes=3)))
        state.history.put_decisions("3b0fa1c2d4e5", plan.at, decisions_of(plan))
        journal.begin(_intents())
        journal.finish([IntentOutcome("i1", Outcome.SUCCEEDED, "i-web-new1")], ago(minutes=2))
        journal.finish([IntentOutcome("i2", Outcome.SUCCEEDED)], ago(minutes=2))
        journal.finish(
            [IntentOutcome("i3", Outcome.FAILED, "InsufficientInstanceCapacity")], ago(minutes=1)
        )
        state.shelf.write(USAGE_RECORD, msgspec.json.encode(USAGE))
        store.put_node_claims(
            [
                a_claim("web-old1", ago(days=3)),
                a_claim("web-old2", ago(days=9), zone="b"),
                a_claim("web-new1", ago(minutes=3), reached=2),
                a_claim("batch-7", ago(seconds=40), reached=0),
                a_claim("batch-6", ago(minutes=9), reached=0),
            ]
        )
        store.forget_node_claims({"batch-6": "InsufficientInstanceCapacity"}, ago(minutes=1))
        store.put_command(_command())
        store.put_rollout(
            Rollout(
                "batch",
                wave=4,
                failures=3,
                stopped_at=ago(hours=2),
                stopped_why="its replacement batch-5 is gone",
            )
        )
        store.put_rollout(Rollout("web", 1, 2, (Move("drifted-1", ago(minutes=3)),)))
        store.put_unavailable(
            [
                Unavailable(
                    "g5.xlarge",
                    "eu-central-1a",
                    "spot",
                    NOW + timedelta(minutes=2),
                    code="InsufficientInstanceCapacity",
                ),
                Unavailable(
                    "m7i.large",
                    "eu-central-1b",
                    "reserved",
                    NOW + timedelta(minutes=3),
                    code="ReservationCapacityExceeded",
                    reservation_id="cr-0123456789abcdef0",
                ),
            ]
        )


def _objects() -> list[RecordedObject]:
    def pool(name: str, **spec: object) -> RecordedObject:
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        template = {"spec": {"nodeClassRef": reference, "expireAfter": "360h"}}
        data = {"metadata": {"name": name}, "spec": {**spec, "template": template}}
        return RecordedObject("NodePool", name, "9876543210", data, HEAD)

    node_class = RecordedObject("EC2NodeClass", "default", "1234567890", {"spec": {}}, HEAD)
    return [pool("web", weight=10), pool("batch"), node_class]


def _intents() -> list[Intent]:
    facts = {"revision": HEAD, "plan": "3b0fa1c2d4e5", "reason": "Drifted"}
    return [
        Intent("i1", Verb.LAUNCH, "web-new1", ago(minutes=3), command="drifted-1", **facts),
        Intent(
            "i2", Verb.TAINT, "ip-web-old1.internal", ago(minutes=3), command="drifted-1", **facts
        ),
        Intent("i3", Verb.LAUNCH, "batch-6", ago(minutes=2), HEAD, reason="Unschedulable"),
        Intent("i4", Verb.LAUNCH, "batch-7", ago(seconds=40), HEAD, reason="Unschedulable"),
    ]


def _command() -> RunningCommand:
    return RunningCommand(
        id="drifted-1",
        reason="Drifted",
        decision="replace",
        node_claims=("web-old1",),
        replacements=("web-new1",),
        phase=CommandPhase.WAITING,
        started_at=ago(minutes=3),
        revision=HEAD,
        plan="3b0fa1c2d4e5",
        savings=0.0639,
    )
