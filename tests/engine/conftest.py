"""What all tests of the engine need."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """Let no test wait for botocore."""
