"""Launch one instance for each request, whatever happens to the calls.

EC2 promises that a repeated client token repeats the response, but a server may forget or ignore
tokens. Therefore, after every call whose outcome is unclear, the intent's tag is searched for
before the call is repeated, and once more when the response came after such a call.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.answers import launched, refusals
from reconciler.adapters.aws.errors import (
    CAPACITY_CODES,
    Failure,
    boto_errors,
    code_of,
    failure_of,
    failure_of_code,
    our_error,
    place,
)
from reconciler.adapters.aws.launch.addresses import (
    NONE_FREE,
    Addresses,
    ReservedAddresses,
    uses_of,
)
from reconciler.adapters.aws.launch.profiles import Profiles
from reconciler.adapters.aws.launch.requests import LaunchRequests, launch_requests
from reconciler.adapters.aws.launch.templatestore import LaunchTemplates
from reconciler.adapters.aws.nodeclass.images import TypesOf
from reconciler.model.errors import (
    CloudError,
    LeaseLostError,
    ReconcilerError,
    TransientCloudError,
)
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer, Refusal

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import CreateFleetResultTypeDef


# The delay before a call is retried.


_FIRST_S = 0.2
_MOST_S = 5.0


def backoff_s(token: str, attempt: int) -> float:
    """Return the delay in seconds after failure number ``attempt`` (from 0), doubling up to 5 s.

    The jitter, between half and all of the delay, is derived from the token. Claims that fail
    together are not retried together, and the delays are reproducible in tests.
    """
    whole: float = min(_FIRST_S * 2**attempt, _MOST_S)
    digest = hashlib.sha256(f"{token}/{attempt}".encode()).digest()
    share = int.from_bytes(digest[:2], "big") / 0xFFFF
    return whole * (0.5 + 0.5 * share)


def pause(clock: Clock, token: str, attempt: int) -> None:
    """Wait for that time on the engine's clock."""
    clock.wait(backoff_s(token, attempt), lambda: False)


_CALL: Final = "ec2:CreateFleet"
_TRIES: Final = 5
_ASKED_MAX: Final = 1000
_SOON: Final = "it was just created, and EC2 does not list it yet; it will be retried"
_ELSEWHERE: Final = "another subnet of the zone has free addresses and is tried next"
_LOG: Final = logging.getLogger(__name__)


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
        self._asked: dict[str, tuple[LaunchRequests, ReservedAddresses]] = {}

    def launch(self, lot: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Return the results of requests that are one call; errors are returned, not raised.

        All requests of a batch are equal except for their intents; the first defines the call.
        """
        launch = lot[0]
        try:
            requests = self._requests(lot)
            self._profiles.ensure(launch.node_class)
            self._templates.ensure(requests.templates)
            answers = self._create_fleet(lot, requests)
        except TransientCloudError as error:
            return [error] * len(lot)
        except LeaseLostError:
            raise
        except ReconcilerError as error:
            self._settle(launch, ())
            return [error] * len(lot)
        self._settle(launch, answers)
        return answers

    def _requests(self, lot: Sequence[Launch]) -> LaunchRequests:
        """Return the parameters of a call: the same as before while its outcome is unknown.

        EC2 rejects a token that is reused with other parameters, and another subnet may have the
        most free addresses by now.
        """
        launch = lot[0]
        with self._lock:
            known = self._asked.get(launch.token)
        if known is not None:
            return known[0]
        types = self._types_of(launch.node_class)
        free = {**self._settings.subnet_free_addresses, **self._addresses.free()}
        settings = replace(self._settings, subnet_free_addresses=free)
        requests = launch_requests(launch, types, settings, count=len(lot))
        taken = self._addresses.take(uses_of(requests.fleet, types, len(lot)))
        with self._lock:
            self._asked[launch.token] = requests, taken
            for token in list(self._asked)[:-_ASKED_MAX]:
                del self._asked[token]
        return requests

    def _settle(self, launch: Launch, answers: Sequence[LaunchAnswer | Exception]) -> None:
        """Drop a call that has its response, and release the addresses that it did not use."""
        with self._lock:
            known = self._asked.pop(launch.token, None)
        if known is not None:
            instances = (a.instance for a in answers if isinstance(a, LaunchAnswer))
            self._addresses.settle(known[1], [i.subnet_id for i in instances if i is not None])

    def fulfilled(self, lot: Sequence[Launch]) -> Sequence[Instance]:
        """Return the instances of an earlier call, oldest first.

        If more are alive than were requested, the oldest are retained (ties by lower id) and the
        others terminated. If none is alive, the terminated ones are returned.
        """
        token = lot[0].token
        found = sorted(self._find([token]), key=lambda i: (i.is_going, i.launched_at, i.id))
        living = [instance for instance in found if not instance.is_going]
        spare = [instance.id for instance in living[len(lot) :]]
        if spare:
            _LOG.warning("intent %s has %d instances: terminating %s", token, len(living), spare)
            self._discard(spare)
        return (living or found)[: len(lot)]

    def _create_fleet(
        self, lot: Sequence[Launch], requests: LaunchRequests
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
                    return [LaunchAnswer(None, _all_refused(lot[0], error))] * len(lot)
                last = self._translated(lot[0], error)
                was_asked = failure is Failure.ASKED_OTHERWISE
                if not isinstance(last, TransientCloudError) and not was_asked:
                    raise last from error
                pause(self._clock, lot[0].token, attempt)
                if failure is Failure.UNCLEAR or was_asked:
                    unclear = True
                    found = self.fulfilled(lot)
                    if found:
                        return dealt(lot, found, last)
                continue
            return self._read(lot, answer, unclear=unclear)
        assert last is not None, "only a failed call is retried"
        raise last

    def _translated(self, launch: Launch, error: Exception) -> ReconcilerError:
        """Return our error; a resource that was just created may not be visible in EC2 yet."""
        translated, failure = our_error(_CALL, error), failure_of(error)
        unseen = failure is Failure.TEMPLATE_NOT_FOUND
        if failure is Failure.PROFILE_NOT_FOUND:
            unseen = self._profiles.forget(launch.node_class)
        if not unseen:
            return translated
        return TransientCloudError(translated.message, where=translated.where, remedy=_SOON)

    def _read(
        self, lot: Sequence[Launch], answer: CreateFleetResultTypeDef, *, unclear: bool
    ) -> Sequence[LaunchAnswer | Exception]:
        launch = lot[0]
        instances = launched(answer, lot, self._settings, self._clock.now())
        refused = refusals(answer, launch)
        self._addresses.exhausted(answer)
        where = place(_CALL, answer.get("ResponseMetadata", {}).get("RequestId", ""))
        if unclear or not all(i.instance_type and i.zone for i in instances):
            shown = self.fulfilled(lot)
            if 0 < len(shown) < len(instances):
                raise TransientCloudError(
                    f"EC2 lists only {len(shown)} of {len(lot)} instances yet", where=where
                )
            instances = shown or instances
        hidden = next((i for i in instances if not (i.instance_type and i.zone)), None)
        if hidden is not None:
            raise TransientCloudError(
                f"{hidden.id} was launched, but EC2 does not list it yet", where=where
            )
        lacking = tuple(r for r in refused if not self._fits_elsewhere(r, launch))
        if instances or any(r.code in CAPACITY_CODES for r in lacking):
            return dealt(lot, instances, None, lacking)
        messages = "; ".join(dict.fromkeys(f"{r.code}: {r.message}" for r in refused))
        if not refused or all(_is_passing(r.code) for r in refused):
            raise TransientCloudError(messages or "neither an instance nor an error", where=where)
        # The response belongs to its token permanently, so another launch needs a new one.
        is_unseen = any(_names_profile(r) for r in refused)
        is_ours = is_unseen and self._profiles.forget(launch.node_class)
        remedy = _SOON if is_ours else "" if lacking else _ELSEWHERE
        raise CloudError(messages, where=where, remedy=remedy)

    def _fits_elsewhere(self, refusal: Refusal, launch: Launch) -> bool:
        """Return whether only a subnet is full, and another one of its zone is not."""
        if refusal.code != NONE_FREE:
            return False
        free = self._addresses.free()
        subnets = launch.node_class.status.subnets
        return any(free.get(s.id, 0) > 0 for s in subnets if s.zone == refusal.zone)


def dealt(
    lot: Sequence[Launch],
    instances: Sequence[Instance],
    missing: ReconcilerError | None,
    refused: tuple[Refusal, ...] = (),
) -> Sequence[LaunchAnswer | Exception]:
    """Return the instances in the order of the requests; ``missing`` where there is none.

    Without ``missing``, EC2 has launched all that it could, and ``refused`` has the reasons.
    """
    short = len(lot) - len(instances)
    rest = LaunchAnswer(None, refused) if missing is None else missing
    return [*(LaunchAnswer(i, refused) for i in instances), *([rest] * short)]


def _all_refused(launch: Launch, error: Exception) -> tuple[Refusal, ...]:
    """Return rejections of all offerings, if EC2 rejects the call rather than offerings."""
    code, message = code_of(error), str(error)
    return tuple(
        Refusal(o.instance_type, o.zone, o.capacity_type, code, message) for o in launch.options
    )


def _names_profile(refusal: Refusal) -> bool:
    kind = failure_of_code(refusal.code, message=refusal.message)
    return kind is Failure.PROFILE_NOT_FOUND


def _is_passing(code: str) -> bool:
    return failure_of_code(code) in (Failure.THROTTLED, Failure.UNCLEAR)
