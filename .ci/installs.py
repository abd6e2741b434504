"""Install the package on every Python of this machine, and print the size of each installation.

``python .ci/installs.py [VERSION ...]`` creates a new environment for each supported version and
each set of extras, installs the locked versions without compiling anything, and plans an example.
A version that this machine does not have is reported and skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "[aws,kubernetes]", "[embedded]")
JOBS = 2
OF_PIP = ("pip", "setuptools", "wheel")


def main(versions: list[str]) -> int:
    """Print one line for each installation; return 1 if one of them failed."""
    failed = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        wheel = build_wheel(Path(folder))
        for lines in pool.map(lambda version: try_version(version, wheel), versions or SUPPORTED):
            for line, passed in lines:
                print(line, flush=True)
                failed = failed or not passed
    return int(failed)


def try_version(version: str, wheel: Path) -> list[tuple[str, bool]]:
    """Return a line for each installation on a Python version, and whether it works."""
    python = find_interpreter(version)
    if python is None:
        return [(f"Python {version}: not on this machine, skipped", True)]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        for extras in EXTRAS:
            verdict, passed = install_and_plan(f"{folder}/bin/python", wheel, extras)
            lines.append((f"Python {version}  pip install .{extras}  {verdict}", passed))
    return lines


def find_interpreter(version: str) -> str | None:
    """Return a working program of a Python version; broken shims are skipped."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        if found is None:
            continue
        result = subprocess.run([found, "-c", ""], capture_output=True, check=False)
        if result.returncode == 0:
            return found
    return None


def build_wheel(folder: Path) -> Path:
    """Return a wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def install_and_plan(python: str, wheel: Path, extras: str) -> tuple[str, bool]:
    """Install the wheel into a new environment and plan an example there.

    ``python`` is of the same version and has pip. The environment has none, which takes seconds to
    create, and bytecode only of the modules that the plan imports.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(lock_constraints(), encoding="utf-8")
        install = [python, "-m", "pip", "--python", f"{folder}/bin/python", "install", "--quiet"]
        install += ["--only-binary=:all:", "--no-compile"]
        steps = (
            [*install, "--constraint", str(constraints), f"{wheel}{extras}"],
            [f"{folder}/bin/reconciler", "plan", str(ROOT / "examples" / "web")],
        )
        for step in steps:
            result = subprocess.run(step, capture_output=True, text=True, check=False)
            if result.returncode:
                return f"FAILED\n{result.stderr.strip()[-2000:]}", False
        packages = next(Path(folder).glob("lib/python*/site-packages"))
        count = sum(not p.name.startswith(OF_PIP) for p in packages.glob("*.dist-info"))
        mebibytes = sum(p.stat().st_size for p in installed_files(packages)) / 2**20
    return f"{count} packages, {mebibytes:.0f} MiB", True


def installed_files(packages: Path) -> list[Path]:
    """Return the files of all installed packages, except for pip and bytecode."""
    tops = [p for p in packages.iterdir() if not p.name.startswith(OF_PIP)]
    files = [p for top in tops for p in (top.rglob("*") if top.is_dir() else (top,))]
    return [p for p in files if p.is_file() and p.suffix != ".pyc"]


def lock_constraints() -> str:
    """Return the lock without hashes: with hashes, pip also requires one for a local wheel."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.sub(r"\s*\\\n\s+--hash=\S+", "", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
