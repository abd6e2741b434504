"""Calls on threads: a pass waits for short ones until its timeout, and never for long ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Final

import pytest

from reconciler.adapters.threads import ThreadedCalls, threaded_calls
from reconciler.model.errors import ClusterError, LeaseLostError
from reconciler.ports.calls import Answer, UnansweredError


@pytest.fixture
def calls() -> Iterator[ThreadedCalls]:
    with threaded_calls(workers=4, within_s=0.2) as made:
        yield made


def ended(calls: ThreadedCalls, name: str) -> Answer:
    """Wait for the answer of a long call and return it."""
    for _ in range(1000):
        answer = calls.answer(name)
        if answer is not None:
            return answer
        Event().wait(0.005)
    raise AssertionError(f"{name} does not end")


def refuse() -> None:
    raise ClusterError("forbidden", where="PATCH /api/v1/nodes/n0")


def test_each_call_has_its_own_answer(calls: ThreadedCalls) -> None:
    answers = calls.call_all({"a": lambda: 1, "b": refuse})
    assert answers["a"] == Answer(1)
    assert isinstance(answers["b"].error, ClusterError)


_HANGING: Final = """
from threading import Event
from reconciler.adapters.threads import threaded_calls

def hang():
    begun.set()
    Event().wait()

begun = Event()
with threaded_calls(workers=1, within_s=0.1) as calls:
    calls.call_all({"terminate n0": hang, "terminate n1": hang})
    calls.start("drain n0", hang)
    calls.read("nodes", hang, 0.1)
    begun.wait()
print("ended")
"""


def test_the_end_of_the_process_waits_for_no_call() -> None:
    """A daemon that is stopped ends, though a server does not answer."""
    done = subprocess.run(
        [sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "ended\n"


def test_calls_wait_for_a_free_thread_in_their_order() -> None:
    made, release = list[int](), Event()
    with threaded_calls(workers=2, within_s=0.05) as calls:
        for name in ("first", "second"):
            calls.start(name, lambda: release.wait(20))
        for number in range(20):
            calls.start(f"call {number}", partial(made.append, number))
        assert made == []
        release.set()
        for number in range(20):
            ended(calls, f"call {number}")
    assert sorted(made) == list(range(20))


def test_no_waiting_call_is_made_once_the_block_has_ended() -> None:
    made, begun, release = list[int](), Event(), Event()
    with threaded_calls(workers=1) as calls:
        calls.start("runs", lambda: (begun.set(), release.wait(20)))
        begun.wait(20)
        calls.start("waits", partial(made.append, 1))
    release.set()
    assert made == []


def test_a_hanging_call_delays_only_one_pass(calls: ThreadedCalls) -> None:
    release, begun = Event(), list[str]()

    def hang() -> None:
        begun.append("x")
        release.wait(20)

    begin = time.monotonic()
    for _ in range(5):
        answers = calls.call_all({"taint n0": hang, "taint n1": lambda: "done"})
        assert isinstance(answers["taint n0"].error, UnansweredError)
        assert answers["taint n1"].value == "done"
    assert time.monotonic() - begin < 2
    assert begun == ["x"], "a call is not begun again while it runs"
    release.set()


def test_calls_that_may_be_answered_later_are_waited_for_briefly() -> None:
    release = Event()
    with threaded_calls(workers=4, within_s=20.0) as calls:
        begin = time.monotonic()
        answers = calls.call_all({"tag": lambda: release.wait(20)}, within_s=0.1)
        assert isinstance(answers["tag"].error, UnansweredError)
        assert time.monotonic() - begin < 5
        release.set()


def test_calls_without_a_free_worker_are_not_made(calls: ThreadedCalls) -> None:
    release, made = Event(), list[int]()
    hanging = {f"hang {n}": lambda: release.wait(20) for n in range(4)}
    calls.call_all({**hanging, "late": lambda: made.append(1)})
    release.set()
    calls.begin_pass()
    assert calls.call_all({"other": lambda: 1})["other"].value == 1
    assert made == []


def test_a_pass_does_not_wait_for_long_calls_and_reads_each_answer_once(
    calls: ThreadedCalls,
) -> None:
    release = Event()
    calls.start("drain", lambda: release.wait(20))
    calls.start("drain", lambda: pytest.fail("it runs already"))
    assert calls.answer("drain") is None
    assert calls.is_open("drain")
    release.set()
    assert ended(calls, "drain") == Answer(True)
    assert not calls.is_open("drain")
    assert calls.answer("drain") is None


def test_long_calls_do_not_block_short_ones(calls: ThreadedCalls) -> None:
    release = Event()
    for n in range(20):
        calls.start(f"drain {n}", lambda: release.wait(20))
    assert calls.call_all({"taint": lambda: "done"})["taint"].value == "done"
    release.set()


@pytest.mark.parametrize("how", ["together", "start"])
def test_a_lost_lease_ends_the_pass(calls: ThreadedCalls, how: str) -> None:
    def lose() -> None:
        raise LeaseLostError("this process does not hold the lease")

    def make() -> None:
        if how == "together":
            calls.call_all({"taint": lose})
        else:
            calls.start("drain", lose)
            ended(calls, "drain")

    with pytest.raises(LeaseLostError):
        make()


def test_a_read_that_takes_long_is_read_later(calls: ThreadedCalls) -> None:
    release = Event()

    def slow() -> str:
        release.wait(20)
        return "first"

    assert calls.read("list", slow, 0.01) is None
    release.set()
    assert calls.read("list", lambda: "second", None) == "first"
    assert calls.read("list", lambda: "second", None) == "second"


def test_a_read_raises_its_own_error_but_not_that_of_an_earlier_pass(
    calls: ThreadedCalls,
) -> None:
    release = Event()

    def fail() -> str:
        release.wait(20)
        raise ClusterError("forbidden", where="GET /api/v1/nodes")

    assert calls.read("list", fail, 0.01) is None
    release.set()
    ended_read = Event()
    calls.read("another", ended_read.set, None)  # one read at a time: the first has ended
    assert calls.read("list", lambda: "again", None) == "again"
    with pytest.raises(ClusterError):
        calls.read("list", fail, None)
