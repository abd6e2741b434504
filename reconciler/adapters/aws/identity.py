"""Which AWS account a fleet acts in."""

from __future__ import annotations

from typing import Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import boto_errors
from reconciler.model.settings import Settings

_ATTEMPTS: Final = 2


def account_number(connect: Connect, settings: Settings) -> str:
    """Return the number of the account, empty where AWS does not tell it.

    The role that is assumed names it. Otherwise STS is asked, which needs no permission but may
    be out of reach in a private network.
    """
    if settings.role_arn:
        return settings.role_arn.split(":")[4]
    try:
        return str(connect("sts", _ATTEMPTS).get_caller_identity()["Account"])
    except boto_errors():
        return ""
