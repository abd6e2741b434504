from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.kubernetes.town import Town, a_node, a_town


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A cluster with one node, which is ours."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with a_town(tmp_path, a_node()) as made:
        yield made
