"""Attacks through the place that a snapshot is read from: addresses, redirects, endless answers."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from reconciler.adapters.https import download, is_forbidden
from reconciler.assembly.capturing import anonymize_objects
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.main import main
from reconciler.desired.migration.captured import without_environments
from reconciler.desired.migration.controller import settings_of_deployment
from reconciler.model.errors import ReconcilerError, UnreadableError, UsageError
from reconciler.model.karpenter.labels import LAST_APPLIED
from tests.cli.test_snapshot_anonymized import EVERY_KIND, OF_CONTROLLERS, planted
from tests.hostile.test_git import POOL
from tests.hostile.threats import Threat, attack
from tests.httpserver import QuietHandler, serving_with


class Site:
    """A server on this machine: its answers by path, and its requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requested: list[str] = []
        self.redirects: dict[str, str] = {}
        self.ends = Event()

    def url(self, path: str) -> str:
        return f"https://localhost:{self.port}{path}"


def handler(sites: list[Site]) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def answer(self) -> None:
            site = sites[0]
            site.requested.append(self.path)
            target = site.redirects.get(self.path)
            self.send_response(302 if target is not None else 200)
            if target is not None:
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
            elif self.path == "/short":
                self.send_header("Content-Length", "100")
            elif self.path == "/file":
                self.send_header("Content-Length", "7")
            self.end_headers()
            if target is not None:
                return
            if self.path == "/file":
                self.wfile.write(b"content")
            while self.path in ("/endless", "/drip") and not site.ends.is_set():
                with suppress(OSError):
                    self.wfile.write(b"x" * (65536 if self.path == "/endless" else 1))
                    self.wfile.flush()
                    site.ends.wait(0 if self.path == "/endless" else 0.01)
                    continue
                return
            self.close_connection = True

    return Handler


@pytest.fixture
def site(certificate: Path) -> Iterator[Site]:
    sites: list[Site] = []
    with serving_with(handler(sites), certificate) as url:
        sites.append(Site(int(url.rpartition(":")[2])))
        yield sites[0]
        sites[0].ends.set()


@pytest.fixture(autouse=True)
def only_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """``localhost`` is this server's address, wherever the tests run."""
    real = socket.getaddrinfo

    def resolved(host: str, *more: int, **named: int) -> object:
        return real("127.0.0.1" if host == "localhost" else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.attack(Threat.SETTINGS, "a redirect within the host, which is allowed")
def test_a_redirect_within_the_host_is_followed(site: Site, certificate: Path) -> None:
    site.redirects["/old"] = "/file"
    assert download(site.url("/old"), 100, trust=str(certificate)) == b"content"
    assert site.requested == ["/old", "/file"]


@attack(Threat.SETTINGS, "a snapshot server that redirects to another host")
@pytest.mark.parametrize(
    "target",
    [
        "http://localhost/file",
        "https://127.0.0.1/file",
        "https://localhost:1/file",
        "https://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "//evil.example/file",
        "https://user@localhost:PORT/file",
    ],
)
def test_a_redirect_to_another_host_is_not_followed(
    site: Site, certificate: Path, target: str
) -> None:
    site.redirects["/old"] = target.replace("PORT", str(site.port))
    with pytest.raises(UnreadableError, match="redirects to another host"):
        download(site.url("/old"), 100, trust=str(certificate))
    assert site.requested == ["/old"]


@attack(Threat.EXHAUSTION, "a snapshot server that redirects in a circle")
def test_a_redirect_loop_ends(site: Site, certificate: Path) -> None:
    site.redirects["/a"] = "/a"
    with pytest.raises(UnreadableError, match="more than 3 redirects"):
        download(site.url("/a"), 100, trust=str(certificate))
    assert len(site.requested) == 4


@attack(Threat.EXHAUSTION, "a snapshot server that never stops sending")
def test_an_endless_answer_ends_at_the_limit(site: Site, certificate: Path) -> None:
    with pytest.raises(UnreadableError, match="more than 1,000,000 bytes"):
        download(site.url("/endless"), 1_000_000, trust=str(certificate))


@attack(Threat.EXHAUSTION, "a snapshot server that sends a byte at a time")
def test_a_slow_answer_ends_at_the_deadline(site: Site, certificate: Path) -> None:
    with pytest.raises(UnreadableError, match=r"takes longer than 0\.1 s"):
        download(site.url("/drip"), 1_000_000, trust=str(certificate), total_s=0.1)


@attack(Threat.HIDDEN, "a snapshot server that stops in the middle of the file")
def test_a_truncated_answer_is_an_error(site: Site, certificate: Path) -> None:
    with pytest.raises(UnreadableError):
        download(site.url("/short"), 1000, trust=str(certificate))


@attack(Threat.SETTINGS, "a snapshot server without a trusted certificate")
def test_an_unknown_certificate_is_refused(site: Site) -> None:
    with pytest.raises(UnreadableError, match="certificate cannot be verified"):
        download(site.url("/file"), 1000)
    assert site.requested == []


@attack(Threat.SETTINGS, "a name that resolves to a metadata service")
@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.170.2", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"),
        *("2002:a9fe:a9fe::1", "fe80::1", "fd00:ec2::254", "100.100.100.200", "0.0.0.0", "::"),
        *("224.0.0.1", "ff02::1", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"),
    ],
)
def test_metadata_addresses_are_never_requested(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    assert is_forbidden(address)
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    good = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 443))
    bad = (family, socket.SOCK_STREAM, 6, "", (address, 443))
    connections: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [good, bad])
    monkeypatch.setattr(socket.socket, "connect", lambda _, to: connections.append(to))
    with pytest.raises(UsageError, match="link-local or a metadata service"):
        download("https://files.example/cluster.json", 1000)
    assert connections == []


@attack(Threat.SETTINGS, "a snapshot location that is a local file, unencrypted or not a URL")
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file:///etc/passwd", "not read from file://"),
        ("FILE:///etc/passwd", "not read from FILE://"),
        ("http://files.example/cluster.json", "not read from http://"),
        ("ftp://files.example/a", "not read from ftp://"),
        ("ext::sh -c touch% x", "No such file"),
        ("https://user:hunter2@files.example/a", "contains a user or password"),
        ("https://files.example:99999/a", "not a valid URL"),
        ("https:///a", "not a valid URL"),
        ("https://files.example/a\nb", "not a valid URL"),
    ],
)
def test_unsupported_locations_are_rejected_before_any_request(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    says: str,
) -> None:
    requested: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *named, **_: requested.append(named) or [])
    (tmp_path / "pool.yaml").write_text(POOL)
    assert main(["plan", str(tmp_path), "--snapshot", place]) != 0
    output = capsys.readouterr()
    assert says in output.err
    assert output.out == ""
    assert "hunter2" not in output.err
    assert requested == []


@attack(Threat.SECRETS, "a signature in the URL of a snapshot that cannot be read")
def test_the_query_of_a_url_is_never_shown(site: Site) -> None:
    with pytest.raises(ReconcilerError) as caught:
        download(site.url("/file?X-Amz-Signature=hunter2"), 1000)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@attack(Threat.SETTINGS, "a repository that names the snapshot of its plan")
@pytest.mark.parametrize("text", ["snapshot: {source: 'https://evil.example'}", "snapshot: a.json"])
def test_a_repository_cannot_name_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "reconciler.yaml").write_text(f"{text}\n")
    assert main(["validate", str(tmp_path)]) == 3
    assert "snapshot" in capsys.readouterr().out


@attack(
    Threat.SECRETS, "user data, roles, images and tags of another fleet's node class, in a snapshot"
)
@pytest.mark.parametrize("has_fleet", [True, False], ids=["with files", "without files"])
def test_an_anonymized_snapshot_shows_no_node_class_of_others(
    has_fleet: bool, tmp_path: Path
) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    other = {
        "kind": "EC2NodeClass",
        "apiVersion": "karpenter.k8s.aws/v1",
        "metadata": {"name": "others", "annotations": {"canary/a": "canary"}},
        "spec": {
            "role": "canary-role",
            "userData": "canary password",
            "amiSelectorTerms": [{"name": "canary-image", "tags": {"canary": "canary"}}],
            "subnetSelectorTerms": [{"tags": {"canary": "canary"}}],
            "tags": {"canary-team": "canary"},
        },
        "status": {"instanceProfile": "canary", "amis": [{"id": "ami-1", "name": "canary"}]},
    }
    found = anonymize_objects([other], FleetRequest(path=str(tmp_path)), has_fleet=has_fleet)
    assert "canary" not in json.dumps(found)


@attack(
    Threat.SECRETS,
    "a name in any text and as any key of an object of any kind, in an anonymized snapshot",
)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_anonymized_snapshot_shows_nothing_that_somebody_named(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    objects, places = planted(kind, EVERY_KIND[kind])
    found = json.dumps(anonymize_objects(objects, FleetRequest(path=str(tmp_path)), has_fleet=True))
    shown = {places[int(number)] for number in re.findall(r"[Cc]anary(?:Bird)?([0-9]+)", found)}
    assert all(place.endswith(OF_CONTROLLERS) for place in shown)


@attack(Threat.SECRETS, "environments, commands and copies of objects, in a snapshot of a cluster")
@pytest.mark.parametrize("kind", ["Pod", "Deployment", "PodTemplate", "DaemonSet"])
def test_a_snapshot_of_a_cluster_contains_no_environment(kind: str) -> None:
    container = {
        "name": "c", "image": "canary", "args": ["canary"], "command": ["canary"],
        "env": [{"name": "TOKEN", "value": "canary"}], "envFrom": [{"prefix": "canary"}],
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "a", "value": "canary"}]}},
        "resources": {"requests": {"cpu": "1"}},
    }  # fmt: skip
    spec: dict[str, object] = {name: [container] for name in ("containers", "initContainers")}
    item: dict[str, object] = {
        "kind": kind,
        "metadata": {
            "name": "p",
            "annotations": {LAST_APPLIED: "canary", "karpenter.sh/do-not-disrupt": "true"},
            "managedFields": ["canary"],
        },
    }
    if kind == "Pod":
        item["spec"] = spec
    elif kind == "PodTemplate":
        item["template"] = {"spec": spec}
    else:
        item["spec"] = {"template": {"spec": spec}}
    text = json.dumps(without_environments(item))
    assert "canary" not in text
    assert "do-not-disrupt" in text
    assert text.count('{"cpu": "1"}') == 2


def test_the_settings_of_a_captured_controller_are_kept() -> None:
    controller = {
        "kind": "Deployment",
        "metadata": {"name": "karpenter", "labels": {"app.kubernetes.io/name": "karpenter"}},
        "spec": {"template": {"spec": {"containers": [{
            "name": "controller", "image": "karpenter/controller:1.6.0",
            "args": ["--batch-idle-duration=2s", "--password=canary"],
            "env": [{"name": "FEATURE_GATES", "value": "SpotToSpotConsolidation=true"},
                    {"name": "TOKEN", "value": "canary"},
                    {"name": "CLUSTER_NAME", "valueFrom": {"secretKeyRef": {"name": "canary"}}}],
        }]}}},
    }  # fmt: skip
    kept = without_environments(controller)
    assert settings_of_deployment(kept) == settings_of_deployment(controller)._replace(
        left_out=settings_of_deployment(kept).left_out
    )
    assert settings_of_deployment(kept).values["batchIdleDuration"] == "2s"
    assert "canary" not in json.dumps(kept)
