"""Installs reconciler for the action: the locked dependencies by hash, then this checkout.

The virtual environment is below RUNNER_TEMP. Its `bin` is put on the PATH of the later steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

LOCK = "requirements/action.lock"


def commands(action: Path, folder: Path) -> list[list[str]]:
    """Return the commands that fill the virtual environment."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    return [
        [*pip, "--quiet", "--require-hashes", "--requirement", str(action / LOCK)],
        [*pip, "--quiet", "--no-deps", "--no-build-isolation", str(action)],
    ]


def main() -> int:
    """Make the environment and put it on the PATH; 1 if a step fails."""
    action = Path(os.environ["GITHUB_ACTION_PATH"])
    folder = Path(os.environ["RUNNER_TEMP"]) / "reconciler"
    print(f"Installing reconciler from {action}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    for command in commands(action, folder):
        if subprocess.run(command, check=False).returncode:
            print(f"::error::the installation failed: {' '.join(command)}")
            return 1
    with Path(os.environ["GITHUB_PATH"]).open("a", encoding="utf-8") as file:
        file.write(f"{folder / 'bin'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
