"""The schemas of CustomResourceDefinitions are not read; everything else keeps its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.source.definitions import without_schemas
from reconciler.source.document import parse_documents
from tests.examples import examples

NAMED = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
SPEC = "spec:\n  group: example.com\n  versions:\n\n  # a comment\n  - name: v1\n"
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\nspec:\n  kept: true\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(NAMED + SPEC, 2 + 1, id="at the end"),
        pytest.param(SPEC + NAMED, 2 + 1, id="at the start"),
        pytest.param(NAMED + SPEC + "status: {}\n", 2 + 2, id="before another field"),
        pytest.param((NAMED + SPEC).replace("\n", "\r\n"), 2 + 1, id="line ends of Windows"),
        pytest.param(OTHER, 5, id="no definition"),
        pytest.param(OTHER.replace("b}", "CustomResourceDefinition}"), 5, id="only the word"),
        pytest.param(NAMED + "spec: {group: example.com}\n", 3, id="on one line"),
        pytest.param("data:\n  x: |\n    " + NAMED.replace("\n", "\n    "), 4, id="inside a text"),
    ],
)
def test_only_the_schema_of_a_definition_is_left_out(text: str, lines: int) -> None:
    lean = without_schemas(text)
    assert lean.count("\n") == text.count("\n")
    assert len([line for line in lean.splitlines() if line.strip()]) == lines


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.sampled_from([NAMED + SPEC, OTHER, NAMED, "---\n", "# end\n"]), max_size=6))
def test_other_documents_keep_their_content_and_their_places(parts: list[str]) -> None:
    text = "---\n".join(parts)
    found, findings = parse_documents("x.yaml", text.encode())
    kept = [d for d in found if d.data.get("kind") == "ConfigMap"]
    lines = [n + 1 for n, line in enumerate(text.splitlines()) if line == "  kept: true"]
    if not findings:
        assert [d.place(("spec", "kept")).line for d in kept] == lines
        assert all(d.data["spec"] == {"kept": True} for d in kept)
