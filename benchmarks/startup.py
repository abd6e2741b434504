"""The start-up time of the command line, as multiples of an empty Python.

``python benchmarks/startup.py [FOLDER]`` prints the limits of ``docs/decisions/0001-start-fast.md``
beside the measured times, and the time of the imported libraries. Time is processor time of
complete processes, the minimum of many runs, so that other work on the machine has little effect.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 15
NOW = "2026-03-04T12:00:00Z"
LIMITS = {"--version": 3, "validate": 25, "plan": 30}
COMPILED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled once, as in an installation."""
LIBRARIES = (
    *("argparse", "msgspec", "ruamel.yaml", "jsonschema", "tomli_w", "networkx"),
    *("boto3", "sqlalchemy", "cel"),
)


def measured_commands(folder: str) -> dict[str, list[str]]:
    """Return the measured commands by name; the first is the unit."""
    ours = ["-m", "reconciler"]
    return {
        "pass": ["-c", "pass"],
        "--version": [*ours, "--version"],
        "validate": [*ours, "validate", folder],
        "plan": [*ours, "plan", folder, "--now", NOW],
        **{f"import {name}": ["-c", f"import {name}"] for name in LIBRARIES},
    }


def cpu_seconds(words: list[str]) -> float:
    """Return the processor time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, *words]
    subprocess.run(words, check=False, capture_output=True, cwd=ROOT, env=COMPILED)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    folder = sys.argv[1] if len(sys.argv) > 1 else "examples/headroom"
    started = measured_commands(folder)
    minimum = dict.fromkeys(started, float("inf"))
    for _ in range(ROUNDS):  # interleaved: a busy moment affects all of them
        for name, words in started.items():
            minimum[name] = min(minimum[name], cpu_seconds(words))
    for name, measured in minimum.items():
        limit = f"  limit {LIMITS[name]}" if name in LIMITS else ""
        print(f"{name:20} {measured * 1e3:7.1f} ms {measured / minimum['pass']:6.1f}{limit}")
    return int(any(minimum[name] > limit * minimum["pass"] for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
