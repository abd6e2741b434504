"""Fixtures of all tests of the AWS adapter."""

from __future__ import annotations

import pytest
from botocore.retries.quota import RetryQuota

from reconciler.adapters.simulated.conditions import SimulatedClock


@pytest.fixture(autouse=True)
def _impatient(without_retry_pauses: None) -> None:
    """Disable the retry delays of botocore."""


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore limits the total retries of a client, and tests share clients."""
    monkeypatch.setattr(RetryQuota, "acquire", lambda *_: True)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()
