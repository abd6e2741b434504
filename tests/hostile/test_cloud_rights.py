"""Each right of the documented policies is taken away: it was needed, and the error names it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from reconciler.adapters.aws.checks import Checks
from reconciler.adapters.aws.events.queue import InterruptionQueue
from reconciler.adapters.aws.permissions import Names, Need, policy
from reconciler.model.errors import ReconcilerError
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.wire import Request, Response, error
from tests.adapters.aws import test_faults as calls
from tests.adapters.aws.test_events import SPOT
from tests.contracts.cloud import SETTINGS, a_class
from tests.hostile.threats import Threat, attack

PLAN: Final = (
    "ec2:DescribeInstances", "ec2:DescribeSubnets", "ec2:DescribeCapacityReservations",
    "ec2:DescribePlacementGroups", "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeSpotPriceHistory", "pricing:GetProducts",
    "ssm:GetParameter", "eks:DescribeCluster", "sts:GetCallerIdentity",
    "service-quotas:GetServiceQuota",
)  # fmt: skip
"""What a plan and a check do, by the calls in the table of faults."""

RUN: Final = (
    *PLAN, "ec2:CreateFleet", "ec2:RunInstances", "ec2:TerminateInstances", "ec2:CreateTags",
    "ec2:DescribeInstanceStatus", "ec2:DescribeLaunchTemplates", "ec2:DeleteLaunchTemplate",
    "iam:ListInstanceProfiles", "iam:CreateInstanceProfile", "iam:DeleteInstanceProfile",
    "sqs:DeleteMessageBatch", "sqs:ChangeMessageVisibilityBatch",
)  # fmt: skip
STEPS: Final[Mapping[Need, tuple[str, ...]]] = {
    Need.PLAN: PLAN,
    Need.RUN: RUN,
    Need.REBOOT: ("ec2:RebootInstances",),
}

MORE: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateFleet": ("ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"),
    "RunInstances": ("ec2:CreateTags", "iam:PassRole"),
    "CreateLaunchTemplate": ("ec2:CreateTags",),
    "CreateInstanceProfile": ("iam:TagInstanceProfile",),
    "AddRoleToInstanceProfile": ("iam:PassRole",),
}
"""The rights that IAM asks for besides that of the operation (Service Authorization Reference)."""

RENAMED: Final = {
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}
ALONE: Final = {"service-quotas": "servicequotas"}
SETUP: Final = {"CreateQueue", "SendMessage", "CreateRole"}
"""Calls of the tests themselves, which make what a fleet finds."""


class GuardedEC2(EmbeddedEC2):
    """An account in which IAM allows some actions only; ``asked`` are those that were needed."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.allowed: AbstractSet[str] | None = None
        self.asked: set[str] = set()

    def respond(self, request: Request) -> Response:
        if self.allowed is not None and request.operation not in SETUP:
            needed = actions(request)
            self.asked |= set(needed)
            for action in needed:
                if action not in self.allowed:
                    return denied(request.service, action)
        return super().respond(request)


def actions(request: Request) -> tuple[str, ...]:
    operation = request.operation
    prefix = ALONE.get(request.service, request.service)
    return f"{prefix}:{RENAMED.get(operation, operation)}", *MORE.get(operation, ())


def denied(service: str, action: str) -> Response:
    code = "UnauthorizedOperation" if service == "ec2" else "AccessDenied"
    text = (
        "User: arn:aws:sts::123456789012:assumed-role/run/x is not authorized to perform: "
        f"{action} on resource: * because no identity-based policy allows the {action} action"
    )
    return error(service, 403, code, text, "00000000-0000-4000-8000-000000000000")


@cache
def rights(need: Need) -> frozenset[str]:
    """Return the actions of the documented policy."""
    statements: Any = policy(need, Names())["Statement"]
    return frozenset(action for statement in statements for action in statement["Action"])


def a_site(allowed: AbstractSet[str]) -> tuple[calls.Site, GuardedEC2]:
    """Return the account of the tests of faults, in which IAM allows these actions."""
    site = calls.a_site(GuardedEC2)
    assert isinstance(site.cloud, GuardedEC2)
    site.cloud.allowed = allowed
    return site, site.cloud


def problems(step: str, allowed: AbstractSet[str]) -> tuple[str, frozenset[str]]:
    """Do a step; return what an operator learns of its failures, and the rights it asked for."""
    site, cloud = a_site(allowed)
    told: list[str] = []
    try:
        match step:
            case "sqs:DeleteMessageBatch" | "sqs:ChangeMessageVisibilityBatch":
                told += listen(site, releases=step.startswith("sqs:Change"))
            case "service-quotas:GetServiceQuota":
                checks = Checks(cloud.connect, SETTINGS, site.clock)
                told += [row.message for row in checks.quotas([("m7i.large", "spot", 2)])]
            case "ec2:RunInstances":
                found = site.compute(validates=True).resolve(a_class()).status.conditions
                told += [condition.message for condition in found]
            case "ec2:TerminateInstances" | "ec2:CreateTags":
                cloud.allowed = None
                (identity,) = calls.launched(site)
                cloud.allowed = allowed
                site.compute().tag(identity, {"Name": "n"})
                site.compute().terminate([identity])
            case "ec2:RebootInstances":
                cloud.allowed = None
                (identity,) = calls.launched(site)
                cloud.asked, cloud.allowed = set(), allowed
                site.compute().reboot(identity)
            case _:
                calls.ACTS[step](site)
    except ReconcilerError as failure:
        told.append(str(failure))
    except ClientError:
        pass  # what the step prepares, with a client of the test
    return "\n".join(told), frozenset(cloud.asked)


def listen(site: calls.Site, *, releases: bool) -> Iterator[str]:
    """Receive two messages, of which only one concerns instances, and end."""
    sqs = site.client("sqs")
    url = sqs.create_queue(QueueName="words")["QueueUrl"]
    about = {**SPOT, "account": site.cloud._account.number}
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(about) if releases else "{}")
    queue = InterruptionQueue(site.cloud.connect, "words", site.clock, wait_s=0)
    queue.poll()
    yield queue.problem()
    queue.release_messages()
    yield queue.problem()


@cache
def asked(need: Need) -> Mapping[str, frozenset[str]]:
    """Return the rights that each step asks for if it has all of the policy."""
    return {step: problems(step, rights(need))[1] for step in STEPS[need]}


@pytest.mark.parametrize("need", STEPS)
def test_the_policy_suffices_and_nothing_else_is_called(need: Need) -> None:
    for step in STEPS[need]:
        told, used = problems(step, rights(need))
        assert "not authorized" not in told, told
        assert used <= rights(need)


@attack(Threat.CLOUD, "a right in AWS that is not needed, each taken away, or missing unnoticed")
@pytest.mark.parametrize(
    ("need", "right"),
    [
        pytest.param(need, right, id=f"{need}-{right}")
        for need in STEPS
        for right in sorted(rights(need))
    ],
)
def test_each_right_in_aws_is_missed_and_named(
    need: Need, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [step for step, used in asked(need).items() if right in used]
    assert steps, "no step of the daemon needs it"
    with caplog.at_level(logging.INFO):
        told = "\n".join(problems(step, rights(need) - {right})[0] for step in steps)
    assert f"allow {right} for these credentials" in told + caplog.text
