"""The copies of our NodeClaims with a watch cache: unchanged ones need no call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.adapters.kubernetes.town import Town, a_claim, a_town


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """A cluster with Karpenter's CRDs, and a current cache."""
    with a_town(tmp_path, has_cache=True) as made:
        made.kube.absent = frozenset()
        made.look()
        yield made


def test_unchanged_copies_need_no_call(town: Town) -> None:
    mirror = town.cluster.mirror("shop")
    mirror.show([a_claim()], {})
    assert list(town.kube.of("nodeclaims")) == [a_claim().name]
    town.kube.calls.clear()
    mirror.show([a_claim()], {})  # no watch has reported the copy yet
    assert mirror.deleted() == mirror.node_pools() == frozenset()
    assert town.kube.made() == []


def test_a_change_reported_by_a_watch_is_reverted(town: Town) -> None:
    mirror = town.cluster.mirror("shop")
    mirror.show([a_claim()], {})
    town.kube.change("nodeclaims", a_claim().name, lambda c: c["metadata"]["labels"].clear())
    town.look()
    mirror.show([a_claim()], {})
    labels = town.kube.of("nodeclaims")[a_claim().name]["metadata"]["labels"]
    assert labels["reconciler/fleet"] == "shop"


def test_a_copy_is_removed_with_its_claim_despite_a_lagging_watch(town: Town) -> None:
    mirror = town.cluster.mirror("shop")
    mirror.show([a_claim()], {})
    mirror.show([], {})
    assert town.kube.of("nodeclaims") == {}
    mirror.show([], {})
    other = msgspec.structs.replace(
        a_claim(), metadata=msgspec.structs.replace(a_claim().metadata, name="web-other")
    )
    mirror.show([other], {})
    assert list(town.kube.of("nodeclaims")) == ["web-other"]


def test_an_api_without_the_kind_gets_no_copies(tmp_path: Path) -> None:
    with a_town(tmp_path, has_cache=True) as town:
        town.look()
        town.cluster.mirror("shop").show([a_claim()], {})
        assert {call.method for call in town.kube.calls} == {"GET"}
