"""Node classes are validated by dry runs before anything waits for their nodes."""

from __future__ import annotations

import msgspec
import pytest

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.kubernetes.metadata import Condition
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.wire import Request, Response, error
from tests.contracts.cloud import a_class, a_cloud, a_compute

TRIED = ("CreateLaunchTemplate", "CreateFleet", "RunInstances")


class Site:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.cloud: EmbeddedEC2 = a_cloud(self.clock)
        self.compute: AwsCompute = a_compute(self.cloud, self.clock, validates=True)

    def verdict(self, node_class: EC2NodeClass | None = None) -> Condition:
        found = self.compute.resolve(node_class or a_class()).status.conditions
        return next(c for c in found if c.type == "ValidationSucceeded")

    def tried(self) -> list[str]:
        return [c.operation for c in self.cloud.calls if c.operation in TRIED]

    def answers(self, operation: str, code: str, message: str) -> None:
        """Make EC2 answer an operation with an error."""
        handle = self.cloud.respond

        def other(request: Request) -> Response:
            if request.operation == operation:
                return error("ec2", 400, code, message, "0-1")
            return handle(request)

        self.cloud.respond = other  # type: ignore[method-assign]


def test_a_valid_class_passes_the_dry_run_and_creates_nothing() -> None:
    site = Site()
    assert site.verdict().status == "True"
    assert site.tried() == list(TRIED)
    assert site.cloud.running_instances() == {}
    mine = site.cloud.connect("ec2", 1).describe_launch_templates()["LaunchTemplates"]
    assert mine == []


@pytest.mark.parametrize("operation", TRIED)
def test_a_missing_permission_is_named_with_its_call(operation: str) -> None:
    site = Site()
    site.cloud.faults.add(operation, Fault.DENIED, times=None)
    verdict = site.verdict()
    assert (verdict.status, verdict.reason) == ("False", f"{operation}AuthCheckFailed")
    assert f"allow ec2:{operation} for these credentials" in verdict.message
    ready = site.compute.resolve(a_class()).status.conditions[-1]
    assert (ready.type, ready.status) == ("Ready", "False")


def test_one_usable_subnet_is_enough() -> None:
    site = Site()
    site.cloud.faults.add("RunInstances", Fault.DENIED)
    assert site.verdict().status == "True"


def test_a_validation_result_is_cached_for_half_an_hour() -> None:
    site = Site()
    for _ in range(20):
        assert site.verdict().status == "True"
        site.clock.advance(61)
    assert site.tried() == list(TRIED)
    site.clock.advance(1800)
    site.verdict()
    assert len(site.tried()) == 2 * len(TRIED)


def test_a_granted_permission_is_noticed_within_minutes() -> None:
    site = Site()
    site.cloud.faults.add("CreateFleet", Fault.DENIED)
    assert site.verdict().status == "False"
    site.clock.advance(121)
    assert site.verdict().status == "True"


def test_a_changed_class_is_validated_again() -> None:
    site = Site()
    site.verdict()
    site.verdict(a_class(tags={"team": "web"}))
    assert len(site.tried()) == 2 * len(TRIED)


def test_while_ec2_is_throttling_the_last_result_is_used() -> None:
    site = Site()
    site.cloud.faults.add("CreateFleet", Fault.THROTTLE, times=None)
    with pytest.raises(TransientCloudError, match="ec2:CreateFleet"):
        site.verdict()
    site.cloud.faults.clear()
    site.verdict()
    site.clock.advance(2000)
    site.cloud.faults.add("CreateFleet", Fault.THROTTLE, times=None)
    assert site.verdict().status == "True"


def test_an_inconclusive_answer_is_not_an_objection() -> None:
    site = Site()
    site.answers("CreateFleet", "InvalidLaunchTemplateName.NotFoundException", "no such template")
    assert site.verdict().status == "True"


def test_only_a_profile_of_the_user_must_already_exist() -> None:
    text = "Value (nodes) for parameter iamInstanceProfile.name is invalid. "
    text += "Invalid IAM Instance Profile name"
    site = Site()
    site.answers("RunInstances", "InvalidParameterValue", text)
    assert site.verdict().status == "True"
    own = a_class(role="", instance_profile="nodes")
    assert site.verdict(own).reason == "InstanceProfileNotFound"


def test_user_data_that_is_too_long_is_found_before_a_launch() -> None:
    site = Site()
    site.answers("RunInstances", "InvalidUserData.Malformed", "User data is limited to 16384 bytes")
    assert site.verdict().reason == "UserDataSizeLimitExceeded"


def test_a_class_without_resources_is_not_validated_at_ec2() -> None:
    site = Site()
    term = msgspec.structs.replace(
        a_class().spec.subnet_selector_terms[0], tags={"karpenter.sh/discovery": "nowhere"}
    )
    missing = a_class(subnet_selector_terms=(term,))
    ready = site.compute.resolve(missing).status.conditions[-1]
    assert ready.status == "False"
    assert site.tried() == []


def test_planning_makes_no_dry_run_calls() -> None:
    site = Site()
    site.compute = a_compute(site.cloud, site.clock)
    assert site.verdict().status == "True"
    assert site.tried() == []
