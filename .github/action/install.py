"""Installs reconciler for the action: the locked dependencies by hash, then this checkout.

The virtual environment is below RUNNER_TEMP. Only a folder with the command itself is put on the
PATH of the later steps. The job runs in a checkout of a pull request: no program of these starts in
it or gets a variable from which Python loads code, and the command ignores them as well.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

LOCK = "requirements/action.lock"
_PASSED = {"HOME", "LANG", "NO_PROXY", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR"}
_PASSED_PREFIXES = ("PIP_", "LC_")
_FOLDER_LISTS = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def commands(action: Path, folder: Path) -> list[list[str]]:
    """Return the commands that fill the virtual environment."""
    python = str(folder / "bin" / "python")
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "install"]
    return [
        [*pip, "--quiet", "--require-hashes", "--requirement", str(action / LOCK)],
        [*pip, "--quiet", "--no-deps", "--no-build-isolation", str(action)],
    ]


def variables() -> dict[str, str]:
    """Return the variables that pip gets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.lower().endswith("_proxy")
    }
    for name in _FOLDER_LISTS:
        folders = [f for f in os.environ.get(name, "").split(os.pathsep) if os.path.isabs(f)]
        if folders:
            kept[name] = os.pathsep.join(folders)
    return {**kept, "PYTHONSAFEPATH": "1"}


def launcher(folder: Path) -> str:
    """Return the command `reconciler`, which reads no variable of Python and no current folder."""
    python = shlex.quote(str(folder / "bin" / "python"))
    return f'#!/bin/sh\nexec {python} -I -m reconciler "$@"\n'


def main() -> int:
    """Make the environment and put the command on the PATH; 1 if a step fails."""
    action = Path(os.environ["GITHUB_ACTION_PATH"])
    folder = Path(os.environ["RUNNER_TEMP"]) / "reconciler"
    print(f"Installing reconciler from {action}", flush=True)
    venv.create(folder, clear=True)
    empty, path = folder / "empty", folder / "command"
    empty.mkdir()
    path.mkdir()
    pip = [str(folder / "bin" / "python"), "-I", "-m", "ensurepip", "--default-pip"]
    for command in [pip, *commands(action, folder)]:
        if subprocess.run(command, cwd=empty, env=variables(), check=False).returncode:
            print(f"::error::the installation failed: {' '.join(command)}")
            return 1
    (path / "reconciler").write_text(launcher(folder), encoding="utf-8")
    (path / "reconciler").chmod(0o755)
    with Path(os.environ["GITHUB_PATH"]).open("a", encoding="utf-8") as file:
        file.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
