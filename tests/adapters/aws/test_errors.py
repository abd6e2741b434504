"""The translation of botocore's errors into ours."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from reconciler.adapters.aws.errors import (
    Failure,
    denial_remedy,
    failure_of,
    our_error,
    translate_errors,
)
from reconciler.adapters.aws.launch.instances import backoff_s
from reconciler.model.errors import CloudError, TransientCloudError

URL = "https://ec2.us-east-1.amazonaws.com/"


def client_error(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "It said so."},
            "ResponseMetadata": {"RequestId": "abc-1", "HTTPStatusCode": status},
        },
        "RunIt",
    )


@pytest.mark.parametrize(
    ("error", "failure", "kind"),
    [
        (client_error("RequestLimitExceeded", 503), Failure.THROTTLED, TransientCloudError),
        (client_error("Throttling"), Failure.THROTTLED, TransientCloudError),
        (client_error("InternalError", 500), Failure.UNCLEAR, TransientCloudError),
        (client_error("Whatever", 502), Failure.UNCLEAR, TransientCloudError),
        (ReadTimeoutError(endpoint_url=URL), Failure.UNCLEAR, TransientCloudError),
        (ConnectionClosedError(endpoint_url=URL), Failure.UNCLEAR, TransientCloudError),
        (ResponseParserError("<html>"), Failure.UNCLEAR, TransientCloudError),
        (EndpointConnectionError(endpoint_url=URL), Failure.UNREACHED, TransientCloudError),
        (client_error("UnauthorizedOperation", 403), Failure.UNAUTHORIZED, CloudError),
        (client_error("ExpiredToken"), Failure.UNAUTHORIZED, CloudError),
        (NoCredentialsError(), Failure.UNAUTHORIZED, CloudError),
        (client_error("InvalidInstanceID.NotFound"), Failure.NOT_FOUND, CloudError),
        (client_error("InvalidParameterValue"), Failure.REFUSED, CloudError),
        (client_error("InsufficientInstanceCapacity"), Failure.CAPACITY, CloudError),
        (
            client_error("InvalidCapacityReservationState.Unavailable"),
            Failure.CAPACITY,
            CloudError,
        ),
        (
            client_error("InvalidLaunchTemplateName.NotFoundException"),
            Failure.TEMPLATE_NOT_FOUND,
            CloudError,
        ),
        (
            client_error("InvalidLaunchTemplateName.AlreadyExistsException"),
            Failure.EXISTS,
            CloudError,
        ),
        (ParamValidationError(report="no such parameter"), Failure.REFUSED, CloudError),
    ],
)
def test_each_error_contains_advice(
    error: Exception, failure: Failure, kind: type[Exception]
) -> None:
    assert failure_of(error) is failure
    ours = our_error("ec2:RunIt", error)
    assert type(ours) is kind
    assert ours.where.startswith("ec2:RunIt")


def test_an_error_reads_as_one_line_with_call_request_and_advice() -> None:
    with pytest.raises(CloudError) as caught, translate_errors("ec2:RunIt"):
        raise client_error("UnauthorizedOperation", 403)
    assert str(caught.value) == (
        "ec2:RunIt (request abc-1): UnauthorizedOperation: It said so.; "
        "allow ec2:RunIt for these credentials, or renew them"
    )
    assert isinstance(caught.value.__cause__, ClientError)


@pytest.mark.parametrize(
    ("call", "message", "right"),
    [
        ("sqs:DeleteMessageBatch", "Access to the resource is denied.", "sqs:DeleteMessage"),
        ("service-quotas:GetServiceQuota", "", "servicequotas:GetServiceQuota"),
        (
            "iam:AddRoleToInstanceProfile",
            "User: x is not authorized to perform: iam:PassRole on resource: y",
            "iam:PassRole",
        ),
        (
            "ec2:CreateFleet",
            "You are not authorized. User: x is not authorized to perform: ec2:CreateTags on x: y",
            "ec2:CreateTags",
        ),
    ],
)
def test_a_denied_call_names_the_right_that_is_missing(call: str, message: str, right: str) -> None:
    assert denial_remedy(call, message).startswith(f"allow {right} for these credentials")


def test_missing_credentials_are_reported_with_their_possible_sources() -> None:
    found = our_error("ec2:RunIt", NoCredentialsError())
    assert "AWS_PROFILE" in found.remedy
    assert "NoCredentialsError" not in str(found)
    assert found.where == "ec2:RunIt"  # nothing was sent, so nothing can have no answer


def test_an_internal_error_is_not_reported_as_a_cloud_error() -> None:
    with pytest.raises(KeyError), translate_errors("ec2:RunIt"):
        raise KeyError("oops")


def test_delays_double_up_to_a_limit_and_differ_between_claims() -> None:
    waits = [backoff_s("claim", attempt) for attempt in range(12)]
    assert waits == [backoff_s("claim", attempt) for attempt in range(12)]
    assert all(
        0.5 <= wait / min(0.2 * 2**attempt, 5.0) <= 1.0 for attempt, wait in enumerate(waits)
    )
    assert backoff_s("other", 0) != waits[0]


def test_user_data_that_is_too_long_has_a_failure_of_its_own() -> None:
    code, text = "InvalidUserData.Malformed", "User data is limited to 16384 bytes"
    error = ClientError({"Error": {"Code": code, "Message": text}}, "CreateLaunchTemplate")

    found = our_error("ec2:CreateLaunchTemplate", error)

    assert found.message.startswith("UserDataSizeLimitExceeded: ")
    assert "16384" in found.message
    assert "spec.userData" in found.remedy
