"""Where the conformance tables are: recorded answers that pure functions must give.

The folder is named by ``CONFORMANCE_TABLES``; without it, the one that lies beside the checkout
while the project is developed. Where neither is there, the tests of tables are skipped.
"""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "conformance" / "tables"


def table(name: str) -> Any:
    """Return the content of a table, or an empty one where the folder does not have it."""
    path = Path(os.environ.get("CONFORMANCE_TABLES") or _BESIDE) / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def cases(name: str, *, without: Collection[str] = ()) -> list[Any]:
    """Return the cases of a table, for ``pytest.mark.parametrize``, each known by its name.

    Those of the kinds ``without`` are left out.
    """
    rows = table(name).get("cases", [])
    return [pytest.param(row, id=row["name"]) for row in rows if row.get("kind") not in without]
