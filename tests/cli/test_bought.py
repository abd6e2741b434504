"""``reconciler check --commitments``: purchased commitments as settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.aws.facts.commitments import read_commitments
from reconciler.adapters.clock import SystemClock
from reconciler.adapters.simulated.conditions import Fault
from reconciler.cli.main import main
from reconciler.model.errors import TransientCloudError
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.advisedfleet import NODE_CLASS
from tests.yamltext import load

pytestmark = pytest.mark.usefixtures("without_retry_pauses")

END = datetime(2027, 3, 1, tzinfo=UTC)
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: web}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: []
"""


@pytest.fixture
def cloud() -> EmbeddedEC2:
    cloud = EmbeddedEC2(SystemClock(), region="eu-west-1")
    plan, reserve = cloud.contracts.add_plan, cloud.contracts.reserve
    plan("sp-1", "Compute", "1.50", "2027-01-01T00:00:00.000Z")
    family = {"ec2InstanceFamily": "m7i", "region": "eu-west-1"}
    plan("sp-2", "EC2Instance", "0.75", "2027-02-01T00:00:00.000Z", **family)
    plan("sp-3", "SageMaker", "9.0", "2027-01-01T00:00:00.000Z")
    plan("sp-4", "Compute", "9.0", "2027-01-01T00:00:00.000Z", state="retired")
    plan("sp-5", "Compute", "9.0", "2027-01-01T00:00:00.000Z", currency="CNY")
    reserve("ri-1", "m7i.large", 3, END)
    reserve("ri-2", "c7i.large", 1, END, scope="Availability Zone", availabilityZone="eu-west-1b")
    reserve("ri-3", "m7i.large", 1, END, productDescription="Windows")
    reserve("ri-4", "m7i.large", 1, END, instanceTenancy="dedicated")
    reserve("ri-5", "m7i.large", 1, END, state="retired")
    return cloud


@pytest.fixture
def words(tmp_path: Path, cloud: EmbeddedEC2) -> Iterator[list[str]]:
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "class.yaml").write_text(NODE_CLASS)
    with serve(cloud) as url:
        settings = ("aws.region=eu-west-1", f"aws.endpointUrl={url}")
        flags = [word for setting in settings for word in ("--set", setting)]
        yield ["check", str(tmp_path), "--commitments", *flags]


def test_the_printed_config_can_be_read_back(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert load(text)["commitments"] == {
        "savingsPlans": [
            {"type": "Compute", "commitment": 1.5, "until": "2027-01-01T00:00:00Z", "note": "sp-1"},
            {
                "type": "EC2Instance",
                "commitment": 0.75,
                "family": "m7i",
                "region": "eu-west-1",
                "until": "2027-02-01T00:00:00Z",
                "note": "sp-2",
            },
        ],
        "reservedInstances": [
            {
                "instanceType": "m7i.large",
                "count": 3,
                "region": "eu-west-1",
                "until": "2027-03-01T00:00:00Z",
                "note": "ri-1",
            },
            {
                "instanceType": "c7i.large",
                "count": 1,
                "region": "eu-west-1",
                "zone": "eu-west-1b",
                "until": "2027-03-01T00:00:00Z",
                "note": "ri-2",
            },
        ],
    }
    assert "# not supported: savings plan sp-3: its type is SageMaker" in text
    assert "# not supported: savings plan sp-5: its currency is CNY" in text
    assert "# not supported: reserved instances ri-3: they are for Windows" in text
    assert "# not supported: reserved instances ri-4: their tenancy is dedicated" in text
    config = "apiVersion: reconciler/v1\nkind: Configuration\n" + text
    (tmp_path / "reconciler.yaml").write_text(config)
    assert main(["config", str(tmp_path), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "sp-2" in json.dumps(shown)


def test_the_commitments_are_printed_as_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [row["note"] for row in found["commitments"]["savingsPlans"]] == ["sp-1", "sp-2"]
    assert len(found["passedOver"]) == 4


def test_an_account_without_commitments_is_reported(
    words: list[str], cloud: EmbeddedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.contracts = type(cloud.contracts)()
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("# This account has no ")


def test_all_pages_are_read_and_a_lost_page_is_an_error(cloud: EmbeddedEC2) -> None:
    whole = read_commitments(cloud.connect, "eu-west-1")
    cloud.rows_a_page = 1
    assert read_commitments(cloud.connect, "eu-west-1") == whole
    cloud.faults.add("DescribeSavingsPlans", Fault.SERVER_ERROR, times=None, skip=1)
    with pytest.raises(TransientCloudError) as error:
        read_commitments(cloud.connect, "eu-west-1")
    assert error.value.where.startswith("savingsplans:DescribeSavingsPlans (request ")


def test_a_missing_permission_to_read_commitments_is_named(
    words: list[str], cloud: EmbeddedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.faults.add("DescribeReservedInstances", Fault.DENIED, times=None)
    assert main(words) == 1
    output = capsys.readouterr().err
    assert "allow ec2:DescribeReservedInstances for these credentials" in output
    assert len(output.splitlines()) == 1
