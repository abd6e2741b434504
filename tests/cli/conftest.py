"""What all tests of the command line need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconciler.cli.wiring.account import connections


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    """Let the clients of a test end with it: each test has an endpoint of its own."""
    yield
    connections.cache_clear()
