"""While ``watch`` runs, its dashboard shows the cluster; afterwards its record can be used."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any
from urllib.request import urlopen

import pytest

from reconciler.adapters.threads import background_thread
from reconciler.cli.commands.recorded.watch import context_fleet
from reconciler.cli.main import main
from reconciler.desired.settings.readers import read_name
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    KarpenterActionKind,
    PredictionVerdict,
    Score,
)
from reconciler.source.plainyaml import dump
from reconciler.watch.serving import WatchPages
from reconciler.web.server import make_app, serve_in_thread
from tests.adapters.kubernetes.apiserver import Kube
from tests.watch.claims import START, command, node
from tests.watch.test_live import LABELS, kube
from tests.web.test_dashboard import OPEN, words
from tests.yamltext import load

__all__ = ["kube"]

NAME = "ip-10-0-0-1.ec2.internal"
CREATED = (datetime.now(UTC) - timedelta(hours=1)).strftime("%FT%TZ")
RESOURCES = {"cpu": "2", "memory": "8Gi", "pods": "29"}
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": NAME,
        "creationTimestamp": CREATED,
        "labels": {
            **LABELS,
            "kubernetes.io/hostname": NAME,
            "karpenter.sh/registered": "true",
            "karpenter.sh/initialized": "true",
            "topology.kubernetes.io/region": "us-east-1",
        },
    },
    "spec": {"providerID": "aws:///us-east-1a/i-1"},
    "status": {
        "capacity": RESOURCES,
        "allocatable": RESOURCES,
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
CLAIM: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodeClaim",
    "metadata": {"name": "web-1", "creationTimestamp": CREATED, "labels": LABELS},
    "spec": {
        "nodeClassRef": {"group": "example.com", "kind": "Machine", "name": "default"},
        "requirements": [],
    },
    "status": {
        "providerID": "aws:///us-east-1a/i-1",
        "nodeName": NAME,
        "capacity": RESOURCES,
        "allocatable": RESOURCES,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": CREATED}
            for kind in ("Launched", "Registered", "Initialized")
        ],
    },
}


def a_pod(name: str, node: str = "", cpu: str = "1") -> dict[str, Any]:
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "creationTimestamp": CREATED,
            "labels": {"team": "checkout"},
        },
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running"},
    }
    if node:
        pod["spec"]["nodeName"] = node
    else:
        pod["status"] = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        }
    return pod


def populate(kube: Kube) -> None:
    for item in (NODE, CLAIM, a_pod("api-1", NAME), a_pod("api-2", cpu="1500m")):
        kube.add(item)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


WORDS = ["--set", "aws.region=us-east-1", "--interval", "20ms"]
ONE = ["--context", "shop"]


def test_the_dashboard_shows_the_cluster_and_what_karpenter_does_next(
    kube: Kube,
) -> None:
    pages = pages_of_a_watch(kube, "/", "/predictions", "/nodes", "/metrics", words=ONE)
    overview = words(pages["/"])
    assert re.search(r"Cost \$[1-9][0-9,.]* /month", overview)
    assert "Karpenter does next: launch 1 × m5.large" in overview
    assert "web 1 1 2 $" in overview
    assert re.search(r"Who costs what .* shop 1 \$", overview)
    assert "Commit" not in overview
    assert "Karpenter does next launch 1 × m5.large" in words(pages["/predictions"])
    assert NAME in pages["/nodes"]
    assert 'reconciler_prediction_total{kind="command",verdict="wrong"} 0.0' in pages["/metrics"]


def pages_of_a_watch(kube: Kube, *paths: str, words: Sequence[str] = ()) -> dict[str, str]:
    """Watch until a plan is shown; return pages of the dashboard."""
    address = f"127.0.0.1:{free_port()}"
    found: dict[str, str] = {}
    populate(kube)

    def visit(stop: Event) -> None:
        while not stop.wait(0.05):
            try:
                ready_first = ("/readyz", *paths)
                found.update({path: read(f"http://{address}{path}") for path in ready_first})
            except OSError:  # not ready, or not listening yet
                continue
            break
        os.kill(os.getpid(), signal.SIGTERM)

    with background_thread("browser", visit):
        assert main(["watch", *words, "--listen", address, *WORDS]) == 0
    return found


def read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_the_record_of_a_watch_divides_the_cost_and_can_be_simulated(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    pages_of_a_watch(kube, words=ONE)
    capsys.readouterr()
    for by, name in (("namespace", "shop"), ("label=team", "checkout")):
        assert main(["top", "--by", by, "-o", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [group["name"] for group in answer["groups"]] == [name]
        assert answer["groups"][0]["pricePerHour"] > 0
    assert main(["trace", "export", "--since", "1h", "--out", "day.jsonl"]) == 0
    capsys.readouterr()
    assert main(["trace", "summary", "day.jsonl", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pods"] == 2


ARN = "arn:aws:eks:us-east-1:111122223333:cluster/web"


def test_several_clusters_are_watched_in_one_process_with_a_record_each(
    kube: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kubeconfig"
    known = load(config.read_text())
    known["contexts"].append({**known["contexts"][0], "name": ARN})
    config.write_text(dump(known))
    record = context_fleet(ARN)
    both = ["--context", "shop", "--context", ARN]
    pages = pages_of_a_watch(kube, "/", f"/fleets/{record}/", "/metrics", words=both)
    assert re.search(rf"shop .* {record} ", words(pages["/"]))
    assert "Karpenter does next: launch 1 × m5.large" in words(pages[f"/fleets/{record}/"])
    assert f'reconciler_prediction_total{{fleet="{record}",kind="launch"' in pages["/metrics"]
    printed = capsys.readouterr().err
    assert printed.count("Watching Karpenter in ") == 2
    assert re.search(r"^Dashboard: http://127.0.0.1:\d+/$", printed, re.MULTILINE)
    for context in ("shop", ARN):
        assert main(["watch", "report", "--context", context]) == 0
        assert main(["top", "--by", "namespace", "--set", f"fleet={context_fleet(context)}"]) == 0


def test_a_place_for_snapshots_is_that_of_one_cluster(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--context", "shop", "--context", "other"]
    assert main(["watch", *both, "--publish", "cluster.json"]) == 1
    assert "cannot be published at one place" in capsys.readouterr().err
    assert kube.calls == []


@pytest.mark.parametrize("context", [ARN, "web", "a" * 70, "-", "user@cluster", "café", ""])
def test_the_record_of_each_context_has_a_valid_name_of_its_own(context: str) -> None:
    name = context_fleet(context)
    assert read_name(name) == name
    assert name not in {context_fleet(f"{context}-"), context_fleet(f"x/{context}")}


def test_actions_are_counted_and_listed_with_their_causes() -> None:
    launch = KarpenterAction(START, KarpenterActionKind.LAUNCH, (node(), node()))
    removal = KarpenterAction(
        START, KarpenterActionKind.COMMAND, command=command("Empty", "node-<b>")
    )
    first = Score(launch, PredictionVerdict.EXACT, 1, 0.192, 0.192)
    pages = WatchPages("shop", [first], lambda: START)
    pages.show_score(
        Score(removal, PredictionVerdict.WRONG, 2, None, 0.096, "<i>no command</i>", "miss.gz")
    )
    found = read_pages(pages, "/predictions", "/history", "/events", "/metrics")
    score = words(found["/predictions"])
    assert "Launch 1 1 0 0 0 100%" in score
    assert "Command 1 0 0 0 1 0%" in score
    assert "Empty: remove node-&lt;b&gt; &lt;i&gt;no command&lt;/i&gt; miss.gz" in score
    history = words(found["/history"])
    assert history.index("Empty: remove node") < history.index("launched 2 × m5.large")
    assert "wrong: Empty: remove node-&lt;b&gt;" in words(found["/events"])
    assert 'reconciler_prediction_total{kind="command",verdict="wrong"} 1.0' in found["/metrics"]


def read_pages(pages: WatchPages, *paths: str) -> dict[str, str]:
    app = make_app(pages.metrics, pages.health, pages.dashboard, OPEN, pages.routes())
    with serve_in_thread("127.0.0.1:0", app) as url:
        return {path: read(f"{url}{path}") for path in paths}
