from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.kubernetes.sandbox import Sandbox, a_node, a_sandbox


@pytest.fixture
def sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Sandbox]:
    """A cluster with one node, which is ours; with the parameter ``cached`` through a cache."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    has_cache = getattr(request, "param", "") == "cached"
    with a_sandbox(tmp_path, a_node(), has_cache=has_cache) as made:
        yield made
