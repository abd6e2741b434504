"""Edits of fields in YAML text: what is not edited keeps every byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.source.document import parse_documents
from reconciler.source.edit import (
    AddItem,
    FieldEdit,
    RemoveItem,
    SetField,
    apply_edits,
    format_value,
)
from reconciler.source.rewrite import RewriteError

POOL = """\
# the pool of the shop
kind: NodePool
spec:
  template:
    spec:
      requirements:
        - key: kubernetes.io/arch   # one architecture
          operator: In
          values: [amd64]   # for now
        - key: karpenter.sh/capacity-type
          operator: In
          values:
            - "on-demand"  # paid by the hour
        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["4"]}
  disruption:
    consolidationPolicy: 'WhenEmpty'
    # nobody is awake at night
    budgets: [{nodes: "10%"}]

# the end
---
kind: Other
"""
GENERATION = '{key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["4"]}'
ROWS = ("spec", "template", "spec", "requirements")


def apply(text: str, *edits: FieldEdit) -> str:
    documents, _ = parse_documents("pool.yaml", text.encode())
    return apply_edits(text.encode(), documents[0], edits).decode()


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (AddItem((*ROWS, 0, "values"), "arm64"), "[amd64]", "[amd64, arm64]"),
        (
            AddItem((*ROWS, 1, "values"), "spot"),
            '            - "on-demand"  # paid by the hour\n',
            '            - "on-demand"  # paid by the hour\n            - spot\n',
        ),
        (SetField((*ROWS, 2, "values", 0), "6"), '["4"]', '["6"]'),
        (
            SetField(("spec", "disruption", "consolidationPolicy"), "WhenEmptyOrUnderutilized"),
            "'WhenEmpty'",
            "'WhenEmptyOrUnderutilized'",
        ),
        (
            SetField(("spec", "disruption", "consolidateAfter"), "5m"),
            '    budgets: [{nodes: "10%"}]\n',
            '    budgets: [{nodes: "10%"}]\n    consolidateAfter: 5m\n',
        ),
        (SetField(("spec", "disruption", "budgets", 0, "nodes"), "20%"), '"10%"', '"20%"'),
        (
            RemoveItem((*ROWS, 2)),
            '        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["4"]}\n',
            "",
        ),
        (
            AddItem(ROWS, {"key": "a.b/c", "operator": "In", "values": ["1", "x"]}),
            ' values: ["4"]}\n',
            ' values: ["4"]}\n        - {key: a.b/c, operator: In, values: ["1", x]}\n',
        ),
    ],
    ids=["flow-item", "block-item", "in-list", "scalar", "new-field", "nested", "remove", "map"],
)
def test_an_edit_changes_nothing_else(edit: FieldEdit, old: str, new: str) -> None:
    assert POOL.count(old) == 1
    assert apply(POOL, edit) == POOL.replace(old, new)
    windows = POOL.replace("\n", "\r\n")
    assert apply(windows, edit) == POOL.replace(old, new).replace("\n", "\r\n")


def test_several_edits_follow_each_other() -> None:
    result = apply(
        POOL,
        RemoveItem((*ROWS, 0)),
        AddItem((*ROWS, 0, "values"), "spot"),
        SetField(("spec", "disruption", "consolidateAfter"), "5m"),
        SetField(("spec", "disruption", "consolidateAfter"), "10m"),
    )
    documents, findings = parse_documents("pool.yaml", result.encode())
    spec = documents[0].data["spec"]
    assert not findings
    assert spec["template"]["spec"]["requirements"][0]["key"] == "karpenter.sh/capacity-type"
    assert spec["template"]["spec"]["requirements"][0]["values"] == ["on-demand", "spot"]
    assert spec["disruption"]["consolidateAfter"] == "10m"
    assert documents[1].data == {"kind": "Other"}
    assert "# the end" in result


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("a: &x [1]\nb: *x\n", AddItem(("a",), 2)),
        ("a: [1]\n", RemoveItem(("a", 0))),
        ("a: []\n", AddItem(("a",), 1)),
        ("a:\n  b: |\n    text\n", SetField(("a", "c"), 1)),
        ("a: 1\n", SetField(("x", "y"), 1)),
        ("a: {}\n", SetField(("a", "y"), 1)),
        ("a: 1\n", AddItem(("a",), 1)),
    ],
    ids=["alias", "only-item", "empty-list", "block-text", "no-parent", "empty-map", "no-list"],
)
def test_values_that_cannot_be_edited_separately_are_rejected(text: str, edit: FieldEdit) -> None:
    with pytest.raises(RewriteError):
        apply(text, edit)


words = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=12)


@given(words)
@settings(max_examples=150, deadline=None)
def test_any_text_is_written_so_that_it_can_be_read_back(word: str) -> None:
    for text in (f"a: {format_value(word)}\n", f"a: [{format_value([word])}, 1]\n"):
        (document,), findings = parse_documents("x.yaml", text.encode())
        assert not findings
        assert document.data["a"] in (word, [[word], 1])
