"""The checks of the Kubernetes API by ``reconciler check``: reachability and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.access import expect_one_cluster
from reconciler.adapters.kubernetes.api import ALLOW_IT, Api
from reconciler.adapters.kubernetes.kinds import PERMISSIONS, Permission
from reconciler.model.check import Check, Verdict, failed, passed, unknown
from reconciler.model.errors import ReconcilerError
from reconciler.model.settings import Settings
from reconciler.ports.calls import Calls

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(default="?", name="gitVersion")


class _Answer(msgspec.Struct, frozen=True):
    allowed: bool = False
    reason: str = ""


class _Review(msgspec.Struct, frozen=True):
    status: _Answer


def cluster_checks(api: Api, settings: Settings, *, writes: bool) -> Iterator[Check]:
    """Yield whether the API responds and is the right one, then each permission.

    Without ``writes``, only the permissions of a plan are checked. Nothing is tried: the API itself
    reports what it would allow.
    """
    try:
        access = api.access
        version = msgspec.json.decode(api.call("GET", "/version"), type=_Version)
    except (ReconcilerError, msgspec.MsgspecError) as error:
        remedy = error.remedy if isinstance(error, ReconcilerError) else ""
        said = f"{error.where}: {error.message}" if isinstance(error, ReconcilerError) else error
        yield failed("cluster", "", f"not reachable: {said}", remedy)
        return
    yield passed(
        "cluster", access.server, (f"{version.git_version}, with credentials of {access.name}")
    )
    try:
        expect_one_cluster(access, settings)
    except ReconcilerError as error:
        yield failed("cluster", access.server, error.message, error.remedy)
    for permission in PERMISSIONS:
        if writes or not permission.writes:
            yield _asked(api, permission)


def missing_permissions(api: Api, calls: Calls) -> list[str]:
    """Return which permissions of ``run`` are missing, each with the rule that grants it.

    All are checked at the same time. Permissions without a result are not reported as missing.
    """
    asked = {p.name: partial(_asked, api, p) for p in PERMISSIONS}
    answers = calls.together(asked)
    missing = []
    for permission in PERMISSIONS:
        check = answers[permission.name].value
        if isinstance(check, Check) and check.verdict is Verdict.FAILED:
            missing.append(
                f"missing permission: {permission.verb} {permission.resource} "
                f"({permission.why}); add to the ClusterRole: {permission.rule}"
            )
    return missing


def _asked(api: Api, permission: Permission) -> Check:
    resource, _, part = permission.resource.partition("/")
    attributes = {"verb": permission.verb, "group": permission.group, "resource": resource}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": part} if part else {})}},
    }
    try:
        answer = msgspec.json.decode(api.call("POST", _REVIEWS, body=body), type=_Review).status
    except (ReconcilerError, msgspec.MsgspecError) as error:
        return unknown("rbac", permission.name, f"cannot check: {error}")
    if answer.allowed:
        return passed("rbac", permission.name, permission.why)
    said = f"is forbidden{': ' if answer.reason else ''}{answer.reason}"
    return failed("rbac", permission.name, f"{said} ({permission.why})", ALLOW_IT)
