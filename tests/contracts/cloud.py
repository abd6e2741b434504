"""An EC2 with a small market, and launches in it: a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass, EC2NodeClassSpec, SelectorTerm
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.settings import ClusterKind, Settings
from reconciler.ports.cloud import Launch, LaunchOption
from reconciler_embedded.ec2 import EmbeddedEC2

SETTINGS = Settings(fleet="web", cluster=ClusterKind.EMBEDDED, cluster_name="web")
PRICES = {"m7g.large": 0.08, "m7i.large": 0.1, "c7i.xlarge": 0.18}
ZONES = ("us-east-1a", "us-east-1b")
GIB = 2**30 * 1000


def a_type(name: str) -> InstanceType | None:
    """An instance type with 2 vCPU, 8 GiB and 29 pods; only those with a price are known."""
    if name not in PRICES:
        return None
    arch = "arm64" if name.startswith("m7g") else "amd64"
    return InstanceType(
        name,
        {"cpu": 2000, "memory": 8 * GIB, "pods": 29_000, "ephemeral-storage": 20 * GIB},
        {},
        Requirements(
            [
                equals("kubernetes.io/arch", arch),
                equals("kubernetes.io/os", "linux"),
                equals("node.kubernetes.io/instance-type", name),
            ]
        ),
    )


def a_class(name: str = "default", **spec: object) -> EC2NodeClass:
    discovery = SelectorTerm(tags={"karpenter.sh/discovery": "web"})
    defaults: dict[str, object] = {
        "subnet_selector_terms": (discovery,),
        "security_group_selector_terms": (discovery,),
        "ami_selector_terms": (SelectorTerm(alias="al2023@latest"),),
        "role": "nodes",
    }
    return EC2NodeClass(Metadata(name=name), EC2NodeClassSpec(**{**defaults, **spec}))


def options(
    *names: str, capacity_type: str = "on-demand", zones: tuple[str, ...] = ZONES
) -> tuple[LaunchOption, ...]:
    return tuple(
        LaunchOption(name, zone, capacity_type, PRICES.get(name, 1.0))
        for name in names or ("m7g.large", "m7i.large")
        for zone in zones
    )


def a_launch(intent: str, node_class: EC2NodeClass, *names: str, **fields: object) -> Launch:
    claim = NodeClaim(
        Metadata(name=f"general-{intent}", labels={"karpenter.sh/nodepool": "general"})
    )
    launch = Launch(intent, claim, node_class, options(*names), {})
    return replace(launch, **fields)


def a_cloud(
    clock: SimulatedClock, kind: type[EmbeddedEC2] = EmbeddedEC2, **settings: object
) -> EmbeddedEC2:
    cloud = kind(clock, **settings)
    cloud.seed(a_class())
    return cloud


def a_compute(
    cloud: EmbeddedEC2, clock: SimulatedClock, settings: Settings = SETTINGS, **how: object
) -> AwsCompute:
    return AwsCompute(cloud.connect, settings, a_type, clock, **how)
