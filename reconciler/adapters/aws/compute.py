"""The port ``Compute`` implemented with EC2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.conversion import instance_of
from reconciler.adapters.aws.errors import (
    Failure,
    boto_errors,
    failure_of,
    our_error,
    translate_errors,
)
from reconciler.adapters.aws.launch.addresses import Addresses
from reconciler.adapters.aws.launch.instances import Launcher, assign_instances
from reconciler.adapters.aws.launch.profiles import Profiles
from reconciler.adapters.aws.launch.templatestore import AwsUnusedResources, LaunchTemplates
from reconciler.adapters.aws.nodeclass.images import Types, TypesOf
from reconciler.adapters.aws.nodeclass.resolve import Resolver
from reconciler.adapters.aws.nodeclass.validation import Validation
from reconciler.adapters.aws.tags import FLEET, INTENT, as_list, owner_of
from reconciler.model.errors import LeaseLostError, ReconcilerError, TransientCloudError
from reconciler.model.karpenter.labels import NODEPOOL, RESERVED
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef


ATTEMPTS: Final = 5
"""How often botocore tries a call that is safe to repeat."""

_PAGE: Final = 1000
_VALUES_OF_A_FILTER: Final = 200
_IDS_OF_A_CALL: Final = 500
_LIST: Final = "ec2:DescribeInstances"
_GONE: Final = "terminated"
_NOT_TERMINATED: Final = ("pending", "running", "stopping", "stopped", "shutting-down")


class AwsCompute:
    """EC2, for one fleet in one region.

    ``types`` finds an instance type of the catalog. ``types_of`` does so as resolved for a node
    class, whose kubelet settings determine the number of pods; without it, types are the same for
    every class. At most ``workers`` CreateFleet calls run in parallel, in any order. ``page_size``
    is the number of instances in one page of a listing. With ``validates``, node classes are tested
    by dry runs.
    """

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        types: Types,
        clock: Clock,
        *,
        types_of: TypesOf | None = None,
        workers: int = 1,
        page_size: int = _PAGE,
        validates: bool = False,
    ) -> None:
        self._ec2 = connect("ec2", ATTEMPTS)
        self._ec2_once = connect("ec2", 1)
        self._settings = settings
        self._owner = owner_of(settings)
        self._workers = workers
        self._page_size = page_size
        typed = types_of or (lambda _: types)
        trials = Validation(connect("ec2", 1), settings, typed, clock) if validates else None
        addresses = Addresses()
        self._resolver = Resolver(self._ec2, connect, settings, clock, addresses, trials)
        templates = LaunchTemplates(self._ec2, clock)
        self.unused_resources = AwsUnusedResources(self._ec2, connect, settings, clock, templates)
        self._launcher = Launcher(
            self._ec2_once,
            templates,
            Profiles(connect, settings),
            settings,
            typed,
            clock,
            find=self.find,
            discard=self.terminate,
            addresses=addresses,
        )

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class with a status; a class with a complete status is returned unchanged."""
        return self._resolver.resolve(node_class)

    def launch(self, requests: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Launch the instances; the results have the order of the requests.

        A request that was fulfilled before, in this process or an earlier one, returns its instance
        and launches none. A batch is one call.
        """
        batches = [list(batch) for _, batch in groupby(requests, key=lambda request: request.token)]
        if any(request.options[0].capacity_type == RESERVED for request in requests):
            self._resolver.expire_reserved()
        try:
            known = {
                i.tags.get(INTENT, "") for i in self.find([batch[0].token for batch in batches])
            }
        except LeaseLostError:
            raise
        except ReconcilerError as error:
            return [error] * len(requests)

        def answer(batch: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
            return self._launch_batch(batch, is_known=batch[0].token in known)

        if self._workers == 1 or len(batches) < 2:
            return list(chain.from_iterable(map(answer, batches)))
        with ThreadPoolExecutor(self._workers) as pool:
            return list(chain.from_iterable(pool.map(answer, batches)))

    def _launch_batch(
        self, batch: Sequence[Launch], *, is_known: bool
    ) -> Sequence[LaunchAnswer | Exception]:
        """Launch one batch, unless EC2 knows its token and shows instances of it."""
        launched = self._launcher.find_launched(batch) if is_known else ()
        if not launched:
            return self._launcher.launch(batch)
        late = TransientCloudError("EC2 does not list all instances of the batch yet", where=_LIST)
        return assign_instances(batch, launched, late)

    def instances(self) -> Sequence[Instance]:
        """Return every instance whose tags name this fleet and its cluster, by id.

        Terminated instances are left out, as are those of another cluster with a fleet of the same
        name.
        """
        found = self._describe(
            {"Name": f"tag:{FLEET}", "Values": [self._settings.fleet]},
            {"Name": "instance-state-name", "Values": list(_NOT_TERMINATED)},
        )
        return [i for i in found if self._owner.is_named_by(i.tags) and i.state in _NOT_TERMINATED]

    def karpenter_instances(self) -> Sequence[Instance]:
        """Return every instance of the cluster that was launched for a NodePool, by id."""
        cluster = f"kubernetes.io/cluster/{self._settings.cluster_name}"
        found = self._describe(
            {"Name": "tag-key", "Values": [cluster]},
            {"Name": "tag-key", "Values": [NODEPOOL]},
            {"Name": "instance-state-name", "Values": list(_NOT_TERMINATED)},
        )
        return [i for i in found if {cluster, NODEPOOL} <= i.tags.keys() and i.state != _GONE]

    def find(self, intents: Sequence[str]) -> Sequence[Instance]:
        """Return the instances that have the tag of one of the intents, in any state, by id."""
        found: list[Instance] = []
        for values in _chunks(list(dict.fromkeys(intents)), _VALUES_OF_A_FILTER):
            found += self._describe(
                {"Name": f"tag:{FLEET}", "Values": [self._settings.fleet]},
                {"Name": f"tag:{INTENT}", "Values": values},
            )
        requested = frozenset(intents)
        ours = (i for i in found if self._owner.owns(i.tags) and i.tags.get(INTENT) in requested)
        return sorted(ours, key=lambda instance: instance.id)

    def look_up(self, ids: Sequence[str]) -> Sequence[Instance]:
        """Return these instances in any state, by id; ids that EC2 does not show are left out.

        Ids are passed in a filter, because a call that names an unknown one fails completely.
        """
        found: list[Instance] = []
        requested = frozenset(ids)
        for batch in _chunks(list(dict.fromkeys(ids)), _VALUES_OF_A_FILTER):
            found += self._describe({"Name": "instance-id", "Values": batch})
        return sorted((i for i in found if i.id in requested), key=lambda instance: instance.id)

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to terminate the instances; those already gone count as terminated.

        EC2 rejects a complete call if one id is unknown or protected, so such a call is bisected
        until the id is isolated. The first error other than «not found» is raised after all were
        tried.
        """
        batches = list(_chunks(list(dict.fromkeys(ids)), _IDS_OF_A_CALL))
        errors = [error for batch in batches if (error := self._terminate(batch)) is not None]
        if errors:
            raise our_error("ec2:TerminateInstances", errors[0]) from errors[0]

    def reboot(self, instance: str) -> None:
        """Request the reboot of an instance."""
        with translate_errors("ec2:RebootInstances"):
            self._ec2_once.reboot_instances(InstanceIds=[instance])

    def tag(self, instance: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""
        with translate_errors("ec2:CreateTags"):
            self._ec2.create_tags(Resources=[instance], Tags=as_list(tags))

    def _terminate(self, ids: Sequence[str]) -> Exception | None:
        try:
            self._ec2.terminate_instances(InstanceIds=list(ids))
        except boto_errors() as error:
            failure = failure_of(error)
            if failure not in (Failure.NOT_FOUND, Failure.REFUSED):
                return error
            if len(ids) == 1:
                return None if failure is Failure.NOT_FOUND else error
            half = len(ids) // 2
            first, second = self._terminate(ids[:half]), self._terminate(ids[half:])
            return first or second
        return None

    def _describe(self, *filters: FilterTypeDef) -> list[Instance]:
        with translate_errors(_LIST):
            pages = self._ec2.get_paginator("describe_instances").paginate(
                Filters=list(filters), PaginationConfig={"PageSize": self._page_size}
            )
            rows = {
                row["InstanceId"]: instance_of(row)
                for page in pages
                for reservation in page["Reservations"]
                for row in reservation["Instances"]
            }
        return [rows[identity] for identity in sorted(rows)]


def _chunks(items: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
