"""Options of the tests.

``--hypothesis-profile=thorough`` lets the histories of ``tests/simulated/test_stateful.py`` be a
hundred times as many.
"""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from hypothesis import settings

settings.register_profile("thorough", max_examples=100 * settings().max_examples)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the code says now into the golden files, for review",
    )


def pytest_configure() -> None:
    if shutil.which("git") is None:
        pytest.exit("git is not installed, or not on PATH: the tests need it", returncode=1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore's own retries wait on the machine's clock; the tests do not."""
    import botocore.endpoint

    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
