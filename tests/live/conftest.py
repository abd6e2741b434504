from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.aws.clients import connector
from reconciler.adapters.clock import SystemClock
from reconciler.adapters.threads import background_thread
from reconciler.assembly.inputs.request import Environment
from reconciler.daemon import daemon
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.source.plainyaml import dump
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.commandlines import request_of
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.cli.test_kubernetes_end_to_end import EventRecorder
from tests.engine.test_processes import LogReader
from tests.engine.world import catalog_file
from tests.live.kubelets import Kubelets
from tests.live.plane import DAEMON, ControlPlane, Object, control_plane, eventually
from tests.live.programs import missing
from tests.yamltext import dump_all

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODES = "/api/v1/nodes"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return one control plane for all scenarios; skipped where its programs are missing."""
    why = missing()
    if why:
        pytest.skip(why)
    with control_plane(tmp_path_factory.mktemp("plane")) as started:
        yield started


@dataclass
class Live:
    """A fleet in a real cluster, with moto's EC2 and imitated kubelets."""

    plane: ControlPlane
    cloud: EmbeddedEC2
    folder: Path
    url: str
    kubelets: Kubelets
    recorder: EventRecorder = field(default_factory=EventRecorder)

    def words(self, command: str, *more: str) -> list[str]:
        return [
            *(command, *more, str(self.folder), "--set", f"aws.endpointUrl={self.url}"),
            *("--state", str(self.folder.parent / "state")),
            *("--config", str(self.folder.parent / "operator.yaml")),
        ]

    def operator_settings(self) -> dict[str, Any]:
        return {"kubernetes": {"kubeconfig": str(self.plane.kubeconfig(DAEMON))}}

    def process_words(self, state: str) -> list[str]:
        """Return the arguments of a daemon that is a process of its own."""
        operators = self.folder.parent / "operator.yaml"
        operators.write_text(dump(self.operator_settings() | {"aws": {"endpointUrl": self.url}}))
        words = [str(self.folder), "--config", str(operators), "--state", state]
        return [*words, "--catalog", str(self.folder.parent / "types.json")]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the daemon for as long as the block lasts."""
        words = [*self.words("run"), "--catalog", str(self.folder.parent / "types.json")]
        request = replace(request_of([*words, "--interval", "2s"]), waits=False)
        connect = cache(connector(Settings(endpoint_url=self.url)))
        failed: list[BaseException] = []

        def keep(stop: Any) -> None:
            try:
                daemon.FleetDaemon(
                    request,
                    self.recorder,
                    stop.is_set,
                    Environment(SystemClock(), connect),
                ).run()
            except BaseException as error:
                failed.append(error)
                raise

        thread: AbstractContextManager[None] = background_thread("daemon", keep)
        with thread:
            yield
        eventually("the daemon has stopped", self._is_stopped)
        assert failed == []

    def _is_stopped(self) -> bool:
        import threading

        return all(t.name != "daemon" for t in threading.enumerate())

    def pool(self, **template: Any) -> None:
        """Write the NodePool with other labels, which is drift."""
        changed = deepcopy(NODE_POOL)
        changed["spec"]["template"]["metadata"] = {"labels": template}  # type: ignore[index]
        (self.folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, changed]))

    def scale(self, replicas: int) -> None:
        self.plane.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": replicas}})

    def running_pods(self) -> dict[str, Object]:
        return {
            n: p
            for n, p in self.plane.list(PODS).items()
            if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]
        }

    def settled(self, replicas: int) -> bool:
        """Return whether exactly that number of pods runs, each on a node."""
        nodes = self.plane.list(NODES)
        return (
            len(self.running_pods()) == replicas
            and len(nodes) == len(self.cloud.running_instances()) == replicas
            and all("karpenter.sh/initialized" in n["metadata"]["labels"] for n in nodes.values())
        )

    def instance_of(self, node: str) -> str:
        provider: str = self.plane.get(f"{NODES}/{node}")["spec"]["providerID"]
        return provider.rpartition("/")[2]

    def recent_events(self) -> str:
        return json.dumps([f"{p.kind} {p.message}" for p in self.recorder.events[-40:]], indent=1)

    def await_(self, what: str, read: Callable[[], object], within_s: float = 60.0) -> None:
        try:
            eventually(what, read, within_s, pause_s=max(0.1, within_s / 600))
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{self.recent_events()}\n{self.kubelets.problems[-5:]}"
            ) from None


@contextmanager
def a_daemon(
    words: Iterable[str], interval: str = "2s"
) -> Iterator[tuple[subprocess.Popen[str], LogReader]]:
    """Run ``reconciler run`` as a process, which is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler", "run", *words, "--interval", interval],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process, LogReader(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def live(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    forget_surroundings(monkeypatch, tmp_path)
    with fleet_in(plane, tmp_path, "shop") as made:
        (tmp_path / "operator.yaml").write_text(dump(made.operator_settings()))
        yield made


def forget_surroundings(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Take away what the environment says of clouds, clusters and states."""
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "xdg"))


@contextmanager
def fleet_in(plane: ControlPlane, home: Path, name: str) -> Iterator[Live]:
    """Make a fleet for a cluster, with a cloud and kubelets of its own, in a folder of its name."""
    cloud = EmbeddedEC2(SystemClock())
    cloud.seed(decode(NODE_CLASS, EC2NodeClass))
    cloud.publish("ami-first", "shop-1", datetime.now(UTC) - timedelta(days=1))
    folder = home / name
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        url = stack.enter_context(serve(cloud))
        config = {
            "apiVersion": "reconciler/v1",
            "kind": "Configuration",
            "cluster": "kubeconfig",
            "clusterName": name,
            "clusterEndpoint": plane.url,
            "clusterCIDR": "10.100.0.0/16",
        }
        (folder / "reconciler.yaml").write_text(dump(config))
        (folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, NODE_POOL]))
        (home / "types.json").write_bytes(catalog_file())
        kubelets = Kubelets(plane, cloud)
        made = Live(plane, cloud, folder, url, kubelets)
        stack.enter_context(background_thread("kubelets", kubelets.listen))
        furnish(plane)
        try:
            yield made
        finally:
            clear(plane)


def furnish(plane: ControlPlane) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1500m"}}}
    labels = {"app": "web"}
    plane.create(
        DEPLOYMENTS,
        {
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
                },
            },
        },
    )
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    plane.create(BUDGETS, {"metadata": {"name": "web"}, "spec": budget})


def clear(plane: ControlPlane) -> None:
    """Remove everything of a scenario, whatever holds it."""
    plane.delete(f"{DEPLOYMENTS}/web")
    plane.delete(f"{BUDGETS}/web")
    for path in (CLAIMS, NODES):
        for name in plane.list(path):
            plane.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
            plane.delete(f"{path}/{name}")
    for name in plane.list(PODS):
        plane.delete(f"{PODS}/{name}", gracePeriodSeconds=0)
    eventually("an empty cluster", lambda: not plane.list(PODS) and not plane.list(NODES))
