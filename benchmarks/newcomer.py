"""Time the first steps of a new user: install, start from Karpenter's examples, plan, comment.

``python -m benchmarks.newcomer`` builds a wheel of this checkout, installs it with the extra
``comment`` into an empty environment, and runs the commands of the guides in an empty repository,
against a simulation of GitHub's API. It prints the seconds of each step, and exits with 1 if a
step fails or all of them take more than five minutes. The installation downloads from the package
index, so its time is mostly that of the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.cli.forgeapi import ForgeImitation, serving

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "tests" / "fixtures" / "karpenter-examples"
LIMIT_S = 300.0
COMMANDS_MAX = 6


def main() -> int:
    """Run the steps and print the time of each."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        wheel = _build_wheel(Path(folder) / "dist")
        return _run_steps(Path(folder), wheel)


def _build_wheel(folder: Path) -> Path:
    """Return a wheel of this checkout; this is not timed, because releases are already built."""
    words = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, "-m", *words, str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _run_steps(folder: Path, wheel: Path) -> int:
    work, bin_ = folder / "work", folder / "venv" / "bin"
    work.mkdir()
    shutil.copytree(EXAMPLES, work / "karpenter")
    venv.create(folder / "venv", with_pip=True)
    git = "git -c user.name=me -c user.email=me@example.com"
    commands = [
        f"pip install --quiet --disable-pip-version-check '{wheel}[comment]'",
        "reconciler init fleet --from karpenter --name demo --region us-east-1",
        f"{git} add --all && {git} commit --quiet --message 'Start the fleet'",
        "reconciler ci fleet --base main --out plans",
        "reconciler comment github plans/ --repository acme/fleet --pull-request 1",
    ]
    edit = (
        "git switch --quiet --create change"
        " && sed -i.orig 's/^spec:/spec:\\n  replicas: 50/' fleet/workloads/deployment-inflate.yaml"
        f" && rm -f fleet/workloads/*.orig && {git} commit --all --quiet --message 'More pods'"
    )
    steps = [*commands[:3], edit, *commands[3:]]
    forge = ForgeImitation()
    total = 0.0
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=work, check=True)
    with serving(forge) as url:
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GITHUB_API_URL": url,
            "GITHUB_TOKEN": forge.token,
        }
        for step in steps:
            start = time.perf_counter()
            result = subprocess.run(
                ["bash", "-c", step], cwd=work, env=environment,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            seconds = time.perf_counter() - start
            total += seconds
            print(f"{seconds:7.1f} s  {step.replace(str(wheel), wheel.name)}", flush=True)
            if result.returncode:
                print(result.stdout + result.stderr)
                return 1
    print(f"{total:7.1f} s  in total: {len(commands)} commands and one edit")
    if len(forge.comments) != 1 or "Plan for demo" not in forge.comments[0]["body"]:
        print("Error: no comment was posted")
        return 1
    return int(total > LIMIT_S or len(commands) > COMMANDS_MAX)


if __name__ == "__main__":
    sys.exit(main())
