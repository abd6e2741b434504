"""Launch exactly one instance for each request, even if calls fail or are repeated.

EC2 promises that a repeated client token repeats the response, but a server may forget or ignore
tokens. Therefore, after every call whose outcome is unclear, the intent's tag is searched for
before the call is repeated, and once more when the response came after such a call.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.conversion import launched_instances, refusals
from reconciler.adapters.aws.errors import (
    CAPACITY_CODES,
    Failure,
    boto_errors,
    code_of,
    denial_remedy,
    error_location,
    failure_of,
    failure_of_code,
    our_error,
)
from reconciler.adapters.aws.launch.addresses import (
    NONE_FREE,
    Addresses,
    ReservedAddresses,
    address_uses,
)
from reconciler.adapters.aws.launch.profiles import Profiles
from reconciler.adapters.aws.launch.requests import LaunchRequests, launch_requests
from reconciler.adapters.aws.launch.templatestore import LaunchTemplates
from reconciler.adapters.aws.nodeclass.images import TypesOf
from reconciler.model.errors import CloudError, LeaseLostError, ReconcilerError, TransientCloudError
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer, Refusal

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import CreateFleetResultTypeDef


_FIRST_S = 0.2
_MOST_S = 5.0

_CALL: Final = "ec2:CreateFleet"
_TRIES: Final = 5
_PENDING_MAX: Final = 1000
_SOON: Final = "it was just created, and EC2 does not list it yet; it will be retried"
_ELSEWHERE: Final = "another subnet of the zone has free addresses and is tried next"
_LOG: Final = logging.getLogger(__name__)


def backoff_s(token: str, attempt: int) -> float:
    """Return the delay in seconds after failure number ``attempt`` (from 0), doubling up to 5 s.

    The jitter, between half and all of the delay, is derived from the token. Claims that fail
    together are not retried together, and the delays are reproducible in tests.
    """
    maximum: float = min(_FIRST_S * 2**attempt, _MOST_S)
    digest = hashlib.sha256(f"{token}/{attempt}".encode()).digest()
    share = int.from_bytes(digest[:2], "big") / 0xFFFF
    return maximum * (0.5 + 0.5 * share)


def pause(clock: Clock, token: str, attempt: int) -> None:
    """Wait for that time on the engine's clock."""
    clock.wait(backoff_s(token, attempt), lambda: False)


class Launcher:
    """Launches an instance for each request; the requests of a batch are one call.

    ``ec2`` must not retry by itself. ``find`` returns the instances of an intent, ``discard``
    terminates an extra one. ``addresses`` are the free addresses of subnets.
    """

    def __init__(
        self,
        ec2: EC2Client,
        templates: LaunchTemplates,
        profiles: Profiles,
        settings: Settings,
        types_of: TypesOf,
        clock: Clock,
        *,
        find: Callable[[Sequence[str]], Sequence[Instance]],
        discard: Callable[[Sequence[str]], None],
        addresses: Addresses,
    ) -> None:
        self._ec2 = ec2
        self._templates = templates
        self._profiles = profiles
        self._settings = settings
        self._types_of = types_of
        self._clock = clock
        self._find = find
        self._discard = discard
        self._addresses = addresses
        self._lock = Lock()
        self._pending: dict[str, tuple[LaunchRequests, ReservedAddresses]] = {}

    def launch(self, batch: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Return the results of requests that are one call; errors are returned, not raised.

        All requests of a batch are equal except for their intents; the first defines the call.
        """
        launch = batch[0]
        try:
            requests = self._requests_of_batch(batch)
            self._profiles.ensure(launch.node_class)
            self._templates.ensure(requests.templates)
            answers = self._create_fleet(batch, requests)
        except TransientCloudError as error:
            return [error] * len(batch)
        except LeaseLostError:
            raise
        except ReconcilerError as error:
            self._forget_requests(launch, ())
            return [error] * len(batch)
        self._forget_requests(launch, answers)
        return answers

    def _requests_of_batch(self, batch: Sequence[Launch]) -> LaunchRequests:
        """Return the parameters of a call: the same as before while its outcome is unknown.

        EC2 rejects a token that is reused with other parameters, and another subnet may have the
        most free addresses by now.
        """
        launch = batch[0]
        with self._lock:
            known = self._pending.get(launch.token)
        if known is not None:
            return known[0]
        types = self._types_of(launch.node_class)
        free = {**self._settings.subnet_free_addresses, **self._addresses.free()}
        settings = replace(self._settings, subnet_free_addresses=free)
        requests = launch_requests(launch, types, settings, count=len(batch))
        reserved = self._addresses.reserve(address_uses(requests.fleet, types, len(batch)))
        with self._lock:
            self._pending[launch.token] = requests, reserved
            for token in list(self._pending)[:-_PENDING_MAX]:
                del self._pending[token]
        return requests

    def _forget_requests(self, launch: Launch, answers: Sequence[LaunchAnswer | Exception]) -> None:
        """Drop a call that has its response, and release the addresses that it did not use."""
        with self._lock:
            known = self._pending.pop(launch.token, None)
        if known is not None:
            instances = (a.instance for a in answers if isinstance(a, LaunchAnswer))
            self._addresses.release_unused(
                known[1], [i.subnet_id for i in instances if i is not None]
            )

    def find_launched(self, batch: Sequence[Launch]) -> Sequence[Instance]:
        """Return the instances of an earlier call, oldest first.

        If more are alive than were requested, the oldest are retained (ties by lower id) and the
        others terminated. If none is alive, the terminated ones are returned.
        """
        token = batch[0].token
        found = sorted(self._find([token]), key=lambda i: (i.is_terminating, i.launched_at, i.id))
        living = [instance for instance in found if not instance.is_terminating]
        surplus = [instance.id for instance in living[len(batch) :]]
        if surplus:
            _LOG.warning("intent %s has %d instances: terminating %s", token, len(living), surplus)
            self._discard(surplus)
        return (living or found)[: len(batch)]

    def _create_fleet(
        self, batch: Sequence[Launch], requests: LaunchRequests
    ) -> Sequence[LaunchAnswer | Exception]:
        """Repeat the call until the outcome is known, or the attempts are used up.

        If an earlier process used the token with other parameters, the response to it is lost. Its
        instances can only be searched for, otherwise the launch fails.

        Raises:
            TransientCloudError: the outcome is still unknown, or EC2 is too busy.
            CloudError: EC2 rejects it for a reason that a retry does not fix.
        """
        unclear = recreated = False
        last: ReconcilerError | None = None
        for attempt in range(_TRIES):
            try:
                answer = self._ec2.create_fleet(**requests.fleet)
            except boto_errors() as error:
                failure = failure_of(error)
                if failure is Failure.TEMPLATE_NOT_FOUND and not recreated:
                    recreated = True
                    self._templates.recreate(requests.templates)
                    continue
                if failure is Failure.CAPACITY:
                    return [LaunchAnswer(None, _refusals_of_all_options(batch[0], error))] * len(
                        batch
                    )
                last = self._launch_error(batch[0], error)
                is_reused_token = failure is Failure.ASKED_OTHERWISE
                if not isinstance(last, TransientCloudError) and not is_reused_token:
                    raise last from error
                pause(self._clock, batch[0].token, attempt)
                if failure is Failure.UNCLEAR or is_reused_token:
                    unclear = True
                    found = self.find_launched(batch)
                    if found:
                        return assign_instances(batch, found, last)
                continue
            return self._read_response(batch, answer, unclear=unclear)
        assert last is not None, "only a failed call is retried"
        raise last

    def _launch_error(self, launch: Launch, error: Exception) -> ReconcilerError:
        """Return our error; a resource that was just created may not be visible in EC2 yet."""
        launch_error, failure = our_error(_CALL, error), failure_of(error)
        unseen = failure is Failure.TEMPLATE_NOT_FOUND
        if failure is Failure.PROFILE_NOT_FOUND:
            unseen = self._profiles.forget(launch.node_class)
        if not unseen:
            return launch_error
        return TransientCloudError(launch_error.message, where=launch_error.where, remedy=_SOON)

    def _read_response(
        self, batch: Sequence[Launch], answer: CreateFleetResultTypeDef, *, unclear: bool
    ) -> Sequence[LaunchAnswer | Exception]:
        launch = batch[0]
        launched = launched_instances(answer, batch, self._settings, self._clock.now())
        refused = refusals(answer, launch)
        self._addresses.record_exhausted(answer)
        where = error_location(_CALL, answer.get("ResponseMetadata", {}).get("RequestId", ""))
        instances = self._described(batch, launched, where, unclear=unclear)
        exhausted = tuple(r for r in refused if not self._has_other_subnet(r, launch))
        if instances or any(r.code in CAPACITY_CODES for r in exhausted):
            return assign_instances(batch, instances, None, exhausted)
        raise self._refusal_error(launch, refused, where, has_exhausted=bool(exhausted))

    def _refusal_error(
        self, launch: Launch, refused: Sequence[Refusal], where: str, *, has_exhausted: bool
    ) -> CloudError | TransientCloudError:
        """Return the error of a response without an instance.

        The response belongs to its token permanently, so another launch needs a new one.
        """
        messages = "; ".join(dict.fromkeys(f"{r.code}: {r.message}" for r in refused))
        if not refused or all(_is_transient(r.code) for r in refused):
            return TransientCloudError(messages or "neither an instance nor an error", where=where)
        is_unseen = any(map(_concerns_profile, refused))
        is_ours = is_unseen and self._profiles.forget(launch.node_class)
        otherwise = _SOON if is_ours else "" if has_exhausted else _ELSEWHERE
        return CloudError(messages, where=where, remedy=_remedy_of_denial(refused) or otherwise)

    def _described(
        self, batch: Sequence[Launch], launched: Sequence[Instance], where: str, *, unclear: bool
    ) -> Sequence[Instance]:
        """Return the launched instances with their types and zones, as EC2 lists them if need be.

        Raises:
            TransientCloudError: EC2 does not list all of them yet.
        """
        instances = launched
        if unclear or not all(map(_is_described, launched)):
            shown = self.find_launched(batch)
            if 0 < len(shown) < len(launched):
                raise TransientCloudError(
                    f"EC2 lists only {len(shown)} of {len(batch)} instances yet", where=where
                )
            instances = shown or launched
        hidden = next((i for i in instances if not _is_described(i)), None)
        if hidden is not None:
            raise TransientCloudError(
                f"{hidden.id} was launched, but EC2 does not list it yet", where=where
            )
        return instances

    def _has_other_subnet(self, refusal: Refusal, launch: Launch) -> bool:
        """Return whether only a subnet is full, and another one of its zone is not."""
        if refusal.code != NONE_FREE:
            return False
        free = self._addresses.free()
        subnets = launch.node_class.status.subnets
        return any(free.get(s.id, 0) > 0 for s in subnets if s.zone == refusal.zone)


def assign_instances(
    batch: Sequence[Launch],
    instances: Sequence[Instance],
    missing: ReconcilerError | None,
    refused: tuple[Refusal, ...] = (),
) -> Sequence[LaunchAnswer | Exception]:
    """Return the instances in the order of the requests; ``missing`` if there is none.

    Without ``missing``, EC2 has launched all that it could, and ``refused`` has the reasons.
    """
    missing_count = len(batch) - len(instances)
    rest = LaunchAnswer(None, refused) if missing is None else missing
    return [*(LaunchAnswer(i, refused) for i in instances), *([rest] * missing_count)]


def _refusals_of_all_options(launch: Launch, error: Exception) -> tuple[Refusal, ...]:
    """Return rejections of all offerings, if EC2 rejects the call rather than offerings."""
    code, message = code_of(error), str(error)
    return tuple(
        Refusal(o.instance_type, o.zone, o.capacity_type, code, message) for o in launch.options
    )


def _is_described(instance: Instance) -> bool:
    return bool(instance.instance_type and instance.zone)


def _remedy_of_denial(refused: Iterable[Refusal]) -> str:
    """Return how to get the right to launch, empty if nothing was refused for lack of it."""
    denied = (r for r in refused if failure_of_code(r.code) is Failure.UNAUTHORIZED)
    denial = next(denied, None)
    return denial_remedy(_CALL, denial.message) if denial is not None else ""


def _concerns_profile(refusal: Refusal) -> bool:
    kind = failure_of_code(refusal.code, message=refusal.message)
    return kind is Failure.PROFILE_NOT_FOUND


def _is_transient(code: str) -> bool:
    return failure_of_code(code) in (Failure.THROTTLED, Failure.UNCLEAR)
