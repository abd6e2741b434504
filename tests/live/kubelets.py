"""Kubelets, imitated: they let instances join, run pods, and end those that are to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

from reconciler.adapters.kubernetes.api import ApiError
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.live.plane import ControlPlane, Object

MEMORY = {"m7i.large": "8Gi", "c7i.large": "4Gi"}
QUARANTINE = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}


@dataclass
class Kubelets:
    """All of them, in one thread. ``problems`` are the calls that failed.

    ``cloud`` has the instances, None where a provider of Karpenter makes the Nodes itself. While
    ``joins`` is False no instance joins, and while ``ends_pods`` is False terminating pods stay.
    """

    plane: ControlPlane
    cloud: EmbeddedEC2 | None
    joined: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    joins: bool = True
    ends_pods: bool = True

    def listen(self, stop: Event) -> None:
        """Do their work until told to stop."""
        while not stop.wait(0.2):
            try:
                if self.joins and self.cloud is None:
                    self._make_ready()
                elif self.joins:
                    self._join()
                self._serve()
            except ApiError as error:
                self.problems.append(str(error))

    def _make_ready(self) -> None:
        for name in self.plane.list("/api/v1/nodes").keys() - self.joined:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            self.plane.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}})
            self.joined.add(name)

    def _join(self) -> None:
        assert self.cloud is not None
        new = sorted(self.cloud.running_instances().keys() - self.joined)
        if not new:
            return
        ec2 = self.cloud.connect("ec2", 1)
        rows = ec2.describe_instances(InstanceIds=new)["Reservations"]
        for instance in (i for row in rows for i in row["Instances"]):
            identity = instance["InstanceId"]
            if instance["State"]["Name"] != "running":
                continue
            self.joined.add(identity)
            kind, zone = instance["InstanceType"], instance["Placement"]["AvailabilityZone"]
            self._register(instance["PrivateDnsName"], kind, zone, identity)

    def _register(self, name: str, kind: str, zone: str, identity: str) -> None:
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": kind,
            "topology.kubernetes.io/zone": zone,
        }
        spec = {"providerID": f"aws:///{zone}/{identity}", "taints": [QUARANTINE]}
        node = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.plane.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
        room = {"cpu": "1900m", "memory": MEMORY[kind], "pods": "29"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        self.plane.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _serve(self) -> None:
        for pod in self.plane.get("/api/v1/pods")["items"]:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if not pod["spec"].get("nodeName"):
                continue
            if "deletionTimestamp" in meta:
                if self.ends_pods:
                    self.plane.delete(path, gracePeriodSeconds=0)
            elif pod["status"]["phase"] == "Pending":
                self._run(path)

    def _run(self, path: str) -> None:
        ready: Object = {"type": "Ready", "status": "True"}
        try:
            self.plane.patch(
                f"{path}/status", {"status": {"phase": "Running", "conditions": [ready]}}
            )
        except ApiError as error:
            if error.status != 404:
                raise
