from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.errors import UnreadableError
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import read_snapshot
from tests.completeobjects import KINDS, as_list, complete_object, paths, replaced


def a_list(*items: dict[str, Any]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}).encode()


def an_object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def test_objects_are_sorted_by_name() -> None:
    pods = [an_object("Pod", name) for name in ("b", "c", "a")]
    forwards = read_snapshot(a_list(*pods), "s")
    backwards = read_snapshot(a_list(*reversed(pods)), "s")
    assert [p.metadata.name for p in forwards.pods] == ["a", "b", "c"]
    assert forwards == backwards


def test_lists_of_lists_and_several_documents_are_one_snapshot() -> None:
    inner = {"apiVersion": "v1", "kind": "PodList", "items": [an_object("Pod", "a")]}
    nested = read_snapshot(a_list(inner, an_object("Node", "n")), "s")
    text = "kind: Pod\nmetadata: {name: a}\n---\nkind: Node\nmetadata: {name: n}\n"
    assert nested == read_snapshot(text.encode(), "s")


def test_unused_kinds_are_counted_and_live_objects_kept_separate() -> None:
    snapshot = read_snapshot(
        a_list(an_object("ConfigMap", "s"), an_object("Secret", "t"), an_object("NodePool", "p")),
        "s",
    )
    assert snapshot.skipped == {"Secret": 1, "ConfigMap": 1}
    assert [o["metadata"]["name"] for o in snapshot.live] == ["p"]


def test_a_null_field_counts_as_absent() -> None:
    snapshot = read_snapshot(a_list(an_object("Pod", "a", spec={"containers": None})), "s")
    assert snapshot.pods[0].spec.containers == ()


PRETTY = """{
  "kind": "List",
  "items": [
    {"kind": "Node", "metadata": {"name": "n"}},
    {"kind": "Pod", "metadata": {"namespace": "shop", "name": "wéb"},
     "spec": {"containers": [{"name": "c", "image": "i", "resources": 5}]}}
  ]
}
"""
YAML = """kind: Node
metadata: {name: n}
---
kind: Pod
metadata: {name: web}
spec: {containers: none}
"""


@pytest.mark.parametrize(
    ("content", "where", "says"),
    [
        (b"", "", "the snapshot is empty"),
        (b"   \n", "", "the snapshot is empty"),
        (b'{"kind": "List", "items": [', ":1:28", "not a snapshot: Input data was truncated"),
        (b'\n{"kind": "List",\n "items": [}]}', ":3:12", "not a snapshot: JSON is malformed: "),
        (b'{"kind": "List", "items": 5}', "", "items is a whole number, not a list or nothing"),
        (b"- just\n- a list\n", "", "not a snapshot: document 1 is not an object"),
        (b"kind: Pod\n---\n5\n", "", "not a snapshot: document 2 is not an object"),
        (b"\x1f\x8b\x08\x00", "", "the snapshot is compressed with gzip"),
        ('{"kind": "List"}'.encode("utf-16"), "", "the snapshot is UTF-16"),
        (b"a: \xc7", "", "neither JSON nor YAML: byte 0xc7 is not UTF-8"),
        (
            b'{"kind": "List", "items": [\n{"kind": "Pod", "metadata": {"name": "a\x80"}}]}',
            ":2:40",
            "not a snapshot: byte 0x80 is not UTF-8",
        ),
        (b"?", ":1:2", "neither JSON nor YAML: a key must be a string, not null"),
        (b"a: [1, 2", ":2:1", "neither JSON nor YAML: did not find expected ',' or ']'"),
        (b"a: 1\nb: {c\n]", ":3:1", "neither JSON nor YAML: "),
        (
            a_list({"kind": 5}),
            ":1:48",
            "item 1 is not a Kubernetes object: kind is a whole number, not text",
        ),
    ],
)
def test_an_invalid_snapshot_is_rejected_with_the_position(
    content: bytes, where: str, says: str
) -> None:
    for read in (read_snapshot, SnapshotReader().read):
        with pytest.raises(UnreadableError) as caught:
            read(content, "cluster.json")
        assert caught.value.where == f"cluster.json{where}"
        assert says in caught.value.message
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "where", "says"),
    [
        (a_list({"kind": "Node"}), ":1:48", "item 1, Node: metadata is missing"),
        (
            a_list(an_object("Pod", "web", spec={"containers": "none"})),
            ":1:48",
            "item 1, Pod web: spec.containers is text, not a list",
        ),
        (
            a_list(
                an_object("Pod", "a"), an_object("Node", "n", spec={"taints": [{"effect": "X"}]})
            ),
            ":1:112",
            "item 2, Node n: spec.taints[0].key is missing",
        ),
        (
            PRETTY.encode(),
            ":5:5",
            "item 2, Pod shop/wéb: spec.containers[0].resources is a whole number, not an object",
        ),
        (YAML.encode(), "", "item 2, Pod web: spec.containers is text, not a list"),
        (
            a_list(an_object("NodeClaim", "c", spec={"expireAfter": "soon"})),
            ":1:48",
            'NodeClaim c: invalid duration "soon"',
        ),
    ],
)
def test_an_object_of_another_shape_is_named_with_its_position_and_stops_nothing(
    content: bytes, where: str, says: str
) -> None:
    for read in (read_snapshot, SnapshotReader().read):
        (finding,) = read(content, "cluster.json").findings
        assert finding.code == "unreadable-object"
        assert finding.message.startswith(f"cluster.json{where}: {says}")


ODD = [5, "x", None, True, [], {}, [None], {"a": 1}, 10**30, "9" * 400]


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_value_in_any_field_of_any_kind_stops_nothing(kind: str) -> None:
    whole = complete_object(kind)
    assert not read_snapshot(as_list(whole), "s").findings
    changed = [
        replaced(whole, path, ODD[number % len(ODD)])
        for number, path in enumerate(paths(whole))
        if path != ("kind",)
    ]
    other = an_object("Namespace", "other")
    found = read_snapshot(as_list(*changed, other), "s")
    assert "other" in [item.metadata.name for item in found.namespaces]
    assert all(finding.code == "unreadable-object" for finding in found.findings)
    assert not any("Expected `" in finding.message for finding in found.findings)


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_damaged_snapshot_is_a_snapshot_or_an_error(kind: str, at: int, noise: bytes) -> None:
    content = as_list(an_object(kind, "a"))
    place = at % len(content)
    expect_snapshot_or_place(content[:place] + noise + content[place + len(noise) :])


@given(st.binary(max_size=300))
def test_any_bytes_give_a_snapshot_or_an_error(content: bytes) -> None:
    expect_snapshot_or_place(content)


def expect_snapshot_or_place(content: bytes) -> None:
    """Expect that an error is one line that names the file, and a place in it if it names one."""
    try:
        found = read_snapshot(content, "s")
    except UnreadableError as error:
        messages = [str(error)]
    else:
        messages = [finding.message for finding in found.findings]
        assert all(finding.code for finding in found.findings)
    for message in messages:
        place = re.match(r"s(?::(\d+)(?::(\d+))?)?: .", message)
        assert place is not None, message
        assert len(message.splitlines()) == 1, message
        if place[1] is not None:
            breaks = re.findall(rb"\r\n|[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9]", content)
            # what is missing at the end of the text is missed on the line after it
            assert 1 <= int(place[1]) <= len(breaks) + 2, message
        if place[2] is not None:
            assert 1 <= int(place[2]) <= len(content) + 1, message
