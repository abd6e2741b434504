"""Constraints are listed, and removed one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.decode import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.placement.explain.constraints import (
    constraints_of,
    remove_constraint,
    remove_pool_constraint,
)
from tests.placement.builders import (
    ARCH,
    HOST,
    PREFERRED,
    REQUIRED,
    ZONE,
    a_pod,
    a_pool,
    rule,
    spread,
    wanted,
)

SOFT = {"weight": 1, "preference": {"matchExpressions": [wanted(ARCH, "In", "arm64")]}}
EVERYTHING: dict[str, Any] = {
    "nodeSelector": {"team": "red"},
    "affinity": {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [wanted(ZONE, "In", "zone-a"), wanted(ARCH, "Exists")]},
                    {"matchExpressions": [wanted(ZONE, "In", "zone-b")]},
                ]
            },
            PREFERRED: [SOFT],
        },
        "podAffinity": {REQUIRED: [rule(ZONE), rule(HOST)]},
        "podAntiAffinity": {REQUIRED: [rule("rack")]},
    },
    "topologySpreadConstraints": [spread(ZONE), spread(HOST), spread("rack", soft=True)],
}
NAMES = (
    "the pod affinity by kubernetes.io/hostname",
    f"the pod affinity by {ZONE}",
    "the pod anti-affinity by rack",
    f"the pods' requirement on {ARCH}",
    "the pods' requirement on team",
    f"the pods' requirement on {ZONE}",
    f"the NodePool's requirement on {ARCH}",
    "the pods' preferences",
    "the topology spread over kubernetes.io/hostname",
    f"the topology spread over {ZONE}",
)
POOL = decode(a_pool("default", wanted(ARCH, "In", "amd64")), NodePool)


def _spec() -> PodSpec:
    return decode(a_pod("app-0", **EVERYTHING), Pod).spec


def test_every_constraint_of_pods_and_pool_is_listed_once() -> None:
    assert tuple(map(str, constraints_of([_spec(), _spec()], POOL))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_removing_a_constraint_keeps_all_others(name: str) -> None:
    constraint = next(c for c in constraints_of([_spec()], POOL) if str(c) == name)
    spec, pool = remove_constraint(_spec(), constraint), remove_pool_constraint(POOL, constraint)
    left = [str(c) for c in constraints_of([spec], pool)]
    assert left == [n for n in NAMES if n != name]


def test_removing_a_missing_constraint_changes_nothing() -> None:
    plain = decode(a_pod("app-1"), Pod).spec
    assert all(remove_constraint(plain, c) is plain for c in constraints_of([_spec()], POOL))
