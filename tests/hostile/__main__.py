"""``python -m tests.hostile [pytest arguments]``: run every attack and print the verdicts.

``--document`` writes the lists of attacks of ``docs/security.md`` instead.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest

from tests.hostile import catalogue
from tests.hostile.threats import Threat


class Verdicts:
    """Collects what became of each attack."""

    def __init__(self) -> None:
        self.rows: dict[Threat, list[tuple[str, str]]] = defaultdict(list)
        self._attacks: dict[str, tuple[Threat, str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are marked as attacks."""
        marked = [(item, item.get_closest_marker("attack")) for item in items]
        for item, mark in marked:
            if mark is not None:
                threat, description = mark.args
                callspec = getattr(item, "callspec", None)
                case = f" ({callspec.id})" if callspec is not None else ""
                self._attacks[item.nodeid] = (threat, description + case)
        items[:] = [item for item, mark in marked if mark is not None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the verdict of one attack."""
        if report.passed and report.when != "call":
            return
        verdict = {"passed": "refused", "failed": "SUCCEEDED", "skipped": "not run"}[report.outcome]
        threat, description = self._attacks[report.nodeid]
        self.rows[threat].append((description, verdict))


def main(arguments: list[str]) -> int:
    """Run the attacks; return 0 when every one that ran was refused, and some ran."""
    if arguments == ["--document"]:
        catalogue.PAGE.write_text(catalogue.page(), encoding="utf-8")
        return 0
    verdicts = Verdicts()
    code = pytest.main(["-q", "-n", "0", "-m", "", *(arguments or ["tests"])], plugins=[verdicts])
    found = [verdict for rows in verdicts.rows.values() for _, verdict in rows]
    for threat in Threat:
        print(f"\n{threat.value}")
        for description, verdict in verdicts.rows[threat]:
            print(f"  {verdict:<9}  {description}")
    failed, skipped = found.count("SUCCEEDED"), found.count("not run")
    print(f"\n{len(found) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return int(code) or int(not found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
