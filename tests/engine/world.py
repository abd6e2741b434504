"""A complete world in one process: git, a clock, EC2 behind boto3, a cluster, and durable state.

What survives a crash (EC2, the cluster's shelf, the store, the journal, git) is in ``World``; what
a process holds in memory is created by ``World.engine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.cluster import EmbeddedCluster
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf, MemoryStateStore
from reconciler.assembly.takeover import Takeover
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.engine import world as engine_world
from reconciler.engine.loop import PassIntervals, converge
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import ClusterKind, Settings
from reconciler.plan.value.plan import InputDigests, Revision
from reconciler.ports.cloud import Compute
from reconciler.ports.journal import Journal
from reconciler.ports.progress import CommitName, Progress
from reconciler.ports.state import Shelf, StateStore
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.yamltext import dump_all

SETTINGS = Settings(
    fleet="test", cluster=ClusterKind.EMBEDDED, cluster_name="test", region="us-east-1"
)
TAGS = {"reconciler/fleet": "test", "eks:eks-cluster-name": "test"}
ZONES = ("us-east-1a", "us-east-1b")
PRICES = {"m7i.large": 0.10, "c7i.large": 0.11, "m7i.xlarge": 0.20}
SIZES = {"m7i.large": ("2", "8Gi"), "c7i.large": ("2", "4Gi"), "m7i.xlarge": ("4", "16Gi")}


@cache
def small_catalog() -> Catalog:
    """Three types in two zones, on demand and spot (at 0.4 of the price)."""
    return read_catalog(catalog_file(), "catalog.json")


def catalog_file() -> bytes:
    """Return that catalog in the form of a file."""
    rows = [
        {
            "name": name,
            "capacity": {"cpu": cpu, "memory": memory, "pods": "30", "ephemeral-storage": "20Gi"},
            "overhead": {"cpu": "100m", "memory": "512Mi"},
            "requirements": [
                _is("kubernetes.io/arch", "amd64"),
                _is("kubernetes.io/os", "linux"),
                _is("node.kubernetes.io/instance-type", name),
            ],
            "offerings": [
                {"zone": zone, "capacityType": kind, "price": round(PRICES[name] * share, 4)}
                for zone in ZONES
                for kind, share in (("on-demand", 1.0), ("spot", 0.4))
            ],
        }
        for name, (cpu, memory) in SIZES.items()
    ]
    return msgspec.json.encode(rows)


def _is(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}


def a_node_class(name: str = "default") -> dict[str, Any]:
    discovery = [{"tags": {"karpenter.sh/discovery": "test"}}]
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "spec": {
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "role": "nodes",
            "subnetSelectorTerms": discovery,
            "securityGroupSelectorTerms": discovery,
        },
    }


def a_pool(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    budgets: Sequence[Mapping[str, Any]] = ({"nodes": "1"},),
    capacity_types: Sequence[str] = ("on-demand",),
    policy: str = "WhenEmpty",
    after: str = "0s",
    template: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a NodePool whose nodes take only pods that ask for it by the label ``pool``."""
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [*capacity_types]}
    ]
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    more = dict(template or {})
    requirements += more.pop("requirements", [])
    inner = {"nodeClassRef": ref, "requirements": requirements, "expireAfter": "Never", **more}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"labels": {"pool": name, **(labels or {})}},
                "spec": inner,
            },
            "disruption": {
                "consolidationPolicy": policy,
                "consolidateAfter": after,
                "budgets": [*budgets],
            },
            **spec,
        },
    }


def a_deployment(
    name: str,
    pool: str,
    replicas: int,
    *,
    cpu: str = "1500m",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Deployment for one pool; by default each pod fills a node of two CPUs."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": dict(annotations or {})},
                "spec": {
                    "nodeSelector": {"pool": pool},
                    "containers": [
                        {"name": "main", "image": "main", "resources": {"requests": {"cpu": cpu}}}
                    ],
                },
            },
        },
    }


def a_pdb(name: str, app: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }


@dataclass
class Git:
    """The fleet repository: its present objects, and a revision that moves with each commit."""

    objects: tuple[Mapping[str, Any], ...] = ()
    unreadable: Exception | None = None
    allow_removal: frozenset[str] = frozenset()

    def commit(self, *objects: Mapping[str, Any]) -> None:
        self.objects = objects

    @property
    def content(self) -> bytes:
        return dump_all(self.objects).encode()

    @property
    def head(self) -> str:
        return sha256(self.content).hexdigest()[:40]


@dataclass
class Source:
    """Desired state as ``assembly`` reads it (``engine.planning.DesiredSource``)."""

    git: Git
    compute: Compute
    settings: Settings
    catalog: Catalog
    workloads: Workloads = field(default_factory=Workloads)

    def read(self) -> PlannedFleet:
        if self.git.unreadable is not None:
            raise self.git.unreadable
        fleet, findings = read_fleet([SourceFile("fleet.yaml", self.git.content)])
        errors = [f for f in findings if f.severity == "error"]
        if errors or not fleet.node_pools:
            raise UnreadableError(f"not a fleet: {errors}")
        self.workloads, _ = expand(fleet.workloads)
        head = self.git.head
        return PlannedFleet(
            fleet=fleet,
            head=Revision(head=head),
            tree=head,
            node_pools=node_pools(fleet),
            classes={c.name: self.compute.resolve(c) for c in node_classes(fleet)},
            settings=self.settings,
            catalog=self.catalog,
            allow_removal=self.git.allow_removal,
            digests=InputDigests(git=head),
        )

    def fingerprint(self) -> str:
        return self.git.head

    def last_read(self) -> CommitName:
        return CommitName(self.git.head, "Raise the limit (Ada)")


class EventRecorder:
    """Keeps the reported events; an illegal transition, which a daemon survives, raises here."""

    def __init__(self) -> None:
        self.events: list[Progress] = []

    def notify(self, progress: Progress) -> None:
        assert progress.kind != "IllegalTransition", progress.message
        self.events.append(progress)

    def kinds(self) -> Counter[str]:
        return Counter(p.kind for p in self.events)

    def messages(self, kind: str) -> list[str]:
        return [p.message for p in self.events if p.kind == kind]


def unchanged(port: Any, name: str) -> Any:
    """The default of ``World.around``: a port as it is."""
    del name
    return port


@dataclass
class World:
    """Everything that outlives a process.

    ``around`` may wrap a port before an engine gets it; its second argument names the port.
    """

    clock: SimulatedClock
    cloud: EmbeddedEC2
    git: Git = field(default_factory=Git)
    settings: Settings = SETTINGS
    catalog: Catalog = field(default_factory=small_catalog)
    store: StateStore = field(default_factory=MemoryStateStore)
    journal: Journal = field(default_factory=MemoryJournal)
    shelf: Shelf = field(default_factory=MemoryShelf)
    recorder: EventRecorder = field(default_factory=EventRecorder)
    around: Callable[[Any, str], Any] = unchanged
    latencies: Mapping[str, float] = field(default_factory=dict)
    page_size: int = 1000

    def engine(self) -> Engine:
        """Start a process."""
        real = AwsCompute(
            self.cloud.connect,
            self.settings,
            self.catalog.get,
            self.clock,
            page_size=self.page_size,
        )
        compute = self.around(real, "compute")
        source = Source(self.git, compute, self.settings, self.catalog)
        cluster = EmbeddedCluster(
            self.around(self.shelf, "shelf"),
            self.catalog.get,
            lambda: source.workloads,
            self.clock,
            **self.latencies,
        )
        ports = engine_world.World(
            self.clock,
            compute,
            self.around(cluster, "cluster"),
            self.around(self.store, "store"),
            self.around(self.journal, "journal"),
            self.recorder,
            unused_resources=real.unused_resources,
        )
        return Engine(ports, source)

    def converge(self, **how: Any) -> Pass:
        """Start a process and run it until it has converged."""
        return self.engine().converge(**how)

    def adopt(self) -> list[str]:
        """Adopt the instances without records; return the refused ones with the reasons."""
        engine = self.engine()
        desired = engine.source.read()
        takeover = Takeover(engine.ports.compute, desired, self.store, self.journal, self.clock)  # type: ignore[arg-type]
        stakes = takeover.survey(None)
        assert takeover.adopt(stakes) == []
        return [stake.rejection for stake in stakes if stake.rejection]

    @property
    def claims(self) -> dict[str, NodeClaim]:
        return {claim.name: claim for claim in self.store.node_claims()}

    def fleet(self) -> Counter[tuple[str, str, str]]:
        """Return the number of running instances by NodePool, type and zone, from EC2 itself."""
        return Counter(
            (tags["karpenter.sh/nodepool"], i.instance_type, i.zone)
            for i, tags in self._described()
        )

    def instances(self) -> dict[str, str]:
        """Return the live instances with the name of their NodeClaim, from EC2 itself."""
        return {
            i: tags.get("karpenter.sh/nodeclaim", "")
            for i, tags in self.cloud.running_instances().items()
        }

    def _described(self) -> list[tuple[Any, Mapping[str, str]]]:
        backend = self.cloud._account.backend
        rows = []
        for identity, tags in self.cloud.running_instances().items():
            found = backend.get_instance(identity)
            rows.append((_Row(found.instance_type, found.placement.zone), tags))
        return rows


@dataclass(frozen=True)
class _Row:
    instance_type: str
    zone: str


@dataclass
class Engine:
    """The memory of one process."""

    ports: engine_world.World
    source: Source

    @property
    def tags(self) -> dict[str, str]:
        """The tags of every instance, as ``cli/apply`` gives them."""
        return {**TAGS, "reconciler/fleet": self.source.settings.fleet}

    def converge(
        self, *, deadline: timedelta = timedelta(hours=2), busy: float = 5.0, **mandate: Any
    ) -> Pass:
        return converge(
            self.ports,
            self.source,
            Mandate(self.tags, **mandate),
            deadline=deadline,
            intervals=PassIntervals(busy=busy),
        )

    def run_once(self, **mandate: Any) -> Pass:
        """Run one pass with the current desired state."""
        return reconcile(self.ports, self.source.read(), Mandate(self.tags, **mandate))


def a_world(*objects: Mapping[str, Any], **fields: Any) -> World:
    """Return a world whose git has ``objects`` and a default node class."""
    clock = fields.pop("clock", None) or SimulatedClock()
    ec2 = {k: fields.pop(k) for k in ("starting_s", "stopping_s") if k in fields}
    cloud = EmbeddedEC2(clock, prices=_price, **ec2)
    cloud.seed(msgspec.convert(_spec(a_node_class()), EC2NodeClass))
    world = World(clock, cloud, **fields)
    if objects:
        world.git.commit(a_node_class(), *objects)
    return world


def _spec(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": data["metadata"], "spec": data["spec"]}


def _price(instance_type: str, zone: str, capacity_type: str) -> float | None:
    kind = small_catalog().get(instance_type)
    return kind.price_of(zone, capacity_type) if kind is not None else None
