"""Connections to AWS: clients by account, region and service, created on first use.

A fleet defines its region, its endpoint, and the role it assumes. Fleets of one process have
separate clients if any of these differ, so that none acts in another's account. Fleets with the
same account and region share their clients and rate limits.

EC2 has a token bucket for each family of operations, account and region. A caller that empties one
is throttled until it refills, together with all other callers in the account. The client therefore
limits its own rate. If EC2 throttles it anyway, others are calling too: the rate is halved, and
recovers gradually.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, overload
from urllib.parse import urlparse

from reconciler.adapters.aws.errors import Failure, failure_of_code
from reconciler.adapters.clock import SystemClock
from reconciler.model.errors import UsageError
from reconciler.model.settings import Settings
from reconciler.model.text.urls import is_loopback, is_unencrypted, without_secrets
from reconciler.ports.clock import Clock
from reconciler.ports.progress import CallMeter

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import BaseClient
    from botocore.config import Config
    from botocore.loaders import Loader
    from botocore.session import Session as BotocoreSession
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_eks.client import EKSClient
    from mypy_boto3_iam.client import IAMClient
    from mypy_boto3_pricing.client import PricingClient
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_savingsplans.client import SavingsPlansClient
    from mypy_boto3_service_quotas.client import ServiceQuotasClient
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_ssm.client import SSMClient
    from mypy_boto3_sts.client import STSClient

LEAST: Final = 1 / 16
"""The minimum share of its rate that a bucket retains, however often EC2 throttles."""

RECOVERY: Final = timedelta(seconds=10)
"""After this time without throttling, a tenth of the rate is restored."""

READING: Final = "reading"
MUTATING: Final = "mutating"

_READS: Final = ("Describe", "Get", "List", "Search")

POOL: Final = 32
"""The maximum number of open connections of a client; a further call waits for one."""

_CONNECT_TIMEOUT_S: Final = 5
_READ_TIMEOUT_S: Final = 60
_SESSION_NAME_MAX: Final = 64

_CREATING: Final = Lock()
"""One thread at a time creates a client: otherwise each would load the API model for itself."""


class Rate(NamedTuple):
    """Tokens a second, and the capacity of a bucket."""

    refill: float
    burst: float


RATES: Final = {
    READING: Rate(20, 100),
    MUTATING: Rate(5, 50),
    "RunInstances": Rate(2, 5),
    "TerminateInstances": Rate(5, 100),
    "RebootInstances": Rate(5, 100),
    "CreateTags": Rate(10, 100),
}
"""EC2's own figures (aws reference 6.5); an operation listed by name has its own bucket."""


def family_of(operation: str) -> str:
    """Return the bucket of an EC2 call."""
    if operation in RATES:
        return operation
    return READING if operation.startswith(_READS) else MUTATING


class Bucket:
    """Tokens that refill over time; several threads may take from it."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = Lock()
        self._tokens = rate.burst
        self._at = clock.now()
        self._share = 1.0
        self._throttled_at: datetime | None = None

    @property
    def refill(self) -> float:
        """The current rate in tokens a second."""
        return self._rate.refill * self._share

    def take(self) -> float:
        """Take a token, and return the seconds to wait before it may be used.

        Later callers wait longer: each token is assigned once.
        """
        with self._lock:
            self._refill_tokens()
            self._tokens -= 1
            return max(0.0, -self._tokens / self.refill)

    def record_throttling(self) -> None:
        """Record that EC2 throttled a call although a token was available: slow down."""
        with self._lock:
            self._refill_tokens()
            self._tokens = min(self._tokens, 0.0)
            self._share = max(LEAST, self._share / 2)
            self._throttled_at = self._at

    def _refill_tokens(self) -> None:
        now = self._clock.now()
        # A clock that was set back only loses what would have been refilled meanwhile.
        passed = max(0.0, (now - self._at).total_seconds())
        self._at = now
        if self._throttled_at is not None:
            self._throttled_at = min(self._throttled_at, now)
        self._tokens = min(self._rate.burst, self._tokens + passed * self.refill)
        if self._throttled_at is not None:
            steps = (now - self._throttled_at) // RECOVERY
            if steps > 0:
                self._share = min(1.0, self._share + 0.1 * steps)
                self._throttled_at += steps * RECOVERY


class Throttle:
    """The buckets of one account and region, shared by all clients."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.buckets = {family: Bucket(rate, clock) for family, rate in RATES.items()}

    def watch(self, client: BaseClient) -> None:
        """Make every attempt of an EC2 client wait for a token, and observe its result.

        botocore's own retries count as attempts.
        """
        client.meta.events.register("before-send.ec2", self._wait)
        client.meta.events.register("response-received.ec2", self._observe_response)

    def _wait(self, event_name: str, **_: object) -> None:
        seconds = self.buckets[_family(event_name)].take()
        if seconds > 0:
            self._clock.wait(seconds, lambda: False)

    def _observe_response(
        self,
        event_name: str,
        parsed_response: Mapping[str, Mapping[str, str]] | None = None,
        **_: object,
    ) -> None:
        code = ((parsed_response or {}).get("Error") or {}).get("Code", "")
        if code and failure_of_code(code) is Failure.THROTTLED:
            self.buckets[_family(event_name)].record_throttling()


def _family(event_name: str) -> str:
    return family_of(event_name.rpartition(".")[2])


class Connect(Protocol):
    """Creates a client of an AWS service that tries each call at most ``attempts`` times."""

    @overload
    def __call__(self, service: Literal["ec2"], attempts: int) -> EC2Client: ...
    @overload
    def __call__(self, service: Literal["eks"], attempts: int) -> EKSClient: ...
    @overload
    def __call__(self, service: Literal["iam"], attempts: int) -> IAMClient: ...
    @overload
    def __call__(self, service: Literal["pricing"], attempts: int) -> PricingClient: ...
    @overload
    def __call__(self, service: Literal["s3"], attempts: int) -> S3Client: ...
    @overload
    def __call__(self, service: Literal["savingsplans"], attempts: int) -> SavingsPlansClient: ...
    @overload
    def __call__(
        self, service: Literal["service-quotas"], attempts: int
    ) -> ServiceQuotasClient: ...
    @overload
    def __call__(self, service: Literal["sqs"], attempts: int) -> SQSClient: ...
    @overload
    def __call__(self, service: Literal["ssm"], attempts: int) -> SSMClient: ...
    @overload
    def __call__(self, service: Literal["sts"], attempts: int) -> STSClient: ...


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """The location of a fleet and the identity with which it is accessed."""

    region: str
    endpoint_url: str = ""
    role_arn: str = ""
    external_id: str = ""
    session_name: str = ""

    @property
    def is_simulated(self) -> bool:
        """Whether the endpoint is on this machine: it accepts any credentials and has no limits."""
        return bool(self.endpoint_url) and is_loopback(urlparse(self.endpoint_url).hostname or "")


def account_of(settings: Settings) -> AwsAccess:
    """Return the account of a fleet; its sessions are named after it."""
    name = settings.session_name or f"reconciler-{settings.fleet}"[:_SESSION_NAME_MAX]
    return AwsAccess(
        settings.region,
        settings.endpoint_url,
        settings.role_arn,
        settings.external_id if settings.role_arn else "",
        name if settings.role_arn else "",
    )


class Connections:
    """The clients of all fleets of a process. It is thread-safe.

    ``meter`` receives the calls of the clients that are created after it was set.
    """

    def __init__(self, clock: Clock) -> None:
        self.meter: CallMeter | None = None
        self._clock = clock
        self._lock = Lock()
        self._sessions: dict[AwsAccess, _Session] = {}
        self._throttles: dict[tuple[str, str], Throttle] = {}

    def connector(self, settings: Settings) -> Connect:
        """Return the connector of a fleet."""
        account = account_of(settings)
        with self._lock:
            session = self._sessions.get(account)
            if session is None:
                session = _Session(account, self._throttle(account), meter=self.meter)
                self._sessions[account] = session
        return session.client

    def guarded_connector(self, settings: Settings, confirm: Callable[[], None]) -> Connect:
        """Return a connector whose clients call ``confirm`` before each attempt of a call.

        What it raises ends the call before anything is sent.
        """
        account = account_of(settings)
        with self._lock:
            throttle = self._throttle(account)
        return _Session(account, throttle, confirm, self.meter).client

    def _throttle(self, account: AwsAccess) -> Throttle | None:
        """Return the buckets of an account and region: roles of one account share them."""
        if account.is_simulated:
            return None
        number = account.role_arn.split(":")[4] if account.role_arn else ""
        return self._throttles.setdefault((number, account.region), Throttle(self._clock))


def connector(settings: Settings, clock: Clock | None = None) -> Connect:
    """Return the connector of one fleet, with clients that are not shared."""
    return Connections(clock or SystemClock()).connector(settings)


def _measure(client: Any, service: str, meter: CallMeter) -> None:
    """Pass each call of a client to ``meter``, with the total time of its attempts."""

    def begin(context: dict[str, Any], **_: object) -> None:
        context["reconciler_started"] = time.perf_counter()

    def end(
        event_name: str,
        context: dict[str, Any],
        parsed: Mapping[str, Any] | None = None,
        exception: Exception | None = None,
        **_: object,
    ) -> None:
        error = ((parsed or {}).get("Error") or {}).get("Code", "")
        outcome = type(exception).__name__ if exception is not None else str(error or "ok")
        seconds = time.perf_counter() - context.get("reconciler_started", time.perf_counter())
        meter(service, event_name.rpartition(".")[2], outcome, seconds)

    events = client.meta.events
    events.register(f"before-call.{service}", begin)
    events.register(f"after-call.{service}", end)
    events.register(f"after-call-error.{service}", end)


class _Session:
    """One identity in one region, with its clients."""

    def __init__(
        self,
        account: AwsAccess,
        throttle: Throttle | None,
        confirm: Callable[[], None] | None = None,
        meter: CallMeter | None = None,
    ) -> None:
        self._account = account
        self._meter = meter
        self._confirm = confirm
        self._throttle = throttle
        self._lock = Lock()
        self._boto: Session | None = None
        self._dummy_keys: dict[str, str] = {}
        self._clients: dict[tuple[str, int], BaseClient] = {}

    def client(self, service: str, attempts: int) -> Any:
        """Return the client of a service. Clients may be shared by threads, sessions may not."""
        with self._lock:
            known = self._clients.get((service, attempts))
            if known is None:
                with _CREATING:
                    known = self._clients[service, attempts] = self._create_client(
                        service, attempts
                    )
            return known

    def _create_client(self, service: str, attempts: int) -> BaseClient:
        if self._boto is None:
            self._boto = self._open()
        client: BaseClient = _as_untyped(self._boto).client(
            service,
            region_name=self._region_of(service),
            endpoint_url=self._account.endpoint_url or None,
            config=_config(attempts),
            **self._dummy_keys,
        )
        _expect_encrypted(client.meta.endpoint_url)
        if service == "ec2" and self._throttle is not None:
            self._throttle.watch(client)
        if self._meter is not None:
            _measure(client, service, self._meter)
        if self._confirm is not None:
            # After the throttle, which may wait for longer than a lease is valid.
            client.meta.events.register_last("before-send", self._before_send)
        return client

    def _before_send(self, **_: object) -> None:
        assert self._confirm is not None, "registered only with a confirm function"
        self._confirm()

    def _region_of(self, service: str) -> str | None:
        """Return the region of a service: the price list is available in a few regions only."""
        if service == "pricing" and not self._account.endpoint_url:
            from reconciler.adapters.aws.facts.prices import pricing_region

            return pricing_region(self._account.region)
        return self._account.region or None

    def _open(self) -> Session:
        """Return a boto3 session, configured from the environment and files.

        A simulated account accepts any credentials: if none are configured, dummy ones are used.
        """
        import boto3

        session = boto3.session.Session(region_name=self._account.region or None)
        _speed_up(session._session)  # noqa: SLF001 - boto3 gives no other way to its botocore session
        if self._account.is_simulated:
            providers = session._session.get_component("credential_provider")  # noqa: SLF001 - boto3 gives no other way to its botocore session
            providers.remove("iam-role")
            if session.get_credentials() is None:
                self._dummy_keys = {
                    "aws_access_key_id": "embedded",
                    "aws_secret_access_key": "embedded",
                }
        return self._assume_role(session) if self._account.role_arn else session

    def _assume_role(self, session: Session) -> Session:
        """Return a session in the role of the fleet; its credentials are renewed automatically.

        The role is assumed with the first call that needs it, so a rejection is an error of that
        call.
        """
        import boto3
        import botocore.session
        from botocore.credentials import (
            AssumeRoleCredentialFetcher,
            Credentials,
            DeferredRefreshableCredentials,
        )

        account = self._account

        def sts(service: str, **credentials: str) -> BaseClient:
            client: BaseClient = _as_untyped(session).client(
                service,
                endpoint_url=account.endpoint_url or None,
                config=_config(3),
                **credentials,
            )
            _expect_encrypted(client.meta.endpoint_url)
            return client

        extra = {"RoleSessionName": account.session_name}
        if account.external_id:
            extra["ExternalId"] = account.external_id
        own = session.get_credentials() or Credentials("embedded", "embedded")
        fetcher = AssumeRoleCredentialFetcher(sts, own, account.role_arn, extra_args=extra)
        inner = _as_untyped(botocore.session.get_session())
        inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001 - botocore has no setter for credentials that renew themselves
            refresh_using=fetcher.fetch_credentials, method="assume-role"
        )
        self._dummy_keys = {}
        assumed = boto3.session.Session(botocore_session=inner, region_name=account.region or None)
        _speed_up(inner)
        return assumed


def _as_untyped(session: object) -> Any:
    """Return a session for what the stubs lack: services by variable name, and private members."""
    return session


def _speed_up(session: BotocoreSession) -> None:
    """Make a botocore session share loaded API models, and parse times quickly.

    dateutil, which botocore uses, takes a third of the time to parse a list of instances.
    """
    loader = _loader(session.get_config_variable("data_path"))
    session.register_component("data_loader", loader)
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=_parse_time)


def _parse_time(value: str | float) -> datetime:
    """Return the time in an answer of AWS; forms other than ISO 8601 are left to botocore."""
    from botocore.utils import parse_timestamp

    if isinstance(value, str) and "T" in value:
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    return parse_timestamp(str(value))


@lru_cache(maxsize=4)
def _loader(data_path: str | None) -> Loader:
    """Return the loader of the API models, which caches them.

    Each fleet and each role has a session. A session with a loader of its own reads the model of
    EC2 again, which takes about 30 MB and a quarter of a second.
    """
    import botocore.loaders

    return botocore.loaders.create_loader(data_path)


def _expect_encrypted(url: str) -> None:
    """Reject an unencrypted endpoint that boto3 took from its own variables and files.

    Raises:
        UsageError: it is plain http, and not on this machine.
    """
    if is_unencrypted(url):
        raise UsageError(
            "plain http is allowed only for this machine",
            where=f"endpoint {without_secrets(url, is_value=True)}",
            remedy="use https in AWS_ENDPOINT_URL_* and in the profile of the AWS configuration",
        )


def _config(attempts: int) -> Config:
    from botocore.config import Config

    return Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        max_pool_connections=POOL,
        user_agent_extra="reconciler",
    )
