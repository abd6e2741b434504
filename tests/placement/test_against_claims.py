"""Where pods with claims land, in clusters for which Karpenter's own answers are recorded.

The clusters leave out what differs on purpose (``docs/conformance.md``); those in which the order
of pods of equal size decides are not recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from reconciler.model.settings import KarpenterVersion
from tests.placement.builders import placed
from tests.placement.deviceworlds import device_world
from tests.tables import fixture_cases

CASES = fixture_cases("karpenter-1.15", "claims", "claims")
IN_DEFAULT_RUN = 60


def _by_workload(pods: Iterable[str]) -> dict[str, int]:
    return dict(Counter(pod.partition("/")[2].rpartition("-")[0] for pod in pods))


def _check(case: dict[str, Any]) -> None:
    types, objects = device_world(case["input"])

    found = placed(objects, types=types, karpenter=KarpenterVersion.V1_15)

    new = [
        [claim.node_pool.name, sorted(t.name for t in claim.types), _by_workload(claim.pods)]
        for claim in found.claims
    ]
    nodes: dict[str, list[str]] = {}
    for pod, node in found.on_nodes.items():
        nodes.setdefault(node, []).append(pod)
    expect = case["expect"]
    assert sorted(map(_key, new)) == sorted(map(_key, expect["new"]))
    assert {node: _by_workload(pods) for node, pods in nodes.items()} == expect["nodes"]
    assert _by_workload([*found.unschedulable, *found.deferred]) == expect["unschedulable"]


def _key(node: list[Any]) -> str:
    return json.dumps(node, sort_keys=True)


@pytest.mark.parametrize("case", CASES[:IN_DEFAULT_RUN])
def test_pods_with_claims_land_as_in_karpenter(case: dict[str, Any]) -> None:
    _check(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES[IN_DEFAULT_RUN:])
def test_all_pods_with_claims_land_as_in_karpenter(case: dict[str, Any]) -> None:
    _check(case)
