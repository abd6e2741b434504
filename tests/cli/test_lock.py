"""``reconciler lock`` end to end: an account over HTTP, a folder in git, and plans offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint
import pytest

from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.cli.main import main
from reconciler.desired.lock import Lock, read_lock
from reconciler.model.karpenter.nodeclass import SelectorTerm
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.contracts.cloud import a_class
from tests.desired.test_lock import CLASS, POOL

NOW = "2026-03-02T12:00:00Z"
TYPES = ("m7g.large", "m7g.xlarge", "m7g.metal")
WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: "1"}}}]
"""
CONFIG = """
apiVersion: reconciler/v1
kind: Configuration
fleet: web
aws: {region: us-east-1}
"""


def price(name: str, zone: str, capacity_type: str) -> float | None:
    if name not in TYPES:
        return None
    return 0.07 * (TYPES.index(name) + 1) * (0.3 if capacity_type == "spot" else 1.0)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    cloud = EmbeddedEC2(SimulatedClock(), prices=price, types=TYPES)
    term = SelectorTerm(tags={"team": "web"})
    cloud.seed(a_class(subnet_selector_terms=(term,), security_group_selector_terms=(term,)))
    with serve(cloud) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "class.yaml").write_text(CLASS.replace("VERSION", "v1"), encoding="utf-8")
    (tmp_path / "pool.yaml").write_text(POOL.replace("FAMILY", "m7g"), encoding="utf-8")
    (tmp_path / "api.yaml").write_text(WORKLOAD, encoding="utf-8")
    (tmp_path / "reconciler.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def lock(folder: Path, endpoint: str, *words: str) -> int:
    settings = [f"aws.endpointUrl={endpoint}", "aws.prices=live", "cluster=embedded"]
    flags = [part for setting in settings for part in ("--set", setting)]
    return main(["lock", str(folder), *words, *flags, "--now", NOW])


def the_lock(folder: Path) -> Lock:
    found = read_lock((folder / "reconciler.lock").read_bytes())
    assert isinstance(found, Lock)
    return found


def plan(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plan", str(folder), "-o", "json", "--now", NOW, *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def codes(plan: dict[str, Any]) -> list[str]:
    return [d["code"] for d in plan["diagnostics"]]


def test_an_offline_plan_uses_the_locked_facts(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(folder, endpoint) == 0
    found = plan(folder, capsys)
    assert found["lock"]["digest"] == the_lock(folder).digest
    assert "locked" in codes(found)
    launch = found["nodeClaims"][0]["launch"]
    assert (launch["capacityType"], launch["price"]) == ("spot", 0.021)
    assert launch["priceSource"]["source"] == "spot-history"
    assert plan(folder, capsys) == found


def test_the_price_book_discounts_locked_prices(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(folder, endpoint) == 0
    found = plan(folder, capsys, "--set", "priceBook.discountPercent=50")
    launch = found["nodeClaims"][0]["launch"]
    assert launch["price"] == 0.0105
    source = launch["priceSource"]
    assert (source["source"], source["basis"]) == ("book", "spot-history")


def test_a_second_lock_writes_nothing(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(folder, endpoint) == 0
    before = (folder / "reconciler.lock").read_bytes()
    assert lock(folder, endpoint) == 0
    assert "up to date" in capsys.readouterr().out
    assert lock(folder, endpoint, "--update") == 0
    assert (folder / "reconciler.lock").read_bytes() == before


def test_a_check_distinguishes_current_and_outdated_locks(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["lock", str(folder), "--check"]
    assert main(check) == 3
    assert "reconciler.lock does not exist" in capsys.readouterr().err
    assert lock(folder, endpoint) == 0
    assert main(check) == 0
    (folder / "class.yaml").write_text(CLASS.replace("VERSION", "v2"), encoding="utf-8")
    assert main(check) == 3
    assert "EC2NodeClass default changed" in capsys.readouterr().err
    found = plan(folder, capsys)
    assert codes(found).count("lock-stale") == 1


def test_a_damaged_lock_is_a_one_line_error_and_an_update_repairs_it(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(folder, endpoint) == 0
    file = folder / "reconciler.lock"
    file.write_bytes(file.read_bytes().replace(b"0.07,", b"0.01,"))
    capsys.readouterr()
    assert main(["plan", str(folder), "--now", NOW]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("reconciler.lock:1:1: error: wrong digest")
    assert main(["validate", str(folder)]) == 3
    assert lock(folder, endpoint) == 1
    assert lock(folder, endpoint, "--update") == 0
    assert main(["lock", str(folder), "--check"]) == 0


def test_a_lock_of_another_region_is_ignored_and_reported(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(folder, endpoint) == 0
    found = plan(folder, capsys, "--set", "aws.region=eu-west-1")
    assert "lock" not in found
    assert "catalog-fallback" in codes(found)


def test_nothing_is_written_if_aws_is_unreachable(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
    assert lock(folder, "http://127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "nothing was written" in err
    assert not (folder / "reconciler.lock").exists()


def test_a_lock_is_not_written_through_a_link(
    folder: Path, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout, outside = tmp_path / "checkout", tmp_path / "secret"
    outside.write_text("of the user")
    (checkout / ".git").mkdir(parents=True)
    (checkout / "linked").symlink_to(folder)
    (folder / "reconciler.lock").symlink_to(outside)
    assert lock(checkout / "linked", endpoint) == 1
    assert lock(folder, endpoint) in (0, 1)
    assert outside.read_text() == "of the user"
