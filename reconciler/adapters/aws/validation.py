"""Whether a node class could make nodes, tried without making any.

The three calls of a launch are tried with what the class would send for a common machine. A
refusal names the permission that is missing before the first pod waits for a node that will not
come (aws reference 4.7). A verdict holds for half an hour, a refusal for two minutes, or until the
class or what it selects changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from reconciler.adapters.aws.images import Types, TypesOf
from reconciler.adapters.aws.requests import LaunchRequests, launch_requests
from reconciler.adapters.aws.trial import Trial, Verdict, tried
from reconciler.catalog.images import image_for
from reconciler.model.errors import CloudError
from reconciler.model.labels import NODEPOOL, ON_DEMAND
from reconciler.model.metadata import Condition, Metadata
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.ports import Clock, Launch, LaunchOption

KIND: Final = "ValidationSucceeded"
HOLDS_FOR: Final = timedelta(minutes=30)
REFUSAL_HOLDS_FOR: Final = timedelta(minutes=2)
"""Who was refused is about to be allowed: he need not wait for half an hour."""

_CANDIDATES: Final = ("m5.large", "m6g.large", "m7i.large", "m7g.large", "t3.large", "t4g.large")
_TEMPLATE: Final = "ec2:CreateLaunchTemplate"
_FLEET: Final = "ec2:CreateFleet"
_RUN: Final = "ec2:RunInstances"
_NO_PROFILE: Final = "InstanceProfileNotFound"
_POOL: Final = "validation"
"""The NodePool that a trial names in its tags: policies ask for one."""


class Validation:
    """Tries node classes, and remembers the verdicts."""

    def __init__(self, ec2: Any, settings: Settings, types_of: TypesOf, clock: Clock) -> None:
        self._ec2 = ec2
        self._settings = settings
        self._types_of = types_of
        self._clock = clock
        self._known: dict[str, tuple[datetime, Condition]] = {}

    def of(self, node_class: EC2NodeClass) -> Condition:
        """Return the condition ``ValidationSucceeded`` of a class whose status is found.

        Raises:
            TransientCloudError: EC2 did not say; what it said before may still hold.
        """
        key = self._key(node_class)
        now = self._clock.now()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        self._known = {k: v for k, v in self._known.items() if now < v[0]}
        condition = self._tried(node_class)
        until = now + (HOLDS_FOR if condition.status == "True" else REFUSAL_HOLDS_FOR)
        self._known[key] = (until, condition)
        return condition

    def _key(self, node_class: EC2NodeClass) -> str:
        status = msgspec.structs.replace(node_class.status, conditions=())
        facts = msgspec.json.encode((node_class.name, node_class.spec, status), order="sorted")
        return hashlib.sha256(facts).hexdigest()

    def _tried(self, node_class: EC2NodeClass) -> Condition:
        """Return the verdict; a profile that is ours to make need not be there yet."""
        try:
            for operation, trial in self.trials(node_class):
                problem = _problem_of(operation, trial)
                is_ours = not node_class.spec.instance_profile
                if problem is not None and not (is_ours and problem.reason == _NO_PROFILE):
                    return problem
        except CloudError as error:
            return Condition(KIND, "False", "LaunchRefused", str(error))
        return Condition(KIND, "True")

    def trials(self, node_class: EC2NodeClass) -> Iterator[tuple[str, Trial]]:
        """Yield each call of a launch with how its trial ended; none if nothing can be tried.

        Raises:
            CloudError: the launch may not be asked for at all.
        """
        types = self._types_of(node_class)
        launch = _launch_of(node_class, types)
        if launch is None:
            return
        requests = launch_requests(launch, types, self._settings)
        ec2, template = self._ec2, requests.templates[0]
        made = tried(_TEMPLATE, ec2.create_launch_template, **template, DryRun=True)
        yield "CreateLaunchTemplate", made
        yield "CreateFleet", tried(_FLEET, ec2.create_fleet, **requests.fleet, DryRun=True)
        yield "RunInstances", self._run_trial(requests)

    def _run_trial(self, requests: LaunchRequests) -> Trial:
        """Try RunInstances in each subnet; one that succeeds is enough."""
        first: Trial | None = None
        for parameters in _run_requests(requests):
            trial = tried(_RUN, self._ec2.run_instances, **parameters, DryRun=True)
            if trial.verdict is Verdict.ALLOWED:
                return trial
            first = first or trial
        assert first is not None, "a fleet has an override"
        return first


def _problem_of(operation: str, trial: Trial) -> Condition | None:
    """Return the condition that a trial means; what is undecided is no objection."""
    if trial.verdict is Verdict.ALLOWED or trial.error is None:
        return None
    message = str(trial.error)
    if trial.is_passing:
        raise trial.error
    if trial.verdict is Verdict.DENIED:
        return Condition(KIND, "False", f"{operation}AuthCheckFailed", message)
    if trial.code == "InvalidParameterValue" and "Invalid IAM Instance Profile" in message:
        return Condition(KIND, "False", _NO_PROFILE, message)
    if trial.code == "InvalidUserData.Malformed" and "limited to" in message:
        return Condition(KIND, "False", "UserDataSizeLimitExceeded", message)
    return None


def _launch_of(node_class: EC2NodeClass, types: Types) -> Launch | None:
    """Return a launch of the first common machine that an image of the class suits, if any."""
    zones = dict.fromkeys(subnet.zone for subnet in node_class.status.subnets)
    for name in _CANDIDATES:
        kind = types(name)
        if kind is not None and image_for(node_class.status.amis, kind) is not None:
            options = tuple(LaunchOption(name, zone, ON_DEMAND, 1.0) for zone in zones)
            claim = NodeClaim(Metadata(name=_POOL, labels={NODEPOOL: _POOL}))
            return Launch("", claim, node_class, options, {}) if options else None
    return None


def _run_requests(requests: LaunchRequests) -> Iterator[dict[str, Any]]:
    """Yield RunInstances with what the template holds, once for each subnet of the fleet."""
    data = {
        key: value
        for key, value in requests.templates[0]["LaunchTemplateData"].items()
        if key != "TagSpecifications"
    }
    network, *others = data.pop("NetworkInterfaces")
    tags = [row for row in requests.fleet["TagSpecifications"] if row["ResourceType"] != "fleet"]
    for override in requests.fleet["LaunchTemplateConfigs"][0]["Overrides"]:
        yield {
            **data,
            "InstanceType": override["InstanceType"],
            "NetworkInterfaces": [{**network, "SubnetId": override["SubnetId"]}, *others],
            "TagSpecifications": tags,
            "MinCount": 1,
            "MaxCount": 1,
        }
