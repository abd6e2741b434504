"""Identifiers of git as texts show them."""

from __future__ import annotations

import pytest

from reconciler.model.text.identifiers import short_commit


@pytest.mark.parametrize(
    ("commit", "shown"),
    [("a1" * 20, "a1a1a1a1"), ("a1" * 32, "a1a1a1a1"), ("the working tree", "the working tree")],
)
def test_only_a_commit_is_abbreviated(commit: str, shown: str) -> None:
    assert short_commit(commit) == shown
