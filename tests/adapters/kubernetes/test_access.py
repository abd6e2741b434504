"""Selection of the cluster and its credentials, and the check that new nodes join it."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from reconciler.adapters.kubernetes.access import Access, access_of, expect_one_cluster
from reconciler.adapters.kubernetes.api import Api, ApiError
from reconciler.model.errors import ClusterError, LeaseLostError, UsageError
from reconciler.model.settings import Settings
from reconciler.source.plainyaml import dump
from tests.adapters.kubernetes.apiserver import (
    TOKEN,
    Call,
    Kube,
    RefusedError,
    serving,
    write_kubeconfig,
)
from tests.adapters.kubernetes.sandbox import Sandbox
from tests.yamltext import load

SERVER = "https://ABC.gr7.eu-west-1.eks.amazonaws.com"


def a_certificate(body: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_the_setting_precedes_the_variable_and_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", "https://home")
    assert access_of(Settings()).server == "https://home"
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "two", "https://variable")))
    assert str(access_of(Settings())) == "https://variable (context shop)"
    one = write_kubeconfig(tmp_path / "one", "https://setting")
    assert access_of(Settings(kubeconfig=str(one))).server == "https://setting"


def test_another_context_selects_another_cluster(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "https://one")
    config = load(path.read_text())
    config["clusters"].append({"name": "two", "cluster": {"server": "https://two"}})
    config["contexts"].append({"name": "other", "context": {"cluster": "two", "user": "me"}})
    path.write_text(dump(config))
    found = access_of(Settings(kubeconfig=str(path), kube_context="other"))
    assert str(found) == "https://two (context other)"


def test_a_missing_cluster_is_reported_with_advice() -> None:
    with pytest.raises(UsageError, match=r"no cluster configured.*set kubernetes\.kubeconfig"):
        access_of(Settings())


@pytest.mark.parametrize("content", ["", "[", "clusters: 7", "apiVersion: v1\nkind: Config\n"])
def test_an_invalid_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ClusterError) as caught:
        access_of(Settings(kubeconfig=str(path)))
    assert str(caught.value).startswith(f"{path}: the kubeconfig does not lead to a cluster")
    assert "\n" not in str(caught.value)


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "https://one")
    with pytest.raises(ClusterError, match="nope"):
        access_of(Settings(kubeconfig=str(path), kube_context="nope"))


def test_a_missing_client_package_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client.api_client", None)
    with pytest.raises(UsageError, match=r"pip install .*\[kubernetes\]'"):
        access_of(Settings())


def test_expired_credentials_are_renewed_once(tmp_path: Path) -> None:
    """As from an exec plugin: tokens of EKS expire after a quarter of an hour."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "TOKEN"},
    }
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        f"print({json.dumps(json.dumps(credential))}.replace('TOKEN', open({str(token)!r}).read()))"
    )
    runs = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    kube = Kube()
    with serving(kube) as url:
        path = write_kubeconfig(tmp_path / "config", url, user={"exec": runs})
        api = Api(lambda: access_of(Settings(kubeconfig=str(path))), lambda _: None)
        assert b"v1.33" in api.call("GET", "/version")
        kube.token = "renewed"
        token.write_text("renewed")
        assert b"v1.33" in api.call("GET", "/version")
        kube.token = "revoked"
        with pytest.raises(ClusterError, match=r"GET /version: HTTP 401 Unauthorized.*renew"):
            api.call("GET", "/version")


def test_an_unreachable_server_is_a_one_line_error(sandbox: Sandbox) -> None:
    access = replace(sandbox.api.access, server="http://127.0.0.1:9")
    api = Api(lambda: access, sandbox.waited.append)
    with pytest.raises(ClusterError) as caught:
        api.call("GET", "/version")
    assert str(caught.value).startswith("GET /version: no answer: ")
    assert "\n" not in str(caught.value)
    assert len(sandbox.waited) == 3


@pytest.mark.parametrize(
    ("authority", "server", "bundle", "endpoint", "refused"),
    [
        (a_certificate("AAAA"), SERVER, a_certificate("AAAA"), "https://elsewhere", False),
        (a_certificate("AA\nAA"), "https://tunnel", a_certificate("AAAA"), SERVER, False),
        (a_certificate("AAAA"), SERVER, a_certificate("BBBB"), SERVER, True),
        ("", SERVER, a_certificate("AAAA"), SERVER, False),
        ("", SERVER, "", SERVER.replace("ABC", "DEF"), True),
        ("", SERVER, "", "https://10.0.0.1", False),
        (a_certificate("AAAA"), SERVER, "", "", False),
    ],
)
def test_a_cluster_other_than_the_one_nodes_join_is_rejected(
    authority: str, server: str, bundle: str, endpoint: str, refused: bool
) -> None:
    access = Access("context shop", server, authority, None)
    joins = Settings(
        cluster_ca_bundle=base64.b64encode(bundle.encode()).decode(), cluster_endpoint=endpoint
    )
    if not refused:
        expect_one_cluster(access, joins)
        return
    with pytest.raises(UsageError, match="new nodes would join another cluster"):
        expect_one_cluster(access, joins)


def test_an_unauthorized_answer_to_the_last_attempt_is_reported(sandbox: Sandbox) -> None:
    answers = [503, 503, 503, 401]

    def fail(call: Call) -> None:
        raise RefusedError(answers.pop(0), "No")

    sandbox.kube.fault = fail
    with pytest.raises(ClusterError, match="GET /version: HTTP 401 No"):
        sandbox.api.call("GET", "/version")


def test_a_process_without_the_lease_makes_no_requests(sandbox: Sandbox) -> None:
    def confirm() -> None:
        raise LeaseLostError("this process no longer holds the lease")

    sandbox.api.confirm = confirm
    with pytest.raises(LeaseLostError):
        sandbox.api.call("GET", "/api/v1/nodes")
    assert sandbox.kube.calls == []


def test_a_response_reports_the_time_of_the_api_server(sandbox: Sandbox) -> None:
    """Lists, rejections and watches: an idle daemon that only watches notices a changed clock."""
    heard: list[tuple[datetime, datetime, datetime]] = []
    sandbox.api.on_time = lambda *times: heard.append(times)
    sandbox.api.call("GET", "/api/v1/nodes")
    with suppress(ApiError):
        sandbox.api.call("GET", "/api/v1/namespaces/default/pods/none")
    list(sandbox.api.stream_lines("/api/v1/pods", {"watch": "1", "timeoutSeconds": "1"}, 5.0))
    assert len(heard) == 3
    for stated, sent, received in heard:
        assert sent <= received
        assert abs(stated - received) < timedelta(seconds=5)


@pytest.mark.parametrize("stated", ["", "yesterday", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_a_response_without_a_time_is_used(sandbox: Sandbox, stated: str) -> None:
    heard: list[object] = []
    sandbox.api.on_time = lambda *times: heard.append(times)
    sandbox.kube.date = stated
    sandbox.api.call("GET", "/api/v1/nodes")
    assert heard == []
