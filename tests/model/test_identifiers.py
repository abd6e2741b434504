"""Identifiers of git as texts show them."""

from __future__ import annotations

import pytest

from reconciler.model.text.identifiers import name_revision, short_commit

SHA_1, SHA_256 = "a1" * 20, "a1" * 32


@pytest.mark.parametrize(
    ("commit", "shown"),
    [
        (SHA_1, "a1a1a1a1"),
        (SHA_256, "a1a1a1a1"),
        (f"{SHA_1}+{SHA_256}", "a1a1a1a1 (dirty)"),
        (f"tree-{SHA_256}", "files a1a1a1a1"),
        ("the working tree", "the working tree"),
        ("tree-house", "tree-house"),
    ],
)
def test_only_a_commit_and_a_digest_of_files_are_abbreviated(commit: str, shown: str) -> None:
    assert short_commit(commit) == shown


@pytest.mark.parametrize(
    ("revision", "named"),
    [
        (SHA_1, "commit a1a1a1a1"),
        (f"{SHA_1}+{SHA_256}", "commit a1a1a1a1 (dirty)"),
        (f"tree-{SHA_256}", "files a1a1a1a1"),
    ],
)
def test_a_revision_outside_git_is_not_called_a_commit(revision: str, named: str) -> None:
    assert name_revision(revision) == named
