"""``watch`` beside a real Karpenter: it predicts what Karpenter then does, and writes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pytest

from reconciler.adapters.threads import background_thread
from tests.live.kubelets import Kubelets
from tests.live.plane import (
    ADMIN,
    WATCHER,
    ControlPlane,
    Program,
    control_plane,
    eventually,
    free_ports,
    is_served,
)
from tests.live.programs import karpenter_folder, missing_karpenter
from tests.yamltext import load

pytestmark = pytest.mark.live

ZONE: Final = "zone-a"
SIZES: Final = {"small": (2, "4Gi", 0.05), "medium": (4, "8Gi", 0.09), "large": (16, "32Gi", 0.4)}
"""Instance types by name: CPUs, memory, and USD an hour."""
DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SCORED: Final = re.compile(r"^[0-9:]{8} (exact|tie|equivalent|wrong): (.*)$")
EPISODES: Final = ((3, "1500m"), (2, "3"), (5, "700m"), (1, "9"), (8, "500m"))
"""Replicas of a new Deployment, and the CPU that each of its pods requests."""


def catalog() -> list[dict[str, Any]]:
    """Return the instance types as ``--catalog`` reads them."""
    return [
        {
            "name": name,
            "capacity": {"cpu": str(cpus), "memory": memory, "pods": "110"},
            "overhead": {"cpu": "100m", "memory": "10Mi"},
            "requirements": [
                {"key": key, "operator": "In", "values": [value]}
                for key, value in (
                    ("node.kubernetes.io/instance-type", name),
                    ("kubernetes.io/arch", "amd64"),
                    ("kubernetes.io/os", "linux"),
                    ("topology.kubernetes.io/zone", ZONE),
                    ("karpenter.sh/capacity-type", "on-demand"),
                )
            ],
            "offerings": [{"zone": ZONE, "capacityType": "on-demand", "price": price}],
        }
        for name, (cpus, memory, price) in SIZES.items()
    ]


def provider_types() -> list[dict[str, Any]]:
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
                        {"key": key, "operator": "In", "values": [value]}
                        for key, value in (
                            ("karpenter.sh/capacity-type", "on-demand"),
                            ("topology.kubernetes.io/zone", ZONE),
                        )
                    ],
                }
            ],
        }
        for name, (cpus, memory, price) in SIZES.items()
    ]


NODE_CLASS: Final[dict[str, Any]] = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
}
NODE_POOL: Final[dict[str, Any]] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default"},
    "spec": {
        "template": {
            "spec": {
                "requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
                ],
                "nodeClassRef": {
                    "group": "karpenter.kwok.sh",
                    "kind": "KWOKNodeClass",
                    "name": "default",
                },
                "expireAfter": "Never",
            }
        },
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "0s",
            "budgets": [{"nodes": "100%"}],
        },
    },
}


@dataclass
class Watch:
    """The process of ``reconciler watch``, and what it has printed."""

    process: subprocess.Popen[bytes]
    printed: Path

    def scores(self, kind: str = "") -> list[str]:
        """Return the verdicts, all or those on launches or commands."""
        lines = (_SCORED.match(line) for line in self.printed.read_text().splitlines())
        found = [line.groups() for line in lines if line]
        is_launch = {"": (True, False), "launch": (True,), "command": (False,)}[kind]
        return [v for v, what in found if what.startswith("launched ") in is_launch]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with a Karpenter that runs."""
    why = missing_karpenter()
    if why:
        pytest.skip(why)
    work = tmp_path_factory.mktemp("karpenter")
    with control_plane(work) as plane, ExitStack() as stack:
        for file in sorted(karpenter_folder().glob("*.yaml")):
            plane.provide(CRDS, load(file.read_text()))
        for path in ("karpenter.sh/v1/nodepools", "karpenter.kwok.sh/v1alpha1/kwoknodeclasses"):
            eventually(path, lambda path=path: is_served(plane, f"/apis/{path}"))  # type: ignore[misc]
        plane.create("/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses", NODE_CLASS)
        plane.create("/apis/karpenter.sh/v1/nodepools", NODE_POOL)
        stack.enter_context(karpenter(plane))
        stack.enter_context(background_thread("kubelets", Kubelets(plane, None).listen))
        yield plane


@contextmanager
def karpenter(plane: ControlPlane) -> Iterator[None]:
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
    }
    with (plane.work / "karpenter.log").open("wb") as log:
        program = Program([karpenter_folder() / "kwok"], plane.work, log, env=flags)
        program.start()
        try:
            yield
        finally:
            program.end()


@pytest.fixture(scope="module")
def watch(plane: ControlPlane) -> Iterator[Watch]:
    """Return a watch that has made its first prediction."""
    types, printed = plane.work / "catalog.json", plane.work / "watch.log"
    types.write_text(json.dumps(catalog()))
    words = ["--catalog", str(types), "--state", str(plane.work / "state")]
    with printed.open("wb") as out:
        process = watching(plane, words, out)
        try:
            eventually("the watch", lambda: b"Watching Karpenter" in printed.read_bytes())
            yield Watch(process, printed)
        finally:
            process.terminate()
            process.wait(20)


def watching(plane: ControlPlane, words: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "reconciler", "watch", *words, "--set", "aws.region=us-east-1"],
        stdout=out,
        stderr=out,
        cwd=plane.work,
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig(WATCHER))},
    )


def deploy(plane: ControlPlane, name: str, replicas: int, cpu: str) -> None:
    labels = {"app": name}
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    plane.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})


def is_settled(plane: ControlPlane) -> bool:
    """Return whether every pod runs, and every NodeClaim is initialized and stays."""
    pods = plane.list("/api/v1/namespaces/default/pods").values()
    claims = plane.list(CLAIMS).values()
    return all(pod["status"]["phase"] == "Running" for pod in pods) and all(
        "deletionTimestamp" not in claim["metadata"]
        and any(
            c["type"] == "Initialized" and c["status"] == "True"
            for c in claim.get("status", {}).get("conditions", ())
        )
        for claim in claims
    )


def test_each_launch_is_predicted_exactly_and_nothing_is_written(
    plane: ControlPlane, watch: Watch
) -> None:
    for number, (replicas, cpu) in enumerate(EPISODES, 1):
        deploy(plane, "web", replicas, cpu)
        eventually("a launch", lambda n=number: len(watch.scores("launch")) >= n, 120)  # type: ignore[misc]
        eventually("running pods", lambda: is_settled(plane), 120)
        plane.delete(f"{DEPLOYMENTS}/web", propagationPolicy="Background")
        eventually("no node", lambda: not plane.list(CLAIMS), 120)
        eventually("a command", lambda n=number: len(watch.scores("command")) >= n, 60)  # type: ignore[misc]
    printed = watch.printed.read_text()
    assert set(watch.scores("launch")) == {"exact"}, printed
    assert {*watch.scores("command")} <= {"exact", "tie"}, printed
    calls = [json.loads(line) for line in (plane.work / "audit.log").read_text().splitlines()]
    assert len(calls) > len(EPISODES)
    asked = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
    written = [
        (call["verb"], call["requestURI"])
        for call in calls
        if call["verb"] not in ("get", "list", "watch")
        and call.get("objectRef", {}).get("resource") not in asked
    ]
    assert written == []
