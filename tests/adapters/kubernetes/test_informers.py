"""An observation reads a cache that watches keep current, or lists: an old cache is not used."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness, Informer
from reconciler.adapters.kubernetes.kinds import OBSERVED, POD, WATCHED, Kind
from reconciler.assembly.decoding import prepare_decoders
from reconciler.model.errors import ClusterError
from reconciler.observed.reflector import CachedObject
from reconciler.observed.snapshot import Snapshot
from tests.adapters.kubernetes.apiserver import Call, ResetError
from tests.adapters.kubernetes.sandbox import NOW, Sandbox, a_budget, a_claim, a_node, a_pod

SERVED = {kind.resource for kind in OBSERVED if kind.group != "autoscaling.x-k8s.io"}
"""What the API serves; CapacityBuffers are not installed."""

FRESH = Freshness(first_list_s=0.0)


@dataclass
class Watched:
    """A cluster observed through a cache; tests decide when its watches are read."""

    sandbox: Sandbox
    cache: ClusterCache
    notified: list[tuple[list[str], bool]]
    seconds: list[float] = field(default_factory=lambda: [1000.0])

    def advance(self, times: int = 1) -> None:
        for _ in range(times):
            self.cache.advance()

    def pass_time(self, seconds: float) -> None:
        self.seconds[0] += seconds

    def observe(self) -> Snapshot:
        return self.sandbox.observe()

    def calls_of(self, act: Callable[[], object]) -> list[Call]:
        before = len(self.sandbox.kube.calls)
        act()
        return self.sandbox.kube.calls[before:]

    def lists_of_an_observation(self) -> set[str]:
        return {c.resource for c in self.calls_of(self.observe) if c.verb == "list"}


def watched_sandbox(sandbox: Sandbox) -> Watched:
    seconds = [1000.0]
    notified: list[tuple[list[str], bool]] = []

    def note(objects: list[CachedObject], is_complete: bool) -> None:
        notified.append(([item.key for item in objects], is_complete))

    api = Api(sandbox.api.connect, sandbox.waited.append, timeout_s=5.0)
    cache = ClusterCache(api, FRESH, elapsed=lambda: seconds[0], on_objects=note)
    sandbox.cluster = KubernetesCluster(sandbox.api, cache=cache)
    return Watched(sandbox, cache, notified, seconds)


@pytest.fixture
def watched(sandbox: Sandbox) -> Watched:
    """A cluster whose cache has read its first lists."""
    sandbox.kube.add(a_pod("a"))
    made = watched_sandbox(sandbox)
    made.advance()
    return made


def test_observing_an_unchanged_cluster_makes_no_call(watched: Watched) -> None:
    seen = watched.observe()
    assert watched.calls_of(watched.observe) == []
    assert [p.key for p in seen.pods] == ["default/a"]
    assert watched.observe().pods is seen.pods


def test_watches_of_an_unchanged_cluster_transfer_less_than_a_hundredth_of_lists(
    sandbox: Sandbox,
) -> None:
    """``python -m benchmarks.watches`` measures it with 1,000 nodes."""
    kube = sandbox.kube
    for number in range(100):
        kube.add({**a_pod(f"p{number}"), "filled": "x" * 5000})
    watched = watched_sandbox(sandbox)
    watched.observe()
    whole = kube.sent
    watched.advance()
    before = kube.sent
    watched.advance()
    watched.observe()
    assert 0 < kube.sent - before < whole / 100


def test_an_observation_equals_a_list(watched: Watched, tmp_path: Path) -> None:
    kube = watched.sandbox.kube
    for name in ("c", "b", "d"):
        kube.add(a_pod(name))
    kube.add(a_node("n1", "aws:///us-east-1a/i-1"))
    kube.add(a_budget("web", 1))
    kube.change("pods", "b", lambda pod: pod["metadata"]["labels"].update(app="other"))
    kube.remove("pods", "a")
    kube.remove("nodes", "n1")
    kube.add(a_node("n1", "aws:///us-east-1a/i-2"))
    watched.advance()
    assert watched.lists_of_an_observation() == set()
    assert watched.observe() == KubernetesCluster(watched.sandbox.api).observe([a_claim()], [])


def test_an_observation_contains_its_resource_versions(watched: Watched) -> None:
    before = watched.observe().versions
    assert set(before) == SERVED
    assert before == KubernetesCluster(watched.sandbox.api).observe([], []).versions
    pod = watched.sandbox.kube.add(a_pod("b"))
    watched.advance()
    after = watched.observe().versions
    assert after["pods"] == pod["metadata"]["resourceVersion"]
    assert int(after["pods"]) > int(before["pods"])


def test_a_watch_starts_at_the_version_of_the_list_and_requests_bookmarks(watched: Watched) -> None:
    version = watched.observe().versions["pods"]
    made = watched.calls_of(watched.advance)
    (pods,) = [c.query for c in made if c.resource == "pods"]
    assert pods == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": "60",
    }
    made = watched.calls_of(watched.advance)
    (pods,) = [c.query for c in made if c.resource == "pods"]
    assert pods["timeoutSeconds"] == "600", "the first watch has brought a bookmark"
    absent = {kind.resource for kind in WATCHED if kind.optional}
    assert {c.verb for c in made if c.resource not in absent} == {"watch"}


def test_before_the_first_list_an_observation_lists_everything(sandbox: Sandbox) -> None:
    watched = watched_sandbox(sandbox)
    assert watched.lists_of_an_observation() == {kind.resource for kind in OBSERVED}


def test_a_cache_without_recent_confirmation_is_not_used(watched: Watched) -> None:
    watched.pass_time(90.0)
    assert watched.lists_of_an_observation() == set()
    watched.pass_time(0.1)
    assert watched.lists_of_an_observation() == {kind.resource for kind in OBSERVED}
    watched.advance()
    assert watched.lists_of_an_observation() == set()


def test_an_unreachable_api_is_the_same_error_with_and_without_a_cache(
    watched: Watched,
) -> None:
    def fail(call: Call) -> None:
        raise ResetError

    watched.sandbox.kube.fault = fail
    watched.advance()
    with pytest.raises(ClusterError) as caught:
        watched.observe()
    with pytest.raises(ClusterError) as expected:
        KubernetesCluster(watched.sandbox.api).observe([a_claim()], [])
    assert str(caught.value) == str(expected.value)
    watched.sandbox.kube.fault = lambda _: None
    assert [n.name for n in watched.observe().nodes] == ["n0"]


def test_while_a_watch_is_broken_its_kind_is_listed(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.sandbox.kube.injected = [b"RESET"]
    with caplog.at_level(logging.WARNING):
        watched.advance(2)
    listed = watched.lists_of_an_observation()
    assert listed == SERVED
    (record,) = caplog.records
    assert "each pass lists them until the watch works again" in record.getMessage()
    watched.sandbox.kube.injected = []
    watched.advance(2)
    assert watched.lists_of_an_observation() == set()
    watched.sandbox.kube.injected = [b"RESET"]
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
    watched.sandbox.kube.injected = [line]
    watched.advance()
    watched.sandbox.kube.injected = []
    watched.sandbox.kube.remove("pods", "a")
    assert watched.observe().pods == ()
    watched.advance(2)
    assert watched.lists_of_an_observation() == set()
    assert watched.observe().pods == ()


def test_a_lagging_cache_does_not_hide_what_a_list_has_shown(watched: Watched) -> None:
    kube = watched.sandbox.kube
    kube.injected = [b"RESET"]
    watched.advance()
    kube.injected = []
    before = kube.add(a_pod("b"))["metadata"]["resourceVersion"]
    late = {"kind": "Pod", "metadata": {"resourceVersion": before}}
    kube.add(a_pod("c"))
    assert len(watched.observe().pods) == 3, "listed, because the watch is broken"
    followed, kube.watched = (
        kube.watched,
        lambda call: iter([json.dumps({"type": "BOOKMARK", "object": late}).encode() + b"\n"]),
    )
    watched.advance()
    assert len(watched.observe().pods) == 3, "the watch works again, and has not told of c"
    kube.watched = followed
    watched.advance()
    assert watched.lists_of_an_observation() == set()


def test_a_version_that_is_too_old_leads_to_a_list(watched: Watched) -> None:
    kube = watched.sandbox.kube
    kube.remove("pods", "a")
    kube.add(a_pod("b"))
    kube.compact()
    watched.advance()
    assert [p.key for p in watched.observe().pods] == ["default/b"], "listed for this look"
    made = watched.calls_of(watched.advance)
    assert {c.verb for c in made} == {"list"}
    assert watched.lists_of_an_observation() == set()
    assert [p.key for p in watched.observe().pods] == ["default/b"]


def test_all_pages_are_read_again_at_an_interval(watched: Watched) -> None:
    kube = watched.sandbox.kube
    for number in range(5):
        kube.add(a_pod(f"p{number}"))
    kube.page_max = 2
    for _ in range(30):
        watched.pass_time(20.0)
        made = watched.calls_of(watched.advance)
    pods = [c.verb for c in made if c.resource == "pods"]
    assert pods == ["list"] * 3
    assert watched.lists_of_an_observation() == set()
    assert len(watched.observe().pods) == 6


def test_a_missing_watch_permission_falls_back_to_lists_and_is_logged_once(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    every = [{"apiGroups": [k.group], "resources": [k.resource], "verbs": []} for k in OBSERVED]
    sandbox.kube.rules = [rule | {"verbs": ["list"]} for rule in every]
    watched = watched_sandbox(sandbox)
    with caplog.at_level(logging.WARNING):
        watched.advance(3)
    assert [n.name for n in watched.observe().nodes] == ["n0"]
    assert watched.lists_of_an_observation() == SERVED
    (record,) = caplog.records
    assert "ClusterRole" in record.getMessage()
    sandbox.kube.rules = None
    watched.advance(2)
    assert watched.lists_of_an_observation() == set()


def test_a_kind_installed_later_is_observed(watched: Watched) -> None:
    kube = watched.sandbox.kube
    buffer = {
        "kind": "CapacityBuffer",
        "metadata": {"name": "spare", "namespace": "default"},
        "spec": {"replicas": 2, "podTemplateRef": {"name": "t"}},
    }
    kube.absent = frozenset()
    kube.add(buffer)
    assert watched.observe().capacity_buffers == ()
    watched.pass_time(60.0)
    watched.advance()
    assert [b.metadata.name for b in watched.observe().capacity_buffers] == ["spare"]


def test_our_taint_is_visible_before_the_watch_reports_it(watched: Watched) -> None:
    watched.observe()
    watched.sandbox.cluster.taint("n0")
    assert watched.lists_of_an_observation() == set()
    (node,) = watched.observe().nodes
    assert [t.key for t in node.spec.taints] == ["karpenter.sh/disrupted"]
    watched.advance()
    assert watched.observe().nodes == (node,)


def test_a_concurrent_change_of_another_writer_is_visible_too(watched: Watched) -> None:
    watched.observe()
    watched.sandbox.kube.change("nodes", "n0", lambda n: n["metadata"]["labels"].update(by="them"))
    watched.sandbox.cluster.taint("n0")
    (node,) = watched.observe().nodes
    assert node.metadata.labels["by"] == "them"
    assert node.spec.taints


def test_a_write_with_a_lost_answer_is_visible(watched: Watched) -> None:
    watched.observe()

    def lose_once(call: Call) -> None:
        if call.method == "PATCH":
            watched.sandbox.kube.fault = lambda _: None
            raise ResetError(late=True)

    watched.sandbox.kube.fault = lose_once
    watched.sandbox.cluster.taint("n0")
    (node,) = watched.observe().nodes
    assert node.spec.taints


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_deleted_node_is_gone_before_the_watch_reports_it(
    watched: Watched, is_lost: bool
) -> None:
    watched.observe()

    def lose_once(call: Call) -> None:
        if is_lost and call.method == "DELETE":
            watched.sandbox.kube.fault = lambda _: None
            raise ResetError(late=True)

    watched.sandbox.kube.fault = lose_once
    watched.sandbox.cluster.delete_node("n0")
    assert watched.lists_of_an_observation() == set()
    assert watched.observe().nodes == ()
    watched.sandbox.kube.add(a_node("n0", "aws:///us-east-1a/i-7"))
    watched.advance()
    assert [n.spec.provider_id for n in watched.observe().nodes] == ["aws:///us-east-1a/i-7"]


def test_a_node_kept_by_a_foreign_finalizer_stays_visible(watched: Watched) -> None:
    watched.sandbox.kube.change(
        "nodes", "n0", lambda n: n["metadata"].update(finalizers=["x.io/y"])
    )
    watched.advance()
    watched.observe()
    watched.sandbox.cluster.delete_node("n0")
    (node,) = watched.observe().nodes
    assert node.metadata.deletion_timestamp is not None


def test_after_an_eviction_pods_are_listed_until_the_watch_reports_it(watched: Watched) -> None:
    watched.sandbox.kube.leaving = True
    assert watched.sandbox.drain() == 1
    assert watched.lists_of_an_observation() == {"pods"}
    (pod,) = watched.observe().pods
    assert pod.metadata.deletion_timestamp is not None
    watched.advance()
    assert watched.lists_of_an_observation() == set()
    assert watched.observe().pods == (pod,)


def test_a_deleted_pod_is_terminating_before_the_watch_reports_it(
    watched: Watched,
) -> None:
    watched.sandbox.kube.leaving = True
    watched.sandbox.observe()
    watched.sandbox.cluster.drain("n0", NOW, NOW)
    assert watched.lists_of_an_observation() == set()
    (pod,) = watched.observe().pods
    assert pod.metadata.deletion_timestamp is not None


@pytest.mark.parametrize(
    ("stale_after_s", "watches"), [(90.0, 2), (79.0, 12), (30.0, 30)], ids=["default", "low", "30s"]
)
@pytest.mark.parametrize("kind", [k for k in WATCHED if not k.optional], ids=lambda k: k.resource)
def test_an_idle_watch_lasts_until_its_timeout(
    sandbox: Sandbox, kind: Kind, stale_after_s: float, watches: int
) -> None:
    """In ten minutes of an unchanged cluster, a kind is listed once. Its watch starts again only
    where bookmarks are too rare to confirm the copy in time."""
    seconds, pauses = [0.0], []

    def last_until_the_timeout(call: Call) -> None:
        if call.verb == "watch":
            seconds[0] += float(call.query["timeoutSeconds"])

    sandbox.kube.fault = last_until_the_timeout
    informer = Informer(
        sandbox.api, kind, Freshness(stale_after_s=stale_after_s), lambda: seconds[0], {},
        lambda _, __: None,
    )  # fmt: skip
    while seconds[0] < 600:
        pauses.append(informer.advance())
    verbs = [call.verb for call in sandbox.kube.calls if call.resource == kind.resource]
    assert (verbs.count("list"), verbs.count("watch")) == (1, watches)
    assert sum(pauses) == 0


def test_bookmarks_confirm_a_copy_while_its_watch_lasts(watched: Watched) -> None:
    kube = watched.sandbox.kube
    listed: list[set[str]] = []

    def bookmarks(call: Call) -> Iterator[bytes]:
        for _ in range(9):
            watched.pass_time(60.0)
            yield _bookmark(call.query["resourceVersion"])
            SystemClock().wait(10, lambda: call.resource not in watched.lists_of_an_observation())
            listed.append(watched.lists_of_an_observation() & {call.resource})

    kube.watched = bookmarks
    watched.advance()
    assert set().union(*listed) == set()
    assert len(listed) == 18, "of the nodes and of the pods: other kinds are listed again by then"


def test_a_server_whose_bookmarks_end_is_confirmed_by_short_watches(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    lasted, is_over, sends = [], threading.Event(), [False, True, False, False, True]

    def watch(call: Call) -> Iterator[bytes]:
        lasted.append(int(call.query["timeoutSeconds"]))
        if sends.pop(0):
            yield _bookmark(call.query["resourceVersion"])
        elif lasted[-1] > 1:
            is_over.wait(20)

    sandbox.kube.watched = watch
    informer = Informer(
        sandbox.api, POD, Freshness(stale_after_s=0.5, bookmark_s=0.1), lambda: 0.0, {},
        lambda _, __: None,
    )  # fmt: skip
    for _ in range(6):
        informer.advance()
    is_over.set()
    assert lasted == [1, 1, 600, 1, 1]
    assert not caplog.records, "silence is no failure"


def test_new_and_changed_pods_are_reported(watched: Watched) -> None:
    assert watched.notified == [(["default/a"], True)]
    watched.sandbox.kube.add(a_pod("b"))
    watched.sandbox.kube.remove("pods", "a")
    watched.advance()
    assert watched.notified[1:] == [(["default/b"], False)]


def test_the_lease_is_confirmed_before_each_observation(watched: Watched) -> None:
    def refuse() -> None:
        raise ClusterError("another process acts")

    watched.sandbox.api.confirm = refuse
    with pytest.raises(ClusterError, match="another process acts"):
        watched.observe()


def test_changes_are_observed_while_the_watches_run_and_they_end_with_the_block(
    sandbox: Sandbox,
) -> None:
    sandbox.kube.watches = True
    clock = SystemClock()
    prepare_decoders()
    cache = ClusterCache(Api(sandbox.api.connect, time.sleep), Freshness())
    sandbox.cluster = KubernetesCluster(sandbox.api, cache=cache)
    before = set(threading.enumerate())
    with cache.run_in_background():
        assert [n.name for n in sandbox.observe().nodes] == ["n0"]
        sandbox.kube.add(a_pod("late"))
        clock.wait(10, lambda: [p.metadata.name for p in sandbox.observe().pods] == ["late"])
        assert [p.metadata.name for p in sandbox.observe().pods] == ["late"]
        assert not [c for c in sandbox.kube.calls if c.verb == "list" and c.resource == "pods"][1:]
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    clock.wait(10, lambda: not _watching(before))
    assert not _watching(before)


def _bookmark(version: str) -> bytes:
    told = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}
    return json.dumps(told).encode() + b"\n"


def _watching(before: set[threading.Thread]) -> set[str]:
    return {t.name for t in set(threading.enumerate()) - before if t.name.startswith("watch-")}
