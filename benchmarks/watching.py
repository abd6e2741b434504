"""The memory and the CPU of `reconciler watch` beside a large cluster, at rest and when it changes.

    python -m benchmarks.watching [NODES [PODS [SECONDS]]]

The API server is the small one of the tests; by default it has 1,000 nodes of one NodePool and
10,000 pods of realistic size. `watch` is a process of its own. At rest, the kubelet of each node
reports its state every five minutes. Afterwards pods are replaced, and each time there is another
plan. Memory is the largest resident set since the process began, CPU its user and system time in
SECONDS (60) after the first prediction.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.watches import pad_object
from reconciler.adapters.kubernetes.kinds import watch_role
from tests.adapters.kubernetes.apiserver import Kube, serving, write_kubeconfig
from tests.watch.test_live import POOL
from tests.watch.test_serving import CLAIM, NODE, a_pod

MEMORY_MAX_MIB: Final = 400
CPU_MAX: Final = 0.02
STATUS_EVERY_S: Final = 300.0
_SETTLES_S: Final = 10.0
_CHANGES: Final = 4
_CHANGE_S: Final = 6.0


def fill(kube: Kube, nodes: int, pods: int) -> list[str]:
    """Add the cluster; return the names of its nodes."""
    kube.add(POOL)
    names = [f"ip-10-0-{number // 250}-{number % 250}.ec2.internal" for number in range(nodes)]
    for number, name in enumerate(names):
        instance = f"aws:///us-east-1a/i-{number}"
        meta = NODE["metadata"]
        labels = {**meta["labels"], "kubernetes.io/hostname": name}
        node = {**NODE, "metadata": {**meta, "name": name, "labels": labels}}
        kube.add(pad_object({**node, "spec": {"providerID": instance}}, 8000))
        status = {**CLAIM["status"], "providerID": instance, "nodeName": name}
        claim = {**CLAIM, "metadata": {**CLAIM["metadata"], "name": f"web-{number}"}}
        kube.add(pad_object({**claim, "status": status}, 4000))
    for number in range(pods):
        pod = a_pod(f"api-{number}", names[number % nodes], f"{1900 * nodes // pods}m")
        kube.add(pad_object(pod, 5000))
    return names


def cpu_seconds(process: int) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(process: int) -> float:
    """Return the largest resident set of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


def main(nodes: int, pods: int, seconds: int) -> int:
    kube = Kube(
        rules=watch_role("any")["rules"], absent=frozenset({"capacitybuffers"}), watches=True
    )
    names = fill(kube, nodes, pods)
    with tempfile.TemporaryDirectory() as folder, serving(kube) as url:
        config = write_kubeconfig(Path(folder) / "kubeconfig", url)
        words = ["watch", "--set", "aws.region=us-east-1", "--state", str(Path(folder) / "state")]
        process = subprocess.Popen(
            [sys.executable, "-m", "reconciler", *words],
            cwd=folder,
            env={**os.environ, "KUBECONFIG": str(config), "AWS_EC2_METADATA_DISABLED": "true"},
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            while b"Watching Karpenter" not in process.stderr.readline():
                assert process.poll() is None, "watch has ended"
            begin = cpu_seconds(process.pid)
            print(f"first prediction: {begin:.1f} CPU s, {peak_mib(process.pid):.0f} MiB")
            time.sleep(_SETTLES_S)
            before, since, beat = cpu_seconds(process.pid), time.monotonic(), 0
            while (passed := time.monotonic() - since) < seconds:
                while beat < passed * nodes / STATUS_EVERY_S:
                    kube.change("nodes", names[beat % nodes], lambda n, b=beat: report(n, b))  # type: ignore[misc]
                    beat += 1
                time.sleep(0.1)
            share = (cpu_seconds(process.pid) - before) / (time.monotonic() - since)
            resting = peak_mib(process.pid)
            for number in range(_CHANGES):
                kube.remove("pods", f"api-{number}")
                kube.add(pad_object(a_pod(f"new-{number}", names[number], "100m"), 5000))
                time.sleep(_CHANGE_S)
            peak = peak_mib(process.pid)
        finally:
            process.terminate()
            process.wait(30)
    print(f"at rest, with {beat} reports of kubelets: {share:.2%} of a core")
    print(f"memory: {resting:.0f} MiB at rest, {peak:.0f} MiB after {_CHANGES} other plans")
    return 0 if peak <= MEMORY_MAX_MIB and share <= CPU_MAX else 1


def report(node: dict[str, Any], number: int) -> None:
    """Report the state of a node, as its kubelet does though nothing has changed."""
    for condition in node["status"]["conditions"]:
        condition["lastHeartbeatTime"] = f"2026-01-01T00:00:{number % 60:02}Z"


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(arguments + [1000, 10000, 60][len(arguments) :])))
