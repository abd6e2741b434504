"""A fleet on a Kubernetes API, from pending pods to drift, with kubelets simulated by the test.

EC2 is moto behind a port, the API server the small one of ``tests/adapters/kubernetes``, which
allows what the documented ClusterRole allows. The daemon is stopped and started in the middle.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.aws.clients import connector
from reconciler.adapters.kubernetes.kinds import PERMISSIONS
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.assembly.inputs.request import Environment
from reconciler.cli.main import main
from reconciler.daemon import daemon
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.ports.progress import Progress
from reconciler.source.plainyaml import dump
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.adapters.kubernetes.apiserver import (
    Call,
    Kube,
    Object,
    RefusedError,
    ResetError,
    serving,
    write_kubeconfig,
)
from tests.cli.commandlines import request_of
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.engine.world import catalog_file
from tests.yamltext import dump_all, load

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ROLE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes" / "clusterrole-run.yaml"
LOADS = {"m7i.large": "8Gi", "c7i.large": "4Gi"}


@dataclass
class Sandbox:
    """The rest of the cluster: kubelets, the scheduler, a Deployment and the disruption controller.

    It advances whenever the nodes are listed, as real ones do between observations.
    """

    kube: Kube
    cloud: EmbeddedEC2
    replicas: int = 2
    made: int = 0
    fewest: int = 99
    joined: set[str] = field(default_factory=set)
    stormy: bool = False
    seen: int = 0

    def fault(self, call: Call) -> None:
        """Advance, and in a storm lose every ninth call: the call itself, or only its answer."""
        self.move(call)
        self.seen += self.stormy
        if self.seen % 9 == 5:
            raise ResetError(late=self.seen % 2 == 0)
        if self.seen % 13 == 7:
            raise RefusedError(503, "ServiceUnavailable", "a storm", "1")
        if self.seen % 40 == 11:
            raise RefusedError(401, "Unauthorized")

    def move(self, call: Call) -> None:
        if (call.verb, call.resource) == ("list", "nodes"):
            self.go_on()

    def go_on(self) -> None:
        self.kube.sweep()
        self._kubelets()
        self._deployment()
        self._scheduler()
        self._budgets()

    def _kubelets(self) -> None:
        rows = self.cloud.connect("ec2", 1).describe_instances()["Reservations"]
        for instance in (i for row in rows for i in row["Instances"]):
            name = instance["PrivateDnsName"]
            if instance["State"]["Name"] != "running" or instance["InstanceId"] in self.joined:
                continue
            self.joined.add(instance["InstanceId"])
            kind, zone = instance["InstanceType"], instance["Placement"]["AvailabilityZone"]
            room = {"cpu": "1900m", "memory": LOADS[kind], "pods": "29"}
            labels = {"node.kubernetes.io/instance-type": kind, "topology.kubernetes.io/zone": zone}
            quarantine = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
            self.kube.add(
                {
                    "kind": "Node",
                    "metadata": {
                        "name": name,
                        "labels": {**labels, "kubernetes.io/arch": "amd64"},
                        "creationTimestamp": f"{self.kube.now():%Y-%m-%dT%H:%M:%SZ}",
                    },
                    "spec": {
                        "providerID": f"aws:///{zone}/{instance['InstanceId']}",
                        "taints": [quarantine],
                    },
                    "status": {
                        "capacity": room,
                        "allocatable": room,
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                }
            )

    def _deployment(self) -> None:
        for _ in range(self.replicas - len(self.alive())):
            self.made += 1
            container = {"name": "main", "resources": {"requests": {"cpu": "1500m"}}}
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w"}
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self.kube.add(
                {
                    "kind": "Pod",
                    "metadata": {
                        "name": f"web-{self.made}",
                        "labels": {"app": "web"},
                        "ownerReferences": [{**owner, "controller": True}],
                    },
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 30},
                    "status": {"phase": "Pending", "conditions": [waits]},
                }
            )

    def _scheduler(self) -> None:
        taken = {p["spec"].get("nodeName") for p in self.kube.of("pods").values()}
        free = [
            name
            for name, node in self.kube.of("nodes").items()
            if name not in taken and not node["spec"].get("taints")
            if not node["spec"].get("unschedulable")
        ]
        for name, pod in self.alive().items():
            if "nodeName" not in pod["spec"] and free:
                spot = free.pop()
                self.kube.change("pods", name, lambda pod, spot=spot: _bind(pod, spot))

    def _budgets(self) -> None:
        healthy = sum("nodeName" in p["spec"] for p in self.alive().values())
        self.kube.change(
            "poddisruptionbudgets",
            "web",
            lambda budget: budget.update(status={"disruptionsAllowed": max(healthy - 1, 0)}),
        )
        if self.settled():
            self.fewest = healthy
        self.fewest = min(self.fewest, healthy)

    def alive(self) -> dict[str, Object]:
        pods = self.kube.of("pods")
        return {n: p for n, p in pods.items() if "deletionTimestamp" not in p["metadata"]}

    def settled(self) -> bool:
        bound = [p["spec"].get("nodeName") for p in self.alive().values()]
        return len(bound) == self.replicas and all(bound)


def _bind(pod: Object, node: str) -> None:
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@dataclass
class EventRecorder:
    events: list[Progress] = field(default_factory=list)

    def notify(self, progress: Progress) -> None:
        self.events.append(progress)

    def messages(self, kind: str) -> list[str]:
        return [p.message for p in self.events if p.kind == kind]


@dataclass
class Passes:
    """The versions at which each pass observed the cluster."""

    versions: list[dict[str, int]] = field(default_factory=list)

    def attach(self, assembly: Any) -> Any:
        return assembly.world

    def pass_started(self) -> None:
        """Do nothing."""

    def pass_ended(self, world: Any, desired: Any, result: Any) -> None:
        found = result.seen.snapshot.versions
        self.versions.append({name: int(version) for name, version in found.items()})

    def pass_failed(self, problem: str) -> None:
        """Do nothing."""


@dataclass
class Site:
    folder: Path
    sandbox: Sandbox
    clock: SimulatedClock
    url: str
    recorder: EventRecorder
    is_cached: bool = False
    passes: Passes = field(default_factory=Passes)

    def words(self, command: str) -> list[str]:
        line = [command, str(self.folder), "--now", f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"]
        line += ["--set", f"aws.endpointUrl={self.url}"]
        line += ["--state", str(self.folder.parent / "state")]
        line += ["--config", str(self.folder.parent / "operator.yaml")]
        return [*line, "--catalog", str(self.folder.parent / "types.json")]

    def keep(self, until: Callable[[], bool]) -> None:
        """Run the daemon until something holds between two passes."""
        looks = iter(range(400))

        def stop() -> bool:
            assert next(looks, None) is not None, [
                f"{p.kind} {p.message}" for p in self.recorder.events
            ]
            if self.is_cached:
                with self.sandbox.kube.lock:
                    self.sandbox.go_on()
                self.sandbox.kube.catch_up()
            return until()

        request = replace(request_of(self.words("run")), waits=False)
        connect = cache(connector(Settings(endpoint_url=self.url)))
        environment = Environment(self.clock, connect, workers=1)
        daemon.FleetDaemon(request, self.recorder, stop, environment, self.passes).run()

    def keep_for(self, passes: int) -> None:
        """Run the daemon for some more passes."""
        enough = len(self.passes.versions) + passes
        self.keep(lambda: len(self.passes.versions) >= enough)

    def images(self) -> list[str]:
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        rows = self.sandbox.cloud.connect("ec2", 1).describe_instances(Filters=states)[
            "Reservations"
        ]
        return sorted(i["ImageId"] for row in rows for i in row["Instances"])

    def nodes(self) -> list[Object]:
        return list(self.sandbox.kube.of("nodes").values())


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """A fleet and its cluster, which is listed in each pass, or watched if it is ``cached``."""
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    clock = SimulatedClock(START)
    cloud = EmbeddedEC2(clock)
    cloud.seed(decode(NODE_CLASS, EC2NodeClass))
    cloud.publish("ami-first", "shop-1", START - timedelta(days=1))
    kube = Kube(now=clock.now, rules=load(ROLE.read_text())["rules"], leaving=True)
    kube.add(
        {
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
    )
    sandbox = Sandbox(kube, cloud)
    kube.fault = sandbox.fault
    folder = tmp_path / "shop"
    folder.mkdir()
    with serve(cloud) as url, serving(kube) as api:
        config: dict[str, Any] = {
            "apiVersion": "reconciler/v1",
            "kind": "Configuration",
            "cluster": "kubeconfig",
            "clusterName": "shop",
            "clusterEndpoint": api,
            "clusterCIDR": "10.100.0.0/16",
        }
        write_kubeconfig(tmp_path / "kubeconfig", api)
        is_cached = getattr(request, "param", "cached") == "cached"
        kube.watches = is_cached
        reached = {"kubeconfig": "kubeconfig", "watch": is_cached, "staleAfter": "15s"}
        operators = {"kubernetes": reached}
        (tmp_path / "operator.yaml").write_text(dump(operators))
        (folder / "reconciler.yaml").write_text(dump(config))
        (folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, NODE_POOL]))
        (tmp_path / "types.json").write_bytes(catalog_file())
        yield Site(folder, sandbox, clock, url, EventRecorder(), is_cached)
        kube.watches = False


@pytest.mark.parametrize(
    ("site", "stormy"),
    [
        pytest.param("cached", False, id="cached-calm"),
        pytest.param("cached", True, id="cached-stormy", marks=pytest.mark.exhaustive),
        pytest.param("listed", False, id="listed-calm", marks=pytest.mark.exhaustive),
        pytest.param("listed", True, id="listed-stormy", marks=pytest.mark.exhaustive),
    ],
    indirect=["site"],
)
def test_a_fleet_follows_the_pods_of_a_cluster(
    site: Site, capsys: pytest.CaptureFixture[str], stormy: bool
) -> None:
    sandbox = site.sandbox
    sandbox.stormy = stormy
    site.keep(lambda: sandbox.settled() and len(site.recorder.messages("Initialized")) == 2)
    assert site.images() == ["ami-first"] * 2
    assert "context shop" in site.recorder.messages("Connected")[0]
    for node in site.nodes():
        labels = node["metadata"]["labels"]
        assert labels["karpenter.sh/nodepool"] == "web"
        assert labels["karpenter.sh/registered"] == labels["karpenter.sh/initialized"] == "true"
        assert node["spec"]["taints"] == []

    sandbox.cloud.publish("ami-second", "shop-2", site.clock.now())
    site.clock.advance(600)
    sandbox.fewest = sandbox.replicas
    site.keep(lambda: any(c.part == "eviction" for c in sandbox.kube.calls))
    assert len(sandbox.cloud.running_instances()) > 2, "stopped in the middle of a replacement"
    site.keep(lambda: site.images() == ["ami-second"] * 2 and len(site.nodes()) == 2)

    site.keep(sandbox.settled)
    assert sandbox.fewest >= 1, "the budget held"
    assert len(sandbox.joined) == 4, "nothing was launched twice"
    taints = [t["key"] for node in site.nodes() for t in node["spec"]["taints"]]
    assert taints == []
    assert site.recorder.messages("Failed") == []
    for earlier, later in pairwise(site.passes.versions):
        assert all(earlier[name] <= later[name] for name in earlier), "what was seen is not unseen"
    if site.is_cached:
        lasting = {c.query["timeoutSeconds"] for c in sandbox.kube.calls if c.verb == "watch"}
        assert lasting == {"10"}, "two thirds of the time after which a copy is stale"
    used = {call.permission for call in sandbox.kube.calls}
    declared = {(p.verb, p.group, p.resource) for p in PERMISSIONS}
    without_crd = {(v, g, r) for v, g, r in declared if g == "karpenter.sh"}
    without_crd.add(("watch", "autoscaling.x-k8s.io", "capacitybuffers"))
    if not site.is_cached:
        without_crd |= {(v, g, r) for v, g, r in declared if v == "watch" and r != "pods"}
    assert declared - used - without_crd == {("delete", "", "pods")}, "no budget was ignored"

    before = len(sandbox.kube.calls)
    assert main([*site.words("apply"), "-q", "--auto-approve"]) == 0, capsys.readouterr().err
    assert len(sandbox.joined) == 4
    assert "watch" not in {call.verb for call in sandbox.kube.calls[before:]}, "it observes once"


def started(site: Site, replicas: int = 2) -> Sandbox:
    """Return the town once each pod runs on a separate node."""
    sandbox = site.sandbox
    sandbox.replicas = replicas
    site.keep(lambda: sandbox.settled() and len(site.recorder.messages("Initialized")) == replicas)
    return sandbox


def test_a_daemon_with_the_cluster_role_of_an_earlier_release_lists(site: Site) -> None:
    kept = site.sandbox.kube.rules or []
    without = [{**r, "verbs": [v for v in r["verbs"] if v != "watch"]} for r in kept]
    site.sandbox.kube.rules = without
    sandbox = started(site, 1)
    assert len(sandbox.cloud.running_instances()) == len(site.nodes()) == 1
    assert any("watch pods" in message for message in site.recorder.messages("Forbidden"))
    assert site.recorder.messages("Failed") == []


def test_a_node_deleted_by_a_person_is_drained_and_its_instance_terminated(site: Site) -> None:
    sandbox = started(site)
    for node in site.nodes():
        assert node["metadata"]["finalizers"] == ["reconciler/termination"]
    victim = min(sandbox.kube.of("nodes"))
    sandbox.fewest = sandbox.replicas
    sandbox.kube.delete("nodes", victim)
    assert victim in sandbox.kube.of("nodes"), "our finalizer holds it"
    site.keep(lambda: victim not in sandbox.kube.of("nodes") and sandbox.settled())
    assert sandbox.fewest >= 1, "the budget held"
    assert any(c.part == "eviction" for c in sandbox.kube.calls)
    assert len(sandbox.cloud.running_instances()) == len(site.nodes()) == 2
    assert len(sandbox.joined) == 3, "one node was launched for its pod"
    assert f"Node {victim} was deleted" in site.recorder.messages("NodeDeleted")[0]
    assert site.recorder.messages("Failed") == []


def test_the_instance_of_a_removed_node_is_terminated_at_once(site: Site) -> None:
    sandbox = started(site)
    victim = min(sandbox.kube.of("nodes"))
    orphan = sandbox.kube.of("nodes")[victim]["spec"]["providerID"].rpartition("/")[2]
    sandbox.kube.remove("nodes", victim)
    for name, pod in sandbox.kube.of("pods").items():
        if pod["spec"].get("nodeName") == victim:
            sandbox.kube.remove("pods", name)
    site.keep(lambda: orphan not in sandbox.cloud.running_instances() and sandbox.settled())
    assert len(sandbox.cloud.running_instances()) == len(site.nodes()) == 2
    assert len(sandbox.joined) == 3
    assert f"Node {victim} is gone" in site.recorder.messages("NodeDeleted")[0]


def test_pods_of_a_removed_node_get_capacity_before_garbage_collection(
    site: Site,
) -> None:
    sandbox = started(site)
    victim = min(sandbox.kube.of("nodes"))
    held = [n for n, p in sandbox.kube.of("pods").items() if p["spec"].get("nodeName") == victim]
    sandbox.kube.remove("nodes", victim)
    site.keep(lambda: len(site.recorder.messages("Launched")) == 3)
    assert held
    assert all(sandbox.kube.of("pods")[name]["spec"]["nodeName"] == victim for name in held)
    for name in held:
        sandbox.kube.remove("pods", name)
    site.keep(sandbox.settled)
    assert len(sandbox.cloud.running_instances()) == len(site.nodes()) == 2
    assert len(sandbox.joined) == 3, "no second node was launched for the same pod"


def test_a_fleet_without_any_of_its_nodes_is_left_alone(site: Site) -> None:
    sandbox = started(site)
    before = set(sandbox.cloud.running_instances())
    for name in list(sandbox.kube.of("nodes")):
        sandbox.kube.remove("nodes", name)
    sandbox.replicas = 0
    site.keep_for(5)
    assert set(sandbox.cloud.running_instances()) == before
    assert site.recorder.messages("NodeDeleted") == []


@pytest.mark.parametrize("site", ["listed"], indirect=True)
def test_an_existing_node_missing_from_the_list_keeps_its_instance(site: Site) -> None:
    sandbox = started(site)
    before = set(sandbox.cloud.running_instances())
    hidden = min(sandbox.kube.of("nodes"))
    sandbox.kube.hidden = frozenset({hidden})
    looks = len(sandbox.kube.calls) + 100
    site.keep(lambda: len(sandbox.kube.calls) > looks)
    assert set(sandbox.cloud.running_instances()) == before


def test_a_removed_finalizer_is_added_again(site: Site) -> None:
    sandbox = started(site)
    name = min(sandbox.kube.of("nodes"))
    sandbox.kube.change("nodes", name, lambda node: node["metadata"].update(finalizers=["x.io/y"]))
    site.keep(lambda: len(sandbox.kube.of("nodes")[name]["metadata"]["finalizers"]) == 2)
    assert sandbox.kube.of("nodes")[name]["metadata"]["finalizers"][0] == "x.io/y"


def test_deletion_of_a_node_object_is_retried(site: Site) -> None:
    sandbox = started(site)
    moving, left = sandbox.fault, [3]

    def forbid(call: Call) -> None:
        moving(call)
        patch = call.body if call.method == "PATCH" else {}
        if left[0] and patch.get("metadata", {}).get("finalizers") == []:
            left[0] -= 1
            raise RefusedError(403, "Forbidden", "a webhook denies it")

    sandbox.kube.fault = forbid
    victim = min(sandbox.kube.of("nodes"))
    sandbox.kube.delete("nodes", victim)
    site.keep(lambda: victim not in sandbox.kube.of("nodes") and sandbox.settled())
    assert left == [0]
    assert len(site.nodes()) == 2


def test_check_asks_the_api_for_each_permission(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = site.sandbox.kube.rules or []
    site.sandbox.kube.rules = [rule for rule in kept if "pods/eviction" not in rule["resources"]]
    assert main([*site.words("check"), "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    rows = {f"{row['kind']} {row['name']}": row for row in found}
    assert rows["rbac create pods/eviction"]["verdict"] == "failed"
    assert rows["rbac patch nodes"]["verdict"] == "passed"
    (api,) = [row for row in found if row["kind"] == "cluster"]
    assert api["message"] == "v1.33.2, with credentials of context shop"
    assert [row["verdict"] for row in found if row["kind"] == "plan"] == ["passed"]
    assert {call.method for call in site.sandbox.kube.calls} == {"GET", "POST"}
    assert {c.resource for c in site.sandbox.kube.calls if c.method == "POST"} == {
        "selfsubjectaccessreviews"
    }


def test_a_daemon_reports_missing_permissions_at_startup(site: Site) -> None:
    kept = site.sandbox.kube.rules or []
    site.sandbox.kube.rules = [rule for rule in kept if "pods/eviction" not in rule["resources"]]
    site.keep(lambda: bool(site.recorder.messages("Forbidden")))
    (missing,) = site.recorder.messages("Forbidden")
    assert missing == (
        "missing permission: create pods/eviction (evict pods while draining); add to the "
        'ClusterRole: {apiGroups: [""], resources: [pods/eviction], verbs: [create]}'
    )


def test_a_cluster_other_than_the_one_nodes_join_is_rejected_first(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAA==\n").decode()
    path = site.folder.parent / "kubeconfig"
    config = load(path.read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(
        b"-----BEGIN CERTIFICATE-----\nBB==\n-----END CERTIFICATE-----\n"
    ).decode()
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    path.write_text(dump(config))
    assert (
        main([*site.words("apply"), "--auto-approve", "--set", f"clusterCABundle={authority}"]) != 0
    )
    message = capsys.readouterr().err
    assert (
        "new nodes would join another cluster: clusterCABundle belongs to another cluster"
        in message
    )
    assert site.sandbox.cloud.running_instances() == {}
    assert site.sandbox.kube.calls == []
