"""Foreign instances, Nodes and messages: none of them causes an action, each is reported."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from dataclasses import replace as with_fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryStateStore
from reconciler.cli.main import main
from reconciler.engine.ownership import FOUND_WITHIN, TAGS_SHOWN_AFTER, UnknownInstancesError
from reconciler.engine.steps import lifecycle
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.kubernetes.node import Node
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance
from reconciler.source.plainyaml import dump
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.cli.test_end_to_end import a_deployment as shop
from tests.engine.faults import a_world_beside, commit_drift, launches, three_nodes
from tests.engine.interruptions import listening, messages_left, send_event, sqs, warn
from tests.engine.test_crash import LARGE
from tests.engine.world import (
    SETTINGS,
    World,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
    catalog_file,
)
from tests.hostile.threats import Threat, attack
from tests.yamltext import dump_all

pytestmark = pytest.mark.usefixtures("without_retry_pauses")
OURS = {
    "reconciler/fleet": "test",
    "eks:eks-cluster-name": "test",
    "kubernetes.io/cluster/test": "owned",
    "karpenter.sh/nodepool": "web",
}


def terminations(world: World) -> int:
    return sum(call.operation == "TerminateInstances" for call in world.cloud.calls)


def an_instance(world: World, tags: dict[str, str]) -> str:
    """Launch an instance outside the fleet, as another user of the account would."""
    ec2 = world.cloud.connect("ec2", 1)
    model = ec2.describe_instances()["Reservations"][0]["Instances"][0]
    (row,) = ec2.run_instances(
        ImageId=model["ImageId"],
        InstanceType=model["InstanceType"],
        SubnetId=model["SubnetId"],
        MinCount=1,
        MaxCount=1,
    )["Instances"]
    launched_at = world.clock.now().replace(tzinfo=None)
    world.cloud._account.backend.get_instance(row["InstanceId"]).launch_time = launched_at
    tag(world, row["InstanceId"], tags)
    return str(row["InstanceId"])


def tag(world: World, instance: str, tags: dict[str, str]) -> None:
    rows = [{"Key": key, "Value": value} for key, value in tags.items()]
    world.cloud.connect("ec2", 1).create_tags(Resources=[instance], Tags=rows)


def untag(world: World, instance: str, *keys: str) -> None:
    rows = [{"Key": key} for key in keys]
    world.cloud.connect("ec2", 1).delete_tags(Resources=[instance], Tags=rows)


# Foreign instances.


@attack(Threat.OWNERSHIP, "a fleet of the same name in another cluster")
def test_a_fleet_of_the_same_name_in_another_cluster_is_left_alone() -> None:
    world = three_nodes()
    ours = world.instances()
    theirs = a_world_beside(world, with_fields(SETTINGS, cluster_name="other"))
    theirs.converge()
    beside = world.instances().keys() - ours.keys()
    assert len(beside) == 3
    commit_drift(world)
    world.converge()
    assert beside <= world.instances().keys()
    assert len(world.instances()) == 6
    assert {c.status.provider_id.rpartition("/")[2] for c in world.claims.values()} == (
        world.instances().keys() - beside
    )


@attack(Threat.OWNERSHIP, "an instance whose tags name both clusters")
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"kubernetes.io/cluster/other": "owned"}, id="two cluster tags"),
        pytest.param({"eks:eks-cluster-name": "other"}, id="two names"),
    ],
)
def test_an_instance_tagged_for_two_clusters_is_not_terminated(more: dict[str, str]) -> None:
    world = three_nodes()
    both = an_instance(world, {**OURS, **more})
    commit_drift(world)
    world.converge()
    assert both in world.instances()
    assert len(world.instances()) == 4


@attack(Threat.OWNERSHIP, "the recorded state of another fleet, in the place of ours")
@pytest.mark.parametrize("field", ["fleet", "cluster_name"])
@pytest.mark.parametrize("keeps_nodes", [True, False])
def test_the_state_of_another_fleet_gives_no_right_to_its_instances(
    field: str, *, keeps_nodes: bool
) -> None:
    world = three_nodes()
    victims = world.instances()
    thief = a_world_beside(world, with_fields(SETTINGS, **{field: "other"}))
    thief.store, thief.journal = copy.deepcopy((world.store, world.journal))
    if not keeps_nodes:
        thief.git.commit(a_node_class(), a_pool("web", template={"requirements": LARGE}))
    engine = thief.engine()
    for _ in range(6):
        engine.run_once()
        thief.clock.advance(600)
    assert victims.keys() <= world.instances().keys()
    assert terminations(thief) == 0


@attack(Threat.OWNERSHIP, "a lost state that would launch the fleet a second time")
def test_a_lost_state_launches_nothing_and_terminates_nothing() -> None:
    world = three_nodes()
    before = world.instances()
    world.store, world.journal = MemoryStateStore(), MemoryJournal()
    with pytest.raises(UnknownInstancesError, match="3 instances"):
        world.converge()
    engine = world.engine()
    for _ in range(3):
        world.clock.advance(600)
        result = engine.run_once()
        assert result.plan.is_empty
    assert (world.instances(), launches(world), terminations(world)) == (before, 3, 0)
    found = [f for f in result.plan.diagnostics if f.code == "unknown-instance"]
    assert sorted(f.message.split()[1] for f in found) == sorted(before)
    assert all("reconciler/fleet=test" in f.message for f in found)
    assert all("launched 2" in f.message and "$0.1" in f.message for f in found)


@attack(Threat.OWNERSHIP, "yesterday's backup of the state")
@pytest.mark.parametrize("then", ["grown", "replaced", "in doubt", "in doubt and replaced"])
def test_a_restored_backup_launches_and_terminates_nothing(then: str) -> None:
    world = three_nodes()
    if then.startswith("in doubt"):
        world.git.commit(
            a_node_class(),
            a_pool("web", template={"requirements": LARGE}),
            a_deployment("web", "web", 4),
        )
        world.around = _dies_at_launch
        with pytest.raises(_KilledError):
            world.converge()
        world.around = lambda port, name: port
    backup = copy.deepcopy((world.store, world.journal))
    if then == "replaced":
        commit_drift(world)
    else:
        world.git.commit(
            a_node_class(),
            a_pool("web", template={"requirements": LARGE}),
            a_deployment("web", "web", 5),
        )
    world.converge()
    if then == "in doubt and replaced":
        commit_drift(world)
        world.converge()
    world.clock.advance(86_400)
    before, requested, ended = world.instances(), launches(world), terminations(world)
    world.store, world.journal = backup
    engine = world.engine()
    for _ in range(4):
        engine.run_once()
        world.clock.advance(60)
    assert world.instances() == before
    assert (launches(world), terminations(world)) == (requested, ended)
    world.adopt()
    world.converge()
    assert world.instances() == before
    assert (launches(world), terminations(world)) == (requested, ended)


class _KilledError(BaseException):
    """The process ends here."""


def _dies_at_launch(port: Any, name: str) -> Any:
    """Kill a process after it has journalled its launches and before it requests them."""
    if name != "compute":
        return port

    class Dying:
        def launch(self, launch_requests: Any) -> Any:
            raise _KilledError(launch_requests)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(port, attribute)

    return Dying()


@attack(Threat.OWNERSHIP, "a victim's instance with a copied intent tag")
@pytest.mark.parametrize("when", ["older", "younger"])
def test_a_copied_intent_tag_does_not_make_an_instance_ours(when: str) -> None:
    world = three_nodes()
    if when == "older":
        victim = an_instance(world, {})
        world.clock.advance(3600)
        world.cloud.reclaim_instance(next(iter(world.instances())))
        world.converge()
    requested = (e for e in world.journal.entries() if e.intent.verb == "launch")
    entry = max(requested, key=lambda e: e.intent.at)
    if when == "younger":
        world.clock.advance(FOUND_WITHIN.total_seconds() + 3600)
        victim = an_instance(world, {})
    tag(world, victim, {**OURS, "reconciler/intent": entry.intent.id})
    commit_drift(world)
    engine = world.engine()
    for _ in range(3):
        result = engine.run_once()
        world.clock.advance(30)
    assert victim in world.instances()
    assert terminations(world) == 0
    assert [i.id for i in result.seen.unclear_owners.unknown] == [victim]


@attack(Threat.OWNERSHIP, "an ownership tag that a tenant removes or changes")
@pytest.mark.parametrize(
    "attacked",
    [
        pytest.param(lambda w, i: untag(w, i, "reconciler/fleet"), id="fleet removed"),
        pytest.param(lambda w, i: untag(w, i, "eks:eks-cluster-name"), id="cluster removed"),
        pytest.param(lambda w, i: untag(w, i, "kubernetes.io/cluster/test"), id="owner removed"),
        pytest.param(lambda w, i: tag(w, i, {"reconciler/fleet": "mine"}), id="fleet changed"),
        pytest.param(lambda w, i: tag(w, i, {"eks:eks-cluster-name": "x"}), id="cluster changed"),
    ],
)
def test_an_instance_with_conflicting_tags_is_not_touched(
    attacked: Callable[[World, str], None],
) -> None:
    world = three_nodes()
    victim = next(iter(world.instances()))
    tags = world.cloud.running_instances()[victim]
    world.clock.advance(TAGS_SHOWN_AFTER.total_seconds())
    attacked(world, victim)
    commit_drift(world)
    with pytest.raises(UnknownInstancesError, match=victim):
        world.converge()
    result = world.engine().run_once()
    assert [f.code for f in result.plan.diagnostics if victim in f.message] == [
        "contested-instance"
    ]
    assert (len(world.instances()), launches(world), terminations(world)) == (3, 3, 0)
    tag(world, victim, tags)
    world.converge()
    assert len(world.instances()) == 3
    assert victim not in world.instances()


@attack(Threat.OWNERSHIP, "a command in progress while the owner is unclear")
def test_operations_in_progress_stop_while_ownership_is_unclear() -> None:
    world = three_nodes()
    commit_drift(world)
    engine = world.engine()
    engine.run_once()
    assert world.store.commands()
    stranger = an_instance(world, OURS)
    before = world.instances()
    for _ in range(5):
        world.clock.advance(120)
        engine.run_once()
    assert (world.instances(), terminations(world)) == (before, 0)
    assert not any(claim.is_deleting for claim in world.claims.values())
    untag(world, stranger, "reconciler/fleet")
    engine.converge()
    assert terminations(world) > 0
    assert stranger in world.instances()


@attack(Threat.OWNERSHIP, "a fleet that is suspended without anybody noticing")
def test_the_daemon_reports_once_why_it_is_suspended_and_resumes_automatically() -> None:
    from reconciler.engine.loop import PassIntervals, run
    from reconciler.engine.reconcile import Mandate

    world = three_nodes()
    stranger = an_instance(world, OURS)
    commit_drift(world)
    engine = world.engine()
    passes = 0

    def stop() -> bool:
        nonlocal passes
        passes += 1
        if passes == 40:
            untag(world, stranger, "reconciler/fleet")
        return passes > 150

    run(
        engine.ports,
        engine.source,
        Mandate(engine.tags),
        intervals=PassIntervals(busy=5.0, quiet=30.0),
        stop=stop,
        next_change=lambda plan: None,
    )
    (messages,) = world.recorder.messages("Unknown")
    assert stranger in messages
    assert "reconciler state adopt" in messages
    assert len(world.recorder.messages("Resolved")) == 1
    assert terminations(world) > 0
    assert stranger in world.instances()


# The same from the command line.


@dataclass
class Site:
    """A fleet folder, and EC2 on this machine."""

    folder: Path
    cloud: EmbeddedEC2
    url: str

    def run(self, command: str, *words: str) -> int:
        sets = [f"aws.endpointUrl={self.url}", "aws.region=us-east-1"]
        given = [word for s in sets for word in ("--set", s)]
        catalog = ["--catalog", str(self.folder.parent / "catalog.json")]
        if command == "status":
            catalog = []
        return main([*command.split(), str(self.folder), *catalog, *given, *words])

    def launches(self) -> int:
        return sum(call.operation == "CreateFleet" for call in self.cloud.calls)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    cloud = EmbeddedEC2(SimulatedClock())
    cloud.seed(decode(NODE_CLASS, EC2NodeClass))
    folder = tmp_path / "web"
    folder.mkdir()
    (tmp_path / "catalog.json").write_bytes(catalog_file())
    config = {"apiVersion": "reconciler/v1", "kind": "Configuration", "cluster": "embedded"}
    (folder / "reconciler.yaml").write_text(dump(config))
    (folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, NODE_POOL, shop(2)]))
    with serve(cloud) as url:
        yield Site(folder, cloud, url)


@attack(Threat.OWNERSHIP, "an apply after the state was deleted")
def test_apply_after_a_lost_state_requires_adoption(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run("apply", "--auto-approve", "--interval", "1ms") == 0
    before = site.cloud.running_instances()
    requested = site.launches()
    shutil.rmtree(site.folder / ".reconciler")
    capsys.readouterr()
    assert site.run("apply", "--auto-approve", "--interval", "1ms") == 1
    output = capsys.readouterr().err
    assert "reconciler state adopt" in output
    assert all(instance in output for instance in before)
    assert site.run("plan", "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["actions"] == plan["nodeClaims"] == []
    assert {d["code"] for d in plan["diagnostics"]} >= {"unknown-instance"}
    assert site.run("status") == 0
    assert all(instance in capsys.readouterr().out for instance in list(before)[:1])
    assert (site.cloud.running_instances(), site.launches()) == (before, requested)
    assert site.run("state adopt") == 0
    assert "2 of 2 can be adopted" in capsys.readouterr().out
    assert site.run("state adopt", "--yes") == 0
    assert site.run("apply", "--auto-approve", "--interval", "1ms") == 0
    assert (site.cloud.running_instances().keys(), site.launches()) == (before.keys(), requested)


@attack(Threat.OWNERSHIP, "a real account and a cluster without a configured name")
@pytest.mark.parametrize(
    "command", ["apply --auto-approve", "run", "state adopt", "state adopt --yes"]
)
@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param("", id="AWS"),
        pytest.param("https://vpce-1.ec2.us-east-1.vpce.amazonaws.com", id="a VPC endpoint"),
        pytest.param("https://localhost.example.com", id="a name that begins with localhost"),
    ],
)
def test_a_real_account_requires_the_name_of_the_cluster(
    site: Site, capsys: pytest.CaptureFixture[str], command: str, endpoint: str
) -> None:
    site = replace(site, url=endpoint)
    assert site.run(command) == 1
    output = capsys.readouterr().err
    assert "clusterName is not set" in output
    assert "reconciler.yaml" in output


# Nodes that claim to be others.


Forge = Callable[[Snapshot], Snapshot]


def forging(world: World, forge: Forge) -> None:
    """Change the objects of a cluster as an attacker who controls one of its nodes."""

    class Forged:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def observe(self, *seen: Any) -> Snapshot:
            return forge(self._cluster.observe(*seen))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

    world.around = lambda port, name: Forged(port) if name == "cluster" else port


def with_node(snapshot: Snapshot, *nodes: Node) -> Snapshot:
    fresh = {node.name: node for node in (*snapshot.nodes, *nodes)}
    return with_fields(snapshot, nodes=tuple(fresh[name] for name in sorted(fresh)))


def as_node(node: Node, name: str = "", provider_id: str = "", **labels: str) -> Node:
    """Return a Node with another name, providerID or labels."""
    metadata = changed(
        node.metadata,
        name=name or node.name,
        labels={**node.metadata.labels, **{k.replace("__", "/"): v for k, v in labels.items()}},
    )
    spec = changed(node.spec, provider_id=provider_id or node.spec.provider_id)
    return changed(node, metadata=metadata, spec=spec)


def twin(snapshot: Snapshot) -> Snapshot:
    """An empty Node with the providerID of a full one."""
    return with_node(snapshot, as_node(snapshot.nodes[-1], "a-twin"))


def twin_in_another_zone(snapshot: Snapshot) -> Snapshot:
    victim = snapshot.nodes[-1]
    provider_id = victim.spec.provider_id.replace("us-east-1a", "us-east-1b")
    return with_node(snapshot, as_node(victim, "a-twin", provider_id))


def swapped(snapshot: Snapshot) -> Snapshot:
    """Two Nodes, each with the other's providerID."""
    first, second, *_ = snapshot.nodes
    return with_node(
        snapshot,
        as_node(first, provider_id=second.spec.provider_id),
        as_node(second, provider_id=first.spec.provider_id),
    )


def taken_over(snapshot: Snapshot) -> Snapshot:
    """The first Node is replaced by one with the providerID of the last."""
    first, last = snapshot.nodes[0], snapshot.nodes[-1]
    return with_node(snapshot, as_node(first, provider_id=last.spec.provider_id))


@attack(Threat.OWNERSHIP, "a Node with the name or providerID of another")
@pytest.mark.parametrize("forge", [twin, twin_in_another_zone, swapped, taken_over])
def test_a_forged_identity_does_not_disrupt_a_node(forge: Forge) -> None:
    world = three_nodes()
    before = world.instances()
    forging(world, lambda s: forge(s) if len(s.nodes) == 3 else s)
    engine = world.engine()
    for _ in range(3):
        world.clock.advance(300)
        result = engine.run_once()
    assert "node-provider-id" in {f.code for f in result.plan.diagnostics}
    assert (world.instances(), terminations(world), launches(world)) == (before, 0, 3)
    assert {c.status.node_name for c in world.claims.values()} <= {
        n.name for n in result.seen.snapshot.nodes
    } | {c.status.node_name for c in world.claims.values() if c.name in result.seen.disputed}


@attack(Threat.OWNERSHIP, "a drain that is redirected to another Node")
def test_an_ambiguous_node_is_not_terminated() -> None:
    world = three_nodes()
    before = world.instances()
    going = [lifecycle.mark_deleted(c, world.clock.now()) for c in world.claims.values()]
    world.store.put_node_claims(going)
    forging(world, swapped)
    engine = world.engine()
    disputed = engine.run_once().seen.disputed
    for _ in range(3):
        world.clock.advance(30)
        engine.run_once()
    assert len(disputed) == 2
    kept = {instance for instance, claim in before.items() if claim in disputed}
    assert kept <= world.instances().keys()


@attack(Threat.OWNERSHIP, "a forged providerID of an instance that has not joined yet")
@pytest.mark.parametrize("name", ["ip-10-9-9-9.ec2.internal", "i-0123456789abcdef0.ec2.internal"])
def test_a_forged_provider_id_does_not_register_another_instance(name: str) -> None:
    world = a_world(
        a_pool("web", template={"requirements": LARGE}),
        a_deployment("web", "web", 1),
        latencies={"joining_s": 100_000.0},
    )
    engine = world.engine()
    engine.run_once()
    ((instance, claim),) = world.instances().items()

    def forge(snapshot: Snapshot) -> Snapshot:
        forged = {
            "metadata": {"name": name},
            "spec": {"providerID": world.claims[claim].status.provider_id},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        return with_node(snapshot, decode(forged, Node))

    forging(world, forge)
    registered: list[str] = []
    engine = world.engine()
    cluster: Any = engine.ports.cluster
    cluster._cluster.register = lambda node, _: registered.append(node)
    result = engine.run_once()
    assert registered == []
    assert not world.claims[claim].is_true("Registered")
    assert "node-provider-id" in {f.code for f in result.plan.diagnostics}
    assert instance in world.instances()


@attack(Threat.OWNERSHIP, "a Node that moves itself to another NodePool, type or zone")
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"karpenter.sh__nodepool": "batch"}, id="NodePool"),
        pytest.param({"node.kubernetes.io__instance-type": "m7i.xlarge"}, id="instance type"),
        pytest.param({"topology.kubernetes.io__zone": "us-east-1b"}, id="zone"),
        pytest.param({"karpenter.sh__capacity-type": "spot"}, id="capacity type"),
    ],
)
def test_labels_of_another_node_are_ignored(labels: dict[str, str]) -> None:
    world = three_nodes()
    before = world.instances()
    key = next(iter(labels)).replace("__", "/")
    forging(world, lambda s: with_node(s, *(as_node(n, **labels) for n in s.nodes)))
    result = world.engine().run_once()
    claims = {c.status.node_name: c for c in world.claims.values()}
    for node in result.seen.state().nodes:
        assert node.labels[key] == claims[node.name].metadata.labels[key]
    if any(c.metadata.labels[key] != next(iter(labels.values())) for c in claims.values()):
        assert "node-labels" in {f.code for f in result.plan.diagnostics}
    assert (world.instances(), terminations(world)) == (before, 0)


@attack(Threat.OWNERSHIP, "a Node that reports capacity it cannot have")
@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({"cpu": "5000", "memory": "64Ti", "pods": "9999"}, id="a thousand machines"),
        pytest.param({"cpu": "9e15", "memory": "8Gi", "pods": "110"}, id="overflow"),
    ],
)
def test_impossible_capacity_does_not_drain_another_node(amounts: dict[str, str]) -> None:
    world = a_world(
        a_pool(
            "web",
            budgets=[{"nodes": "3"}],
            policy="WhenEmptyOrUnderutilized",
            template={"requirements": LARGE},
        ),
        a_deployment("web", "web", 3),
    )
    world.converge()
    before = world.instances()

    def forge(snapshot: Snapshot) -> Snapshot:
        liar = snapshot.nodes[0]
        status = changed(liar.status, capacity=amounts, allocatable=amounts)
        return with_node(snapshot, changed(liar, status=status))

    forging(world, forge)
    engine = world.engine()
    for _ in range(3):
        world.clock.advance(300)
        result = engine.run_once()
    assert "node-capacity" in {f.code for f in result.plan.diagnostics}
    assert result.plan.commands == ()
    assert (world.instances(), terminations(world)) == (before, 0)


@attack(Threat.OWNERSHIP, "labels and taints that no API server would accept")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("team", "x" * 100_000, id="very long value"),
        pytest.param("k" * 100_000, "x", id="very long key"),
        pytest.param("team", "a\x1b[2Jb", id="terminal escape"),
        pytest.param("team", "a\n::error::b", id="newline"),
        pytest.param("team", "a\u202eb", id="bidirectional mark"),
    ],
)
def test_hostile_labels_are_ignored_and_shown_escaped(key: str, value: str) -> None:
    world = three_nodes()

    def forge(snapshot: Snapshot) -> Snapshot:
        victim = snapshot.nodes[0]
        labels = {**victim.metadata.labels, key: value}
        metadata = changed(victim.metadata, labels=labels)
        return with_node(snapshot, changed(victim, metadata=metadata))

    forging(world, forge)
    result = world.engine().run_once()
    (found,) = (f for f in result.plan.diagnostics if f.code == "node-labels")
    assert found.message.replace("…", "").isascii()
    assert found.message.isprintable()
    assert len(found.message) < 400
    assert all(n.labels.get(key) != value for n in result.seen.state().nodes)
    assert len(world.instances()) == 3


def a_snapshot(*nodes: dict[str, Any]) -> bytes:
    claims = [
        {
            "kind": "NodeClaim",
            "apiVersion": "karpenter.sh/v1",
            "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "web"}},
            "status": {
                "providerID": f"aws:///us-east-1a/i-{name}",
                "nodeName": f"ip-{name}",
                "capacity": {"cpu": "2", "memory": "8Gi"},
                "allocatable": {"cpu": "1900m", "memory": "7Gi"},
            },
        }
        for name in ("a1", "b2")
    ]
    return msgspec.json.encode({"kind": "List", "apiVersion": "v1", "items": [*claims, *nodes]})


def a_node(name: str, instance: str, **amounts: str) -> dict[str, Any]:
    room = {"cpu": "1900m", "memory": "7Gi", **amounts}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "labels": {
                "karpenter.sh/nodepool": "web",
                "karpenter.sh/registered": "true",
                "karpenter.sh/initialized": "true",
                "node.kubernetes.io/instance-type": "m7i.large",
            },
        },
        "spec": {"providerID": f"aws:///us-east-1a/{instance}"},
        "status": {"capacity": room, "allocatable": room},
    }


@attack(Threat.OWNERSHIP, "a snapshot of a cluster with forged Nodes")
@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        pytest.param(
            [a_node("ip-a1", "i-a1"), a_node("ip-x", "i-a1")],
            "node-provider-id",
            id="one providerID twice",
        ),
        pytest.param(
            [a_node("ip-b2", "i-a1")], "node-provider-id", id="the name of another's Node"
        ),
        pytest.param(
            [a_node("ip-a1", "i-a1", **{"nvidia.com/gpu": "8"})],
            "node-capacity",
            id="devices of another type",
        ),
        pytest.param([a_node("ip-a1", "i-a1", cpu="512")], "node-capacity", id="512 CPUs"),
    ],
)
def test_a_plan_from_a_snapshot_reports_forged_nodes(
    site: Site, capsys: pytest.CaptureFixture[str], nodes: list[dict[str, Any]], code: str
) -> None:
    file = site.folder.parent / "cluster.json"
    file.write_bytes(a_snapshot(*nodes))
    assert site.run("plan", "--snapshot", str(file), "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert code in {d["code"] for d in plan["diagnostics"]}
    assert "ip-x" not in {p["node"] for p in plan["placements"]}


# Foreign messages.


def three_spot_nodes() -> World:
    pool = a_pool(
        "web",
        budgets=[{"nodes": "0"}],
        capacity_types=["spot"],
        template={"requirements": LARGE},
    )
    world = a_world(pool, a_deployment("web", "web", 3))
    world.converge()
    sqs(world)
    return world


SPOT = "EC2 Spot Instance Interruption Warning"
STATE = "EC2 Instance State-change Notification"


def send(world: World, body: object) -> None:
    client, url = sqs(world)
    text = body if isinstance(body, str) else json.dumps(body)
    client.send_message(QueueUrl=url, MessageBody=text)


def an_event(world: World, kind: str = SPOT, **fields: Any) -> dict[str, Any]:
    """Return a warning about an instance of ours, as EventBridge would send it, but for fields."""
    instance = next(iter(world.instances()))
    return {
        "version": "0",
        "source": "aws.ec2",
        "detail-type": kind,
        "account": world.cloud._account.number,
        "region": "us-east-1",
        "time": f"{world.clock.now():%Y-%m-%dT%H:%M:%SZ}",
        "detail": {"instance-id": instance, "instance-action": "terminate"},
        **fields,
    }


FORGED: dict[str, Callable[[World], object]] = {
    "of another account": lambda w: an_event(w, account="999999999999"),
    "of another region": lambda w: an_event(w, region="eu-west-1"),
    "not JSON": lambda w: "\x1b[2J{'",
    "JSON of the wrong shape": lambda w: [an_event(w)],
    "a number": lambda w: "1e400",
    "nested without end": lambda w: "[" * 100_000,
    "huge": lambda w: json.dumps({"detail-type": "x" * 250_000}),
    "unknown detail-type": lambda w: an_event(w, "EC2 \u202eFleet\n::error::"),
    "without detail": lambda w: {k: v for k, v in an_event(w).items() if k != "detail"},
    "detail of the wrong shape": lambda w: an_event(w, detail=["instance-id"]),
    "an instance id that is none": lambda w: an_event(
        w, detail={"instance-id": "i-1; rm -rf /", "instance-action": "terminate"}
    ),
    "an instance of somebody else": lambda w: an_event(
        w, detail={"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"}
    ),
    "replayed from yesterday": lambda w: an_event(
        w, time=f"{w.clock.now() - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
    ),
    "a state that EC2 does not show": lambda w: an_event(
        w, STATE, detail={"instance-id": next(iter(w.instances())), "state": "terminated"}
    ),
    "a reservation that there is not": lambda w: an_event(
        w, "EC2 Capacity Reservation Instance Interruption Warning"
    ),
}


@attack(Threat.OWNERSHIP, "a forged or malformed message in the queue")
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_message_disrupts_nothing_and_is_deleted(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = three_spot_nodes()
    before = world.instances()
    caplog.set_level(logging.INFO)
    for _ in range(3):
        send(world, FORGED[name](world))
    engine = listening_in_region(world)
    for _ in range(3):
        result = engine.run_once()
        world.clock.advance(30)
    assert messages_left(world) == 0
    assert (result.plan.commands, world.instances()) == ((), before)
    assert terminations(world) == 0
    messages = [m for m in caplog.messages if "queue" in m] + world.recorder.messages("Ignored")
    assert len(messages) <= 1
    assert all(m.isascii() and m.isprintable() and len(m) < 400 for m in messages)
    if name != "an instance of somebody else":
        assert messages


def listening_in_region(world: World) -> Any:
    """Start a process that listens to the queue in our region."""
    engine = listening(world)
    polled: Any = engine.ports.interruptions
    polled.queue._region = "us-east-1"
    return engine


@attack(Threat.OWNERSHIP, "a spot warning about a node that is not spot")
def test_a_spot_warning_about_an_on_demand_node_is_ignored() -> None:
    world = three_nodes()
    before = world.instances()
    sqs(world)
    warn(world, next(iter(before)))
    result = listening(world).run_once()
    assert result.plan.commands == ()
    assert world.store.unavailable(world.clock.now()) == []
    (messages,) = world.recorder.messages("Ignored")
    assert "not spot" in messages
    assert (messages_left(world), world.instances()) == (0, before)


@attack(Threat.OWNERSHIP, "a message about an instance that is tagged as another's NodeClaim")
def test_a_tag_does_not_assign_an_instance_to_a_claim() -> None:
    world = three_spot_nodes()
    before = world.instances()
    stranger = an_instance(world, {**OURS, "karpenter.sh/nodeclaim": next(iter(before.values()))})
    send_event(
        world,
        "AWS Health Event",
        "aws.health",
        service="EC2",
        eventTypeCategory="scheduledChange",
        affectedEntities=[{"entityValue": stranger}],
    )
    listening(world).run_once()
    untag(world, stranger, "reconciler/fleet")
    world.converge()
    assert before.items() <= world.instances().items()
    assert all(not c.is_deleting for c in world.claims.values())


@attack(Threat.OWNERSHIP, "thousands of messages")
def test_a_flood_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from reconciler.adapters.aws.events import queue as adapter

    monkeypatch.setattr(adapter, "_INBOX_MAX", 25)
    world = three_spot_nodes()
    for number in range(60):
        detail = {"instance-id": f"i-{number:017x}", "instance-action": "terminate"}
        send(world, an_event(world, detail=detail))
    engine = listening(world)
    queue: Any = engine.ports.interruptions
    for _ in range(10):
        queue.queue.poll()
    assert len(queue.queue.pending_events()) == 25
    engine.run_once()
    assert len(world.instances()) == 3


@attack(Threat.OWNERSHIP, "a genuine warning while the owner of an instance is unclear")
def test_a_reclaimed_node_is_drained_even_if_ownership_is_unclear() -> None:
    world = three_spot_nodes()
    victim = next(iter(world.instances()))
    stranger = an_instance(world, OURS)
    warn(world, victim)
    engine = listening(world)
    engine.run_once()
    engine.run_once()
    drained = {e.intent.target for e in world.journal.entries() if e.intent.verb == "drain"}
    (claim,) = (c for c in world.claims.values() if c.is_deleting)
    assert drained == {claim.status.node_name}
    assert claim.status.provider_id.endswith(victim)
    assert {victim, stranger} <= world.instances().keys()
    assert (launches(world), terminations(world)) == (3, 0)


def test_an_instance_of_unclear_ownership_is_described() -> None:
    from datetime import UTC, datetime

    from reconciler.engine.ownership import UnclearOwners

    at = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    stranger = Instance("i-1", "m7i.large", "us-east-1a", "spot", "running", at, OURS)
    (found,) = UnclearOwners(unknown=(stranger,)).findings(lambda _: 0.0403)
    assert found.message == (
        "instance i-1 is not recorded for this fleet: m7i.large spot in us-east-1a, launched "
        "2026-03-02 09:00 UTC, $0.0403/hour, tags eks:eks-cluster-name=test, "
        "karpenter.sh/nodepool=web, kubernetes.io/cluster/test=owned, reconciler/fleet=test"
    )
