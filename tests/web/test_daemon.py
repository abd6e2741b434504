"""A real daemon that listens: its log, metrics, health and page, asked from outside."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from reconciler.model.errors import UsageError
from tests.cli.commandlines import run
from tests.engine.processes import AT_MOST_S, Site, a_site


def fetch(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def wait_until_ready(url: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + AT_MOST_S
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()[0]
        try:
            fetch(f"{url}/readyz")
        except (URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    pytest.fail("not ready in time")


def launched(site: Site) -> int:
    return sum(site.fleet().values())


def test_a_daemon_shows_what_it_does(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        url = f"http://127.0.0.1:{free_port()}"
        listen = url.removeprefix("http://")
        process = site.start(
            "run", "--listen", listen, "--log-format", "json", "--interval", "100ms"
        )
        wait_until_ready(url, process)
        assert launched(site) >= 3
        metrics = fetch(f"{url}/metrics")
        assert 'operation="CreateFleet",outcome="ok",service="ec2"' in metrics
        assert 'reconciler_passes_total{result="succeeded"}' in metrics
        assert "reconciler_lease_held 1.0" in metrics
        assert "NodePools" in fetch(f"{url}/")
        assert fetch(f"{url}/healthz").startswith("last heartbeat")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=AT_MOST_S)
        assert process.returncode == 0, out
    lines = [json.loads(line) for line in out.splitlines()]
    launches = [line for line in lines if line.get("event") == "Launched"]
    assert launches
    assert all(line["fleet"] == "web" and line["plan"] and line["nodeClaim"] for line in launches)
    assert {line["level"] for line in launches} == {"INFO"}


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UsageError, match=r"needs the extra `web`.*pip install"):
        run("run", str(tmp_path), "--listen", ":0", "--dirty")
