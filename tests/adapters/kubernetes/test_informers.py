"""An observation reads a cache that watches keep current, or lists: an old cache is not used."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.adapters.kubernetes.kinds import OBSERVED, WATCHED
from reconciler.cli.wiring.decoding import prepare_decoders
from reconciler.model.errors import ClusterError
from reconciler.observed.reflector import CachedObject
from reconciler.observed.snapshot import Snapshot
from tests.adapters.kubernetes.apiserver import Call, ResetError
from tests.adapters.kubernetes.town import NOW, Town, a_budget, a_claim, a_node, a_pod

FRESH = Freshness(first_list_s=0.0)


@dataclass
class Watched:
    """A cluster observed through a cache; tests decide when its watches are read."""

    town: Town
    cache: ClusterCache
    heard: list[tuple[list[str], bool]]
    seconds: list[float] = field(default_factory=lambda: [1000.0])

    def advance(self, times: int = 1) -> None:
        for _ in range(times):
            self.cache.advance()

    def pass_time(self, seconds: float) -> None:
        self.seconds[0] += seconds

    def look(self) -> Snapshot:
        return self.town.look()

    def calls_of(self, act: Callable[[], object]) -> list[Call]:
        before = len(self.town.kube.calls)
        act()
        return self.town.kube.calls[before:]

    def lists_of_a_look(self) -> set[str]:
        return {c.resource for c in self.calls_of(self.look) if c.verb == "list"}


def watched_town(town: Town) -> Watched:
    seconds = [1000.0]
    heard: list[tuple[list[str], bool]] = []

    def hear(objects: list[CachedObject], is_complete: bool) -> None:
        heard.append(([item.key for item in objects], is_complete))

    api = Api(town.api.connect, town.waited.append, timeout_s=5.0)
    cache = ClusterCache(api, FRESH, elapsed=lambda: seconds[0], heard=hear)
    town.cluster = KubernetesCluster(town.api, cache=cache)
    return Watched(town, cache, heard, seconds)


@pytest.fixture
def watched(town: Town) -> Watched:
    """A cluster whose cache has read its first lists."""
    town.kube.add(a_pod("a"))
    made = watched_town(town)
    made.advance()
    return made


def test_observing_an_unchanged_cluster_makes_no_call(watched: Watched) -> None:
    seen = watched.look()
    assert watched.calls_of(watched.look) == []
    assert [p.key for p in seen.pods] == ["default/a"]
    assert watched.look().pods is seen.pods


def test_watches_of_an_unchanged_cluster_transfer_less_than_a_hundredth_of_lists(
    town: Town,
) -> None:
    """``python -m benchmarks.watches`` measures it with 1,000 nodes."""
    kube = town.kube
    for number in range(100):
        kube.add({**a_pod(f"p{number}"), "filled": "x" * 5000})
    watched = watched_town(town)
    watched.look()
    whole = kube.sent
    watched.advance()
    before = kube.sent
    watched.advance()
    watched.look()
    assert 0 < kube.sent - before < whole / 100


def test_an_observation_equals_a_list(watched: Watched, tmp_path: Path) -> None:
    kube = watched.town.kube
    for name in ("c", "b", "d"):
        kube.add(a_pod(name))
    kube.add(a_node("n1", "aws:///us-east-1a/i-1"))
    kube.add(a_budget("web", 1))
    kube.change("pods", "b", lambda pod: pod["metadata"]["labels"].update(app="other"))
    kube.remove("pods", "a")
    kube.remove("nodes", "n1")
    kube.add(a_node("n1", "aws:///us-east-1a/i-2"))
    watched.advance()
    assert watched.lists_of_a_look() == set()
    assert watched.look() == KubernetesCluster(watched.town.api).observe([a_claim()], [])


def test_an_observation_contains_its_resource_versions(watched: Watched) -> None:
    before = watched.look().versions
    assert set(before) == {kind.resource for kind in OBSERVED if not kind.optional}
    assert before == KubernetesCluster(watched.town.api).observe([], []).versions
    pod = watched.town.kube.add(a_pod("b"))
    watched.advance()
    after = watched.look().versions
    assert after["pods"] == pod["metadata"]["resourceVersion"]
    assert int(after["pods"]) > int(before["pods"])


def test_a_watch_starts_at_the_version_of_the_list_and_requests_bookmarks(watched: Watched) -> None:
    version = watched.look().versions["pods"]
    made = watched.calls_of(watched.advance)
    (pods,) = [c.query for c in made if c.resource == "pods"]
    assert pods == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": "20",
    }
    absent = {kind.resource for kind in WATCHED if kind.optional}
    assert {c.verb for c in made if c.resource not in absent} == {"watch"}


def test_before_the_first_list_an_observation_lists_everything(town: Town) -> None:
    watched = watched_town(town)
    assert watched.lists_of_a_look() == {kind.resource for kind in OBSERVED}


def test_a_cache_without_recent_confirmation_is_not_used(watched: Watched) -> None:
    watched.pass_time(30.0)
    assert watched.lists_of_a_look() == set()
    watched.pass_time(0.1)
    assert watched.lists_of_a_look() == {kind.resource for kind in OBSERVED}
    watched.advance()
    assert watched.lists_of_a_look() == set()


def test_an_unreachable_api_is_the_same_error_with_and_without_a_cache(
    watched: Watched,
) -> None:
    def fail(call: Call) -> None:
        raise ResetError

    watched.town.kube.fault = fail
    watched.advance()
    with pytest.raises(ClusterError) as caught:
        watched.look()
    with pytest.raises(ClusterError) as expected:
        KubernetesCluster(watched.town.api).observe([a_claim()], [])
    assert str(caught.value) == str(expected.value)
    watched.town.kube.fault = lambda _: None
    assert [n.name for n in watched.look().nodes] == ["n0"]


def test_while_a_watch_is_broken_its_kind_is_listed(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.town.kube.told = [b"RESET"]
    with caplog.at_level(logging.WARNING):
        watched.advance(2)
    listed = watched.lists_of_a_look()
    assert listed == {k.resource for k in OBSERVED if not k.optional}
    (record,) = caplog.records
    assert "each pass lists them until the watch works again" in record.getMessage()
    watched.town.kube.told = []
    watched.advance(2)
    assert watched.lists_of_a_look() == set()
    watched.town.kube.told = [b"RESET"]
    with caplog.at_level(logging.WARNING):
        watched.advance()
    assert len(caplog.records) == 2, "it is a new problem after the watch has worked"


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n',
        b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}}\n',
        b"so long\n",
        b'{"type":"ADDED","object":{"metadata":[]}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"1"}}}\n',
    ],
)
def test_a_cache_is_not_used_after_an_inconsistent_event(watched: Watched, line: bytes) -> None:
    watched.town.kube.told = [line]
    watched.advance()
    watched.town.kube.told = []
    watched.town.kube.remove("pods", "a")
    assert watched.look().pods == ()
    watched.advance(2)
    assert watched.lists_of_a_look() == set()
    assert watched.look().pods == ()


def test_a_lagging_cache_does_not_hide_what_a_list_has_shown(watched: Watched) -> None:
    kube = watched.town.kube
    kube.told = [b"RESET"]
    watched.advance()
    kube.told = []
    before = kube.add(a_pod("b"))["metadata"]["resourceVersion"]
    late = {"kind": "Pod", "metadata": {"resourceVersion": before}}
    kube.add(a_pod("c"))
    assert len(watched.look().pods) == 3, "listed, because the watch is broken"
    followed, kube.watched = (
        kube.watched,
        lambda call: iter([json.dumps({"type": "BOOKMARK", "object": late}).encode() + b"\n"]),
    )
    watched.advance()
    assert len(watched.look().pods) == 3, "the watch works again, and has not told of c"
    kube.watched = followed
    watched.advance()
    assert watched.lists_of_a_look() == set()


def test_a_version_that_is_too_old_leads_to_a_list(watched: Watched) -> None:
    kube = watched.town.kube
    kube.remove("pods", "a")
    kube.add(a_pod("b"))
    kube.compact()
    watched.advance()
    assert [p.key for p in watched.look().pods] == ["default/b"], "listed for this look"
    made = watched.calls_of(watched.advance)
    assert {c.verb for c in made} == {"list"}
    assert watched.lists_of_a_look() == set()
    assert [p.key for p in watched.look().pods] == ["default/b"]


def test_all_pages_are_read_again_at_an_interval(watched: Watched) -> None:
    kube = watched.town.kube
    for number in range(5):
        kube.add(a_pod(f"p{number}"))
    kube.page_max = 2
    for _ in range(30):
        watched.pass_time(20.0)
        made = watched.calls_of(watched.advance)
    pods = [c.verb for c in made if c.resource == "pods"]
    assert pods == ["list"] * 3
    assert watched.lists_of_a_look() == set()
    assert len(watched.look().pods) == 6


def test_a_missing_watch_permission_falls_back_to_lists_and_is_logged_once(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    every = [{"apiGroups": [k.group], "resources": [k.resource], "verbs": []} for k in OBSERVED]
    town.kube.rules = [rule | {"verbs": ["list"]} for rule in every]
    watched = watched_town(town)
    with caplog.at_level(logging.WARNING):
        watched.advance(3)
    assert [n.name for n in watched.look().nodes] == ["n0"]
    assert watched.lists_of_a_look() == {k.resource for k in OBSERVED if not k.optional}
    (record,) = caplog.records
    assert "ClusterRole" in record.getMessage()
    town.kube.rules = None
    watched.advance(2)
    assert watched.lists_of_a_look() == set()


def test_a_kind_installed_later_is_observed(watched: Watched) -> None:
    kube = watched.town.kube
    buffer = {
        "kind": "CapacityBuffer",
        "metadata": {"name": "spare", "namespace": "default"},
        "spec": {"replicas": 2, "podTemplateRef": {"name": "t"}},
    }
    kube.absent = frozenset()
    kube.add(buffer)
    assert watched.look().capacity_buffers == ()
    watched.pass_time(20.0)
    watched.advance()
    assert [b.metadata.name for b in watched.look().capacity_buffers] == ["spare"]


def test_our_taint_is_visible_before_the_watch_reports_it(watched: Watched) -> None:
    watched.look()
    watched.town.cluster.taint("n0")
    assert watched.lists_of_a_look() == set()
    (node,) = watched.look().nodes
    assert [t.key for t in node.spec.taints] == ["karpenter.sh/disrupted"]
    watched.advance()
    assert watched.look().nodes == (node,)


def test_a_concurrent_change_of_another_writer_is_visible_too(watched: Watched) -> None:
    watched.look()
    watched.town.kube.change("nodes", "n0", lambda n: n["metadata"]["labels"].update(by="them"))
    watched.town.cluster.taint("n0")
    (node,) = watched.look().nodes
    assert node.metadata.labels["by"] == "them"
    assert node.spec.taints


def test_a_write_with_a_lost_answer_is_visible(watched: Watched) -> None:
    watched.look()

    def lose_once(call: Call) -> None:
        if call.method == "PATCH":
            watched.town.kube.fault = lambda _: None
            raise ResetError(late=True)

    watched.town.kube.fault = lose_once
    watched.town.cluster.taint("n0")
    (node,) = watched.look().nodes
    assert node.spec.taints


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_deleted_node_is_gone_before_the_watch_reports_it(
    watched: Watched, is_lost: bool
) -> None:
    watched.look()

    def lose_once(call: Call) -> None:
        if is_lost and call.method == "DELETE":
            watched.town.kube.fault = lambda _: None
            raise ResetError(late=True)

    watched.town.kube.fault = lose_once
    watched.town.cluster.delete_node("n0")
    assert watched.lists_of_a_look() == set()
    assert watched.look().nodes == ()
    watched.town.kube.add(a_node("n0", "aws:///us-east-1a/i-7"))
    watched.advance()
    assert [n.spec.provider_id for n in watched.look().nodes] == ["aws:///us-east-1a/i-7"]


def test_a_node_kept_by_a_foreign_finalizer_stays_visible(watched: Watched) -> None:
    watched.town.kube.change("nodes", "n0", lambda n: n["metadata"].update(finalizers=["x.io/y"]))
    watched.advance()
    watched.look()
    watched.town.cluster.delete_node("n0")
    (node,) = watched.look().nodes
    assert node.metadata.deletion_timestamp is not None


def test_after_an_eviction_pods_are_listed_until_the_watch_reports_it(watched: Watched) -> None:
    watched.town.kube.leaving = True
    assert watched.town.drain() == 1
    assert watched.lists_of_a_look() == {"pods"}
    (pod,) = watched.look().pods
    assert pod.metadata.deletion_timestamp is not None
    watched.advance()
    assert watched.lists_of_a_look() == set()
    assert watched.look().pods == (pod,)


def test_a_deleted_pod_is_terminating_before_the_watch_reports_it(
    watched: Watched,
) -> None:
    watched.town.kube.leaving = True
    watched.town.look()
    watched.town.cluster.drain("n0", NOW, NOW)
    assert watched.lists_of_a_look() == set()
    (pod,) = watched.look().pods
    assert pod.metadata.deletion_timestamp is not None


def test_new_and_changed_pods_are_reported(watched: Watched) -> None:
    assert watched.heard == [(["default/a"], True)]
    watched.town.kube.add(a_pod("b"))
    watched.town.kube.remove("pods", "a")
    watched.advance()
    assert watched.heard[1:] == [(["default/b"], False)]


def test_the_lease_is_confirmed_before_each_observation(watched: Watched) -> None:
    def refuse() -> None:
        raise ClusterError("another process acts")

    watched.town.api.confirm = refuse
    with pytest.raises(ClusterError, match="another process acts"):
        watched.look()


def test_changes_are_observed_while_the_watches_run_and_they_end_with_the_block(
    town: Town,
) -> None:
    town.kube.watches = True
    clock = SystemClock()
    prepare_decoders()
    cache = ClusterCache(Api(town.api.connect, time.sleep), Freshness())
    town.cluster = KubernetesCluster(town.api, cache=cache)
    before = set(threading.enumerate())
    with cache.listening():
        assert [n.name for n in town.look().nodes] == ["n0"]
        town.kube.add(a_pod("late"))
        clock.wait(10, lambda: [p.metadata.name for p in town.look().pods] == ["late"])
        assert [p.metadata.name for p in town.look().pods] == ["late"]
        assert not [c for c in town.kube.calls if c.verb == "list" and c.resource == "pods"][1:]
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    clock.wait(10, lambda: not _watching(before))
    assert not _watching(before)


def _watching(before: set[threading.Thread]) -> set[str]:
    return {t.name for t in set(threading.enumerate()) - before if t.name.startswith("watch-")}
