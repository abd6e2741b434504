"""Check that the package index has wheels of every locked dependency, for every supported Python.

``python .ci/wheels.py`` checks the Python versions of ``SUPPORTED`` on Linux amd64;
``--python`` and ``--platform`` choose others, and may be repeated. A dependency that would have to
be compiled fails the check, so that an installation needs no compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
JOBS = 2
LINUX = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
PLATFORMS = {
    "linux-amd64": ("linux", "x86_64", tuple(f"{tag}_x86_64" for tag in LINUX)),
    "linux-arm64": ("linux", "aarch64", tuple(f"{tag}_aarch64" for tag in LINUX)),
    "macos-amd64": ("darwin", "x86_64", ("macosx_14_0_x86_64",)),
    "macos-arm64": ("darwin", "arm64", ("macosx_14_0_arm64",)),
}


def main() -> int:
    """Print one line for each Python version and platform; return 1 if a wheel is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", metavar="VERSION")
    parser.add_argument("--platform", action="append", choices=PLATFORMS)
    arguments = parser.parse_args()
    failed = False
    cases = list(product(arguments.python or SUPPORTED, arguments.platform or ("linux-amd64",)))
    with ThreadPoolExecutor(JOBS) as pool:
        pins = [list(locked_requirements(*case)) for case in cases]
        found = pool.map(
            lambda given: find_missing_wheels(given[1], *given[0]), zip(cases, pins, strict=True)
        )
        for (version, platform), count, missing in zip(cases, map(len, pins), found, strict=True):
            verdict = "no wheel for " + ", ".join(missing) if missing else "all have wheels"
            print(f"Python {version} {platform}: {count} dependencies, {verdict}", flush=True)
            failed = failed or bool(missing)
    return int(failed)


def locked_requirements(version: str, platform: str) -> Iterator[str]:
    """Yield each requirement of the lock that applies, with its hashes and without its marker."""
    system, machine, _ = PLATFORMS[platform]
    target = {
        "implementation_name": "cpython",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": system,
    }
    lines = LOCK.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    for line in lines:
        pin, *hashes = line.split("--hash=")
        if not pin.strip() or pin.startswith("#"):
            continue
        requirement = Requirement(pin)
        if requirement.marker is None or requirement.marker.evaluate(target):
            yield " --hash=".join([f"{requirement.name}{requirement.specifier}", *hashes])


def find_missing_wheels(pins: list[str], version: str, platform: str) -> list[str]:
    """Return the pins without a wheel; a single download suffices if none is missing."""
    if has_all_wheels(pins, version, platform):
        return []
    return [pin.split()[0] for pin in pins if not has_all_wheels([pin], version, platform)]


def has_all_wheels(pins: list[str], version: str, platform: str) -> bool:
    """Return whether pip finds a wheel for every pin."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation=cp"]
    command += ["--python-version", version]
    command += [part for tag in PLATFORMS[platform][2] for part in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(pins), encoding="utf-8")
        command += ["--requirement", str(requirements), "--dest", folder]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
