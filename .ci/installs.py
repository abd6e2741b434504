"""Install the package as a user would, on every Python of this machine, and print what that takes.

``python .ci/installs.py [VERSION ...]`` makes a new environment for each supported version and each
set of extras, installs the locked versions without compiling anything, and plans an example.
A version that this machine does not have is reported and skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "[aws,kubernetes]", "[embedded]")
OF_PIP = ("pip", "setuptools", "wheel")


def main(versions: list[str]) -> int:
    """Print one line for each installation; return 1 if one of them failed."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder))
        for version in versions or SUPPORTED:
            python = interpreter(version)
            if python is None:
                print(f"Python {version}: not on this machine, skipped", flush=True)
                continue
            for extras in EXTRAS:
                verdict, passed = installed(python, wheel, extras)
                print(f"Python {version}  pip install .{extras}  {verdict}", flush=True)
                failed = failed or not passed
    return int(failed)


def interpreter(version: str) -> str | None:
    """Return the program of a Python version that runs; a shim that leads nowhere does not."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        if found is None:
            continue
        done = subprocess.run([found, "-c", ""], capture_output=True, check=False)
        if done.returncode == 0:
            return found
    return None


def built(folder: Path) -> Path:
    """Return a wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def installed(python: str, wheel: Path, extras: str) -> tuple[str, bool]:
    """Install the wheel into a new environment and plan an example there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(locked_versions(), encoding="utf-8")
        install = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        steps = (
            [*install, "--constraint", str(constraints), f"{wheel}{extras}"],
            [f"{folder}/bin/reconciler", "plan", str(ROOT / "examples" / "web")],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"FAILED\n{done.stderr.strip()[-2000:]}", False
        packages = next(Path(folder).glob("lib/python*/site-packages"))
        count = sum(not p.name.startswith(OF_PIP) for p in packages.glob("*.dist-info"))
        mebibytes = sum(p.stat().st_size for p in own_files(packages)) / 2**20
    return f"{count} packages, {mebibytes:.0f} MiB", True


def own_files(packages: Path) -> list[Path]:
    """Return the files of every installed package but those of pip and without bytecode."""
    tops = [p for p in packages.iterdir() if not p.name.startswith(OF_PIP)]
    files = [p for top in tops for p in (top.rglob("*") if top.is_dir() else (top,))]
    return [p for p in files if p.is_file() and p.suffix != ".pyc"]


def locked_versions() -> str:
    """Return the lock as constraints: pip asks a local wheel for a hash where there are hashes."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.sub(r"\s*\\\n\s+--hash=\S+", "", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
