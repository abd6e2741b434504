"""Fixtures of all tests of the engine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """Disable the retry delays of botocore."""
