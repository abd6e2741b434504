"""Check an account before anything is written to it: identity, permissions and resources.

Nothing here changes anything. Calls that support ``DryRun`` are made with it; others are made only
if they read. What cannot be determined either way is reported as unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import boto_errors, our_error
from reconciler.adapters.aws.launch.profiles import is_simulated_account
from reconciler.adapters.aws.nodeclass.validation import TrialVerdict, Validation, run_trial
from reconciler.adapters.aws.permissions import Need, Operation, calls_for
from reconciler.model.diagnostics import Check, failed_check, passed_check, unknown_check
from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.labels import SPOT
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import FeatureGate, Settings
from reconciler.ports.clock import Clock

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagTypeDef
    from mypy_boto3_service_quotas.client import ServiceQuotasClient
    from mypy_boto3_sqs.type_defs import GetQueueUrlResultTypeDef
    from mypy_boto3_sts.type_defs import GetCallerIdentityResponseTypeDef

_ATTEMPTS: Final = 2

_SERVICE: Final = "ec2"

SKEW_MAX: Final = timedelta(minutes=5)
"""The maximum clock skew: AWS rejects calls whose signature is further off."""

_ABSENT: Final = frozenset(
    {"NoSuchEntity", "ParameterNotFound", "ResourceNotFoundException", "InvalidInstanceID.NotFound"}
)
"""Codes of calls that were allowed but whose object does not exist."""

_PARAMETER: Final = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_PROFILE: Final = "reconciler-check"
_READS: Final[Mapping[str, Mapping[str, object]]] = {
    "DescribeImages": {"Owners": ["self"]},
    "DescribeInstanceTypes": {"MaxResults": 5},
    "DescribeInstanceTypeOfferings": {"MaxResults": 5},
    "DescribeSpotPriceHistory": {"MaxResults": 5},
    "DescribeSubnets": {"MaxResults": 5},
    "DescribeSecurityGroups": {"MaxResults": 5},
}
_LAUNCH_CALLS: Final = ("CreateLaunchTemplate", "CreateFleet", "RunInstances")


def account_number(connect: Connect, settings: Settings) -> str:
    """Return the number of the account, empty if AWS does not report it.

    The role that is assumed names it. Otherwise STS is needed, which needs no permission but may
    be out of reach in a private network.
    """
    if settings.role_arn:
        return settings.role_arn.split(":")[4]
    try:
        return str(connect("sts", _ATTEMPTS).get_caller_identity()["Account"])
    except boto_errors():
        return ""


# vCPU quotas of an account, by the groups of instance families that EC2 counts together.


class Quota(NamedTuple):
    """A group of instance families: their names, and the codes of their quotas."""

    name: str
    on_demand: str
    spot: str

    def code(self, capacity_type: str) -> str:
        """Return the code in Service Quotas; reserved capacity counts as on-demand."""
        return self.spot if capacity_type == SPOT else self.on_demand


STANDARD: Final = Quota("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
_BY_PREFIX: Final[Mapping[str, Quota]] = {
    "dl": Quota("DL", "L-6E869C2A", "L-85EED4F7"),
    "f": Quota("F", "L-74FC7D96", "L-88CF9481"),
    "g": Quota("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "vt": Quota("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "hpc": Quota("HPC", "L-F7808C92", "L-F7808C92"),
    "inf": Quota("Inf", "L-1945791B", "L-B5D1601B"),
    "p": Quota("P", "L-417A185B", "L-7212CCBC"),
    "trn": Quota("Trn", "L-2C3B7624", "L-6B0D517C"),
    "u": Quota("High Memory", "L-43DA4232", "L-43DA4232"),
    "x": Quota("X", "L-7295265B", "L-E3A00192"),
}


def quota_of(instance_type: str) -> Quota:
    """Return the quota that an instance type counts towards; most are Standard."""
    letters = re.match(r"[a-z]+", instance_type)
    return _BY_PREFIX.get(letters.group() if letters else "", STANDARD)


def vcpu_limit(quotas: ServiceQuotasClient, code: str) -> float:
    """Return the vCPU limit of the account; ``quotas`` is a client of Service Quotas."""
    answer = quotas.get_service_quota(ServiceCode=_SERVICE, QuotaCode=code)
    return answer["Quota"]["Value"]


class Checks:
    """The checks of one fleet's account and region."""

    def __init__(self, connect: Connect, settings: Settings, clock: Clock) -> None:
        self._connect = connect
        self._settings = settings
        self._clock = clock

    def identity(self) -> list[Check]:
        """Return whether AWS accepts our identity, and whether the clock is accurate enough."""
        try:
            answer = self._connect("sts", _ATTEMPTS).get_caller_identity()
        except boto_errors() as error:
            ours = our_error("sts:GetCallerIdentity", error)
            return [
                _failed_check("credentials", "", ours),
                unknown_check("clock", "", "skipped: the credentials are not verified"),
            ]
        who = f"{answer['Arn']} in account {answer['Account']}"
        return [passed_check("credentials", "", who), self._clock_skew_check(answer)]

    def _clock_skew_check(self, answer: GetCallerIdentityResponseTypeDef) -> Check:
        stated = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if not stated:
            return unknown_check("clock", "", "the response has no date")
        skew = abs(self._clock.now() - parsedate_to_datetime(stated))
        text = f"{skew.total_seconds():.0f} s difference to AWS"
        if skew >= SKEW_MAX:
            return failed_check(
                "clock", "", text, ("synchronize the clock of this machine, for example with NTP")
            )
        return passed_check("clock", "", text)

    def region(self) -> Check:
        """Return whether EC2 responds in the region of the fleet."""
        name = self._settings.region
        trial = run_trial("ec2:DescribeSubnets", self._ec2().describe_subnets, DryRun=True)
        if trial.is_transient and trial.error is not None and "no answer" in trial.error.where:
            remedy = "check aws.region, aws.endpointUrl and the network route to them"
            return failed_check("region", name, str(trial.error), remedy)
        return passed_check("region", name, "EC2 is reachable")

    def permissions(
        self, need: Need, classes: Sequence[EC2NodeClass], validation: Validation
    ) -> Iterator[Check]:
        """Yield each call that ``need`` makes, and whether it is allowed."""
        reboots = self._settings.gate(FeatureGate.REBOOT_FOR_REPAIR)
        calls = calls_for(need, reboots=reboots)
        launch_checks = self._launch_checks(classes, validation) if need is Need.RUN else {}
        instance_ids = self._fleet_instance_ids() if need is Need.RUN else []
        for call in calls:
            yield launch_checks.get(call.operation) or self._permission_check(call, instance_ids)

    def _permission_check(self, call: Operation, instance_ids: Sequence[str]) -> Check:
        found = self._trial_call(call, instance_ids)
        if isinstance(found, str):
            return unknown_check("permission", call.name, found)
        trial = run_trial(call.name, found)
        if trial.verdict is TrialVerdict.ALLOWED or trial.code in _ABSENT:
            return passed_check("permission", call.name, call.why)
        assert trial.error is not None
        if trial.verdict is TrialVerdict.DENIED:
            return _failed_check("permission", call.name, trial.error)
        return unknown_check("permission", call.name, str(trial.error))

    def _trial_call(
        self, call: Operation, instance_ids: Sequence[str]
    ) -> Callable[[], object] | str:
        """Return a way to try a call without effect, or why there is none."""
        if call.service == "ec2":
            return self._ec2_trial_call(call, instance_ids)
        if call.service == "sqs" and not self._settings.interruption_queue:
            return "skipped: interruptionQueue is not set"
        if call.service in ("iam", "eks") and is_simulated_account(self._settings):
            return "skipped: simulated account"
        return self._read_only_calls().get(
            call.operation, ("skipped: this call cannot be tried without side effects")
        )

    def _read_only_calls(self) -> Mapping[str, Callable[[], object]]:
        """Return read-only calls to services other than EC2, by operation."""
        settings, connect = self._settings, self._connect

        return {
            "GetProducts": lambda: connect("pricing", _ATTEMPTS).get_products(
                ServiceCode="AmazonEC2", MaxResults=1
            ),
            "GetParameter": lambda: connect("ssm", _ATTEMPTS).get_parameter(Name=_PARAMETER),
            "DescribeCluster": lambda: connect("eks", _ATTEMPTS).describe_cluster(
                name=settings.cluster_name
            ),
            "GetInstanceProfile": lambda: connect("iam", _ATTEMPTS).get_instance_profile(
                InstanceProfileName=_PROFILE
            ),
            "ListInstanceProfiles": lambda: connect("iam", _ATTEMPTS).list_instance_profiles(
                MaxItems=1
            ),
            "GetQueueUrl": self._queue_url,
            "ReceiveMessage": self._peek_queue,
        }

    def _ec2_trial_call(
        self, call: Operation, instance_ids: Sequence[str]
    ) -> Callable[[], object] | str:
        ec2 = self._ec2()
        if call.operation == "TerminateInstances" and instance_ids:
            return lambda: ec2.terminate_instances(InstanceIds=list(instance_ids[:1]), DryRun=True)
        if call.operation == "RebootInstances" and instance_ids:
            return lambda: ec2.reboot_instances(InstanceIds=list(instance_ids[:1]), DryRun=True)
        if call.operation == "CreateTags" and instance_ids:
            tags: list[TagTypeDef] = [{"Key": "Name", "Value": "check"}]
            return lambda: ec2.create_tags(Resources=list(instance_ids[:1]), Tags=tags, DryRun=True)
        if call.operation.startswith("Describe"):
            from botocore import xform_name

            read, more = getattr(ec2, xform_name(call.operation)), _READS.get(call.operation, {})
            return lambda: read(DryRun=True, **more)
        return "skipped: no resource of this fleet exists yet to try it on"

    def _launch_checks(
        self, classes: Sequence[EC2NodeClass], validation: Validation
    ) -> Mapping[str, Check]:
        """Return the checks of the calls that a launch makes, tried with a resolved class."""
        found = next((c for c in classes if c.status.amis and c.status.subnets), None)
        if found is None:
            why = "skipped: no EC2NodeClass resolves to the resources it needs"
            return {o: unknown_check("permission", f"ec2:{o}", why) for o in _LAUNCH_CALLS}
        rows: dict[str, Check] = {}
        for operation, trial in validation.trials(found):
            name = f"ec2:{operation}"
            if trial.verdict is TrialVerdict.DENIED and trial.error is not None:
                rows[operation] = _failed_check("permission", name, trial.error)
            elif trial.verdict is TrialVerdict.ALLOWED:
                rows[operation] = passed_check("permission", name, f"tried with {found.name}")
            else:
                rows[operation] = unknown_check("permission", name, str(trial.error))
        return rows

    def _fleet_instance_ids(self) -> list[str]:
        """Return an instance of the fleet to use in trials, if there is one."""
        filters: list[FilterTypeDef] = [
            {"Name": "tag:reconciler/fleet", "Values": [self._settings.fleet]}
        ]
        try:
            answer = self._ec2().describe_instances(Filters=filters, MaxResults=5)
        except boto_errors():
            return []
        rows = [i for r in answer["Reservations"] for i in r["Instances"]]
        return [row["InstanceId"] for row in rows if row["State"]["Name"] != "terminated"]

    def subnets(self, node_class: EC2NodeClass, needed: Mapping[str, int]) -> Iterator[Check]:
        """Yield for each zone of a class whether its subnets have addresses for a plan's nodes.

        ``needed`` is the number of nodes that the plan launches, by zone.
        """
        ids = [subnet.id for subnet in node_class.status.subnets]
        if not ids:
            return
        try:
            rows = self._ec2().describe_subnets(SubnetIds=ids)["Subnets"]
        except boto_errors() as error:
            yield _failed_check(
                "addresses", node_class.name, our_error("ec2:DescribeSubnets", error)
            )
            return
        free: Counter[str] = Counter()
        for row in rows:
            free[row["AvailabilityZone"]] += row.get("AvailableIpAddressCount", 0)
        for zone in sorted(free):
            name = f"{node_class.name} in {zone}"
            text = f"{free[zone]} free addresses, {needed.get(zone, 0)} needed by the plan"
            if free[zone] <= 0 or free[zone] < needed.get(zone, 0):
                remedy = (
                    "add a subnet in this zone to spec.subnetSelectorTerms, or free up addresses"
                )
                yield failed_check("addresses", name, text, remedy)
            else:
                yield passed_check("addresses", name, text)

    def quotas(self, launches: Iterable[tuple[str, str, float]]) -> Iterator[Check]:
        """Yield whether the account's quotas allow the vCPUs that a plan launches.

        ``launches`` are (instance type, capacity type, vCPUs), one for each launch. The use by
        running instances is unknown here: a quota is reported as too small only if the plan alone
        exceeds it.
        """
        needed: Counter[tuple[str, str, str]] = Counter()
        for instance_type, capacity_type, cpus in launches:
            quota = quota_of(instance_type)
            needed[quota.code(capacity_type), quota.name, capacity_type] += round(cpus)
        for (code, title, capacity_type), cpus in sorted(needed.items()):
            name = f"{title}, {capacity_type}"
            try:
                limit = vcpu_limit(self._connect("service-quotas", _ATTEMPTS), code)
            except boto_errors() as error:
                ours = our_error("service-quotas:GetServiceQuota", error)
                yield unknown_check("quota", name, f"{cpus} vCPUs needed; {ours}")
                continue
            text = f"{cpus} vCPUs needed by the plan, limit {limit:.0f} ({code})"
            if cpus > limit:
                yield failed_check(
                    "quota", name, text, (f"request an increase of {code} in Service Quotas")
                )
            else:
                yield passed_check("quota", name, text)

    def queue(self) -> Check:
        """Return whether the interruption queue exists."""
        name = self._settings.interruption_queue
        if not name:
            return unknown_check(
                "queue",
                "",
                ("skipped: interruptionQueue is not set, so no interruption events are received"),
            )
        try:
            url = self._queue_url()["QueueUrl"]
        except boto_errors() as error:
            return _failed_check("queue", name, our_error("sqs:GetQueueUrl", error))
        return passed_check("queue", name, url)

    def _queue_url(self) -> GetQueueUrlResultTypeDef:
        name = self._settings.interruption_queue
        return self._connect("sqs", _ATTEMPTS).get_queue_url(QueueName=name)

    def _peek_queue(self) -> object:
        """Receive a message and leave it in the queue, visible as before."""
        return self._connect("sqs", _ATTEMPTS).receive_message(
            QueueUrl=self._queue_url()["QueueUrl"], VisibilityTimeout=0, WaitTimeSeconds=0
        )

    def _ec2(self) -> EC2Client:
        return self._connect("ec2", _ATTEMPTS)


def node_class_checks(node_class: EC2NodeClass) -> Iterator[Check]:
    """Yield the conditions of a resolved class: whether the resources it selects exist."""
    for condition in node_class.status.conditions:
        if condition.type == "Ready":
            continue
        name = f"{node_class.name} {condition.type}"
        if condition.status == "True":
            yield passed_check("nodeClass", name)
        else:
            yield failed_check("nodeClass", name, f"{condition.reason}: {condition.message}")


def _failed_check(kind: str, name: str, error: ReconcilerError) -> Check:
    return failed_check(kind, name, f"{error.where}: {error.message}", error.remedy)
