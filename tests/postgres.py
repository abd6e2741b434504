"""A PostgreSQL of our own, from the package ``pgserver``: one for a test process, gone with it."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _server() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR, which a CI job has not
        import pgserver

        folder = Path(tempfile.mkdtemp(prefix="reconciler-pg-"))
        return pgserver.get_server(folder, cleanup_mode="delete")


def a_database() -> str:
    """Return the URL of a new, empty database."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    uri = _server().get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(_server().get_uri(database=name)).replace("postgresql://", "postgresql+psycopg://")
