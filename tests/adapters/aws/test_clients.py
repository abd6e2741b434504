"""Clients of several fleets in one process, separated by region, endpoint and role."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import JSONFileLoader, create_loader
from moto import mock_aws

from reconciler.adapters.aws.clients import POOL, RATES, AwsAccess, Connections, account_of
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import LeaseLostError
from reconciler.model.settings import Settings
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve

ONE = Settings(fleet="one", region="us-east-1", role_arn="arn:aws:iam::111111111111:role/fleets")
OTHER = replace(ONE, fleet="other", role_arn="arn:aws:iam::222222222222:role/fleets")


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    """Two accounts of moto behind AWS's own endpoints, for a caller in a third one."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mock_aws():
        yield Connections(SimulatedClock())


def test_each_fleet_acts_in_the_account_of_its_role(accounts: Connections) -> None:
    numbers = [
        accounts.connector(settings)("sts", 1).get_caller_identity()["Account"]
        for settings in (ONE, OTHER, ONE)
    ]
    assert numbers == ["111111111111", "222222222222", "111111111111"]


def test_resources_of_one_fleet_are_invisible_to_another(accounts: Connections) -> None:
    one, other = (accounts.connector(s)("sqs", 1) for s in (ONE, OTHER))
    one.create_queue(QueueName="ours")
    assert len(one.list_queues()["QueueUrls"]) == 1
    assert "QueueUrls" not in other.list_queues()


def test_each_fleet_acts_in_its_own_region(accounts: Connections) -> None:
    here, there = (
        accounts.connector(ONE)("sqs", 1),
        accounts.connector(replace(ONE, region="eu-west-1"))("sqs", 1),
    )
    assert (here.meta.region_name, there.meta.region_name) == ("us-east-1", "eu-west-1")


def test_the_price_list_is_requested_in_its_region(accounts: Connections) -> None:
    connect = accounts.connector(replace(ONE, region="eu-west-1"))
    assert connect("pricing", 1).meta.region_name == "eu-central-1"


def test_fleets_of_one_account_share_clients_and_those_of_roles_share_the_rate(
    accounts: Connections,
) -> None:
    twin = replace(ONE, session_name="reconciler-one", fleet="twin")
    assert accounts.connector(ONE)("sqs", 1) is accounts.connector(twin)("sqs", 1)
    assert accounts.connector(ONE)("sqs", 1) is not accounts.connector(ONE)("sqs", 5)
    beside = replace(ONE, role_arn="arn:aws:iam::111111111111:role/others")
    assert accounts.connector(ONE)("sqs", 1) is not accounts.connector(beside)("sqs", 1)
    throttles = accounts._throttles
    assert set(throttles) == {("111111111111", "us-east-1")}


def test_api_models_are_loaded_once_for_all_accounts(
    accounts: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    load = JSONFileLoader.load_file

    def noted(self: JSONFileLoader, path: str) -> Any:
        data = load(self, path)
        if data is not None:
            read.append(path)
        return data

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    monkeypatch.setattr(botocore.session, "create_loader", create_loader)  # see tests/awsmodels.py
    regions = ("us-east-1", "us-east-2", "eu-west-1")
    clients = [accounts.connector(replace(OTHER, region=region))("ec2", 1) for region in regions]
    assert len({client.meta.region_name for client in clients}) == len(regions)
    assert sum("endpoint-rule-set" in path and "/ec2/" in path for path in read) <= 1
    assert accounts.connector(OTHER)("ec2", 1).describe_regions()["Regions"]


def test_roles_of_one_account_share_a_rate_limit_and_accounts_do_not(
    clock: SimulatedClock, accounts: Connections
) -> None:
    connections = Connections(clock)
    beside = replace(ONE, role_arn="arn:aws:iam::111111111111:role/others")
    abroad = replace(ONE, region="eu-west-1")
    one, twin, other, there = (
        connections.connector(settings)("ec2", 1) for settings in (ONE, beside, OTHER, abroad)
    )
    rate = RATES["RunInstances"]

    def waited(*clients: Any) -> float:
        started = clock.now()
        for client in clients:
            with pytest.raises(client.exceptions.ClientError):
                client.run_instances(MinCount=1, MaxCount=1, DryRun=True)
        return (clock.now() - started).total_seconds()

    assert waited(*[one, twin] * int(rate.burst)) == pytest.approx(rate.burst / rate.refill)
    assert waited(*[other] * int(rate.burst)) == 0
    assert waited(*[there] * int(rate.burst)) == 0


def test_a_session_name_identifies_its_fleet(accounts: Connections) -> None:
    arn = accounts.connector(ONE)("sts", 1).get_caller_identity()["Arn"]
    assert arn == "arn:aws:sts::111111111111:assumed-role/fleets/reconciler-one"


def test_the_role_is_assumed_with_the_external_id_and_again_before_it_ends(
    accounts: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[dict[str, str]] = []
    import botocore.client

    real = botocore.client.BaseClient._make_api_call

    def noted(self: object, operation: str, parameters: dict[str, str]) -> dict[str, object]:
        answer: dict[str, object] = real(self, operation, parameters)
        if operation == "AssumeRole":
            requested.append(parameters)
            soon = datetime.now(UTC) + timedelta(minutes=5)
            answer["Credentials"]["Expiration"] = soon  # type: ignore[index]
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", noted)
    sqs = accounts.connector(replace(ONE, external_id="shared-secret"))("sqs", 1)
    assert requested == [], "nothing is assumed before it is needed"
    sqs.list_queues()
    sqs.list_queues()
    assert len(requested) >= 2, "credentials that end within minutes are renewed"
    assert {a["ExternalId"] for a in requested} == {"shared-secret"}


def test_threads_get_one_client_with_a_bounded_pool(accounts: Connections) -> None:
    connect, found = accounts.connector(ONE), []
    threads = [threading.Thread(target=lambda: found.append(connect("sqs", 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in found}) == 1
    assert found[0].meta.config.max_pool_connections == POOL


def test_a_local_endpoint_needs_no_credentials_and_has_no_rate_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, f"{tmp_path}/none")
    with serve(EmbeddedEC2(SimulatedClock())) as url:
        local = Settings(fleet="local", endpoint_url=url)
        connections = Connections(SimulatedClock())
        assert connections.connector(local)("ec2", 1).describe_vpcs()["Vpcs"]
        assert account_of(local).is_simulated
        assert connections._throttles == {}


def test_accounts_are_distinguished_by_credentials_region_and_endpoint() -> None:
    assert account_of(ONE) == AwsAccess("us-east-1", "", ONE.role_arn, "", "reconciler-one")
    assert account_of(replace(ONE, role_arn="", external_id="x", session_name="y")) == AwsAccess(
        "us-east-1"
    )
    assert len(account_of(replace(ONE, fleet="f" * 63)).session_name) <= 64


@pytest.mark.parametrize(
    "written",
    [
        '"2026-11-24T08:15:28.250Z"',
        '"2026-11-24T08:15:28.250+00:00"',
        '"2026-11-24T03:15:28.250-05:00"',
        '"20261124T081528.250Z"',
        '"Tue, 24 Nov 2026 08:15:28.250 GMT"',
        "1795508128.25",
        '"1795508128.25"',
    ],
)
def test_every_time_format_of_aws_is_supported(written: str) -> None:
    connections = Connections(SimulatedClock())
    ssm = connections.connector(Settings(endpoint_url="http://127.0.0.1:1", region="us-east-1"))(
        "ssm", 1
    )

    def answer(request: Any, **_: Any) -> AWSResponse:
        body = io.BytesIO(f'{{"Parameter": {{"LastModifiedDate": {written}}}}}'.encode())
        body.stream = lambda: [body.getvalue()]  # type: ignore[attr-defined]
        return AWSResponse(request.url, 200, {}, body)

    ssm.meta.events.register("before-send", answer)
    read = ssm.get_parameter(Name="image")["Parameter"]["LastModifiedDate"]
    assert read == datetime(2026, 11, 24, 8, 15, 28, 250_000, tzinfo=UTC)


def test_a_process_without_the_lease_sends_and_retries_nothing() -> None:
    cloud, left = EmbeddedEC2(SimulatedClock()), [2]

    def confirm() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise LeaseLostError("this process no longer holds the lease")

    with serve(cloud) as url:
        connections = Connections(SimulatedClock())
        local = Settings(fleet="local", region="us-east-1", endpoint_url=url)
        ec2 = connections.guarded_connector(local, confirm)("ec2", 5)
        ec2.describe_vpcs()
        cloud.faults.add("DescribeVpcs", Fault.SERVER_ERROR, times=None)
        requested = len(cloud.calls)
        with pytest.raises(LeaseLostError):
            ec2.describe_vpcs()
        with pytest.raises(LeaseLostError):
            ec2.describe_vpcs()
        assert len(cloud.calls) - requested == 1, "the first attempt; its repetition is not sent"
        cloud.faults.clear()
        assert connections.connector(local)("ec2", 5).describe_vpcs()["Vpcs"], (
            "others are not asked"
        )


def test_every_call_is_measured_with_its_outcome() -> None:
    measured: list[tuple[str, str, str]] = []

    def meter(service: str, operation: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        measured.append((service, operation, outcome))

    with serve(EmbeddedEC2(SimulatedClock())) as url:
        connections = Connections(SimulatedClock())
        connections.meter = meter
        ec2 = connections.connector(Settings(endpoint_url=url, region="us-east-1"))("ec2", 1)
        ec2.describe_instances()
        with pytest.raises(ClientError):
            ec2.describe_instances(InstanceIds=["i-nothing"])
    gone = connections.connector(Settings(endpoint_url="http://127.0.0.1:1", region="us-east-1"))(
        "ec2", 1
    )
    with pytest.raises(BotoCoreError):
        gone.describe_instances()
    assert measured == [
        ("ec2", "DescribeInstances", "ok"),
        ("ec2", "DescribeInstances", "InvalidInstanceID.NotFound"),
        ("ec2", "DescribeInstances", "EndpointConnectionError"),
    ]
