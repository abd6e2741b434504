"""A running fleet with a lock: images come from the commit, not from the account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.cli.main import main
from reconciler.model.karpenter.nodeclass import SelectorTerm
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.test_lock import CONFIG, TYPES, WORKLOAD, price
from tests.contracts.cloud import a_class
from tests.desired.test_lock import CLASS, POOL
from tests.repositories import commit_all, git, init

OLD, NEW = "ami-00000000000000001", "ami-00000000000000002"


class Site:
    """An account, and the repository of its fleet."""

    def __init__(self, folder: Path, cloud: EmbeddedEC2, url: str) -> None:
        self.folder = folder
        self.cloud = cloud
        self.url = url
        by_name = CLASS.replace("{alias: al2023@v2025061VERSION}", "{name: golden-*}")
        self.write("class.yaml", by_name + "  amiFamily: AL2023\n")
        budget = "  disruption: {budgets: [{nodes: '100%'}], consolidateAfter: Never}\n"
        self.write("pool.yaml", POOL.replace("FAMILY", "m7g") + budget)
        self.write("api.yaml", WORKLOAD)
        self.write("reconciler.yaml", CONFIG + "cluster: embedded\n")
        init(self.folder)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def commit(self) -> None:
        commit_all(self.folder)

    def run(self, *words: str) -> int:
        command, *more = words
        settings = ["--set", f"aws.endpointUrl={self.url}", "--set", "aws.prices=live"]
        return main([command, str(self.folder), *more, *settings])

    def apply(self) -> None:
        assert (
            self.run("apply", "--auto-approve", "--state", str(self.folder.parent / "state")) == 0
        )

    def images(self) -> list[str]:
        rows = self.cloud.connect("ec2", 1).describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )["Reservations"]
        return [i["ImageId"] for row in rows for i in row["Instances"]]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    cloud = EmbeddedEC2(SystemClock(), prices=price, types=TYPES)
    term = SelectorTerm(tags={"team": "web"})
    cloud.seed(a_class(subnet_selector_terms=(term,), security_group_selector_terms=(term,)))
    cloud.publish(OLD, "golden-1", datetime(2026, 1, 1, tzinfo=UTC), "arm64")
    folder = tmp_path / "fleet"
    folder.mkdir()
    with serve(cloud) as url:
        yield Site(folder, cloud, url)


@pytest.mark.exhaustive
def test_a_newer_image_causes_drift_only_after_its_lock_is_committed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run("lock") == 0
    site.commit()
    site.apply()
    (before,) = site.cloud.running_instances()
    assert site.images() == [OLD]

    site.cloud.publish(NEW, "golden-2", datetime(2026, 2, 1, tzinfo=UTC), "arm64")
    site.apply()
    assert list(site.cloud.running_instances()) == [before], (
        "what the account publishes is no commit"
    )

    assert site.run("lock", "--update") == 0
    assert NEW in site.read("reconciler.lock")
    git(site.folder, "stash", "-q")
    site.apply()
    assert list(site.cloud.running_instances()) == [before]

    git(site.folder, "stash", "pop", "-q")
    site.commit()
    capsys.readouterr()
    assert site.run("plan", "--state", str(site.folder.parent / "state")) == 0
    planned = capsys.readouterr().out
    assert "Lock nodeClasses.default.amis" in planned, "since what was carried out last"
    assert f"{OLD} (golden-1" in planned
    assert f"image {NEW} (golden-2)" in planned
    site.apply()
    assert site.images() == [NEW]
    assert before not in site.cloud.running_instances()


@pytest.mark.exhaustive
def test_a_locked_launch_does_not_use_a_newer_image(site: Site) -> None:
    assert site.run("lock") == 0
    site.commit()
    site.cloud.publish(NEW, "golden-2", datetime(2026, 2, 1, tzinfo=UTC), "arm64")
    site.apply()
    assert site.images() == [OLD]


@pytest.mark.exhaustive
def test_the_acting_process_checks_the_status_of_instances(site: Site) -> None:
    assert site.run("lock") == 0
    site.commit()
    site.apply()
    requested = {call.operation for call in site.cloud.calls}
    assert {"CreateFleet", "DescribeInstanceStatus"} <= requested
