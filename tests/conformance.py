"""Run the recorded scenarios through the command line, and check the number that pass.

``python -m tests.conformance`` runs every visible scenario. The floor in
``tests/conformance.floor.json`` may only rise: fewer passes are a failure, more require a
higher floor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance")
FLOOR = Path(__file__).with_name("conformance.floor.json")
ROW = re.compile(r"^(\w[\w-]*)\s+(\d+) of (\d+)$", re.MULTILINE)


def main() -> int:
    """Return 0 when every group passes at minimum as many scenarios as its floor."""
    if not FOLDER.is_dir():
        print(f"no scenarios at {FOLDER}: nothing to check")
        return 0
    cli = f"{sys.executable} -m reconciler"
    command = [sys.executable, str(FOLDER / "run.py"), "--cli", cli, "--jobs", "2", *sys.argv[1:]]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    print(result.stdout)
    print(result.stderr, file=sys.stderr)
    passed = {group: int(good) for group, good, _ in ROW.findall(result.stdout)}
    floor: dict[str, int] = json.loads(FLOOR.read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        return result.returncode
    regressed = {g: n for g, n in floor.items() if passed.get(g, 0) < n}
    for group, minimum in regressed.items():
        print(f"{group}: {passed.get(group, 0)} scenarios pass, the floor is {minimum}")
    for group, count in sorted(passed.items()):
        if count > floor.get(group, 0):
            print(f"{group}: {count} scenarios pass; raise its floor in {FLOOR.name}")
    print(f"{sum(passed.values())} passed, {len(regressed)} failed")
    return 1 if regressed else 0


if __name__ == "__main__":
    sys.exit(main())
