"""How much CPU time ``reconciler run`` costs the API server of a quiet cluster.

``python -m benchmarks.apiserver [NODES [SECONDS]]`` starts the control plane of the live tests
(``python -m tests.live.programs`` builds it) with 300 nodes of ten pods each, whose kubelets renew
their leases every ten seconds. It measures the CPU time of kube-apiserver for 60 seconds without
the daemon, with it, and without it again, and prints what the daemon adds. Nothing is asserted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.listening import listening
from reconciler.adapters.simulated.moto.ec2 import EmbeddedEC2
from reconciler.adapters.simulated.moto.server import serve
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.source.plainyaml import dump
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.engine.world import catalog_file
from tests.live.conftest import NODES, PODS, Live, a_daemon
from tests.live.kubelets import Kubelets
from tests.live.plane import ADMIN, ControlPlane, control_plane
from tests.live.programs import missing
from tests.yamltext import dump_all

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PODS_A_NODE = 10
LEASE_S = 10.0
SETTLES_S = 20.0


def main(nodes: int, seconds: float) -> int:
    why = missing()
    if why:
        print(why)
        return 1
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work = Path(folder)
        (work / "plane").mkdir()
        plane = stack.enter_context(control_plane(work / "plane"))
        fill(plane, nodes)
        stack.enter_context(listening("leases", lambda stop: renew(plane, nodes, stop)))
        time.sleep(SETTLES_S)
        before = cpu_of(plane, seconds)
        with a_fleet(plane, work) as live, a_daemon(live.process_words(str(work / "state"))):
            time.sleep(SETTLES_S)
            meanwhile = cpu_of(plane, seconds)
        time.sleep(SETTLES_S)
        after = cpu_of(plane, seconds)
    alone = (before + after) / 2
    print(f"{nodes} nodes, {nodes * PODS_A_NODE} pods, {seconds:.0f} s each")
    print(f"kube-apiserver alone {before:.2f} and {after:.2f} CPU s, with `run` {meanwhile:.2f}")
    print(f"`run` adds {meanwhile / alone - 1:+.1%}")
    return 0


def fill(plane: ControlPlane, nodes: int) -> None:
    """Create nodes that are not the fleet's, with pods that run."""
    plane.provide("/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    for number in range(nodes):
        name = f"n{number}"
        spec = {"providerID": f"aws:///us-east-1a/i-{number:017x}"}
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        plane.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        status = {"capacity": room, "allocatable": room, "conditions": ready}
        plane.patch(f"{NODES}/{name}/status", {"status": status})
        plane.create(LEASES, {"metadata": {"name": name}, "spec": {"holderIdentity": name}})
        for pod in range(PODS_A_NODE):
            requests = {"cpu": "100m", "memory": "128Mi"}
            container = {"name": "main", "image": "x", "resources": {"requests": requests}}
            metadata = {"name": f"{name}-{pod}", "labels": {"app": f"app-{pod}"}}
            plane.create(
                PODS, {"metadata": metadata, "spec": {"nodeName": name, "containers": [container]}}
            )
            running = {"status": {"phase": "Running", "conditions": ready}}
            plane.patch(f"{PODS}/{name}-{pod}/status", running)


def renew(plane: ControlPlane, nodes: int, stop: Event) -> None:
    """Renew the leases evenly until told to stop, over a connection of its own."""
    settings = Settings(kubeconfig=str(plane.kubeconfig(ADMIN)))
    api = Api(lambda: access_of(settings), time.sleep)
    own = ControlPlane(plane.url, plane.authority, plane.work, api, plane.server)
    number = 0
    while not stop.wait(LEASE_S / nodes):
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        own.patch(f"{LEASES}/n{number % nodes}", {"spec": {"renewTime": at}})
        number += 1


@contextmanager
def a_fleet(plane: ControlPlane, home: Path) -> Iterator[Live]:
    """Yield a fleet without nodes of its own."""
    cloud = EmbeddedEC2(SystemClock())
    cloud.seed(decode(NODE_CLASS, EC2NodeClass))
    folder = home / "shop"
    folder.mkdir()
    config = {
        "apiVersion": "reconciler/v1",
        "kind": "Configuration",
        "cluster": "kubeconfig",
        "clusterName": "shop",
        "clusterEndpoint": plane.url,
        "clusterCIDR": "10.100.0.0/16",
    }
    (folder / "reconciler.yaml").write_text(dump(config))
    (folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, NODE_POOL]))
    (home / "types.json").write_bytes(catalog_file())
    with serve(cloud) as url:
        yield Live(plane, cloud, folder, url, Kubelets(plane, cloud))


def cpu_of(plane: ControlPlane, seconds: float) -> float:
    """Return the CPU seconds of the API server during a time."""
    before = used(plane)
    time.sleep(seconds)
    return used(plane) - before


def used(plane: ControlPlane) -> float:
    assert plane.server.process is not None
    text = Path(f"/proc/{plane.server.process.pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(int(given[0]) if given else 300, float(given[1]) if given[1:] else 60.0))
