import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconciler.desired.hash import NODE_CLASS_HASH_VERSION, NODE_POOL_HASH_VERSION
from reconciler.diff.drift import DesiredObjects, DriftCache, find_drift
from reconciler.diff.nodeclass import ClassState, LiveInstance
from reconciler.model.decision.changes import DriftedClaim, Side
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.question import LaunchPool
from tests.disruption.builders import a_catalog, a_cluster, a_node
from tests.tables import cases

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
POOL_HASH = "karpenter.sh/nodepool-hash"
CLASS_HASH = "karpenter.k8s.aws/ec2nodeclass-hash"


def _pool(requirements: list[dict[str, Any]] | None = None, **template: Any) -> NodePool:
    spec = {"requirements": requirements or [], "expireAfter": "Never", **template}
    return decode({"metadata": {"name": "default"}, "spec": {"template": {"spec": spec}}}, NodePool)


def _found(*objects: Any, pool: NodePool | None = None, **facts: Any) -> tuple[DriftedClaim, ...]:
    catalog = facts.pop("catalog", None) or a_catalog()
    now = facts.pop("now", NOW)
    desired = DesiredObjects([LaunchPool(pool or _pool(), catalog)], **facts)
    return find_drift(desired, a_cluster(*objects), now)


def _node(
    annotations: dict[str, str] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> list[dict[str, Any]]:
    metadata = {"annotations": annotations or {}, **fields.pop("metadata", {})}
    return a_node("n1", claim_metadata=metadata, conditions=conditions or [], **fields)


def _hashed(value: str, version: str = NODE_POOL_HASH_VERSION) -> dict[str, str]:
    return {POOL_HASH: value, f"{POOL_HASH}-version": version}


def _recorded(reason: str) -> list[dict[str, Any]]:
    return [{"type": "Drifted", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    "case", [c for c in cases("requirements") if c.values[0]["kind"] == "requirement_drift"]
)
def test_labels_drift_from_requirements_as_in_karpenter(case: Any) -> None:
    given = case["input"]
    labels = {"karpenter.sh/nodepool": "default", **given["nodeclaim_labels"]}
    node = _node(metadata={"labels": labels, "creationTimestamp": "2026-01-05T12:00:00Z"})

    found = _found(node, pool=_pool(given["nodepool_requirements"]))

    assert bool(found) is case["expect"]["drifted"]
    if found:
        assert found[0].reason == case["expect"]["reason"]
        assert found[0].fields[0].path == "spec.template.spec.requirements"


def test_another_hash_is_drift_and_names_the_fields_that_differ() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    pool = _pool(taints=[taint], terminationGracePeriod="5m")

    (drift,) = _found(_node(_hashed("1")), pool=pool, pool_hashes={"default": "2"})

    assert (drift.reason, drift.side) == ("NodePoolDrifted", Side.GIT)
    assert (drift.recorded_hash, drift.desired_hash) == ("1", "2")
    paths = {f.path: f.new for f in drift.fields}
    assert paths["spec.template.spec.taints"] == ["k=v:NoSchedule"]
    assert paths["spec.template.spec.terminationGracePeriod"] == "5m"


def test_the_same_hash_is_not_drift_whatever_was_recorded() -> None:
    node = _node(_hashed("2"), _recorded("NodePoolDrifted"))

    assert _found(node, pool_hashes={"default": "2"}) == ()


def test_hashes_of_another_version_are_not_compared() -> None:
    """An upgrade of the engine must not replace a fleet."""
    assert _found(_node(_hashed("1", "v2")), pool_hashes={"default": "2"}) == ()


def test_a_claim_drifted_before_an_upgrade_stays_drifted() -> None:
    node = _node(_hashed("1", "v2"), _recorded("NodePoolDrifted"))

    (drift,) = _found(node, pool_hashes={"default": "2"})

    assert (drift.reason, drift.side) == ("NodePoolDrifted", Side.US)


def test_a_recorded_drift_of_the_provider_stays_while_it_cannot_be_checked() -> None:
    (drift,) = _found(_node(conditions=_recorded("AMIDrift")))

    assert (drift.reason, drift.side) == ("AMIDrift", Side.WORLD)


@pytest.mark.parametrize("reason", ["RequirementsDrifted", "InstanceTypeNotFound"])
def test_a_recorded_drift_that_is_resolved_is_removed(reason: str) -> None:
    assert _found(_node(conditions=_recorded(reason))) == ()


def test_a_condition_with_status_false_is_not_drift() -> None:
    condition = {"type": "Drifted", "status": "False", "reason": "AMIDrift"}

    assert _found(_node(conditions=[condition])) == ()


def test_a_claim_that_is_deleted_or_has_not_launched_never_drifts() -> None:
    deleted = _node(_hashed("1"), metadata={"deletionTimestamp": "2026-01-05T11:00:00Z"})
    unlaunched = _node(_hashed("1"))
    unlaunched[1]["status"]["conditions"] = [{"type": "Launched", "status": "Unknown"}]

    assert _found(_node(_hashed("1")), pool_hashes={"default": "2"}) != ()
    for node in (deleted, unlaunched):
        assert _found(node, pool_hashes={"default": "2"}) == ()


def test_a_node_that_a_command_removes_does_not_drift() -> None:
    desired = DesiredObjects([LaunchPool(_pool(), a_catalog())], {"default": "2"})
    items = _node(_hashed("1"))
    snapshot = read_snapshot(json.dumps({"kind": "List", "items": items}).encode(), "snapshot")

    assert find_drift(desired, cluster_state(snapshot), NOW) != ()
    assert find_drift(desired, cluster_state(snapshot, ["claim-n1"]), NOW) == ()


@pytest.mark.parametrize(
    ("runs", "reservation", "drifts"),
    [
        ("reserved", "cr-1", False),
        ("reserved", "cr-2", True),
        ("", "", False),
        ("on-demand", "", False),
        ("on-demand", "cr-2", False),
    ],
)
def test_a_node_drifts_from_a_reservation_only_while_it_runs_in_one(
    runs: str, reservation: str, drifts: bool
) -> None:
    """EC2 demotes an instance to on-demand when its reservation ends; its labels stay."""
    reference = {"nodeClassRef": {"group": "g", "kind": "EC2NodeClass", "name": "default"}}
    label = {"karpenter.k8s.aws/capacity-reservation-id": "cr-1"}
    node = _node(capacity_type="reserved", labels=label, claim=reference)
    known = {"fake:///n1": LiveInstance(capacity_type=runs, reservation_id=reservation)}
    for selected, expected in (("cr-1", drifts), ("cr-3", runs != "on-demand")):
        status = {"capacityReservations": [{"id": selected}]}
        found = _found(node, classes={"default": ClassState(_class(**status), instances=known)})
        assert [d.reason for d in found] == ["CapacityReservationDrift"] * expected


def test_a_claim_whose_pool_is_gone_never_drifts() -> None:
    assert _found(_node(_hashed("1"), pool="gone"), pool_hashes={"gone": "2"}) == ()


@pytest.mark.parametrize(("age", "drifts"), [(60, False), (61, True)])
def test_a_removed_instance_type_is_drift_after_an_hour(age: int, drifts: bool) -> None:
    node = _node(size="vanished", quiet=timedelta(minutes=age))

    found = _found(node)

    assert [d.reason for d in found] == (["InstanceTypeNotFound"] if drifts else [])


@pytest.mark.parametrize(
    ("offered", "drifts"), [("on-demand", False), ("reserved", False), ("spot", True)]
)
def test_a_reserved_node_may_have_been_demoted_to_on_demand(offered: str, drifts: bool) -> None:
    offering = {"zone": "zone-a", "capacityType": offered, "price": 1.0}
    catalog = a_catalog([{"name": "medium", "capacity": {"cpu": "4"}, "offerings": [offering]}])
    label = {"karpenter.k8s.aws/capacity-reservation-id": "cr-1"}
    node = _node(capacity_type="reserved", quiet=timedelta(hours=2), labels=label)

    assert bool(_found(node, catalog=catalog)) is drifts


def test_an_unavailable_offering_is_not_drift() -> None:
    offering = {"zone": "zone-a", "capacityType": "on-demand", "price": 1.0, "available": False}
    catalog = a_catalog([{"name": "medium", "capacity": {"cpu": "4"}, "offerings": [offering]}])

    assert _found(_node(quiet=timedelta(hours=2)), catalog=catalog) == ()


def _class(**status: Any) -> EC2NodeClass:
    return decode({"metadata": {"name": "default"}, "status": status}, EC2NodeClass)


def _of_class(facts: ClassState, annotations: dict[str, str] | None = None) -> list[DriftedClaim]:
    reference = {"nodeClassRef": {"group": "g", "kind": "EC2NodeClass", "name": "default"}}
    node = _node(annotations, claim=reference)
    node[1]["status"]["imageID"] = "ami-old"
    return list(_found(node, classes={"default": facts}))


def test_another_hash_of_the_class_is_drift() -> None:
    annotations = {CLASS_HASH: "1", f"{CLASS_HASH}-version": NODE_CLASS_HASH_VERSION}

    (drift,) = _of_class(ClassState(_class(), hash="2"), annotations)

    assert (drift.reason, drift.side) == ("NodeClassDrift", Side.GIT)
    assert (drift.recorded_hash, drift.desired_hash) == ("1", "2")


def test_the_first_image_compatible_with_the_type_is_compared() -> None:
    arm = {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}
    foreign = {"id": "ami-arm", "requirements": [arm]}

    newer = _of_class(ClassState(_class(amis=[foreign, {"id": "ami-new"}, {"id": "ami-old"}])))
    same = _of_class(ClassState(_class(amis=[foreign, {"id": "ami-old"}, {"id": "ami-new"}])))

    assert [d.reason for d in newer] == ["AMIDrift"]
    assert [(f.old, f.new) for f in newer[0].fields] == [("ami-old", "ami-new")]
    assert newer[0].side is Side.WORLD
    assert same == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"securityGroups": [{"id": "sg-2"}]}, "SecurityGroupDrift"),
        ({"subnets": [{"id": "subnet-2", "zone": "zone-a"}]}, "SubnetDrift"),
    ],
)
def test_an_instance_drifts_from_currently_selected_resources(
    status: dict[str, Any], reason: str
) -> None:
    instance = LiveInstance(subnet_id="subnet-1", security_groups=frozenset({"sg-1"}))
    known = {"fake:///n1": instance}

    assert [d.reason for d in _of_class(ClassState(_class(**status), instances=known))] == [reason]
    assert _of_class(ClassState(_class(**status))) == []


@pytest.mark.parametrize(
    ("label", "selected", "drifts"),
    [("pg-1", "pg-1", False), ("pg-1", "pg-2", True), ("pg-1", None, False), (None, "pg-1", False)],
)
def test_a_recreated_placement_group_drifts_instances_in_the_old_one(
    label: str | None, selected: str | None, drifts: bool
) -> None:
    """The class names it as before; a group that is not known, on either side, compares nothing."""
    status = {"placementGroup": {"id": selected}} if selected else {}
    reference = {"nodeClassRef": {"group": "g", "kind": "EC2NodeClass", "name": "default"}}
    labels = {"karpenter.k8s.aws/placement-group-id": label} if label else {}
    node = _node(claim=reference, labels=labels)

    found = _found(node, classes={"default": ClassState(_class(**status))})

    assert [d.reason for d in found] == (["PlacementGroupDrift"] if drifts else [])


def _of_image(image: str) -> EC2NodeClass:
    status = {"amis": [{"id": image, "requirements": []}]}
    return decode({"metadata": {"name": "default"}, "status": status}, EC2NodeClass)


def _world(**change: Any) -> tuple[DesiredObjects, Any, datetime]:
    """Return a fleet in which nothing has drifted, but for a change."""
    catalog = change.get("catalog", a_catalog())
    pool = change.get("pool", _pool())
    instance = LiveInstance(image_id=change.get("runs", "ami-1"))
    node = _node(
        _hashed("one"),
        size=change.get("size", "small"),
        metadata={"creationTimestamp": "2026-01-05T11:30:00Z"},
    )
    cluster = a_cluster(node)
    claim = cluster.nodes[0].claim
    assert claim is not None
    state = ClassState(
        change.get("node_class", _of_image("ami-1")), None, {claim.status.provider_id: instance}
    )
    hashes = {"default": change.get("hash", "one")}
    name = claim.spec.node_class_ref.name
    desired = DesiredObjects([LaunchPool(pool, catalog)], hashes, {name: state})
    return desired, cluster, change.get("now", NOW)


_ANOTHER_POOL = _pool(
    [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hash": "two"}, "NodePoolDrifted"),
        ({"pool": _ANOTHER_POOL}, "RequirementsDrifted"),
        ({"node_class": _of_image("ami-2")}, "AMIDrift"),
        ({"runs": "ami-0"}, "AMIDrift"),
        ({"size": "gone", "now": NOW + timedelta(hours=1)}, "InstanceTypeNotFound"),
    ],
    ids=["a hash", "a requirement", "the image of the class", "the running image", "the age"],
)
def test_a_changed_fact_invalidates_the_cached_result(change: dict[str, Any], reason: str) -> None:
    catalog, cache = a_catalog(), DriftCache()
    before = _world(catalog=catalog, **({"size": change["size"]} if "size" in change else {}))

    first = find_drift(*before, cache)
    again = find_drift(*before, cache)
    then = find_drift(*_world(catalog=catalog, **change), cache)

    assert (first, again) == ((), ())
    assert [drift.reason for drift in then] == [reason]


def test_an_unchanged_claim_is_not_compared_again() -> None:
    cache, before = DriftCache(), _world()
    find_drift(*before, cache)
    desired, cluster, _ = before
    requested: list[str] = []

    class Listening(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            requested.append(key)
            return super().get(key, default)

    hashes = Listening(desired.pool_hashes)
    listening = DesiredObjects(desired.pools, hashes, desired.classes)

    assert find_drift(listening, cluster, NOW, cache) == ()
    assert requested == []
