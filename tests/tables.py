"""The conformance tables: recorded answers that pure functions must return.

``CONFORMANCE_TABLES`` names the folder; by default it is the one beside the checkout. If there is
none, the tests of tables are skipped.
"""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "conformance" / "tables"


def table(name: str) -> Any:
    """Return the content of a table, empty if the folder does not have it."""
    path = Path(os.environ.get("CONFORMANCE_TABLES") or _BESIDE) / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def cases(name: str, *, without: Collection[str] = ()) -> list[Any]:
    """Return the cases of a table, for ``pytest.mark.parametrize``, each with its name as id.

    Those of the kinds ``without`` are left out.
    """
    rows = table(name).get("cases", [])
    return [pytest.param(row, id=row["name"]) for row in rows if row.get("kind") not in without]


def fixture_cases(folder: str, name: str, kind: str) -> list[Any]:
    """Return the cases of a kind from a table in ``tests/fixtures``, each with its name as id."""
    path = Path(__file__).parent / "fixtures" / folder / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(row, id=row["name"]) for row in rows if row["kind"] == kind]
