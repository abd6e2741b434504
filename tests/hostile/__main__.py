"""``python -m tests.hostile [pytest arguments]``: run every attack and print the verdicts.

``--list`` prints every attack and its test instead. ``--document`` writes the table of threats into
``docs/security.md``.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest

from tests.hostile import catalogue
from tests.hostile.threats import PROPERTY, Threat

# Of the report of a failed test, what is printed again below the verdicts.
LAST_CHARACTERS = 3000


class Verdicts:
    """Collects the verdict on each attack from the reports of all workers.

    ``failures`` has each failed test with the end of its report, for a reader of the last lines.
    """

    def __init__(self) -> None:
        self.rows: dict[Threat, list[tuple[str, str]]] = defaultdict(list)
        self.failures: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the verdict of one attack."""
        if report.failed:
            self.failures.append((report.nodeid, report.longreprtext[-LAST_CHARACTERS:]))
        if report.passed and report.when != "call":
            return
        verdict = {"passed": "refused", "failed": "SUCCEEDED", "skipped": "not run"}[report.outcome]
        for name, value in report.user_properties:
            if name == PROPERTY:
                threat, _, description = str(value).partition(": ")
                self.rows[Threat[threat]].append((description, verdict))


def main(arguments: list[str]) -> int:
    """Run the attacks; return 0 when every one that ran was refused, and some ran."""
    if arguments == ["--document"]:
        catalogue.PAGE.write_text(catalogue.page(), encoding="utf-8")
        return 0
    if arguments == ["--list"]:
        print(*catalogue.listing(), sep="\n")
        return 0
    verdicts = Verdicts()
    options = ["-q", "-n", "auto", "-m", "attack"]
    code = pytest.main([*options, *(arguments or ["tests"])], plugins=[verdicts])
    found = [verdict for rows in verdicts.rows.values() for _, verdict in rows]
    for threat in Threat:
        print(f"\n{threat.value}")
        for description, verdict in sorted(verdicts.rows[threat]):
            print(f"  {verdict:<9}  {description}")
    failed, skipped = found.count("SUCCEEDED"), found.count("not run")
    for test, error in verdicts.failures:
        print(f"\nFAILED {test}\n{error}")
    print(f"\n{len(found) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return int(code) or int(not found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
