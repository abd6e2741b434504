"""Programs that tests run, built from their Go modules and kept for later runs.

They are those of a control plane, Karpenter with its kwok provider, and helm, kustomize and
promtool. They are kept in the folder that ``CONTROL_PLANE_PROGRAMS`` names, else in the user's
cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

MODULE = Path(__file__).parent / "controlplane"
DEPLOY_MODULE = Path(__file__).parents[1] / "deploy" / "programs"
VARIABLE = "CONTROL_PLANE_PROGRAMS"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
KARPENTER = "v1.14.1"
DEPLOY_PROGRAMS = ("helm", "kustomize", "promtool")


def version() -> str:
    """Return the release of Kubernetes that the module names."""
    found = re.search(
        r"^\s*k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE
    )
    assert found is not None, "go.mod requires k8s.io/kubernetes"
    return found[1]


def folder() -> Path:
    """Return where the programs of the control plane are kept."""
    return _kept() / version()


def deploy_folder() -> Path:
    """Return where helm, kustomize and promtool are kept."""
    modules = (DEPLOY_MODULE / "go.mod").read_bytes()
    return _kept() / f"deploy-{sha256(modules).hexdigest()[:12]}"


def karpenter_folder() -> Path:
    """Return where Karpenter with its kwok provider, and its CRDs, are kept."""
    return _kept() / f"karpenter-{KARPENTER}"


def missing_karpenter() -> str:
    """Return why Karpenter cannot run beside a control plane, empty if it can."""
    return missing() or _missing(karpenter_folder(), ("kwok",))


def missing() -> str:
    """Return why the programs of the control plane are not there, empty if they are."""
    return _missing(folder(), PROGRAMS)


def offer_deploy_programs() -> None:
    """Put helm, kustomize and promtool behind the programs of the PATH, where they are built."""
    if not _missing(deploy_folder(), DEPLOY_PROGRAMS):
        os.environ["PATH"] += os.pathsep + str(deploy_folder())


def build() -> None:
    """Build the programs of the control plane."""
    stamp = "k8s.io/component-base/version"
    major, minor = version().removeprefix("v").split(".")[:2]
    flags = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    ldflags = " ".join(["-s", "-w", *(f"-X {stamp}.{k}={v}" for k, v in flags.items())])
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS[1:]]
    _build(MODULE, folder(), ldflags, [*packages, "./etcd"])


def build_deploy_programs() -> None:
    """Build helm, kustomize and promtool."""
    packages = [
        "helm.sh/helm/v3/cmd/helm",
        "sigs.k8s.io/kustomize/kustomize/v5",
        "github.com/prometheus/prometheus/cmd/promtool",
    ]
    _build(DEPLOY_MODULE, deploy_folder(), "-s -w", packages)


def build_karpenter() -> None:
    """Build Karpenter with its kwok provider, whose nodes are objects and nothing else."""
    where, module = karpenter_folder(), f"sigs.k8s.io/karpenter@{KARPENTER}"
    where.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(
        ["go", "mod", "download", "-json", module], check=True, capture_output=True
    )
    source = Path(json.loads(found.stdout)["Dir"])
    for crds in ("pkg/apis/crds", "kwok/apis/crds"):
        for file in (source / crds).glob("*.yaml"):
            (where / file.name).write_bytes(file.read_bytes())
    package = f"sigs.k8s.io/karpenter/kwok@{KARPENTER}"
    subprocess.run(["go", "install", package], env={**os.environ, "GOBIN": str(where)}, check=True)


def _kept() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = os.environ.get(VARIABLE)
    return Path(named) if named else cache / "reconciler" / "control-plane"


def _missing(where: Path, programs: tuple[str, ...]) -> str:
    lacking = [name for name in programs if not (where / name).is_file()]
    if not lacking:
        return ""
    go = "" if shutil.which("go") else " (Go is not installed)"
    return f"{', '.join(lacking)} not in {where}: run `python -m tests.live.programs`{go}"


def _build(module: Path, where: Path, ldflags: str, packages: list[str]) -> None:
    where.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-ldflags", ldflags, "-o", f"{where}/", *packages]
    subprocess.run(command, cwd=module, check=True)


if __name__ == "__main__":
    if _missing(deploy_folder(), DEPLOY_PROGRAMS):
        print(f"building {', '.join(DEPLOY_PROGRAMS)} into {deploy_folder()}", file=sys.stderr)
        build_deploy_programs()
    if missing():
        print(f"building Kubernetes {version()} into {folder()}", file=sys.stderr)
        build()
    if _missing(karpenter_folder(), ("kwok",)):
        print(f"building Karpenter {KARPENTER} into {karpenter_folder()}", file=sys.stderr)
        build_karpenter()
    print(folder())
