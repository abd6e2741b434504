"""Time the first steps of a new user: install, start from a repository, plan, comment.

``python -m benchmarks.newcomer`` builds a wheel of this checkout, installs it with the extra
``comment`` into an empty environment, and runs the commands of the guides in an empty repository,
against a simulation of GitHub's API: from two of Karpenter's examples, from a Helm chart, from a
Kustomize overlay and from a Flux repository; the last three need `helm` and `kustomize` on PATH. It
prints the seconds of each step, and exits with 1 if a step fails, or if one of these paths takes
more than five minutes with the installation. The installation downloads from the package index, so
its time is mostly that of the network.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.cli.forgeapi import ForgeImitation, serving

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
LIMIT_S = 300.0
COMMANDS_MAX = 6


class Start(NamedTuple):
    """A repository that a user starts from: its folder, what ``--from`` names, and its programs.

    ``files`` are the ones to copy from the folder, all if it is empty.
    """

    repository: Path
    source: str
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


STARTS = {
    "Karpenter's examples": Start(
        FIXTURES / "karpenter-examples",
        ".",
        files=("v1/general-purpose.yaml", "workloads/inflate.yaml"),
    ),
    "a Helm chart": Start(FIXTURES / "sources" / "chart", ".", ("helm",)),
    "a Kustomize overlay": Start(FIXTURES / "sources" / "overlay", "overlays/prod", ("kustomize",)),
    "a Flux repository": Start(FIXTURES / "sources" / "flux", "clusters/prod", ("kustomize",)),
}


def main() -> int:
    """Run the steps of each start and print the time of each."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        wheel = _build_wheel(folder / "dist")
        venv.create(folder / "venv", with_pip=True)
        environment = {
            "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
        }
        install = f"pip install --quiet --disable-pip-version-check '{wheel}[comment]'"
        installing = _run_step(
            install, folder, environment, install.replace(str(wheel), wheel.name)
        )
        if installing is None:
            return 1
        results = [
            _run_start(title, start, folder / f"start-{number}", environment, installing)
            for number, (title, start) in enumerate(STARTS.items())
        ]
        return int(not all(results))


def _build_wheel(folder: Path) -> Path:
    """Return a wheel of this checkout; this is not timed, because releases are already built."""
    words = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, "-m", *words, str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _run_step(
    step: str, folder: Path, environment: Mapping[str, str], shown: str = ""
) -> float | None:
    """Run a step and print its time; return its seconds, None if it failed."""
    start = time.perf_counter()
    result = subprocess.run(
        ["bash", "-c", step], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    print(f"{seconds:7.1f} s  {shown or step}", flush=True)
    if result.returncode:
        print(result.stdout + result.stderr)
        return None
    return seconds


def _run_start(
    title: str, start: Start, work: Path, environment: Mapping[str, str], installing: float
) -> bool:
    """Run the commands of a start, after the installation; return whether all went well."""
    missing = [name for name in start.programs if shutil.which(name) is None]
    if missing:
        print(f"\nFrom {title}: left out, because {' and '.join(missing)} is not on PATH")
        return True
    print(f"\nFrom {title}")
    work.mkdir()
    for path in start.files:
        (work / "given" / path).parent.mkdir(parents=True)
        shutil.copy(start.repository / path, work / "given" / path)
    if not start.files:
        shutil.copytree(start.repository, work / "given")
    git = "git -c user.name=me -c user.email=me@example.com"
    source = posixpath.normpath(f"given/{start.source}")
    commands = [
        f"reconciler init fleet --from {source} --name demo --region us-east-1",
        f"{git} add --all && {git} commit --quiet --message 'Start the fleet'",
        "reconciler ci fleet --base main --out plans",
        "reconciler comment github plans/ --repository acme/fleet --pull-request 1",
    ]
    edit = (
        "git switch --quiet --create change"
        " && sed -i.orig -E 's/^  replicas: .*//; s/^spec:/spec:\\n  replicas: 50/'"
        " $(grep -l '^kind: Deployment' fleet/workloads/*.yaml | head -1)"
        f" && rm -f fleet/workloads/*.orig && {git} commit --all --quiet --message 'More pods'"
    )
    forge = ForgeImitation()
    total = installing
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=work, check=True)
    with serving(forge) as url:
        forged = {**environment, "GITHUB_API_URL": url, "GITHUB_TOKEN": forge.token}
        for step in (*commands[:2], edit, *commands[2:]):
            seconds = _run_step(step, work, forged)
            if seconds is None:
                return False
            total += seconds
    count = len(commands) + 1
    print(f"{total:7.1f} s  in total, with the installation: {count} commands and one edit")
    if len(forge.comments) != 1 or "Plan for demo" not in forge.comments[0]["body"]:
        print("Error: no comment was posted")
        return False
    return total <= LIMIT_S and count <= COMMANDS_MAX


if __name__ == "__main__":
    sys.exit(main())
