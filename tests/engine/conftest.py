"""What all tests of the engine need."""

from __future__ import annotations

from types import SimpleNamespace

import botocore.endpoint
import pytest


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore's own retries wait on the machine's clock; the tests do not."""
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
