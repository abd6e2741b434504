"""An incomplete list is an error: each paginated call, with a page that is lost.

A list is used completely or not at all. With a shorter one, types, images, subnets, prices or
instances would seem to be missing, and nodes would be disrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.aws.facts.latest import describe_offerings, describe_types
from reconciler.adapters.aws.facts.prices import on_demand_prices, spot_prices
from reconciler.adapters.aws.tags import as_list, owner_of
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import CloudError, ReconcilerError, TransientCloudError
from reconciler.model.settings import ClusterKind
from reconciler.ports.cloud import LaunchAnswer
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.contracts.cloud import PRICES, SETTINGS, a_class, a_cloud, a_compute, a_launch, a_type
from tests.examples import rotate

pytestmark = pytest.mark.usefixtures("tireless")

REAL = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG, cluster_cidr="10.0.0.0/16")
SOLD = {**PRICES, "m7i.metal-24xl": 5.0}
GROUPS = ("nodes-a", "nodes-b", "nodes-c")
ONCE_THRICE_FOR_EVER = (1, 3, None)
FAULTS = [fault for fault in Fault if not fault.takes_effect]


@dataclass
class Site:
    """An account with at least three of each listed resource."""

    cloud: EmbeddedEC2
    clock: SimulatedClock

    def compute(self) -> AwsCompute:
        """Return the adapter of a new process, without caches."""
        return a_compute(self.cloud, self.clock)

    def client(self, service: str) -> Any:
        return self.cloud.connect(service, 3)


@pytest.fixture(scope="module")
def furnished() -> Site:
    clock = SimulatedClock()
    cloud = a_cloud(clock, prices=lambda kind, *_: SOLD.get(kind), types=tuple(SOLD))
    here = Site(cloud, clock)
    ec2, iam = here.client("ec2"), here.client("iam")
    for name in GROUPS:
        group = ec2.create_security_group(GroupName=name, Description="nodes")["GroupId"]
        tag = {"Key": "karpenter.sh/discovery", "Value": "web"}
        ec2.create_tags(Resources=[group], Tags=[tag])
    compute = here.compute()
    node_class = compute.resolve(a_class())
    for number in range(3):
        launch_request = a_launch(f"i{number}", replace_tags(node_class, number))
        (answer,) = compute.launch([launch_request])
        assert isinstance(answer, LaunchAnswer)
        path = f"/reconciler/{SETTINGS.region}/"
        tags = as_list(owner_of(SETTINGS).tags)
        name = f"web_{number:020x}"
        iam.create_instance_profile(InstanceProfileName=name, Path=path, Tags=tags)
    clock.advance(timedelta(days=4000).total_seconds())
    return here


def replace_tags(node_class: Any, number: int) -> Any:
    """Return the class with a unique tag, so that its launch needs a new template."""
    from msgspec.structs import replace as changed

    return changed(node_class, spec=changed(node_class.spec, tags={"number": str(number)}))


@pytest.fixture
def site(furnished: Site) -> Iterator[Site]:
    yield furnished
    furnished.cloud.faults.clear()
    furnished.cloud.rows_a_page = 0


READS: dict[str, tuple[str, Callable[[Site], Any], int]] = {
    "instances": ("ec2:DescribeInstances", lambda s: s.compute().instances(), 3),
    "instances of intents": (
        "ec2:DescribeInstances",
        lambda s: s.compute().find(["i0", "i1", "i2"]),
        3,
    ),
    "instances by id": (
        "ec2:DescribeInstances",
        lambda s: s.compute().look_up(sorted(s.cloud.running_instances())),
        3,
    ),
    "instances of Karpenter": (
        "ec2:DescribeInstances",
        lambda s: s.compute().karpenter_instances(),
        3,
    ),
    "subnets": ("ec2:DescribeSubnets", lambda s: s.compute().resolve(a_class()).status.subnets, 6),
    "security groups": (
        "ec2:DescribeSecurityGroups",
        lambda s: s.compute().resolve(a_class()).status.security_groups,
        4,
    ),
    "images": ("ec2:DescribeImages", lambda s: s.compute().resolve(a_class()).status.amis, 2),
    "templates": (
        "ec2:DescribeLaunchTemplates",
        lambda s: s.compute().unused_resources.find_unused(()),
        3,
    ),
    "profiles": (
        "iam:ListInstanceProfiles",
        lambda s: [
            row
            for row in AwsCompute(
                s.cloud.connect, REAL, a_type, s.clock
            ).unused_resources.find_unused(())
            if row.kind == "instance-profile"
        ],
        3,
    ),
    "types": ("ec2:DescribeInstanceTypes", lambda s: describe_types(s.client("ec2")), 4),
    "zones": (
        "ec2:DescribeInstanceTypeOfferings",
        lambda s: sorted(
            (z, n) for z, names in describe_offerings(s.client("ec2")).items() for n in names
        ),
        10,
    ),
    "spot prices": (
        "ec2:DescribeSpotPriceHistory",
        lambda s: spot_prices(s.client("ec2"), s.clock.now()),
        3,
    ),
    "prices": (
        "pricing:GetProducts",
        lambda s: on_demand_prices(s.client("pricing"), "us-east-1"),
        4,
    ),
}
"""What is read, in which call, and how many entries at least make it a list of pages."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1, id="sample"),
        pytest.param(3, id="all", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", list(READS))
def test_a_list_is_complete_or_an_error(site: Site, name: str, count: int) -> None:
    call, read, least = READS[name]
    whole = read(site)
    assert len(whole) >= least
    site.cloud.rows_a_page = 10 if name == "spot prices" else 1
    assert read(site) == whole, "pages make the same list"
    for fault in FAULTS:
        turn = list(READS).index(name) + list(Fault).index(fault)
        for times in rotate(turn, ONCE_THRICE_FOR_EVER)[:count]:
            site.cloud.faults.add(call.partition(":")[2], fault, times=times, skip=1)
            got, error = outcome(lambda: read(site))
            site.cloud.faults.clear()
            assert (got is None) == (error is not None)
            if error is None:
                assert got == whole
                assert times is not None
            else:
                assert_addressed(error, call, fault)
            assert times != 1 or fault is Fault.DENIED or error is None, "one loss is made good"
    assert read(site) == whole


def outcome(read: Callable[[], Any]) -> tuple[Any, ReconcilerError | None]:
    try:
        return read(), None
    except (TransientCloudError, CloudError) as error:
        return None, error


def assert_addressed(error: ReconcilerError, call: str, fault: Fault) -> None:
    assert isinstance(error, CloudError if fault is Fault.DENIED else TransientCloudError)
    assert error.where.startswith(f"{call} ("), error.where
    assert error.remedy
