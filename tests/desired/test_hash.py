"""Drift hashes: Karpenter's own values, and the rules behind them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.hash import (
    NODE_CLASS_HASH_VERSION,
    NODE_POOL_HASH_VERSION,
    format_json,
    format_quantity,
    node_class_hash,
    node_pool_hash,
    object_hash,
    with_defaults,
)

REPOSITORY = Path(__file__).parents[2]
TABLES = Path(os.environ.get("CONFORMANCE_TABLES", REPOSITORY.parent / "shared/conformance/tables"))
TABLE = (
    json.loads((TABLES / "hash.json").read_text(encoding="utf-8"))
    if (TABLES / "hash.json").exists()
    else {}
)


@pytest.mark.parametrize("case", TABLE.get("cases", ()), ids=lambda case: case["name"])
def test_hashes_agree_with_karpenter(case: dict[str, Any]) -> None:
    if case["kind"] == "NodePool":
        assert node_pool_hash({"spec": {"template": case["template"]}}) == case["hash"]
    else:
        assert node_class_hash({"spec": case["spec"]}, case["caBundle"]) == case["hash"]


def test_hash_versions_agree_with_the_table() -> None:
    assert TABLE.get("nodepoolHashVersion", "v3") == NODE_POOL_HASH_VERSION
    assert TABLE.get("ec2nodeclassHashVersion", "v6") == NODE_CLASS_HASH_VERSION


def a_pool(**spec: Any) -> dict[str, Any]:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    return {
        "kind": "NodePool",
        "metadata": {"name": "general"},
        "spec": {"template": {"spec": {"nodeClassRef": reference, **spec}}},
    }


def a_class(**spec: Any) -> dict[str, Any]:
    terms = [{"alias": "al2023@latest"}]
    return {"kind": "EC2NodeClass", "spec": {"role": "node", "amiSelectorTerms": terms, **spec}}


def test_two_known_hashes_never_change() -> None:
    """Values of ours, for where the table is not at hand: they are written on nodes for months."""
    pool = a_pool(expireAfter="720h", requirements=[])
    assert object_hash(pool) == ("6821555240594823858", "v3")
    options = {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "required",
    }
    node_class = a_class(role="KarpenterNodeRole-c1", metadataOptions=options)
    assert object_hash(node_class) == ("16993001224129005270", "v6")


def test_defaults_of_the_api_server_hash_like_written_values() -> None:
    assert object_hash(a_pool()) == object_hash(a_pool(expireAfter="720h"))
    assert object_hash(a_pool(expireAfter=None)) == object_hash(a_pool(expireAfter="720h"))
    assert object_hash(a_pool()) != object_hash(a_pool(expireAfter="Never"))
    partly = a_class(metadataOptions={"httpTokens": "required", "httpEndpoint": None})
    assert object_hash(a_class()) == object_hash(partly)
    assert node_class_hash(a_class()) != node_class_hash(with_defaults(a_class()))


def test_defaulting_changes_no_input() -> None:
    pool = a_pool()
    with_defaults(pool)
    assert pool == a_pool()


def test_other_kinds_have_no_hash() -> None:
    assert object_hash({"kind": "Deployment", "spec": {}}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"expireAfter": "30m"}, {"expireAfter": "1800s"}),
        ({"terminationGracePeriod": "1h"}, {"terminationGracePeriod": "60m"}),
        ({"requirements": []}, {"requirements": [{"key": "a", "operator": "Exists"}]}),
        ({"taints": None}, {}),
        ({"taints": []}, {"taints": [{"key": "a", "effect": "NoExecute"}] * 2}),
        (
            {"taints": [{"key": "a", "effect": "NoSchedule"}]},
            {"taints": [{"key": "a", "effect": "NoSchedule", "value": ""}]},
        ),
        (
            {"taints": [{"key": "a", "timeAdded": "2026-01-01T00:00:00Z"}]},
            {"taints": [{"key": "a", "timeAdded": "2026-01-01T01:00:00+01:00"}]},
        ),
    ],
)
def test_equivalent_pools_have_equal_hashes(one: Any, other: Any) -> None:
    assert object_hash(a_pool(**one)) == object_hash(a_pool(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"taints": []}, {}),
        ({"expireAfter": "0s"}, {"expireAfter": "Never"}),
        ({"terminationGracePeriod": "0s"}, {}),
        (
            {"taints": [{"key": "a", "timeAdded": "2026-01-01T00:00:00Z"}]},
            {"taints": [{"key": "a"}]},
        ),
    ],
)
def test_empty_is_not_absent_and_zero_is_not_never(one: Any, other: Any) -> None:
    assert object_hash(a_pool(**one)) != object_hash(a_pool(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"kubelet": {}}, {}),
        (
            {"kubelet": {"maxPods": 8, "podsPerCore": 2}},
            {"kubelet": {"podsPerCore": 2, "maxPods": 8}},
        ),
        ({"amiFamily": "AL2023"}, {}),
        ({"instanceProfile": None}, {}),
        ({"ipPrefixCount": 3, "subnetSelectorTerms": [{"id": "subnet-1"}]}, {}),
        (
            {"blockDeviceMappings": [{"ebs": {"volumeSize": "1024Gi"}}]},
            {"blockDeviceMappings": [{"ebs": {"volumeSize": "1Ti"}}]},
        ),
    ],
)
def test_equivalent_classes_have_equal_hashes(one: Any, other: Any) -> None:
    assert object_hash(a_class(**one)) == object_hash(a_class(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tags": {}}, {}),
        ({"userData": ""}, {}),
        ({"detailedMonitoring": False}, {}),
        ({"blockDeviceMappings": []}, {}),
        ({"amiFamily": ""}, {"amiFamily": "AL2023"}),
        ({"cpuOptions": {"nestedVirtualization": "enabled"}}, {"cpuOptions": {}}),
        ({"placementGroupSelector": {"name": "a"}}, {"placementGroupSelector": {"id": "a"}}),
    ],
)
def test_empty_parts_of_a_class_count(one: Any, other: Any) -> None:
    assert object_hash(a_class(**one)) != object_hash(a_class(**other))


@pytest.mark.parametrize(
    ("enclaves", "expected"),
    [
        (None, "16664176375993651535"),
        ({"enabled": True}, "6538196532857316071"),
        ({"enabled": False}, "15159880910914375618"),
    ],
)
def test_enclaves_count_as_in_karpenter_1_15(enclaves: Any, expected: str) -> None:
    """Values of Karpenter's hash function on its own struct."""
    spec = {"role": "r", "amiFamily": "AL2023", "enclaveOptions": enclaves}

    assert object_hash({"kind": "EC2NodeClass", "spec": spec}) == (expected, "v6")


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("1024Gi", "1Ti"),
        ("1536Gi", "1536Gi"),
        ("1.5Ti", "1536Gi"),
        ("0.5Gi", "512Mi"),
        ("2000M", "2G"),
        ("1.500G", "1.500G"),
        ("1.50G", "1500M"),
        ("1000G", "1T"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("1e2", "100"),
        ("1.1Ki", "1126400m"),
        ("0.1Ki", "102400m"),
        ("1000E", "1e21"),
        ("0.1n", "1n"),
        ("-1024Mi", "-1Gi"),
        ("Ti", "0"),
        ("0.0", "0"),
        (20, "20"),
        (2000, "2k"),
    ],
)
def test_quantities_print_as_in_go(written: str | int, printed: str) -> None:
    assert format_quantity(written) == printed


@pytest.mark.parametrize("text", ["", "Gib", "1 Gi", "1.2.3", "e", "٣Gi", "0x10"])
def test_an_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        format_quantity(text)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        ("<a & b>\u2028é\t", '"\\u003ca \\u0026 b\\u003e\\u2028é\\t"'),
        (1.0, "1"),
        (0.1, "0.1"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
    ],
)
def test_json_prints_as_in_go(value: Any, printed: str) -> None:
    assert format_json(value) == printed


names = st.text("abcé", min_size=1, max_size=3)


@given(st.dictionaries(names, names, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_tags_and_volumes_does_not_matter(tags: dict[str, str], random: Any) -> None:
    shuffled = list(tags.items())
    random.shuffle(shuffled)
    volumes = [{"deviceName": name} for name in tags]
    reordered = [{"deviceName": name} for name, _ in shuffled]
    assert object_hash(a_class(tags=tags, blockDeviceMappings=volumes)) == object_hash(
        a_class(tags=dict(shuffled), blockDeviceMappings=reordered)
    )
