"""Reading again gives what reading gives, and the same values for the same text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.errors import UnreadableError
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import read_snapshot
from tests.examples import examples


def _pod(name: str, node: str = "") -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node}}


def _text(*items: dict[str, Any]) -> bytes:
    return json.dumps({"kind": "List", "items": items}).encode()


_objects = st.lists(
    st.one_of(
        st.builds(_pod, st.sampled_from("abc"), st.sampled_from(["", "n"])),
        st.sampled_from(
            [
                {"kind": "Node", "metadata": {"name": "n"}},
                {"kind": "Service", "metadata": {"name": "s"}},
                {"kind": "NodePool", "metadata": {"name": "p"}, "spec": {"weight": 1}},
            ]
        ),
    ),
    max_size=5,
)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(_objects, max_size=4))
def test_each_observation_equals_that_of_a_new_reader(looks: list[list[Any]]) -> None:
    reader = SnapshotReader()

    for look in looks:
        assert reader.read(_text(*look), "x") == read_snapshot(_text(*look), "x")


def test_nothing_changed_is_the_very_same_snapshot() -> None:
    reader = SnapshotReader()

    assert reader.read(_text(_pod("a")), "x") is reader.read(_text(_pod("a")), "x")


def test_only_changed_objects_are_new_values() -> None:
    reader = SnapshotReader()
    before = reader.read(_text(_pod("a"), _pod("b")), "x").pods

    after = reader.read(_text(_pod("a"), _pod("b", "n1"), _pod("c")), "x").pods

    assert [pod.metadata.name for pod in after] == ["a", "b", "c"]
    assert after[0] is before[0]
    assert after[1].spec.node_name == "n1"


def test_an_unreadable_answer_keeps_the_last_observation() -> None:
    reader = SnapshotReader()
    before = reader.read(_text(_pod("a")), "x")

    with pytest.raises(UnreadableError):
        reader.read(_text(_pod("a"), {"kind": 7, "metadata": {}}), "x")

    assert reader.read(_text(_pod("a")), "x") is before


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(_objects, max_size=3))
def test_lists_with_items_without_a_kind_are_equivalent(looks: list[list[Any]]) -> None:
    reader = SnapshotReader()
    for look in looks:
        lists = []
        for kind in ("Node", "Service", "Pod"):
            items = [{k: v for k, v in o.items() if k != "kind"} for o in look if o["kind"] == kind]
            lists.append((f"GET {kind}", kind, [json.dumps(item).encode() for item in items]))
        alike = [o for o in look if o["kind"] != "NodePool"]
        assert reader.read_lists(lists) == read_snapshot(_text(*alike), "x")


def test_an_unreadable_list_item_is_named_with_its_list() -> None:
    broken = json.dumps({"metadata": {"name": "a", "namespace": "shop"}, "spec": 7}).encode()
    seen = SnapshotReader().read_lists(
        [("GET /api/v1/pods", "Pod", [json.dumps(_pod("b")).encode(), broken])]
    )
    assert [pod.metadata.name for pod in seen.pods] == ["b"]
    [finding] = seen.findings
    assert finding.message.startswith("GET /api/v1/pods: item 2, Pod shop/a: ")
