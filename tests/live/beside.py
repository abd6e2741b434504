"""A real Karpenter with its kwok provider beside a control plane, and ``watch`` beside both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

from tests.live.plane import (
    ADMIN,
    WATCHER,
    ControlPlane,
    Object,
    Program,
    eventually,
    free_ports,
)
from tests.live.programs import karpenter_folder

ZONES: Final = {"zone-a": 1.0, "zone-b": 1.03, "zone-c": 1.07}
CAPACITY_TYPES: Final = {"on-demand": 1.0, "spot": 0.41}
"""Factors of the price; no two offerings have the same one, so that chance decides nothing."""
SIZES: Final = {
    "small": (2, "4Gi", 0.05),
    "medium": (4, "8Gi", 0.094),
    "large": (8, "16Gi", 0.18),
    "huge": (16, "32Gi", 0.355),
}
"""Instance types by name: CPUs, memory, and USD an hour."""
GATES: Final = ("StaticCapacity",)
"""The feature gates that are on."""
APPS: Final = "/apis/apps/v1/namespaces/default"
PODS: Final = "/api/v1/namespaces/default/pods"
BUDGETS: Final = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
KARPENTER: Final = "/apis/karpenter.sh/v1"
CLAIMS: Final = f"{KARPENTER}/nodeclaims"
POOLS: Final = f"{KARPENTER}/nodepools"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_CLASSES: Final = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
_NOMINATED: Final = timedelta(seconds=25)
_SCORED: Final = re.compile(
    r"^[0-9:]{8} (exact|tie|equivalent|wrong|inside|outside): ((launched|ended with)? ?.*)$"
)
NODE_CLASS: Final[Object] = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
}


def offerings() -> Iterator[tuple[str, float, str, str]]:
    """Yield instance type, price, zone and capacity type."""
    for name, (_, _, price) in SIZES.items():
        for zone, in_zone in ZONES.items():
            for capacity_type, factor in CAPACITY_TYPES.items():
                yield name, round(price * in_zone * factor, 6), zone, capacity_type


def only(key: str, *values: str) -> Object:
    """Return a requirement."""
    return {"key": key, "operator": "In", "values": list(values)}


def catalog() -> list[Object]:
    """Return the instance types as ``--catalog`` reads them."""
    return [
        {
            "name": name,
            "capacity": {"cpu": str(cpus), "memory": memory, "pods": "110"},
            "overhead": {"cpu": "100m", "memory": "10Mi"},
            "requirements": [
                only("node.kubernetes.io/instance-type", name),
                only("kubernetes.io/arch", "amd64"),
                only("kubernetes.io/os", "linux"),
                only("topology.kubernetes.io/zone", *ZONES),
                only("karpenter.sh/capacity-type", *CAPACITY_TYPES),
            ],
            "offerings": [
                {"zone": zone, "capacityType": capacity_type, "price": price}
                for kind, price, zone, capacity_type in offerings()
                if kind == name
            ],
        }
        for name, (cpus, memory, _) in SIZES.items()
    ]


def provider_types() -> list[Object]:
    """Return the same instance types as Karpenter's kwok provider reads them."""
    return [
        {
            "name": name,
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": str(cpus), "memory": memory, "pods": "110"},
            "offerings": [
                {
                    "Price": price,
                    "Available": True,
                    "Requirements": [
                        only("karpenter.sh/capacity-type", capacity_type),
                        only("topology.kubernetes.io/zone", zone),
                    ],
                }
                for kind, price, zone, capacity_type in offerings()
                if kind == name
            ],
        }
        for name, (cpus, memory, _) in SIZES.items()
    ]


@contextmanager
def karpenter(plane: ControlPlane) -> Iterator[None]:
    """Run Karpenter while the block runs."""
    metrics, probes = free_ports(2)
    types = plane.work / "types.json"
    types.write_text(json.dumps(provider_types()))
    flags = {
        "KUBECONFIG": str(plane.kubeconfig(ADMIN)),
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "kube-system",
        "METRICS_PORT": str(metrics),
        "HEALTH_PROBE_PORT": str(probes),
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "FEATURE_GATES": ",".join(f"{gate}=true" for gate in GATES),
        "BATCH_IDLE_DURATION": "4s",  # the watch may be slow on a machine that does much else
    }
    with (plane.work / "karpenter.log").open("wb") as log:
        program = Program([karpenter_folder() / "kwok"], plane.work, log, env=flags)
        program.start()
        try:
            yield
        finally:
            program.end()


@dataclass
class Watch:
    """The process of ``reconciler watch``, and what it has printed since a scenario began."""

    process: subprocess.Popen[bytes]
    printed: Path
    begin: int = 0

    def scores(self, kind: str = "") -> list[str]:
        """Return the verdicts: all, or those on launches, commands or ends."""
        return [verdict for verdict, what in self._scored() if kind in ("", what)]

    def lines(self) -> list[str]:
        """Return what was printed."""
        return self.printed.read_text().splitlines()[self.begin :]

    def start_over(self) -> None:
        """Forget what was printed."""
        self.begin = len(self.printed.read_text().splitlines())

    def _scored(self) -> Iterator[tuple[str, str]]:
        kinds = {"launched": "launch", "ended with": "end", None: "command"}
        for line in filter(None, map(_SCORED.match, self.lines())):
            yield line[1], kinds[line[3]]


@contextmanager
def watching(plane: ControlPlane) -> Iterator[Watch]:
    """Run ``watch`` while the block runs, from its first prediction on."""
    types, printed = plane.work / "catalog.json", plane.work / "watch.log"
    types.write_text(json.dumps(catalog()))
    words = ["--catalog", str(types), "--state", str(plane.work / "state")]
    words += ["--episodes", str(plane.work / "misses"), "--set", "aws.region=us-east-1"]
    for gate in GATES:
        words += ["--set", f"featureGates.{gate}=true"]
    with printed.open("wb") as out:
        process = _start(plane, words, out)
        try:
            eventually("the watch", lambda: b"Watching Karpenter" in printed.read_bytes(), 120)
            yield Watch(process, printed)
        finally:
            process.terminate()
            process.wait(20)


def _start(plane: ControlPlane, words: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "reconciler", "watch", *words],
        stdout=out,
        stderr=out,
        cwd=plane.work,
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig(WATCHER))},
    )


@dataclass
class Beside:
    """A cluster with a Karpenter and a watch; ``expected`` are the least numbers of scores."""

    plane: ControlPlane
    watch: Watch
    expected: dict[str, int] = field(default_factory=dict)

    def pool(self, name: str = "default", **spec: Any) -> None:
        """Create a NodePool: ``template`` is merged into its template's spec, ``labels`` into the
        template's labels, and ``disruption`` into its disruption.
        """
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
        template: Object = {
            "requirements": [only("karpenter.sh/capacity-type", "on-demand")],
            "nodeClassRef": reference,
            "expireAfter": "Never",
            **spec.pop("template", {}),
        }
        disruption: Object = {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "0s",
            "budgets": [{"nodes": "100%"}],
            **spec.pop("disruption", {}),
        }
        labels = {"pool": name, **spec.pop("labels", {})}
        self.plane.create(
            POOLS,
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodePool",
                "metadata": {"name": name},
                "spec": {
                    "template": {"metadata": {"labels": labels}, "spec": template},
                    "disruption": disruption,
                    **spec,
                },
            },
        )
        eventually("a ready NodePool", lambda: self._is_ready(name))

    def _is_ready(self, name: str) -> bool:
        found = self.plane.get(f"{POOLS}/{name}").get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found)

    def change_pool(self, name: str = "default", **spec: Any) -> None:
        """Change a NodePool."""
        self.plane.patch(f"{POOLS}/{name}", {"spec": spec})

    def deploy(self, name: str, replicas: int, cpu: str, **pod: Any) -> None:
        """Create a Deployment whose pods request CPU; ``pod`` is merged into their spec."""
        annotations = pod.pop("annotations", {})
        template = self._template(name, cpu, pod, annotations)
        body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}} | template
        self.plane.create(f"{APPS}/deployments", {"metadata": {"name": name}, "spec": body})

    def daemons(self, name: str, cpu: str) -> None:
        """Create a DaemonSet whose pods request CPU."""
        body = {"selector": {"matchLabels": {"app": name}}} | self._template(name, cpu, {}, {})
        self.plane.create(f"{APPS}/daemonsets", {"metadata": {"name": name}, "spec": body})

    def _template(self, name: str, cpu: str, pod: Object, annotations: Object) -> Object:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        metadata = {"labels": {"app": name}, "annotations": annotations}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **pod}
        return {"template": {"metadata": metadata, "spec": spec}}

    def scale(self, name: str, replicas: int) -> None:
        """Scale a Deployment."""
        self.plane.patch(f"{APPS}/deployments/{name}", {"spec": {"replicas": replicas}})

    def remove(self, path: str) -> None:
        """Delete an object and what it owns."""
        self.plane.delete(path, propagationPolicy="Background")

    def claims(self) -> Sequence[Object]:
        """Return the NodeClaims."""
        return list(self.plane.list(CLAIMS).values())

    def scored(self, kind: str, more: int = 1) -> None:
        """Wait until more actions of a kind have scores and the cluster has settled."""
        number = self.expected[kind] = self.expected.get(kind, 0) + more
        eventually(f"{number} x {kind}", lambda: len(self.watch.scores(kind)) >= number, 150)
        self.settled()

    def settled(self) -> None:
        """Wait until every pod runs, and every NodeClaim is initialized and stays."""
        eventually("running pods", self._is_settled, 150)

    def _is_settled(self) -> bool:
        pods = self.plane.list(PODS).values()
        return all(pod["status"]["phase"] == "Running" for pod in pods) and all(
            "deletionTimestamp" not in claim["metadata"]
            and any(
                c["type"] == "Initialized" and c["status"] == "True"
                for c in claim.get("status", {}).get("conditions", ())
            )
            for claim in self.claims()
        )

    def nominations_end(self) -> None:
        """Wait until no node is nominated for pods: for 20 seconds Karpenter disrupts none."""
        self.passes(_NOMINATED)

    def passes(self, span: timedelta) -> None:
        """Wait for a span of time and a little more."""
        end = datetime.now(UTC) + span + timedelta(seconds=5)
        eventually("a later time", lambda: datetime.now(UTC) > end, 120)

    def clear(self) -> None:
        """Delete everything that a scenario has created."""
        for kind in (f"{APPS}/deployments", f"{APPS}/daemonsets", BUDGETS):
            for name in self.plane.list(kind):
                self.remove(f"{kind}/{name}")
        eventually("no pod", lambda: not self.plane.list(PODS), 60)
        for kind in (POOLS, CLAIMS):
            for name in self.plane.list(kind):
                self.remove(f"{kind}/{name}")
        eventually("no node", lambda: not self.plane.list("/api/v1/nodes"), 120)
