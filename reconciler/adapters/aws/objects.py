"""One object of an S3 bucket, read or written with the credentials of who runs the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from reconciler.model.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from reconciler.adapters.aws.clients import Connect

_ATTEMPTS = 3


def location_of(url: str) -> tuple[str, str]:
    """Return the bucket and the key that an ``s3://`` URL names.

    Raises:
        UsageError: it names no object.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not bucket or not key or not url.isprintable() or not set(bucket).isdisjoint(":@?#"):
        raise UsageError("not an S3 object", where=url[:200], remedy="use s3://BUCKET/KEY")
    return bucket, key


def read_object(connect: Connect, url: str, bytes_max: int) -> bytes:
    """Return the content of the object at an ``s3://`` URL: at most ``bytes_max`` bytes.

    Raises:
        UsageError: the URL names no object.
        UnreadableError: S3 does not return it.
    """
    try:
        return _read_content(connect, url, bytes_max)
    except (ClientError, BotoCoreError) as error:
        raise _read_error(error, url) from error


def find_object(connect: Connect, url: str, bytes_max: int) -> bytes | None:
    """Return the content of an object as ``read_object`` does, None if there is no object.

    S3 reports a missing object only to callers that may list the bucket.
    """
    try:
        return _read_content(connect, url, bytes_max)
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise _read_error(error, url, "s3:GetObject and s3:ListBucket") from error
    except BotoCoreError as error:
        raise _read_error(error, url) from error


def _read_content(connect: Connect, url: str, bytes_max: int) -> bytes:
    bucket, key = location_of(url)
    answer = connect("s3", _ATTEMPTS).get_object(Bucket=bucket, Key=key)
    with answer["Body"] as body:
        if answer["ContentLength"] > bytes_max:
            raise UnreadableError(
                f"more than {bytes_max} bytes", where=url, remedy="capture fewer objects"
            )
        content: bytes = body.read()
        return content


def _read_error(error: Exception, url: str, rights: str = "s3:GetObject") -> UnreadableError:
    return UnreadableError(
        f"S3 GetObject failed: {error}",
        where=url,
        remedy=f"check bucket, key, and {rights} of the credentials in the environment",
    )


def write_object(connect: Connect, url: str, content: bytes) -> None:
    """Write the object at an ``s3://`` URL atomically.

    Raises:
        UsageError: the URL names no object.
        UnreadableError: S3 does not accept it.
    """
    bucket, key = location_of(url)
    try:
        connect("s3", _ATTEMPTS).put_object(
            Bucket=bucket, Key=key, Body=content, ContentType="application/json"
        )
    except (ClientError, BotoCoreError) as error:
        raise UnreadableError(
            f"S3 PutObject failed: {error}",
            where=url,
            remedy="check bucket, key, and s3:PutObject of the credentials in the environment",
        ) from error
