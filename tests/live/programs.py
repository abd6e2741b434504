"""The programs of a control plane, built from their Go modules and kept for later runs.

They are kept in the folder that ``RECONCILER_CONTROL_PLANE`` names, else in the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = Path(__file__).parent / "controlplane"
VARIABLE = "RECONCILER_CONTROL_PLANE"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def version() -> str:
    """Return the release of Kubernetes that the module names."""
    found = re.search(
        r"^\s*k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE
    )
    assert found is not None, "go.mod requires k8s.io/kubernetes"
    return found[1]


def folder() -> Path:
    """Return where the programs are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get(VARIABLE)
    return (Path(named) if named else cache / "reconciler" / "control-plane") / version()


def missing() -> str:
    """Return why the programs are not there, empty if they are."""
    lacking = [name for name in PROGRAMS if not (folder() / name).is_file()]
    if not lacking:
        return ""
    go = "" if shutil.which("go") else " (Go is not installed)"
    return f"{', '.join(lacking)} not in {folder()}: run `python -m tests.live.programs`{go}"


def build() -> None:
    """Build the programs."""
    stamp = "k8s.io/component-base/version"
    major, minor = version().removeprefix("v").split(".")[:2]
    flags = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    ldflags = " ".join(["-s", "-w", *(f"-X {stamp}.{k}={v}" for k, v in flags.items())])
    folder().mkdir(parents=True, exist_ok=True)
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS[1:]]
    command = ["go", "build", "-ldflags", ldflags, "-o", f"{folder()}/", *packages, "./etcd"]
    subprocess.run(command, cwd=MODULE, check=True)


if __name__ == "__main__":
    why = missing()
    if why:
        print(f"building Kubernetes {version()} into {folder()}", file=sys.stderr)
        build()
    print(folder())
