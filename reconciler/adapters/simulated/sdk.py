"""The AWS SDK as the imitation uses it: with one session, which reads the API models only once."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def session() -> Any:
    """Return the session of boto3 for all clients of the imitation."""
    import boto3

    return boto3.session.Session()


def service_model(service: str) -> Any:
    """Return botocore's model of a service."""
    return session()._session.get_service_model(service)  # noqa: SLF001 - boto3 gives no other way
