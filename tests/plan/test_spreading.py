"""The cluster's default spread: for whom it holds, and with which selector."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.model.errors import UsageError
from reconciler.model.settings import Settings
from reconciler.plan.make.gather import facts_of
from reconciler.plan.planning import plan_of
from reconciler.plan.value.plan import Plan
from tests.plan.test_planner import a_class, a_node, a_pool, inputs

Object = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
APP = {"app": "web"}


def default(key: str = ZONE, action: str = "DoNotSchedule", **more: Any) -> Object:
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": action, **more}


def configured(*constraints: Object) -> Settings:
    config = {"podTopologySpread": {"defaultConstraints": list(constraints)}}
    return resolve(config, {}).settings


def an_object(kind: str, name: str, selector: Any, namespace: str = "web") -> Object:
    spec = {} if selector is None else {"selector": selector}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


REPLICA_SET = an_object("ReplicaSet", "web-1", {"matchLabels": APP})


def owned_by(kind: str = "ReplicaSet", name: str = "web-1", *, api: str = "apps/v1") -> Object:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": name, "controller": True}


def a_pod(name: str, *owners: Object, node: str = "", **fields: Any) -> Object:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    labels = fields.pop("labels", APP)
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": fields.pop("namespace", "web"),
            "labels": labels,
            "ownerReferences": list(owners),
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "100m"}}}],
            **fields,
        },
        "status": {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waits]},
    }


def pods(count: int, *owners: Object, **fields: Any) -> list[Object]:
    return [a_pod(f"p-{i}", *(owners or (owned_by(),)), **fields) for i in range(count)]


def a_plan(
    observed: list[Object], *constraints: Object, desired: list[Object] | None = None
) -> Plan:
    wanted = desired or [a_pool(), a_class()]
    return plan_of(inputs(wanted, observed, settings=configured(*constraints)))


def zones(plan: Plan) -> list[int]:
    """Return how many pods each zone gets, in rising order."""
    zone_of = {claim.name: claim.launch.zone for claim in plan.node_claims}
    return sorted(Counter(zone_of[p.node_claim] for p in plan.placements if p.node_claim).values())


def selector_of(pod: Object, *others: Object) -> Any:
    """Return the selector that a pod is given, None where it is left as it is."""
    facts = facts_of(inputs([a_pool(), a_class()], [pod, *others], settings=configured(default())))
    found = [c for p in facts.cluster.pods for c in p.spec.topology_spread_constraints]
    if not found:
        return None
    (constraint,) = found
    selector = constraint.label_selector
    assert selector is not None
    expressions = [(e.key, e.operator, list(e.values)) for e in selector.match_expressions]
    return selector.match_labels, expressions


# whom it holds for


def test_default_spread_applies_to_pods_without_constraints() -> None:
    observed = [REPLICA_SET, *pods(4)]

    assert zones(a_plan(observed, default())) == [2, 2]
    assert zones(a_plan(observed)) == [4]
    assert len(a_plan(observed, default(HOST)).node_claims) == 4


def test_default_spread_does_not_apply_to_pods_with_constraints() -> None:
    own = [{**default(HOST), "maxSkew": 3, "labelSelector": {"matchLabels": APP}}]

    plan = a_plan([REPLICA_SET, *pods(3, topologySpreadConstraints=own)], default(HOST))

    assert len(plan.node_claims) == 1


def test_default_spread_ignores_pods_without_owner_or_service() -> None:
    lone = [a_pod(f"p-{i}") for i in range(3)]

    assert len(a_plan(lone, default(HOST)).node_claims) == 1


def test_an_unsatisfiable_default_spread_follows_its_setting() -> None:
    observed = [REPLICA_SET, *pods(3)]
    pool = a_pool()
    only = {"key": ZONE, "operator": "In", "values": ["z-a"]}
    pool["spec"]["template"]["spec"]["requirements"] = [only]

    hard = a_plan(observed, default(minDomains=3), desired=[pool, a_class()])
    soft = a_plan(
        observed, default(action="ScheduleAnyway", minDomains=3), desired=[pool, a_class()]
    )

    assert (len(hard.placements), len(hard.unschedulable)) == (1, 2)
    assert {r.code for u in hard.unschedulable for r in u.reasons} == {"TopologySpread"}
    assert (len(soft.placements), len(soft.unschedulable)) == (3, 0)


def test_running_pods_count_for_default_spread() -> None:
    """Two of the workload stand in z-a: two more go to the other zone."""
    running = [a_pod(f"r-{i}", owned_by(), node="n-1") for i in range(2)]

    plan = a_plan([*a_node("n-1", "small"), REPLICA_SET, *running, *pods(2)], default())

    assert [claim.launch.zone for claim in plan.node_claims] == ["z-b"]
    assert len(plan.placements) == 2


def test_each_revision_is_spread_separately() -> None:
    """Their ReplicaSets are not in the snapshot: Kubernetes' own label tells them apart."""
    old = pods(2, owned_by(name="web-old"), labels={**APP, "pod-template-hash": "old"})
    new = [
        a_pod(f"n-{i}", owned_by(name="web-new"), labels={**APP, "pod-template-hash": "new"})
        for i in range(2)
    ]

    plan = a_plan([*old, *new], default())

    zone_of = {claim.name: claim.launch.zone for claim in plan.node_claims}
    seats = Counter((p.pod[4], zone_of[p.node_claim or ""]) for p in plan.placements)
    assert seats == {(w, z): 1 for w in "pn" for z in ("z-a", "z-b")}


def test_workloads_in_git_are_spread_without_a_cluster() -> None:
    template = {"metadata": {"labels": APP}, "spec": pods(1)[0]["spec"] | {"nodeName": None}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "web"},
        "spec": {"replicas": 4, "selector": {"matchLabels": APP}, "template": template},
    }
    from reconciler.desired.workloads.pods import expand
    from reconciler.observed.snapshot import snapshot_of
    from reconciler.observed.state import cluster_state

    question = inputs([a_pool(), a_class(), deployment], settings=configured(default()))
    made, _ = expand(question.fleet.workloads)
    cluster = cluster_state(snapshot_of([*made.pods, *made.namespaces]))
    from msgspec.structs import replace

    assert zones(plan_of(replace(question, cluster=cluster))) == [2, 2]


# the selector

STATEFUL = owned_by("StatefulSet", "db")
CONTROLLER = owned_by("ReplicationController", "rc", api="v1")
EVEN = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}
SELECTORS: dict[str, tuple[Object, list[Object], Any]] = {
    "a ReplicaSet's, not the pod's labels": (
        a_pod("p", owned_by(), labels={**APP, "more": "1"}),
        [REPLICA_SET],
        ({}, [("app", "In", ["web"])]),
    ),
    "a ReplicaSet's expressions": (
        a_pod("p", owned_by()),
        [an_object("ReplicaSet", "web-1", {"matchLabels": APP, **EVEN})],
        ({}, [("app", "In", ["web"]), ("tier", "NotIn", ["x"])]),
    ),
    "a StatefulSet's": (
        a_pod("p", STATEFUL, labels={**APP, "apps.kubernetes.io/pod-index": "0"}),
        [an_object("StatefulSet", "db", {"matchLabels": APP})],
        ({}, [("app", "In", ["web"])]),
    ),
    "a ReplicationController's": (
        a_pod("p", CONTROLLER),
        [an_object("ReplicationController", "rc", APP)],
        (APP, []),
    ),
    "none of a Job": (a_pod("p", owned_by("Job", "j", api="batch/v1")), [], None),
    "none of an owner that does not control it": (
        a_pod("p", {**owned_by(), "controller": False}),
        [REPLICA_SET],
        None,
    ),
    "none of an owner that is not there": (a_pod("p", STATEFUL), [], None),
    "a Service's": (
        a_pod("p", owned_by("Job", "j", api="batch/v1")),
        [an_object("Service", "s", APP)],
        (APP, []),
    ),
    "all Services' together, the later one's before": (
        a_pod("p", labels={**APP, "tier": "a"}),
        [an_object("Service", "s", APP), an_object("Service", "t", {"tier": "a"})],
        ({**APP, "tier": "a"}, []),
    ),
    "none of a Service that selects others": (
        a_pod("p"),
        [an_object("Service", "s", {"app": "api"})],
        None,
    ),
    "none of a Service without a selector": (a_pod("p"), [an_object("Service", "s", None)], None),
    "none of a Service that selects all": (a_pod("p"), [an_object("Service", "s", {})], None),
    "none of a Service elsewhere": (a_pod("p"), [an_object("Service", "s", APP, "other")], None),
    "a Service's and the owner's": (
        a_pod("p", owned_by(), labels={**APP, "tier": "a"}),
        [an_object("Service", "s", {"tier": "a"}), REPLICA_SET],
        ({"tier": "a"}, [("app", "In", ["web"])]),
    ),
    "a ReplicationController's over a Service's": (
        a_pod("p", CONTROLLER),
        [an_object("Service", "s", APP), an_object("ReplicationController", "rc", {"app": "x"})],
        ({"app": "x"}, []),
    ),
    "both where a ReplicaSet contradicts a Service": (
        a_pod("p", owned_by()),
        [
            an_object("Service", "s", APP),
            an_object("ReplicaSet", "web-1", {"matchLabels": {"app": "x"}}),
        ],
        (APP, [("app", "In", ["x"])]),
    ),
}


@pytest.mark.parametrize("name", SELECTORS)
def test_the_selector_is_deduced_as_kube_scheduler_does(name: str) -> None:
    pod, others, expected = SELECTORS[name]

    assert selector_of(pod, *others) == expected


# the config


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({**default(), "maxSkew": 0}, "[0].maxSkew"),
        ({**default(), "maxSkew": True}, "[0].maxSkew"),
        ({**default(), "topologyKey": ""}, "[0].topologyKey"),
        ({**default(), "topologyKey": "a b"}, "[0].topologyKey"),
        ({**default(), "whenUnsatisfiable": "Never"}, "[0].whenUnsatisfiable"),
        ({**default(), "labelSelector": {}}, "labelSelector"),
        ({**default(), "matchLabelKeys": []}, "matchLabelKeys"),
        ({**default(), "nodeTaintsPolicy": "Maybe"}, "[0].nodeTaintsPolicy"),
        ({**default(), "minDomains": 0}, "[0].minDomains"),
        ({"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}, "[0].maxSkew"),
    ],
)
def test_constraints_rejected_by_kube_scheduler_are_rejected(
    constraint: Object, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        configured(constraint)
    assert message in str(raised.value)


def test_two_constraints_on_one_key_must_differ_in_their_action() -> None:
    both = configured(default(), default(action="ScheduleAnyway"))

    assert len(both.default_constraints) == 2
    with pytest.raises(UsageError, match=r"\[1\]"):
        configured(default(), {**default(), "maxSkew": 2})


def test_the_config_shows_constraints_as_written() -> None:
    config = {"podTopologySpread": {"defaultConstraints": [default(minDomains=2)]}}

    values = resolve(config, {}).values

    assert values["podTopologySpread.defaultConstraints"] == [default(minDomains=2)]
