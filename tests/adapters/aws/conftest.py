"""What all tests of the AWS adapter need."""

from __future__ import annotations

import pytest
from botocore.retries.quota import RetryQuota

from reconciler.adapters.simulated.conditions import SimulatedClock


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """Let no test wait for botocore."""


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore allows a client so many repetitions in all, and tests share the dear clients."""
    monkeypatch.setattr(RetryQuota, "acquire", lambda *_: True)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()
