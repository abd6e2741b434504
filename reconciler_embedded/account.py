"""The AWS account that moto keeps, and what we correct in it."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from reconciler.adapters.simulated.conditions import REBOOTED_TAG
from reconciler.model.json import JsonObject
from reconciler.model.karpenter.nodeclass import EC2NodeClass, SelectorTerm
from reconciler.ports.clock import Clock
from reconciler_embedded.wire import Request, Response, encode_query, nest

if TYPE_CHECKING:
    from moto.ec2.models.tags import TagBackend

_BY_ID: Final = frozenset({"resource-id"})
_WILDCARDS: Final = frozenset("*?[\\")

_READS: Final = ("Describe", "Get", "List")
_REMEMBERED: Final = frozenset({"ec2", "iam", "ssm"})
"""The services whose answers depend only on the account, not on the time or a queue."""
_ANSWERS_MAX: Final = 500

_FORGOTTEN_AFTER: Final = timedelta(hours=1)
_RUNNING: Final = ("running", 16)
_PENDING: Final = ("pending", 0)
_SHUTTING_DOWN: Final = ("shutting-down", 32)
_TERMINATED: Final = ("terminated", 48)
_IMAGE_NAME: Final = "al2023-ami-2023.0.20260101.0-kernel-6.12-{arch}"
_PUBLISHED: Final = datetime(2026, 1, 1, tzinfo=UTC)
_IMAGES: Final = {"x86_64": "ami-0000000000000a64d", "arm64": "ami-0000000000000a264"}
_CLOSED: Final[deque[str]] = deque()
"""The numbers of unreachable accounts that moto still keeps."""


def find_tags_by_id(backend: TagBackend) -> None:
    """Make a backend of moto answer ``describe_tags`` for ids from their own tags only."""
    from moto.ec2.models.tags import TagBackend

    search = backend.describe_tags

    def describe(filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        ids = (filters or {}).get("resource-id", ())
        if filters is None or filters.keys() != _BY_ID or any(_WILDCARDS & {*i} for i in ids):
            return search(filters)
        few = TagBackend()
        few.tags.update({i: backend.tags[i] for i in ids if i in backend.tags})
        return few.describe_tags({"resource-id": [*ids]})

    backend.describe_tags = describe  # type: ignore[method-assign]  # moto has no interface for it


class EmbeddedAccount:
    """One account in one region; instances pass through all their states on ``clock``.

    Answers to reading calls are cached until something changes: moto takes a millisecond for each
    instance of a list. Code that changes ``backend`` itself must call ``forget_answers``.
    """

    def __init__(
        self, number: str, region: str, clock: Clock, *, starting_s: float, stopping_s: float
    ) -> None:
        self.number = number
        self.region = region
        self._clock = clock
        self._starting = timedelta(seconds=starting_s)
        self._stopping = timedelta(seconds=stopping_s)
        self._born: dict[str, datetime] = {}
        self._ending: dict[str, datetime] = {}
        self._ended: dict[str, datetime] = {}
        self._answers: dict[tuple[str, str, bytes], Response] = {}
        weakref.finalize(self, _CLOSED.append, number).atexit = False
        _drop_closed_accounts()
        with _without_stock_images():
            from moto.core.botocore_stubber import BotocoreStubber
            from moto.ec2.models import ec2_backends
            from moto.moto_api._internal import mock_random

            mock_random.seed(int(number))
            self.backend: Any = ec2_backends[number][region]
        find_tags_by_id(self.backend)
        self._moto = BotocoreStubber()
        for arch, identity in _IMAGES.items():
            self.add_image(identity, _IMAGE_NAME.format(arch=arch), arch, owner="amazon")

    def forward(self, request: Request) -> Response:
        """Return moto's own answer."""
        if request.service not in _REMEMBERED:
            return self._ask_moto(request)
        operation = request.operation
        if not operation.startswith(_READS):
            self.forget_answers()
            return self._ask_moto(request)
        key = request.service, operation, request.body
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self.forget_answers()
            answer = self._answers[key] = self._ask_moto(request)
        return answer

    def forget_answers(self) -> None:
        """Clear the cached answers: something in the account has changed."""
        self._answers.clear()

    def _ask_moto(self, request: Request) -> Response:
        from botocore.awsrequest import AWSPreparedRequest
        from botocore.compat import HTTPHeaders

        headers = HTTPHeaders.from_dict({**request.headers, "x-moto-account-id": self.number})
        prepared = AWSPreparedRequest(
            request.method,
            f"https://{request.service}.{request.region}.amazonaws.com{request.path}",
            headers,
            request.body,
            False,
        )
        answered = self._moto.process_request(prepared)
        assert answered is not None, f"moto does not support {request.service}"
        status, answer_headers, body = answered
        content = body.encode() if isinstance(body, str) else bytes(body)
        return Response(int(status), content, {str(k): str(v) for k, v in answer_headers.items()})

    def record_launch(self, ids: Sequence[str], groups: Sequence[str], profile: str = "") -> None:
        """Record instances as launched now, with the groups and profile of their template."""
        self.forget_answers()
        now = self._clock.now()
        for identity in ids:
            instance = self.backend.get_instance(identity)
            instance.launch_time = now.astimezone(UTC).replace(tzinfo=None)
            self._born[identity] = now
            _set_state(instance, _PENDING)
            if groups:
                self._set_groups(instance, groups)
            if profile:
                self._set_profile(instance, profile)
        self.advance_states()

    def terminate(self, request: Request) -> Response:
        """Execute TerminateInstances; the instances shut down before they are terminated."""
        answer = self.forward(request)
        if answer.status != 200:
            return answer
        ids = nest(request.form).get("InstanceId", [])
        for identity in ids:
            if identity not in self._ended and identity not in self._ending:
                self._begin_termination(identity)
        self.advance_states()
        return answer

    def reboot(self, request: Request) -> Response:
        """Execute RebootInstances; a tag has its time, from which the node learns of it."""
        answer = self.forward(request)
        if answer.status == 200:
            for identity in nest(request.form).get("InstanceId", []):
                self._tag(identity, {REBOOTED_TAG: self._clock.now().isoformat()})
            self.forget_answers()
        return answer

    def end(self, identity: str) -> None:
        """End an instance without a call."""
        self.backend.terminate_instances([identity])
        self._begin_termination(identity)
        self.advance_states()

    def advance_states(self) -> None:
        """Advance every instance to its current state; remove old terminated ones."""
        now = self._clock.now()
        for identity, born in list(self._born.items()):
            if now - born >= self._starting:
                del self._born[identity]
                self._set_state(identity, _RUNNING)
        for identity, since in list(self._ending.items()):
            if now - since >= self._stopping:
                del self._ending[identity]
                self._ended[identity] = now
                self._set_state(identity, _TERMINATED)
        for identity, since in list(self._ended.items()):
            if now - since >= _FORGOTTEN_AFTER:
                del self._ended[identity]
                self._remove_instance(identity)

    def running_instances(self) -> dict[str, dict[str, str]]:
        """Return the tags of the instances that are pending or running, by id, oldest first."""
        return {
            instance.id: {tag["key"]: tag["value"] for tag in instance.get_tags()}
            for instance in self.backend.all_instances()
            if instance.state in ("pending", "running")
        }

    def free_addresses(self, subnet: str) -> int:
        """Return how many addresses a subnet has left."""
        count: int = self.backend.get_subnet(subnet).available_ip_address_count
        return count

    def zone_of(self, subnet: str) -> str:
        """Return the zone of a subnet, empty if the subnet does not exist."""
        found = next((s for s in self._subnets() if s.id == subnet), None)
        return found.availability_zone if found is not None else ""

    def default_subnet(self, zone: str) -> str:
        """Return the default subnet of a zone, empty if the zone has none."""
        return next(
            (s.id for s in self._subnets() if s.availability_zone == zone and s.default_for_az), ""
        )

    def create_template(self, request: Request) -> Response:
        """Execute CreateLaunchTemplate, with the time of our clock."""
        answer = self.forward(request)
        if answer.status == 200:
            name = dict(request.form).get("LaunchTemplateName", "")
            template = self.backend.get_launch_template_by_name(name)
            template.create_time = self._clock.now().astimezone(UTC).replace(tzinfo=None)
            self.forget_answers()
        return answer

    def names(self) -> frozenset[str]:
        """Return the ids and names of all objects that calls refer to or list."""
        from moto.iam.models import iam_backends

        backend = self.backend
        return frozenset(
            (
                *(instance.id for instance in backend.all_instances()),
                *(subnet.id for subnet in self._subnets()),
                *(group for by_id in backend.groups.values() for group in by_id),
                *backend.amis,
                *backend.launch_template_name_to_ids,
                *(p.name for p in iam_backends[self.number]["aws"].instance_profiles.values()),
            )
        )

    def has_template(self, name: str) -> bool:
        """Return whether a launch template of that name exists."""
        return name in self.backend.launch_template_name_to_ids

    def has_messages(self, queue: str) -> bool:
        """Return whether a queue has a message to receive, or does not exist."""
        from moto.sqs.models import sqs_backends

        known = sqs_backends[self.number][self.region].queues.get(queue)
        return known is None or bool(known.messages)

    def template_groups(self, name: str) -> list[str]:
        """Return the security groups that the interfaces of a template name."""
        template = self.backend.get_launch_template_by_name(name)
        data: JsonObject = template.latest_version().data
        rows = data.get("NetworkInterfaces") or []
        return sorted({group for row in rows for group in row.get("Groups") or []})

    def template_profile(self, name: str) -> str:
        """Return the instance profile that a template names, empty without one."""
        data: JsonObject = self.backend.get_launch_template_by_name(name).latest_version().data
        profile: str = (data.get("IamInstanceProfile") or {}).get("Name", "")
        return profile

    def template_reservation(self, name: str) -> str:
        """Return the capacity reservation that a template targets, empty without one."""
        if not name:
            return ""
        data: JsonObject = self.backend.get_launch_template_by_name(name).latest_version().data
        target = (data.get("CapacityReservationSpecification") or {}).get(
            "CapacityReservationTarget"
        )
        reservation: str = (target or {}).get("CapacityReservationId", "")
        return reservation

    def seed(self, node_class: EC2NodeClass) -> None:
        """Create what the class selects by tags or names, in every zone.

        AWS does not let callers choose ids; here objects are created with the ids of the class.
        """
        spec = node_class.spec
        self.forget_answers()
        for term in spec.subnet_selector_terms:
            self._seed_subnets(term)
        for term in spec.security_group_selector_terms:
            self._seed_group(term)
        for term in spec.ami_selector_terms:
            self._seed_image(term)

    def _begin_termination(self, identity: str) -> None:
        self._born.pop(identity, None)
        self._ending[identity] = self._clock.now()
        self._set_state(identity, _SHUTTING_DOWN)

    def _set_state(self, identity: str, state: tuple[str, int]) -> None:
        self.forget_answers()
        _set_state(self.backend.get_instance(identity), state)

    def _remove_instance(self, identity: str) -> None:
        self.forget_answers()
        reservations = self.backend.reservations
        for key, reservation in list(reservations.items()):
            reservation.instances = [i for i in reservation.instances if i.id != identity]
            if not reservation.instances:
                del reservations[key]
        _drop_tracked_objects()

    def _subnets(self) -> Iterator[Any]:
        for by_id in self.backend.subnets.values():
            yield from by_id.values()

    def _set_groups(self, instance: Any, ids: Sequence[str]) -> None:
        groups = [g for g in map(self.backend.get_security_group_from_id, ids) if g is not None]
        instance.security_groups = groups
        for interface in instance.nics.values():
            interface._group_set = groups  # noqa: SLF001 - moto has no interface for it

    def _set_profile(self, instance: Any, name: str) -> None:
        """Set the profile of an instance; a missing one is skipped, as in moto."""
        from moto.iam.models import iam_backends

        known = iam_backends[self.number]["aws"].instance_profiles
        if any(profile.name == name for profile in known.values()):
            self.backend.associate_iam_instance_profile(instance.id, name)

    def _call(self, operation: str, **parameters: object) -> Response:
        body = encode_query({"Action": operation, "Version": "2016-11-15", **parameters})
        kind = "application/x-www-form-urlencoded; charset=utf-8"
        answer = self.forward(
            Request("ec2", self.region, "POST", "/", {"Content-Type": kind}, body)
        )
        assert answer.status == 200, answer.body
        return answer

    def _tag(self, resource: str, tags: Mapping[str, str]) -> None:
        rows = [
            {"Key": key, "Value": "seeded" if value == "*" else value}
            for key, value in sorted(tags.items())
        ]
        if rows:
            self._call("CreateTags", ResourceId=[resource], Tag=rows)

    def _seed_subnets(self, term: SelectorTerm) -> None:
        defaults = sorted(
            (s for s in self._subnets() if s.default_for_az), key=lambda s: s.availability_zone
        )
        if not term.id:
            for subnet in defaults:
                self._tag(subnet.id, term.tags)
            return
        if not self.zone_of(term.id):
            number = sum(1 for _ in self._subnets()) - len(defaults)
            by_id = self.backend.subnets[defaults[number % len(defaults)].availability_zone]
            subnet = by_id.pop(defaults[number % len(defaults)].id)
            subnet.id, subnet.default_for_az = term.id, False
            by_id[term.id] = subnet

    def _seed_group(self, term: SelectorTerm) -> None:
        vpc = next(iter(self._subnets())).vpc_id
        name = term.name or f"seeded-{_digest(*sorted(term.tags.items()))}"
        known = self.backend.get_security_group_by_name_or_id(term.id or name, vpc)
        if known is not None:
            return
        group = self.backend.create_security_group(name, "seeded", vpc)
        if term.id:
            del self.backend.groups[vpc][group.id]
            group.id = group.group_id = term.id
            self.backend.groups[vpc][term.id] = group
        self._tag(group.id, term.tags)

    def _seed_image(self, term: SelectorTerm) -> None:
        if term.alias or term.ssm_parameter:
            return
        if term.id:
            self.add_image(term.id, term.id, "x86_64")
            return
        for arch, stock in _IMAGES.items():
            label = term.name.replace("*", "seeded") or "seeded"
            identity = f"{stock[:12]}{_digest(label, arch)}"
            self.add_image(identity, label, arch, owner=term.owner)
            self._tag(identity, term.tags)

    def add_image(
        self,
        identity: str,
        name: str,
        arch: str,
        owner: str = "",
        created: datetime = _PUBLISHED,
    ) -> None:
        """Add an image, unless one with that id exists."""
        from moto.ec2.models.amis import Ami

        if identity in self.backend.amis:
            return
        self.forget_answers()
        self.backend.amis[identity] = Ami(
            self.backend,
            identity,
            name=name,
            architecture=arch,
            owner_id=owner if owner.isdigit() else None,
            owner_alias=owner if not owner.isdigit() else None,
            public=True,
            virtualization_type="hvm",
            hypervisor="xen",
            root_device_name="/dev/xvda",
            root_device_type="ebs",
            creation_date=created,
        )


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:9]


def _drop_closed_accounts() -> None:
    """Remove closed accounts from moto, which otherwise keeps every account of the process."""
    from moto.core.base_backend import BackendDict

    services: Any = BackendDict
    while _CLOSED:
        number = _CLOSED.popleft()
        for accounts in services._instances:  # noqa: SLF001 - moto can only remove all accounts
            regions: dict[str, object] = accounts.pop(number, {})
            for backend in regions.values():
                _clear_backend(backend)
            regions.clear()
    _drop_tracked_objects()


def _clear_backend(backend: object) -> None:
    """Clear a backend: caches of moto reference some of its objects, and these the backend."""
    for by_id in getattr(backend, "subnets", {}).values():
        for subnet in by_id.values():
            subnet.__dict__.clear()
    backend.__dict__.clear()


def _drop_tracked_objects() -> None:
    """Empty the lists of all objects that moto keeps for its dashboard, which is not used."""
    from moto.core.model_instances import reset_model_data

    reset_model_data()


def _set_state(instance: Any, state: tuple[str, int]) -> None:
    instance._state.name, instance._state.code = state  # noqa: SLF001 - moto has no such states


@contextmanager
def _without_stock_images() -> Iterator[None]:
    """Keep moto from loading its 1,100 images, half a second for each account."""
    name = "MOTO_EC2_LOAD_DEFAULT_AMIS"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
