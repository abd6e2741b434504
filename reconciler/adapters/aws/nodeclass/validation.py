"""Validate a node class by dry runs of a launch.

The three calls of a launch are tried with the parameters for a common machine. A rejection names
the missing permission before the first pod waits for a node (aws reference 4.7). The result is
cached for half an hour, a rejection for two minutes, or until the class or what it selects changes.

With ``DryRun`` EC2 reports whether it would execute a call. It returns ``DryRunOperation`` if the
call is allowed, and an error if it is not. Any other response decides nothing: a resource in the
call may be missing although the permission exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.adapters.aws.errors import Failure, boto_errors, code_of, failure_of, our_error
from reconciler.adapters.aws.launch.requests import LaunchRequests, launch_requests
from reconciler.adapters.aws.nodeclass.images import Types, TypesOf
from reconciler.catalog.aws.machine import image_for
from reconciler.model.errors import CloudError, ReconcilerError, TransientCloudError
from reconciler.model.karpenter.labels import NODEPOOL, ON_DEMAND
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Launch, LaunchOption

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client


_WOULD: Final = "DryRunOperation"

KIND: Final = "ValidationSucceeded"
HOLDS_FOR: Final = timedelta(minutes=30)
REFUSAL_HOLDS_FOR: Final = timedelta(minutes=2)
"""Rejections expire early, because users fix permissions and should not wait half an hour."""

_CANDIDATES: Final = ("m5.large", "m6g.large", "m7i.large", "m7g.large", "t3.large", "t4g.large")
_TEMPLATE: Final = "ec2:CreateLaunchTemplate"
_FLEET: Final = "ec2:CreateFleet"
_RUN: Final = "ec2:RunInstances"
_NO_PROFILE: Final = "InstanceProfileNotFound"
_POOL: Final = "validation"
"""The NodePool in the tags of a trial: policies require one."""


class TrialVerdict(StrEnum):
    """The result of a trial of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a trial; ``error`` is AWS's message unless the call is allowed."""

    verdict: TrialVerdict
    code: str = ""
    error: ReconcilerError | None = None

    @property
    def is_transient(self) -> bool:
        """Whether the same trial may soon have a different outcome."""
        return isinstance(self.error, TransientCloudError)


def run_trial(name: str, call: Callable[..., object], **parameters: object) -> Trial:
    """Try a call, ``name`` as in ``ec2:CreateFleet``, and return the outcome.

    A simulated account that ignores ``DryRun`` executes a reading call: that counts as allowed as
    well.
    """
    try:
        call(**parameters)
    except boto_errors() as error:
        code = code_of(error)
        if code == _WOULD:
            return Trial(TrialVerdict.ALLOWED)
        ours = our_error(name, error)
        denied = failure_of(error) is Failure.UNAUTHORIZED
        return Trial(TrialVerdict.DENIED if denied else TrialVerdict.UNDECIDED, code, ours)
    return Trial(TrialVerdict.ALLOWED)


class Validation:
    """Validates node classes, and caches the results."""

    def __init__(self, ec2: EC2Client, settings: Settings, types_of: TypesOf, clock: Clock) -> None:
        self._ec2 = ec2
        self._settings = settings
        self._types_of = types_of
        self._clock = clock
        self._known: dict[str, tuple[datetime, Condition]] = {}

    def condition(self, node_class: EC2NodeClass) -> Condition:
        """Return the condition ``ValidationSucceeded`` of a resolved class.

        Raises:
            TransientCloudError: EC2 did not respond; an earlier result may still be valid.
        """
        key = self._cache_key(node_class)
        now = self._clock.now()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        self._known = {k: v for k, v in self._known.items() if now < v[0]}
        condition = self._run_trials(node_class)
        until = now + (HOLDS_FOR if condition.status == "True" else REFUSAL_HOLDS_FOR)
        self._known[key] = (until, condition)
        return condition

    def _cache_key(self, node_class: EC2NodeClass) -> str:
        status = msgspec.structs.replace(node_class.status, conditions=())
        facts = msgspec.json.encode((node_class.name, node_class.spec, status), order="sorted")
        return hashlib.sha256(facts).hexdigest()

    def _run_trials(self, node_class: EC2NodeClass) -> Condition:
        """Return the condition; a profile managed by us need not exist yet."""
        try:
            for operation, trial in self.trials(node_class):
                problem = _failure_condition(operation, trial)
                is_ours = not node_class.spec.instance_profile
                if problem is not None and not (is_ours and problem.reason == _NO_PROFILE):
                    return problem
        except CloudError as error:
            return Condition(KIND, "False", "LaunchRefused", str(error))
        return Condition(KIND, "True")

    def trials(self, node_class: EC2NodeClass) -> Iterator[tuple[str, Trial]]:
        """Yield each call of a launch with its outcome; none if nothing can be tried.

        Raises:
            CloudError: the launch is rejected before any call.
        """
        types = self._types_of(node_class)
        launch = _trial_launch(node_class, types)
        if launch is None:
            return
        requests = launch_requests(launch, types, self._settings)
        ec2, template = self._ec2, requests.templates[0]
        made = run_trial(_TEMPLATE, ec2.create_launch_template, **template, DryRun=True)
        yield "CreateLaunchTemplate", made
        yield "CreateFleet", run_trial(_FLEET, ec2.create_fleet, **requests.fleet, DryRun=True)
        yield "RunInstances", self._try_run_instances(requests)

    def _try_run_instances(self, requests: LaunchRequests) -> Trial:
        """Try RunInstances in each subnet; one success is enough."""
        first: Trial | None = None
        for parameters in _run_requests(requests):
            trial = run_trial(_RUN, self._ec2.run_instances, **parameters, DryRun=True)
            if trial.verdict is TrialVerdict.ALLOWED:
                return trial
            first = first or trial
        assert first is not None, "a fleet has an override"
        return first


def _failure_condition(operation: str, trial: Trial) -> Condition | None:
    """Return the condition of a trial; an undecided one is not a problem."""
    if trial.verdict is TrialVerdict.ALLOWED or trial.error is None:
        return None
    message = str(trial.error)
    if trial.is_transient:
        raise trial.error
    if trial.verdict is TrialVerdict.DENIED:
        return Condition(KIND, "False", f"{operation}AuthCheckFailed", message)
    if trial.code == "InvalidParameterValue" and "Invalid IAM Instance Profile" in message:
        return Condition(KIND, "False", _NO_PROFILE, message)
    if trial.code == "InvalidUserData.Malformed" and "limited to" in message:
        return Condition(KIND, "False", "UserDataSizeLimitExceeded", message)
    return None


def _trial_launch(node_class: EC2NodeClass, types: Types) -> Launch | None:
    """Return a launch of the first common machine with a matching image of the class, if any."""
    zones = dict.fromkeys(subnet.zone for subnet in node_class.status.subnets)
    for name in _CANDIDATES:
        kind = types(name)
        if kind is not None and image_for(node_class.status.amis, kind) is not None:
            options = tuple(LaunchOption(name, zone, ON_DEMAND, 1.0) for zone in zones)
            claim = NodeClaim(Metadata(name=_POOL, labels={NODEPOOL: _POOL}))
            return Launch("", claim, node_class, options, {}) if options else None
    return None


def _run_requests(requests: LaunchRequests) -> Iterator[dict[str, object]]:
    """Yield RunInstances with the template's content, once for each subnet of the fleet."""
    template = requests.templates[0]["LaunchTemplateData"]
    own = ("TagSpecifications", "NetworkInterfaces")
    data = {key: value for key, value in template.items() if key not in own}
    network, *others = template["NetworkInterfaces"]
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
