"""Fixtures of all tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconciler.assembly.account import connections
from tests.cli.test_end_to_end import shop  # noqa: F401 - a fixture of several modules


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    """Close the clients of a test at its end: each test has another endpoint."""
    yield
    connections.cache_clear()
