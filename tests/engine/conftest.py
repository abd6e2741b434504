"""Fixtures of all tests of the engine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _impatient(without_retry_pauses: None) -> None:
    """Disable the retry delays of botocore."""
