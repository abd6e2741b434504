"""The words that an anonymized snapshot shows: all that AWS uses, and nothing that a user names."""

from __future__ import annotations

import pytest

from reconciler.catalog.catalog import bundled_catalog, bundled_data
from reconciler.model.karpenter.labels import WELL_KNOWN_AWS
from reconciler.observed.publicterms import FIELDS, is_kind, is_resource, is_value


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-central-1", "ap-southeast-2"])
def test_every_label_and_resource_of_the_bundled_types_is_shown(region: str) -> None:
    assert region in bundled_data()[1].regions
    hidden = set()
    for kind in bundled_catalog(region).types:
        hidden |= {name for name in kind.capacity if not is_resource(name)}
        for key in sorted(WELL_KNOWN_AWS & set(kind.requirements)):
            values = kind.requirements[key].values
            hidden |= {f"{key}={value}" for value in values if not is_value(key, value)}
        for offering in kind.offerings:
            hidden |= set() if is_value("topology.kubernetes.io/zone", offering.zone) else {"zone"}
    assert hidden == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topology.kubernetes.io/zone", "acme"),
        ("failure-domain.beta.kubernetes.io/zone", "acme"),
        ("node.kubernetes.io/instance-type", "acme"),
        ("node.kubernetes.io/instance-type", "m5.large\n"),
        ("kubernetes.io/arch", "acme"),
        ("kubernetes.io/hostname", "m5.large"),
        ("karpenter.sh/capacity-type", "acme"),
        ("karpenter.k8s.aws/instance-gpu-name", "acme"),
        ("karpenter.k8s.aws/instance-cpu", "acme"),
        ("karpenter.sh/nodepool", "acme"),
        ("example.com/team", "true"),
    ],
)
def test_other_values_are_hidden(key: str, value: str) -> None:
    assert not is_value(key, value)


def test_kinds_resources_and_fields_of_others_are_hidden() -> None:
    assert not is_kind("AcmeJob")
    assert is_kind("EKSNodeClass")
    assert not is_resource("acme.com/fpga")
    assert not is_resource("acme")
    assert {"userData", "nodeClassRef", "kmsKeyID", "conditions", "budgets"} <= FIELDS
    assert "acme" not in FIELDS
