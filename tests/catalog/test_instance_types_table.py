"""The published table of labels and allocatable, compared with the bundled data by type."""

import re

import pytest

from reconciler.catalog.catalog import bundled_catalog, bundled_data
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.resources import parse_quantity
from tests.tables import table

NITRO = "karpenter.k8s.aws/nitro-sandbox"
POD_ENI = "vpc.amazonaws.com/pod-eni"
CLOCK = "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz"
BANDWIDTH = "karpenter.k8s.aws/instance-network-bandwidth"
NOT_OF_THE_TYPE = {
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.k8s.aws/zone-id",
    "karpenter.sh/capacity-type",
    "karpenter.k8s.aws/instance-tenancy",
    NITRO,  # true of every type that has it, and missing from the table
}
TYPES = table("instance_types").get("types", {})


def found(name: str) -> InstanceType:
    """Return the type from the first region that offers it, us-east-1 first."""
    regions = ("us-east-1", *sorted(bundled_data()[1].regions))
    kinds = (bundled_catalog(region).get(name) for region in regions)
    kind = next((kind for kind in kinds if kind is not None), None)
    assert kind is not None, f"{name} is not in the bundle"
    return kind


def newer_than_the_table(name: str, key: str, expected: str | None) -> bool:
    """Return whether our data is newer than the published page, which was never corrected.

    - The limits of network interfaces (August 2026) include trunking for types that the page, of
      the month before, lists without it.
    - EC2 first gave the ninth Graviton generation the clock of the eighth, 2800 MHz.
    - The bandwidths of the smaller g7 were corrected with the same table of limits.
    """
    if key == POD_ENI:
        return expected is None
    if key == CLOCK:
        return expected == "2800" and re.match(r"[a-z]+9g", name) is not None
    return key == BANDWIDTH and name.startswith("g7.")


@pytest.mark.parametrize("name", TYPES)
def test_labels_and_allocatable_match_karpenters_table(name: str) -> None:
    kind, expected = found(name), TYPES[name]
    labels = kind.requirements.fixed_labels()
    actual = {k: v for k, v in labels.items() if k not in NOT_OF_THE_TYPE}
    amounts = {k: v for k, v in kind.allocatable.items() if v}
    wrong = {}
    for key in {*expected, *actual, *amounts}:
        wanted = expected.get(key)
        if key in amounts:
            same = wanted is not None and parse_quantity(wanted) == amounts[key]
        else:
            same = wanted == actual.get(key)
        if not same and not newer_than_the_table(name, key, wanted):
            wrong[key] = (wanted, actual.get(key, amounts.get(key)))
    assert not wrong
