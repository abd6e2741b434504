"""Connections to AWS, made when they are first needed."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlparse

from reconciler.adapters.aws.prices import pricing_region
from reconciler.model.settings import Settings

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Connect(Protocol):
    """Makes a client of an AWS service that tries each call at most ``attempts`` times."""

    def __call__(self, service: str, attempts: int) -> Any: ...


def connector(settings: Settings) -> Connect:
    """Return how to connect with these settings and with whatever else boto3 reads.

    An endpoint on this machine is an imitation and takes any credentials: where none are
    configured, made-up ones serve.
    """
    import boto3
    from botocore.config import Config

    session: Any = boto3.session.Session(region_name=settings.region or None)
    endpoint = settings.endpoint_url or None
    made_up = {}
    if endpoint is not None and urlparse(endpoint).hostname in _LOOPBACK:
        session._session.get_component("credential_provider").remove("iam-role")  # noqa: SLF001 - boto3 gives no other way to its botocore session
        if session.get_credentials() is None:
            made_up = {"aws_access_key_id": "embedded", "aws_secret_access_key": "embedded"}

    def connect(service: str, attempts: int) -> Any:
        config = Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            max_pool_connections=32,
            user_agent_extra="reconciler",
        )
        place = pricing_region(settings.region) if service == "pricing" else None
        return session.client(
            service, region_name=place, endpoint_url=endpoint, config=config, **made_up
        )

    return connect
