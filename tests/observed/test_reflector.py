"""A copy that is kept by events never undoes what we wrote, and a list brings it to the truth."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.errors import ClusterError
from reconciler.observed.reflector import Reflector
from tests.examples import examples

NAMES = ("a", "b", "c")


@dataclass
class Server:
    """Objects with versions, and every event that led to them."""

    version: int = 10
    objects: dict[str, tuple[str, int]] = field(default_factory=dict)
    events: list[tuple[int, bytes]] = field(default_factory=list)

    def write(self, name: str) -> bytes:
        """Create or change an object, and return it."""
        self.version += 1
        uid, _ = self.objects.get(name, (f"uid-{self.version}", 0))
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = (uid, self.version)
        self._send_event(kind, name)
        return self.read(name)

    def delete(self, name: str) -> str:
        """Delete an object and return its uid."""
        self.version += 1
        uid, _ = self.objects[name]
        self.objects[name] = (uid, self.version)
        self._send_event("DELETED", name)
        del self.objects[name]
        return uid

    def read(self, name: str) -> bytes:
        uid, version = self.objects[name]
        meta = {"name": name, "namespace": "shop", "uid": uid, "resourceVersion": str(version)}
        return json.dumps({"metadata": meta}).encode()

    def rows(self) -> list[bytes]:
        return [self.read(name) for name in sorted(self.objects)]

    def bookmark(self) -> bytes:
        object_ = {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}}
        return json.dumps({"type": "BOOKMARK", "object": object_}).encode()

    def after(self, version: int) -> list[bytes]:
        return [line for at, line in self.events if at > version]

    def _send_event(self, kind: str, name: str) -> None:
        line = b'{"type":"%s","object":%s}' % (kind.encode(), self.read(name))
        self.events.append((self.version, line))


def a_reflector() -> Reflector:
    return Reflector("GET /api/v1/pods", resync_s=600.0, pause_s_max=10.0)


def relist(copy: Reflector, server: Server, now_s: float = 0.0) -> None:
    copy.begin_list(now_s)
    copy.complete_list(server.rows(), str(server.version))


def versions(copy: Reflector) -> dict[str, tuple[str, int]]:
    found = [json.loads(raw)["metadata"] for raw in copy.objects()]
    return {meta["name"]: (meta["uid"], int(meta["resourceVersion"])) for meta in found}


def an_event(kind: str, name: str = "a", uid: str = "u", version: object = 11) -> bytes:
    meta = {"name": name, "namespace": "shop", "uid": uid, "resourceVersion": version}
    return json.dumps({"type": kind, "object": {"metadata": meta}}).encode()


def test_events_in_order_lead_to_the_state_of_the_server() -> None:
    server, copy = Server(), a_reflector()
    server.write("b")
    relist(copy, server)
    server.write("a")
    server.write("b")
    server.delete("a")
    server.write("c")
    for line in server.after(copy.version or 0):
        copy.receive(line, 1.0)
    assert copy.objects() == server.rows()
    assert copy.version == server.version


def test_nothing_is_known_before_the_first_list() -> None:
    server, copy = Server(), a_reflector()
    copy.accept(server.write("a"))
    assert copy.age_s(5.0) is None
    assert copy.needs_list(5.0)
    assert copy.version is None


def test_the_age_counts_from_the_beginning_of_a_list_and_from_each_event() -> None:
    server, copy = Server(), a_reflector()
    copy.begin_list(100.0)
    copy.complete_list(server.rows(), "10")
    assert copy.age_s(103.0) == 3.0
    copy.receive(server.bookmark(), 110.0)
    assert copy.age_s(112.0) == 2.0
    copy.begin_watch(110.0)
    copy.end_watch(130.0)
    assert copy.age_s(131.0) == 1.0
    copy.fail()
    assert copy.age_s(170.0) == 40.0


def test_a_bookmark_moves_the_start_of_the_next_watch_and_no_object() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    server.version = 900
    copy.receive(server.bookmark(), 1.0)
    assert copy.version == 900
    assert copy.objects() == server.rows()
    assert not copy.needs_list(1.0)


def test_a_list_is_due_when_the_interval_has_passed() -> None:
    copy = a_reflector()
    relist(copy, Server(), 100.0)
    assert not copy.needs_list(699.0)
    assert copy.needs_list(700.0)


def test_an_expired_version_leads_to_a_new_list() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    with pytest.raises(ClusterError, match="410 too old resource version"):
        copy.receive(
            b'{"type":"ERROR","object":{"kind":"Status","code":410,'
            b'"message":"too old resource version"}}',
            1.0,
        )
    assert copy.objects() == server.rows(), "what is known stays until the list replaces it"
    assert copy.needs_list(1.0)
    relist(copy, server, 2.0)
    assert not copy.needs_list(2.0)
    copy.expire()
    assert copy.needs_list(2.0)


def test_one_failure_watches_again_and_the_second_lists() -> None:
    server, copy = Server(), a_reflector()
    relist(copy, server)
    with pytest.raises(ClusterError, match="500 etcd"):
        copy.receive(b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}', 1.0)
    copy.fail()
    assert not copy.needs_list(1.0)
    copy.fail()
    assert copy.needs_list(1.0)


def test_delays_grow_until_a_watch_has_an_event_but_not_with_each_list() -> None:
    server, copy = Server(), a_reflector()
    relist(copy, server)
    pauses = []
    for _ in range(6):
        pauses.append(copy.fail())
        relist(copy, server)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    copy.receive(server.bookmark(), 1.0)
    assert copy.fail() == 1.0


def test_a_watch_that_ends_at_once_is_not_repeated_at_once() -> None:
    copy = a_reflector()
    relist(copy, Server())
    copy.begin_watch(10.0)
    assert copy.end_watch(10.1) > 0.0
    copy.begin_watch(20.0)
    assert copy.end_watch(40.0) == 0.0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"so long",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":[]}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}',
        an_event("ADDED", version="12x"),
        an_event("ADDED", version=""),
        an_event("ADDED", version="\u0663"),
        an_event("ADDED", version=12),
    ],
)
def test_an_event_that_cannot_be_read_leads_to_a_list(line: bytes) -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    with pytest.raises(ClusterError, match="GET /api/v1/pods: "):
        copy.receive(line, 1.0)
    assert copy.objects() == server.rows()
    assert copy.needs_list(1.0)


def test_a_list_that_cannot_be_read_changes_nothing() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    before = copy.objects()
    copy.begin_list(1.0)
    with pytest.raises(ClusterError, match="not a number"):
        copy.complete_list([server.write("a"), b'{"metadata":{"resourceVersion":"v1"}}'], "12")
    assert copy.objects() == before
    with pytest.raises(ClusterError, match="not a number"):
        copy.complete_list([], "")
    assert copy.objects() == before
    assert copy.needs_list(1.0)


def test_an_outdated_event_leads_to_a_list() -> None:
    server, copy = Server(), a_reflector()
    relist(copy, server)
    server.write("a")
    server.write("b")
    first, second = server.after(10)
    copy.receive(second, 1.0)
    with pytest.raises(ClusterError, match="event of shop/a at version 11, after version 12"):
        copy.receive(first, 1.0)
    assert copy.needs_list(1.0)


def test_our_writes_are_visible_before_the_watch_reports_them() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    server.write("a")
    ours = server.write("a")
    copy.accept(ours)
    older, same = server.after(copy.version or 0)
    assert copy.objects() == [ours]
    copy.receive(older, 1.0)
    assert copy.objects() == [ours]
    copy.receive(same, 1.0)
    assert copy.objects() == [ours]


def test_our_deletions_stay_visible_while_the_watch_lags() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    server.write("a")
    copy.forget(server.delete("a"))
    again = server.write("a")
    late, deletion, creation = server.after(copy.version or 0)
    assert copy.objects() == []
    copy.receive(late, 1.0)
    assert copy.objects() == []
    copy.receive(deletion, 1.0)
    copy.receive(creation, 1.0)
    assert copy.objects() == [again]


def test_an_answer_after_the_deletion_does_not_restore_the_object() -> None:
    server, copy = Server(), a_reflector()
    relist(copy, server)
    answer = server.write("a")
    server.delete("a")
    for line in server.after(10):
        copy.receive(line, 1.0)
    copy.accept(answer)
    assert copy.objects() == []


def test_a_list_that_was_read_before_our_writes_does_not_undo_them() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    server.write("b")
    relist(copy, server)
    copy.begin_list(5.0)
    rows, version = server.rows(), server.version
    ours = server.write("a")
    copy.accept(ours)
    copy.forget(server.delete("b"))
    copy.complete_list(rows, str(version))
    assert copy.objects() == [ours]
    for line in server.after(version):
        copy.receive(line, 6.0)
    assert copy.objects() == server.rows()


def test_the_first_list_does_not_undo_concurrent_writes() -> None:
    server, copy = Server(), a_reflector()
    server.write("a")
    copy.begin_list(5.0)
    rows, version = server.rows(), server.version
    ours = server.write("a")
    copy.accept(ours)
    copy.complete_list(rows, str(version))
    assert copy.objects() == [ours]


def test_a_list_settles_earlier_deletions() -> None:
    """A deletion that had no effect must not hide the object for ever."""
    server, copy = Server(), a_reflector()
    server.write("a")
    relist(copy, server)
    copy.forget(server.objects["a"][0])
    assert copy.objects() == []
    relist(copy, server)
    assert copy.objects() == server.rows()


def test_a_cluster_that_was_restored_from_a_backup_replaces_everything() -> None:
    old, new, copy = Server(version=5000), Server(), a_reflector()
    old.write("a")
    copy.accept(old.write("b"))
    relist(copy, old)
    new.write("c")
    relist(copy, new)
    assert copy.objects() == new.rows()
    new.write("a")
    for line in new.after(copy.version or 0):
        copy.receive(line, 1.0)
    assert copy.objects() == new.rows()


def test_an_object_of_the_same_version_keeps_its_text() -> None:
    server, copy = Server(), a_reflector()
    relist(copy, server)
    line = an_event("ADDED", version="11")
    copy.receive(line, 1.0)
    (before,) = copy.objects()
    copy.begin_list(2.0)
    copy.complete_list([before.replace(b" ", b"")], "12")
    assert copy.objects() == [before]


NAME = st.sampled_from(NAMES)
FAULT = st.sampled_from(("lost", "repeated", "swapped", "late"))
MOVES = st.one_of(
    st.tuples(st.just("write"), NAME),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("our write"), NAME),
    st.tuples(st.just("our delete"), NAME),
    st.tuples(st.just("slow write"), NAME),
    st.tuples(st.just("answer"), st.just("")),
    st.tuples(st.just("deliver"), st.just("")),
    st.tuples(st.just("fault"), FAULT),
    st.tuples(st.just("bookmark"), st.just("")),
    st.tuples(st.just("broken"), st.just("")),
    st.tuples(st.just("expire"), st.just("")),
    st.tuples(st.just("begin list"), st.just("")),
    st.tuples(st.just("read list"), st.just("")),
    st.tuples(st.just("complete list"), st.just("")),
)


class Line:
    """A server, a copy, and the line between them, which may lose and disorder what it carries."""

    def __init__(self) -> None:
        self.server = Server()
        self.copy = a_reflector()
        relist(self.copy, self.server)
        self.queue: list[bytes] = []
        self.reported = self.server.version
        self.passed: list[bytes] = []
        self.answers: list[tuple[str, bytes]] = []
        self.page: tuple[list[bytes], int] | None = None
        self.lists = False
        self.lossy = False
        self.ours: dict[str, tuple[str, int]] = {}
        self.gone: set[str] = set()

    def move(self, kind: str, what: str) -> None:
        getattr(self, "do_" + kind.replace(" ", "_"))(what)
        self.queue += self.server.after(self.reported)
        self.reported = self.server.version

    def do_write(self, name: str) -> None:
        self.server.write(name)

    def do_delete(self, name: str) -> None:
        if name in self.server.objects:
            self.server.delete(name)

    def do_our_write(self, name: str) -> None:
        self.settle(name)
        self.copy.accept(self.server.write(name))
        self.ours[name] = self.server.objects[name]

    def do_our_delete(self, name: str) -> None:
        self.settle(name)
        if name in self.server.objects:
            uid = self.server.delete(name)
            self.copy.forget(uid)
            self.gone.add(uid)

    def do_slow_write(self, name: str) -> None:
        self.answers.append((name, self.server.write(name)))

    def do_answer(self, _: str) -> None:
        if self.answers:
            self.copy.accept(self.answers.pop(0)[1])

    def settle(self, name: str = "") -> None:
        """Let calls about an object be answered: the next one is made after that."""
        for of, answer in self.answers:
            if name in ("", of):
                self.copy.accept(answer)
        self.answers = [(of, answer) for of, answer in self.answers if name not in ("", of)]

    def do_deliver(self, _: str) -> None:
        if self.queue and not self.lists and not self.copy.needs_list(0.0):
            self.receive(self.queue.pop(0))

    def do_fault(self, fault: str) -> None:
        if self.lists or self.copy.needs_list(0.0):
            return
        if fault == "lost" and self.queue:
            self.queue.pop(0)
            self.lossy = True
        elif fault == "swapped" and len(self.queue) > 1:
            self.queue[:2] = self.queue[1::-1]
        elif fault == "repeated" and self.passed:
            self.receive(self.passed[-1])
        elif fault == "late" and self.passed:
            self.receive(self.passed[0])

    def do_bookmark(self, _: str) -> None:
        if not self.queue and not self.lists and not self.copy.needs_list(0.0):
            self.receive(self.server.bookmark())

    def do_broken(self, _: str) -> None:
        self.copy.fail()
        self.reopen()

    def do_expire(self, _: str) -> None:
        self.copy.expire()

    def do_begin_list(self, _: str) -> None:
        self.lists, self.page = True, None
        self.copy.begin_list(0.0)

    def do_read_list(self, _: str) -> None:
        if self.lists and self.page is None:
            self.page = (self.server.rows(), self.server.version)

    def do_complete_list(self, _: str) -> None:
        if self.page is not None:
            self.copy.complete_list(self.page[0], str(self.page[1]))
            self.lists, self.page, self.lossy = False, None, False
            self.reopen()

    def reopen(self) -> None:
        """Begin a watch where the copy is; the line is empty then."""
        self.queue, self.reported = self.server.after(self.copy.version or 0), self.server.version

    def receive(self, line: bytes) -> None:
        try:
            self.copy.receive(line, 0.0)
        except ClusterError:
            assert self.copy.needs_list(0.0), "a copy that may lack an event is listed"
        self.passed.append(line)

    def check(self) -> None:
        shown = versions(self.copy)
        assert not self.gone & {uid for uid, _ in shown.values()}, "deleted by us, and shown"
        for name, (uid, version) in self.ours.items():
            if name in shown:
                assert shown[name][1] >= version, "older than what we wrote"
            elif uid not in self.gone:
                assert self.server.objects.get(name, ("", 0)) != (uid, version), "lost our write"


@given(st.lists(MOVES, max_size=60))
@settings(max_examples=examples(3000), deadline=None)
def test_whatever_happens_to_events_our_writes_stay_and_a_list_restores_the_state(
    moves: list[tuple[str, str]],
) -> None:
    line = Line()
    for kind, what in moves:
        line.move(kind, what)
        line.check()
    if not line.lossy and not line.lists:
        while line.queue and not line.copy.needs_list(0.0):
            line.receive(line.queue.pop(0))
        if not line.copy.needs_list(0.0):
            assert line.copy.objects() == line.server.rows(), "nothing was lost, so nothing lacks"
    relist(line.copy, line.server)
    line.settle()
    assert line.copy.objects() == line.server.rows()


def a_pod(version: int, *, leaves: bool = False) -> bytes:
    meta = {"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": str(version)}
    if leaves:
        meta["deletionTimestamp"] = "2026-03-02T09:00:00Z"
    return json.dumps({"metadata": meta}).encode()


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_a_cache_lags_until_it_shows_an_evicted_pod_terminating(kind: str) -> None:
    copy = a_reflector()
    copy.begin_list(0.0)
    copy.complete_list([a_pod(9)], "10")
    assert not copy.is_behind
    copy.expect_termination("shop/a", "u")
    assert copy.is_behind
    copy.receive(b'{"type":"MODIFIED","object":%s}' % a_pod(11), 1.0)
    assert copy.is_behind, "somebody else changed it"
    copy.receive(b'{"type":"%s","object":%s}' % (kind.encode(), a_pod(12, leaves=True)), 1.0)
    assert not copy.is_behind


def test_an_eviction_without_effect_is_settled_by_the_next_list() -> None:
    copy = a_reflector()
    relist(copy, Server())
    copy.begin_list(1.0)
    copy.expect_termination("shop/a", "u")
    copy.complete_list([a_pod(9)], "10")
    assert copy.is_behind, "the list may have been read before the eviction"
    copy.begin_list(2.0)
    copy.complete_list([a_pod(9)], "10")
    assert not copy.is_behind


def test_an_eviction_of_an_earlier_pod_of_the_same_name_expects_no_change() -> None:
    copy = a_reflector()
    copy.begin_list(0.0)
    copy.complete_list([a_pod(9)], "10")
    copy.expect_termination("shop/a", "another")
    assert not copy.is_behind
