"""One control plane on loopback: started, reached by tokens, and ended with its block."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Event
from time import monotonic
from typing import IO, Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import MERGE_PATCH, Api, ApiError
from reconciler.model.settings import Settings
from reconciler.source.plainyaml import dump
from tests.live.programs import folder
from tests.yamltext import load

ADMIN, DAEMON, WATCHER = "admin-token", "daemon-token", "watcher-token"
AUDITED = "watcher"
"""The user whose calls the API server writes to its audit log."""
ROOT = Path(__file__).parents[2]
_QUERIES = ("--kube-api-qps=200", "--kube-api-burst=400")
"""By default the taint ``not-ready`` is taken off five new nodes a second."""

Object = dict[str, Any]


def eventually(
    what: str, read: Callable[[], object], within_s: float = 60.0, pause_s: float = 0.1
) -> None:
    """Wait until something holds."""
    deadline = monotonic() + within_s
    while monotonic() < deadline:
        if read():
            return
        Event().wait(pause_s)
    raise AssertionError(f"not within {within_s:.0f} s: {what}")


@dataclass
class Program:
    """A program of the control plane."""

    words: Sequence[str | Path]
    work: Path
    log: IO[bytes]
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words,
            stdout=self.log,
            stderr=self.log,
            cwd=self.work,
            env={**os.environ, **self.env},
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(frozen=True)
class ControlPlane:
    """The API of the cluster, as an administrator uses it."""

    url: str
    authority: Path
    work: Path
    api: Api
    server: Program

    def resume(self) -> None:
        """Start the API server again, on the data that it has."""
        self.server.start()
        eventually("the API server", lambda: is_ready(self))

    def kubeconfig(self, token: str) -> Path:
        """Return a kubeconfig for the owner of a token."""
        path = self.work / f"{token}.kubeconfig"
        path.write_text(kubeconfig(self.url, self.authority, token))
        return path

    def get(self, path: str) -> Object:
        return msgspec.json.decode(self.api.call("GET", path), type=dict[str, Any])

    def list(self, path: str) -> dict[str, Object]:
        return {item["metadata"]["name"]: item for item in self.get(path)["items"]}

    def create(self, path: str, body: Object) -> None:
        self.api.call("POST", path, body=body)

    def provide(self, path: str, body: Object) -> None:
        """Create an object, unless one of that name is there."""
        try:
            self.create(path, body)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def patch(self, path: str, body: Object) -> None:
        self.api.call("PATCH", path, body=body, content=MERGE_PATCH)

    def delete(self, path: str, **options: Any) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        try:
            self.api.call("DELETE", path, body=body)
        except ApiError as error:
            if error.status != 404:
                raise


def kubeconfig(url: str, authority: Path, token: str) -> str:
    cluster = {"server": url, "certificate-authority": str(authority)}
    return dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "live",
            "clusters": [{"name": "live", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "me"}}],
        }
    )


@contextmanager
def control_plane(work: Path) -> Iterator[ControlPlane]:
    """Run a control plane for as long as the block lasts."""
    client, peer, secure = free_ports(3)
    key, tokens, authority = work / "sa.key", work / "tokens.csv", work / "certs" / "apiserver.crt"
    key.write_bytes(private_key())
    tokens.write_text(
        f'{ADMIN},admin,1,"system:masters"\n{DAEMON},reconciler,2\n{WATCHER},{AUDITED},3\n'
    )
    policy, audit = work / "audit.yaml", work / "audit.log"
    rules = [{"level": "Metadata", "users": [AUDITED]}, {"level": "None"}]
    policy.write_text(dump({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    url, etcd = f"https://127.0.0.1:{secure}", f"http://127.0.0.1:{client}"
    peers = f"http://127.0.0.1:{peer}"
    admin = work / "admin.kubeconfig"
    with ExitStack() as programs:
        start(programs, work, "etcd", [
            f"--data-dir={work / 'etcd'}", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync", "--watch-progress-notify-interval=5s",
        ])  # fmt: skip
        server = start(programs, work, "kube-apiserver", [
            f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={secure}",
            f"--cert-dir={work / 'certs'}", "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC", f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}",
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
            "--advertise-address=127.0.0.1", f"--audit-policy-file={policy}",
            f"--audit-log-path={audit}", "--audit-log-mode=blocking",
        ])  # fmt: skip
        eventually("the certificate of the API server", authority.exists)
        admin.write_text(kubeconfig(url, authority, ADMIN))
        settings = Settings(kubeconfig=str(admin))
        api = Api(lambda: access_of(settings), lambda s: bool(Event().wait(min(s, 0.2))) and None)
        plane = ControlPlane(url, authority, work, api, server)
        eventually("the API server", lambda: is_ready(plane))
        start(programs, work, "kube-controller-manager", [
            f"--kubeconfig={admin}", "--leader-elect=false", "--secure-port=0",
            f"--service-account-private-key-file={key}", "--node-monitor-grace-period=1h",
            *_QUERIES,
        ])  # fmt: skip
        start(programs, work, "kube-scheduler", [
            f"--kubeconfig={admin}", "--leader-elect=false", "--secure-port=0", *_QUERIES,
        ])  # fmt: skip
        furnish(plane)
        yield plane


def furnish(plane: ControlPlane) -> None:
    """Grant what the documented ClusterRoles grant, and define NodeClaims."""
    grant(plane, "reconciler", "clusterrole-run.yaml")
    grant(plane, AUDITED, "clusterrole-watch.yaml")
    crd = load((ROOT / "deploy/helm/reconciler/files/crd-nodeclaims.yaml").read_text())
    plane.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    eventually("the kind NodeClaim", lambda: is_served(plane, "/apis/karpenter.sh/v1/nodeclaims"))


def grant(plane: ControlPlane, user: str, file: str) -> None:
    """Grant a user what a ClusterRole of the documentation grants."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = load((ROOT / "docs/kubernetes" / file).read_text())
    name = role["metadata"]["name"]
    plane.create(f"{rbac}/clusterroles", role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "User", "name": user}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    plane.create(f"{rbac}/clusterrolebindings", binding)


def is_ready(plane: ControlPlane) -> bool:
    return is_served(plane, "/readyz") and is_served(plane, "/api/v1/namespaces/default")


def is_served(plane: ControlPlane, path: str) -> bool:
    try:
        plane.api.call("GET", path)
    except ApiError:
        return False
    return True


def start(programs: ExitStack, work: Path, name: str, flags: Sequence[str]) -> Program:
    """Start a program, whose output goes to a file; it is ended with the block."""
    log: IO[bytes] = programs.enter_context((work / f"{name}.log").open("wb"))
    program = Program([folder() / name, *flags], work, log)
    program.start()
    programs.callback(program.end)
    return program


def free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def private_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
