"""Convert botocore's errors to ours.

Callers need the kind of failure; one table maps the codes to it. Two kinds look alike but differ: a
*throttled* call was certainly not executed, an *unclear* one may have been (aws reference 3.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from reconciler.adapters.aws.permissions import actions_of
from reconciler.model.errors import CloudError, ReconcilerError, TransientCloudError
from reconciler.model.json import JsonObject

CAPACITY_CODES: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
        "InvalidCapacityReservationState.Unavailable",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    }
)
_THROTTLING: Final = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "SlowDown",
        "EC2ThrottledException",
        "BandwidthLimitExceeded",
        "LimitExceededException",
    }
)
_UNCLEAR: Final = frozenset(
    {"InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "RequestTimeout"}
)
_NOT_FOUND: Final = frozenset(
    {
        "InvalidInstanceID.NotFound",
        "InvalidCapacityReservationId.NotFound",
        "InvalidLaunchTemplateId.NotFound",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchEntity",
        "ParameterNotFound",
        "ResourceNotFoundException",
    }
)
_TEMPLATE_NOT_FOUND: Final = frozenset(
    {"InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound"}
)
_EXISTS: Final = frozenset(
    {"InvalidLaunchTemplateName.AlreadyExistsException", "EntityAlreadyExists"}
)
_UNAUTHORIZED: Final = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_UNKNOWN_PROFILE: Final = "Invalid IAM Instance Profile name"
_ASKED_OTHERWISE: Final = frozenset({"IdempotentParameterMismatch"})

_USER_DATA_LIMIT: Final = "User data is limited to"
"""How EC2 begins this message (provider ``pkg/errors``)."""

_DENIED: Final = re.compile(r"is not authorized to perform: ([a-z0-9-]{2,40}:[A-Za-z0-9]{2,60})\b")


class Failure(StrEnum):
    """How to react to a failed call."""

    THROTTLED = "throttled"
    UNCLEAR = "unclear"
    UNREACHED = "unreached"
    NOT_FOUND = "not-found"
    TEMPLATE_NOT_FOUND = "template-not-found"
    PROFILE_NOT_FOUND = "profile-not-found"
    EXISTS = "exists"
    ASKED_OTHERWISE = "asked-otherwise"
    CAPACITY = "capacity"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"


_KINDS: Final = {
    **dict.fromkeys(_ASKED_OTHERWISE, Failure.ASKED_OTHERWISE),
    **dict.fromkeys(_NOT_FOUND, Failure.NOT_FOUND),
    **dict.fromkeys(_TEMPLATE_NOT_FOUND, Failure.TEMPLATE_NOT_FOUND),
    **dict.fromkeys(_EXISTS, Failure.EXISTS),
    **dict.fromkeys(_UNAUTHORIZED, Failure.UNAUTHORIZED),
    **dict.fromkeys(CAPACITY_CODES, Failure.CAPACITY),
    **dict.fromkeys(_UNCLEAR, Failure.UNCLEAR),
    **dict.fromkeys(_THROTTLING, Failure.THROTTLED),
}


def failure_of_code(code: str, status: int = 400, message: str = "") -> Failure:
    """Return the kind of an AWS error code; an unknown one with a 5xx status is unclear.

    EC2 has no error code for an unknown instance profile, only a message.
    """
    if code == "InvalidParameterValue" and _UNKNOWN_PROFILE in message:
        return Failure.PROFILE_NOT_FOUND
    known = _KINDS.get(code)
    if known is not None:
        return known
    return Failure.UNCLEAR if status >= 500 else Failure.REFUSED


def failure_of(error: Exception) -> Failure:
    """Return the kind of a botocore exception."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = _metadata(error).get("HTTPStatusCode", 400)
        return failure_of_code(code_of(error), status, str(error))
    if isinstance(error, (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError)):
        return Failure.UNREACHED
    if _has_no_credentials(error):
        return Failure.UNAUTHORIZED
    if isinstance(error, exceptions.HTTPClientError) or "ResponseParser" in type(error).__name__:
        return Failure.UNCLEAR
    return Failure.REFUSED


def _has_no_credentials(error: Exception) -> bool:
    from botocore import exceptions

    return isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError))


def code_of(error: Exception) -> str:
    """Return AWS's own code of an error, or the name of its class."""
    code = _response(error).get("Error", {}).get("Code")
    return str(code) if code else type(error).__name__


def request_id_of(error: Exception) -> str:
    """Return the request id for AWS support, empty if there was no response."""
    return str(_metadata(error).get("RequestId", ""))


def _metadata(error: Exception) -> JsonObject:
    metadata: JsonObject = _response(error).get("ResponseMetadata", {})
    return metadata


def _response(error: Exception) -> JsonObject:
    """Return what AWS answered, as botocore keeps it in its errors."""
    return getattr(error, "response", None) or {}


def boto_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that botocore raises for external faults; others are our own bugs."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return ClientError, BotoCoreError, ResponseParserError


@contextmanager
def translate_errors(call: str) -> Iterator[None]:
    """Raise our errors instead of botocore's; ``call`` is as in an IAM policy: ``ec2:RunIt``."""
    try:
        yield
    except boto_errors() as error:
        raise our_error(call, error) from error


def our_error(call: str, error: Exception) -> ReconcilerError:
    """Return our error for one of botocore's: what happened, which call, what to do."""
    kind, where = failure_of(error), error_location(call, request_id_of(error))
    message = _message(error)
    if kind is Failure.THROTTLED:
        return TransientCloudError(
            message,
            where=where,
            remedy=("it will be retried; if this lasts, request a higher API quota"),
        )
    if kind in (Failure.UNCLEAR, Failure.UNREACHED):
        return TransientCloudError(message, where=where, remedy="it will be retried")
    if _USER_DATA_LIMIT in message:
        return CloudError(
            f"UserDataSizeLimitExceeded: {message}",
            where=where,
            remedy="shorten spec.userData of the EC2NodeClass, or load the rest of it at boot",
        )
    if kind is Failure.PROFILE_NOT_FOUND:
        return CloudError(
            message,
            where=where,
            remedy=("create the instance profile, or correct spec.instanceProfile"),
        )
    if _has_no_credentials(error):
        remedy = "set AWS_PROFILE or the AWS_… keys, or run with an IAM role"
        return CloudError("no complete AWS credentials were found", where=call, remedy=remedy)
    if kind is Failure.UNAUTHORIZED:
        return CloudError(message, where=where, remedy=denial_remedy(call, message))
    return CloudError(message, where=where)


def denial_remedy(call: str, message: str) -> str:
    """Return what to do about a denied call: which right to give.

    A call may need more rights than the one of its name, such as iam:PassRole. AWS's message then
    names the one that is missing.
    """
    found = _DENIED.search(message)
    right = found[1] if found else actions_of(call)[0]
    return f"allow {right} for these credentials, or renew them"


def error_location(call: str, request_id: str) -> str:
    """Return where an error happened, for ``ReconcilerError.where``."""
    return f"{call} (request {request_id})" if request_id else f"{call} (no answer)"


def _message(error: Exception) -> str:
    message = _response(error).get("Error", {}).get("Message", "")
    return f"{code_of(error)}: {message or error}"
