"""Eventual consistency: a part of AWS that does not know yet what was made a moment ago.

A call that lags answers as things stood when the lag began. A list leaves out what was made since,
and a call that names such a thing is refused as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from xml.etree import ElementTree as ET

from reconciler.adapters.simulated.conditions import CallRule, take_turn
from reconciler_embedded.account import EmbeddedAccount
from reconciler_embedded.wire import Request, Response, error

_IDS_OF: Final = {
    "DescribeCapacityReservations": ("capacityReservationSet/item", "capacityReservationId"),
    "DescribeImages": ("imagesSet/item", "imageId"),
    "DescribeInstances": ("reservationSet/item/instancesSet/item", "instanceId"),
    "DescribeInstanceStatus": ("instanceStatusSet/item", "instanceId"),
    "DescribeLaunchTemplates": ("launchTemplates/item", "launchTemplateName"),
    "DescribeSecurityGroups": ("securityGroupInfo/item", "groupId"),
    "DescribeSubnets": ("subnetSet/item", "subnetId"),
    "ListInstanceProfiles": (
        "ListInstanceProfilesResult/InstanceProfiles/member",
        "InstanceProfileName",
    ),
}
"""The path of a list's rows, and the element with the name of a row."""

_REFUSED: Final = (
    (
        re.compile(r"LaunchTemplateConfigs?\.\d+\.LaunchTemplateSpecification\.LaunchTemplateName"),
        "InvalidLaunchTemplateName.NotFoundException",
        "The specified launch template, with template name {}, does not exist.",
    ),
    (
        re.compile(r"(InstanceId|ResourceId)\.\d+"),
        "InvalidInstanceID.NotFound",
        "The instance ID '{}' does not exist",
    ),
    (
        re.compile(r"InstanceProfileName"),
        "NoSuchEntity",
        "Instance Profile {} cannot be found.",
    ),
)
"""Parameters that name an object, with the error of a call that does not see it."""

_CREATES: Final = frozenset({"CreateInstanceProfile"})
"""Calls whose parameter is the name of the object that they create."""


class Lag:
    """The calls that currently lag, each with the objects that it sees."""

    def __init__(self, account: EmbeddedAccount) -> None:
        self._account = account
        self._rules: list[CallRule[frozenset[str]]] = []

    def add(self, call: str, *, times: int | None, skip: int = 0) -> None:
        """Make the next calls see only what exists now; ``times`` None means all calls.

        The first ``skip`` calls still see everything.
        """
        self._rules.append(CallRule(call, self._account.names(), times, skip))

    def clear(self) -> None:
        """Make every call see everything."""
        self._rules.clear()

    def answer(
        self, request: Request, request_id: str, execute: Callable[[], Response]
    ) -> Response:
        """Execute a call, with the objects that it sees."""
        known = take_turn(self._rules, request.operation)
        if known is None:
            return execute()
        refused = self._not_found_error(request, known, request_id)
        return refused or _without_new_rows(request.operation, execute(), known)

    def _not_found_error(
        self, request: Request, known: frozenset[str], request_id: str
    ) -> Response | None:
        """Return the error of a call that refers to an object it does not see."""
        if request.operation in _CREATES:
            return None
        new = self._account.names() - known
        for name in self._template_names(request):
            profile = self._account.template_profile(name) if name not in new else ""
            if profile in new:
                message = (
                    f"Value ({profile}) for parameter iamInstanceProfile.name is invalid. "
                    "Invalid IAM Instance Profile name"
                )
                return error("ec2", 400, "InvalidParameterValue", message, request_id)
        for name, value in request.form:
            for pattern, code, message in _REFUSED:
                if value in new and pattern.fullmatch(name):
                    status = 404 if request.service == "iam" else 400
                    return error(request.service, status, code, message.format(value), request_id)
        return None

    def _template_names(self, request: Request) -> list[str]:
        if request.operation != "CreateFleet":
            return []
        pattern = _REFUSED[0][0]
        return [value for name, value in request.form if pattern.fullmatch(name)]


def _without_new_rows(operation: str, answer: Response, known: frozenset[str]) -> Response:
    """Return a list without the rows that the call does not see."""
    if operation not in _IDS_OF or answer.status != 200:
        return answer
    path, name = _IDS_OF[operation]
    *parents, _ = path.split("/")
    root = ET.fromstring(answer.body)  # noqa: S314 - moto in this process wrote it
    ET.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
    for rows in root.findall("./" + "/".join(f"{{*}}{step}" for step in parents)):
        for row in list(rows):
            if row.findtext(f"{{*}}{name}") not in known:
                rows.remove(row)
    return replace(answer, body=ET.tostring(root, encoding="utf-8"))
