"""Files of many small values: what is decoded takes a multiple of the memory of its text."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reconciler.adapters.database.maintenance import _parse_object
from reconciler.backtest.captures.reading import read_capture
from reconciler.backtest.trace import PODS_MAX, read_trace
from reconciler.model.decode import VALUES_MAX
from reconciler.model.errors import UnreadableError
from reconciler.observed import snapshot
from reconciler.observed.snapshot import read_snapshot
from reconciler.plan.approval import VALUES_MAX as PLAN_VALUES_MAX
from reconciler.plan.approval import read_saved_plan
from reconciler.watch.episodes.file import decode_episode
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon

HEADER = b'{"apiVersion":"reconciler/v1","kind":"Trace","seconds":60.0}\n'
OPENB = b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
POD = b"a,1000,1024,0,0,0,60,0\n"
CLASS = b'{"class":"c","spec":{"containers":[%s]}}\n'
NODE = json.dumps(
    {
        "node": "n", "nodePool": "p", "instanceType": "t", "zone": "z", "capacityType": "c",
        "price": 1, "created": 0,
    }
)  # fmt: skip
READERS = {
    "snapshot": (read_snapshot, b'{"kind":"List","items":[', b"]}"),
    "trace": (read_trace, HEADER, b""),
    "kubereplay": (read_capture, b'{"captured":"2026-01-01T00:00:00Z","events":[', b"]}"),
    "aws logs": (read_capture, b'{"events":[', b"]}"),
    "episode": (decode_episode, b'{"pools":[', b"]}"),
}


@contextmanager
def within_memory(most: int) -> Iterator[None]:
    """Fail if the block needs more memory at a time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"it took {peak >> 20} MiB"


@attack(Threat.EXHAUSTION, "more values than a file can have, each of two characters")
@pytest.mark.parametrize("kind", READERS)
def test_a_file_of_many_values_is_refused_before_it_is_decoded(kind: str) -> None:
    """Guard: ``expect_values``. One list of a million empty objects takes 70 MiB."""
    read, begin, end = READERS[kind]
    content = begin + b"0," * (VALUES_MAX + 1) + b"0" + end
    with within_memory(2 * len(content)), pytest.raises(UnreadableError) as caught:
        read(content, "file.json")
    assert caught.value.message == "has more than 50,000,000 values"
    assert caught.value.remedy


SMALLER_READERS = {
    "saved plan": read_saved_plan,
    "line of an export": lambda content, name: _parse_object(content.decode(), 1, name),
}


@attack(Threat.EXHAUSTION, "more values than a plan has, in the artifact of a job without secrets")
@pytest.mark.parametrize("kind", SMALLER_READERS)
def test_a_plan_of_many_values_is_refused_before_it_is_decoded(kind: str) -> None:
    """Guard: ``expect_values``. A file of 256 MiB took six gigabytes."""
    content = b'{"x":[' + b"0," * (PLAN_VALUES_MAX + 1) + b"0]}"
    with within_memory(4 * len(content)), pytest.raises(UnreadableError) as caught:
        SMALLER_READERS[kind](content, "file.json")
    assert caught.value.message == "has more than 10,000,000 values"
    assert caught.value.remedy


@attack(Threat.EXHAUSTION, "more objects in a snapshot than a cluster has")
@pytest.mark.parametrize("nested", [False, True], ids=["one list", "lists in a list"])
def test_a_snapshot_has_a_limit_of_objects(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: ``OBJECTS_MAX`` in ``snapshot_items``."""
    monkeypatch.setattr(snapshot, "OBJECTS_MAX", 1_000)
    part = b'{"kind":"List","items":[%s]}' % b",".join([b'{"kind":"Secret"}'] * 500)
    inner = b",".join([part] * 3) if nested else b",".join([b'{"kind":"Secret"}'] * 1_500)
    with pytest.raises(UnreadableError, match="more than 1,000 objects"):
        read_snapshot(b'{"kind":"List","items":[%s]}' % inner, "s.json")


@attack(Threat.EXHAUSTION, "a trace of megabytes that unpacks to a billion blank lines")
@pytest.mark.parametrize(("head", "row"), [(HEADER, b""), (OPENB, POD)], ids=["ours", "openb"])
@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\r\n", b"\t"])
def test_blank_lines_of_a_trace_take_no_memory(head: bytes, row: bytes, blank: bytes) -> None:
    """Guard: ``_text_lines``. A list of the lines takes eight bytes for each blank one."""
    plain = head + blank * (16_000_000 // len(blank)) + b"\n" + row
    with within_memory(3 * len(plain)):
        assert len(read_trace(gzip.compress(plain, 1), "day.gz").pods) == bool(row)


@attack(Threat.EXHAUSTION, "a class of a trace with millions of containers")
def test_a_line_of_a_trace_has_a_limit() -> None:
    """Guard: ``OBJECT_BYTES_MAX`` in ``_text_lines``."""
    content = HEADER + CLASS % b"{}" + CLASS % b",".join([b"{}"] * 1_500_000)
    with within_memory(2 * len(content)), pytest.raises(UnreadableError) as caught:
        read_trace(content, "day.jsonl")
    assert str(caught.value.where) == "day.jsonl:3"
    assert caught.value.message == "has more than 4 MiB"


@attack(Threat.EXHAUSTION, "more classes, nodes or prices in a trace than it can have pods")
@pytest.mark.parametrize(
    "line",
    [
        '{"class":"c","spec":{}}\n',
        '{"at":1.0,"spotPrices":{}}\n',
        f"{NODE}\n",
    ],
)
def test_other_lines_of_a_trace_have_a_limit(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: the second ``_expect_within_limit`` in ``_parse_own_format``."""
    assert PODS_MAX == 2_000_000
    monkeypatch.setattr("reconciler.backtest.trace.PODS_MAX", 100)
    with pytest.raises(UnreadableError, match="more than 100 classes, nodes and prices"):
        read_trace(HEADER + line.encode() * 200, "day.jsonl")


UNREADABLE = {
    "quantity": {"nodeName": "n", "overhead": {"cpu": "much"}},
    "shape": 1,
}


@attack(Threat.EXHAUSTION, "thousands of objects in a snapshot that cannot be read")
@pytest.mark.parametrize("form", ["one line", "lines", "YAML"])
@pytest.mark.parametrize("spec", UNREADABLE.values(), ids=UNREADABLE)
def test_each_unreadable_object_is_located_from_the_one_before(spec: object, form: str) -> None:
    """Guard: ``SnapshotText``. From the beginning, 80,000 of them took three minutes."""
    count = 1_000 if form == "YAML" else 20_000
    items = [
        {"kind": "Pod", "metadata": {"name": f"a-{n}", "namespace": "shop"}, "spec": spec}
        for n in range(count)
    ]
    indent = 1 if form == "lines" else None
    text = json.dumps({"kind": "List", "items": items}, indent=indent)
    content = f"# YAML\n{text}" if form == "YAML" else text
    with soon():
        found = read_snapshot(content.encode(), "s.json").findings
    assert len(found) == count


def test_unreadable_objects_have_their_positions() -> None:
    head, part = '{"kind":"List","items":[', '{"kind":"Pod","metadata":{"name":"é%s"},"spec":1}'
    pods = [part.replace("%s", name) for name in "abc"]
    text = f"{head}{pods[0]}, {pods[1]},\n  {pods[2]},{pods[2]}]}}"
    found = read_snapshot(text.encode(), "s.json").findings
    column = len(head) + 1
    places = [finding.message.split(": ")[0] for finding in found]
    second = f"s.json:1:{column + len(pods[0]) + 2}"
    assert places == [f"s.json:1:{column}", second, "s.json:2:3", "s.json:2:3"]
