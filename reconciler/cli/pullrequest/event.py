"""The pull request of a CI job, from the environment of the CI service.

The service writes its environment and the file of its event; nothing here comes from the
repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict, as_mapping
from reconciler.model.text.identifiers import commit_or_empty, number_or_empty
from reconciler.model.text.visible import encodable
from reconciler.source.schema import value_at

_REF: Final = re.compile(r"refs/pull/([0-9]{1,18})/", re.ASCII)
_IID: Final = re.compile("[1-9][0-9]{0,17}")
_EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
TRUSTED_RUN: Final = "workflow_run"
"""The event of GitHub whose job has secrets, and comments on what an untrusted job planned."""


class CiEvent(NamedTuple):
    """The pull request of a job.

    ``number`` is None if it is unknown. ``head`` is the run that a ``workflow_run`` follows.
    ``run_url`` is the address of the job's page, with its artifacts. ``commit`` is the head of the
    pull request, and ``pipeline`` the id of GitLab's pipeline, both empty if unknown.
    """

    repository: str = ""
    number: int | None = None
    api_url: str = ""
    run_url: str = ""
    head: JsonDict | None = None
    commit: str = ""
    pipeline: str = ""


def github_event(environment: Mapping[str, str]) -> CiEvent:
    """Return the data of GitHub Actions; missing values are empty or None.

    Raises:
        UsageError: the file of the event is not JSON.
    """
    data = _read_event(environment.get("GITHUB_EVENT_PATH", ""))
    repository = environment.get("GITHUB_REPOSITORY", "")
    head = None
    if environment.get("GITHUB_EVENT_NAME") == TRUSTED_RUN:
        given = data.get(TRUSTED_RUN)
        head = as_mapping(given)  # without a run there is nothing to trust
    server = environment.get("GITHUB_SERVER_URL", "")
    run = environment.get("GITHUB_RUN_ID", "")
    if head is not None:
        run = number_or_empty(head.get("id"))
    url = f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""
    return CiEvent(
        repository,
        None if head is not None else _pull_request_number(data, environment.get("GITHUB_REF", "")),
        environment.get("GITHUB_API_URL", ""),
        url,
        head,
        commit_or_empty(
            value_at(data, ("pull_request", "head", "sha"))
            if head is None
            else head.get("head_sha")
        ),
    )


def gitlab_event(environment: Mapping[str, str]) -> CiEvent:
    """Return the data of GitLab CI; missing values are empty or None."""
    number = environment.get("CI_MERGE_REQUEST_IID", "")
    pipeline = environment.get("CI_PIPELINE_ID", "")
    return CiEvent(
        environment.get("CI_MERGE_REQUEST_PROJECT_ID") or environment.get("CI_PROJECT_ID", ""),
        int(number) if _IID.fullmatch(number) else None,
        environment.get("CI_API_V4_URL", ""),
        environment.get("CI_JOB_URL", ""),
        commit=commit_or_empty(
            # A pipeline of a merged result runs for a commit of its own.
            environment.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA")
            or environment.get("CI_COMMIT_SHA")
        ),
        pipeline=pipeline if _IID.fullmatch(pipeline) else "",
    )


def _read_event(path: str) -> JsonDict:
    if not path:
        return {}
    import msgspec

    try:
        with open(path, "rb") as file:
            return decode_json(file.read(_EVENT_BYTES_MAX), JsonDict)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"cannot be read: {describe_mismatch(error)}",
            where=path,
            remedy="unset GITHUB_EVENT_PATH",
        ) from error


def _pull_request_number(data: JsonDict, ref: str) -> int | None:
    for name in ("pull_request", "issue"):
        found = data.get(name)
        number = found.get("number") if isinstance(found, dict) else None
        if number_or_empty(number):
            return number
    match = _REF.match(ref)
    return int(match[1]) if match else None


def append_to_file(variable: str, text: str) -> None:
    """Append to the file that a variable of GitHub Actions names, if any.

    Raises:
        UsageError: it cannot be written.
    """
    path = os.environ.get(variable, "")
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(encodable(text))
    except OSError as error:
        remedy = f"unset {variable}, or make the file writable"
        raise UsageError(
            f"cannot be written: {error.strerror}", where=path, remedy=remedy
        ) from error


def set_output(name: str, value: str) -> None:
    """Set an output of a step of GitHub Actions; a value of several lines cannot add others."""
    if "\n" not in value and "\r" not in value:
        append_to_file("GITHUB_OUTPUT", f"{name}={value}\n")
        return
    from secrets import token_hex

    mark = f"end-{token_hex(16)}"
    append_to_file("GITHUB_OUTPUT", f"{name}<<{mark}\n{value}\n{mark}\n")
