"""Run the recorded scenarios through the command line, and check the number that pass.

``python -m tests.conformance`` runs every visible scenario, and compares the binder with the
recorded decisions of kube-scheduler (the group ``scheduler``, which can also be run alone). The
floor in ``tests/conformance.floor.json`` may only rise: fewer passes are a failure, more require a
higher floor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.commandserver import command_server

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance")
FLOOR = Path(__file__).with_name("conformance.floor.json")
SCHEDULER = "scheduler"
DECISIONS = re.compile(r"^(\d+) of \d+ decisions right", re.MULTILINE)
ROW = re.compile(r"^(\w[\w-]*)\s+(\d+) of (\d+)$", re.MULTILINE)


def judge_scheduler() -> tuple[int, bool]:
    """Return how many recorded decisions of kube-scheduler are right, and whether all is well.

    The judge allows no node that the filters exclude, and few nodes more or fewer in sequences.
    """
    folder = FOLDER / "scheduler"
    files = [str(path) for path in sorted(folder.glob("*.json.gz"))]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as answers:
        answer = [sys.executable, "-m", "benchmarks.scheduler", *files]
        subprocess.run(answer, check=True, stdout=answers, cwd=ROOT)
        judge = [sys.executable, str(folder / "judge.py"), *files, "--answers", answers.name]
        result = subprocess.run(judge, check=False, capture_output=True, text=True)
    print(result.stdout)
    found = DECISIONS.search(result.stdout)
    return int(found[1]) if found is not None else 0, result.returncode == 0


def main() -> int:
    """Return 0 when every group passes at minimum as many scenarios as its floor."""
    if not FOLDER.is_dir():
        print(f"no scenarios at {FOLDER}: nothing to check")
        return 0
    if sys.argv[1:] == [SCHEDULER]:
        return _report({}, only=SCHEDULER)
    example = ["plan", str(ROOT / "examples" / "web"), "--set", "cluster=none", "-o", "json"]
    with command_server(example) as cli:
        command = [sys.executable, str(FOLDER / "run.py"), "--cli", cli, "--jobs", "2"]
        command += sys.argv[1:]
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    print(result.stdout)
    print(result.stderr, file=sys.stderr)
    if len(sys.argv) > 1:
        return result.returncode
    return _report({group: int(good) for group, good, _ in ROW.findall(result.stdout)})


def _report(passed: dict[str, int], only: str = "") -> int:
    """Compare the passes of each group with its floor; return 0 if none has fewer."""
    passed[SCHEDULER], is_close = judge_scheduler()
    floor: dict[str, int] = json.loads(FLOOR.read_text(encoding="utf-8"))
    floor = {group: minimum for group, minimum in floor.items() if only in ("", group)}
    regressed = {g: n for g, n in floor.items() if passed.get(g, 0) < n}
    for group, minimum in regressed.items():
        print(f"{group}: {passed.get(group, 0)} scenarios pass, the floor is {minimum}")
    for group, count in sorted(passed.items()):
        if count > floor.get(group, 0):
            print(f"{group}: {count} scenarios pass; raise its floor in {FLOOR.name}")
    print(f"{sum(passed.values())} passed, {len(regressed)} failed")
    return 1 if regressed or not is_close else 0


if __name__ == "__main__":
    sys.exit(main())
