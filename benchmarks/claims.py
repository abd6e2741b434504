"""The speed of plans for pods that claim devices: ``python -m benchmarks.claims [PODS]``.

Plans a fleet for pods that claim a GPU by ResourceClaim, for the same pods that request it as an
extended resource, and for the same pods without a GPU, on all instance types of EC2. Prints the CPU
seconds of each complete plan in a fresh process, without those of a plan for one pod of the kind,
and how many times as long as without GPUs it takes. The fastest of several runs counts. Nothing is
asserted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, Final

_TIMES: Final = 3
_SETTINGS: Final = {
    "fleet": "claims",
    "clusterName": "claims",
    "karpenter": "1.15",
    "aws": {"region": "us-east-1"},
    "featureGates": {"DRANVIDIAGPU": True, "DRAEFA": True},
}
_SIZES: Final = (("1", "4Gi"), ("2", "8Gi"), ("4", "16Gi"), ("8", "24Gi"))
"""The CPU and memory of the pods, in turn."""


def main() -> None:
    """Print the figures of each kind of pods."""
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    kinds: dict[str, dict[str, bool]] = {
        "without GPUs": {},
        "extended resource": {"requests": True},
        "claims": {"claims": True},
    }
    print(f"{'pods':18} {'CPU s':>7} {'times':>6} {'nodes':>6} {'unplaced':>9}")
    plain = 0.0
    for name, how in kinds.items():
        seconds, plan = _measure(pods, **how)
        plain = plain or seconds
        nodes, unplaced = len(plan["nodeClaims"]), len(plan["unschedulable"])
        print(f"{name:18} {seconds:7.2f} {seconds / plain:6.2f} {nodes:6} {unplaced:9}")


def _measure(pods: int, **how: bool) -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        many, one = Path(folder, "many"), Path(folder, "one")
        _write(many, pods, **how)
        _write(one, 1, **how)
        runs = [_plan(many) for _ in range(_TIMES)]
        base = min(_plan(one)[0] for _ in range(_TIMES))
    seconds, plan = min(runs, key=lambda run: run[0])
    return seconds - base, plan


def _plan(folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the CPU seconds of a plan, and the plan."""
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    words = ["plan", str(folder), "--set", "cluster=none", "-o", "json"]
    command = [sys.executable, "-m", "reconciler", *words]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return getrusage(RUSAGE_CHILDREN).ru_utime - before, plan


def _write(folder: Path, pods: int, *, requests: bool = False, claims: bool = False) -> None:
    folder.mkdir()
    head = {"apiVersion": "reconciler/v1", "kind": "Configuration"}
    (folder / "reconciler.yaml").write_text(json.dumps({**head, **_SETTINGS}))
    selector = [{"tags": {"karpenter.sh/discovery": "claims"}}]
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    fixed = {"role": "nodes", "amiSelectorTerms": [{"alias": "al2023@v20250620"}]}
    spec = {**fixed, "subnetSelectorTerms": selector, "securityGroupSelectorTerms": selector}
    template = {"spec": {"nodeClassRef": ref, "requirements": []}}
    driver = 'device.driver == "gpu.nvidia.com"'
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
    dra = "resource.k8s.io/v1"
    objects = [
        _an_object("karpenter.k8s.aws/v1", "EC2NodeClass", "default", spec),
        _an_object("karpenter.sh/v1", "NodePool", "default", {"template": template}),
        _an_object(dra, "DeviceClass", "gpu", {"selectors": [{"cel": {"expression": driver}}]}),
        _an_object(dra, "ResourceClaimTemplate", "gpu", {"spec": {"devices": devices}}),
    ]
    objects += [_a_pod(n, requests=requests, claims=claims) for n in range(pods)]
    for number, item in enumerate(objects[:4]):
        (folder / f"object-{number}.json").write_text(json.dumps(item))
    listed = {"apiVersion": "v1", "kind": "List", "items": objects[4:]}
    (folder / "pods.json").write_text(json.dumps(listed))


def _a_pod(number: int, *, requests: bool, claims: bool) -> dict[str, Any]:
    cpu, memory = _SIZES[number % len(_SIZES)]
    amounts: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}}
    spec: dict[str, Any] = {}
    if requests:
        amounts["limits"] = {"nvidia.com/gpu": "1"}
    if claims:
        amounts["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    spec["containers"] = [{"name": "main", "image": "main", "resources": amounts}]
    return _an_object("v1", "Pod", f"pod-{number}", spec)


def _an_object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


if __name__ == "__main__":
    main()
