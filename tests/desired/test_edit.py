"""One value or key of a file changes; comments, quotes and layout of all the rest stay."""

from difflib import ndiff
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.source.document import parse_documents
from reconciler.source.edit import BYTES_MAX, EditError, rename_key, set_value
from tests.examples import examples

TEXT = """\
# who: platform team
apiVersion: karpenter.sh/v1 # the newest
kind: NodePool
metadata:
    name: web   # as in DNS
    labels: {a: "on", b: 1_000,  c: 017}
spec:
  weight:   10


  # where nodes come from
  template:
     spec:
       requirements:
       - key: "team"   # ours
         operator: In
         values: ["x",   'y']
       - {key: b, operator: Exists}
  limits:
    cpu: 1e3

# what follows is tried out
---
---
a: &a {b: 1}
c: *a
d: |
   text
     more
e: [nginx:1.25, what?]
"""


def changed(before: str, after: str) -> list[str]:
    lines = ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("pointer", "value", "lines"),
    [
        (("spec", "weight"), 20, ["-   weight:   10", "+   weight: 20"]),
        (
            ("apiVersion",),
            "karpenter.sh/v2",
            [
                "- apiVersion: karpenter.sh/v1 # the newest",
                "+ apiVersion: karpenter.sh/v2 # the newest",
            ],
        ),
        (
            ("spec", "template", "spec", "requirements", 0, "key"),
            "crew",
            ['-        - key: "team"   # ours', '+        - key: "crew"   # ours'],
        ),
        (
            ("spec", "template", "spec", "requirements", 1, "key"),
            "on",
            ["-        - {key: b, operator: Exists}", '+        - {key: "on", operator: Exists}'],
        ),
        (("spec", "limits", "memory"), "1Ti", ["+     memory: 1Ti"]),
        (("spec", "limits", "memory"), "5", ['+     memory: "5"']),
        (("spec", "replicas"), None, ["+   replicas: null"]),
        (
            ("spec", "template", "spec", "taints"),
            [{"key": "a", "effect": "NoSchedule"}],
            ["+        taints:", "+        - key: a", "+          effect: NoSchedule"],
        ),
        (
            ("metadata", "annotations", "a.b/c"),
            "no",
            ["+     annotations:", '+       a.b/c: "no"'],
        ),
    ],
)  # fmt: skip
def test_only_the_lines_of_a_value_change(
    pointer: tuple[Any, ...], value: Any, lines: list[str]
) -> None:
    after = set_value(TEXT, pointer, value)

    assert [" ".join(x.split()) for x in changed(TEXT, after)] == [
        " ".join(x.split()) for x in lines
    ]
    assert value_at(after, pointer) == value


def value_at(text: str, pointer: tuple[Any, ...], document: int = 0) -> Any:
    documents, findings = parse_documents("f.yaml", text.encode())
    assert findings == []
    data = documents[document].data
    for step in pointer:
        data = data[step]
    return data


def test_a_key_is_renamed_in_its_place() -> None:
    after = rename_key(TEXT, ("spec", "template", "spec", "requirements", 0, "key"), "label")

    assert [" ".join(x.split()) for x in changed(TEXT, after)] == [
        '- - key: "team" # ours',
        '+ - label: "team" # ours',
    ]


def test_a_later_document_is_meant_by_its_number_among_those_with_content() -> None:
    after = set_value(TEXT, ("e", 0), "nginx:1.26", document=1)

    assert value_at(after, ("e",), 1) == ["nginx:1.26", "what?"]
    assert changed(TEXT, after) == ["- e: [nginx:1.25, what?]", "+ e: [nginx:1.26, what?]"]


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_line_ends_and_the_mark_of_a_file_stay(end: str) -> None:
    text = "\ufeff" + "a: 1 # x\nb: 2".replace("\n", end)

    assert set_value(text, ("b",), 3) == text.replace("2", "3") + end
    assert set_value(text, ("a",), 3).startswith("\ufeffa: 3 # x" + end)


def test_json_stays_json() -> None:
    text = '{\n    "a": {"b": 1},\n    "c": "é"\n}\n'

    after = set_value(text, ("c",), True)

    assert after == '{\n    "a": {\n        "b": 1\n    },\n    "c": true\n}\n'


@pytest.mark.parametrize(
    ("text", "pointer", "why"),
    [
        (TEXT.partition("---\n---\n")[2], ("c", "b"), "shared through an alias"),
        (TEXT.partition("---\n---\n")[2], ("a", "b"), "shared through an alias"),
        ("a: [", ("a",), "not read without errors"),
        ("a: 1\na: 2", ("a",), "not read without errors"),
        ("a: 1", ("a", "b"), "does not exist"),
        ("a: []", ("a", 3), "does not exist"),
        ("a: " + "x" * BYTES_MAX, ("a",), "more than 1 MiB"),
        ("", ("a",), "does not exist"),
    ],
)
def test_what_cannot_be_edited_alone_is_not_edited(
    text: str, pointer: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(EditError, match=why):
        set_value(text, pointer, 5)


def test_a_key_is_not_renamed_to_one_that_is_there() -> None:
    with pytest.raises(EditError, match="there is a field b already"):
        rename_key("a: 1\nb: 2\n", ("a",), "b")


SCALARS = st.one_of(st.text(max_size=12), st.integers(-5, 5), st.booleans(), st.none())


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from([("spec", "weight"), ("spec", "new"), ("metadata", "labels", "b"), ("kind",)]),
    st.one_of(
        SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=5), SCALARS)
    ),
)
def test_any_value_is_read_back_and_nothing_else_changes(
    pointer: tuple[Any, ...], value: Any
) -> None:
    try:
        after = set_value(TEXT, pointer, value)
    except EditError:
        assert not str(value).isprintable() or "\ufeff" in str(value)
        return
    assert value_at(after, pointer) == value
    assert set_value(after, pointer, value_at(TEXT, ("spec", "weight"))) is not None
    for line in (
        "# who: platform team",
        "  # where nodes come from",
        "# what follows is tried out",
    ):
        assert line in after.splitlines()
