"""The copies of our NodeClaims with a watch cache: unchanged ones need no call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from reconciler.model.kubernetes.metadata import Condition
from tests.adapters.kubernetes.sandbox import Sandbox, a_claim, a_sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A cluster with Karpenter's CRDs, and a current cache."""
    with a_sandbox(tmp_path, has_cache=True) as made:
        made.kube.absent = frozenset()
        made.observe()
        yield made


def test_unchanged_copies_need_no_call(sandbox: Sandbox) -> None:
    mirror = sandbox.cluster.mirror("shop")
    mirror.update([a_claim()], {})
    assert list(sandbox.kube.of("nodeclaims")) == [a_claim().name]
    sandbox.kube.calls.clear()
    mirror.update([a_claim()], {})  # no watch has reported the copy yet
    assert mirror.deleted_claims() == mirror.node_pools() == frozenset()
    assert sandbox.kube.made() == []


def test_a_change_reported_by_a_watch_is_reverted(sandbox: Sandbox) -> None:
    mirror = sandbox.cluster.mirror("shop")
    mirror.update([a_claim()], {})
    sandbox.kube.change("nodeclaims", a_claim().name, lambda c: c["metadata"]["labels"].clear())
    sandbox.observe()
    mirror.update([a_claim()], {})
    labels = sandbox.kube.of("nodeclaims")[a_claim().name]["metadata"]["labels"]
    assert labels["reconciler/fleet"] == "shop"


def test_a_copy_is_removed_with_its_claim_despite_a_lagging_watch(sandbox: Sandbox) -> None:
    mirror = sandbox.cluster.mirror("shop")
    mirror.update([a_claim()], {})
    mirror.update([], {})
    assert sandbox.kube.of("nodeclaims") == {}
    mirror.update([], {})
    other = msgspec.structs.replace(
        a_claim(), metadata=msgspec.structs.replace(a_claim().metadata, name="web-other")
    )
    mirror.update([other], {})
    assert list(sandbox.kube.of("nodeclaims")) == ["web-other"]


def test_an_api_without_the_kind_gets_no_copies(tmp_path: Path) -> None:
    with a_sandbox(tmp_path, has_cache=True) as sandbox:
        sandbox.observe()
        sandbox.cluster.mirror("shop").update([a_claim()], {})
        assert {call.method for call in sandbox.kube.calls} == {"GET"}


def test_a_claim_that_is_not_ready_says_what_it_lacks(sandbox: Sandbox) -> None:
    steps = [
        Condition("Launched", "True"),
        Condition("Registered", "False", "Refused", "its labels are wrong"),
        Condition("Initialized", "Unknown", "NodeNotReady", "the node is not ready"),
    ]
    told = []
    for known in ([], [steps[0], steps[2]], steps):
        claim = a_claim()
        status = replace(claim.status, conditions=tuple(known))
        sandbox.observe()
        sandbox.cluster.mirror("shop").update([replace(claim, status=status)], {})
        (copy,) = sandbox.kube.of("nodeclaims").values()
        (ready,) = (c for c in copy["status"]["conditions"] if c["type"] == "Ready")
        told.append((ready["status"], ready["reason"], ready["message"]))
    assert told == [
        (
            "Unknown",
            "ReconcilingDependents",
            "Initialized=Unknown, Launched=Unknown, Registered=Unknown",
        ),
        (
            "Unknown",
            "ReconcilingDependents",
            "Initialized=Unknown (the node is not ready), Registered=Unknown",
        ),
        (
            "False",
            "UnhealthyDependents",
            "Initialized=Unknown (the node is not ready), Registered=False (its labels are wrong)",
        ),
    ]


def test_a_claim_of_others_that_cannot_be_read_stops_nothing(sandbox: Sandbox) -> None:
    odd = {"kind": "NodeClaim", "metadata": {"name": "odd", "labels": {"a": 7}}, "spec": 7}
    sandbox.kube.add(odd)
    sandbox.observe()
    mirror = sandbox.cluster.mirror("shop")
    mirror.update([a_claim()], {})
    mirror.update([], {})
    assert list(sandbox.kube.of("nodeclaims")) == ["odd"]
    assert mirror.deleted_claims() == frozenset()
