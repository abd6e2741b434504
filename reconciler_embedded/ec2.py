"""EC2 on one machine: moto behind the real boto3 client, corrected where it differs from AWS.

moto keeps the account: networks, images, templates, instances, tags. This module adds what it
lacks: the choice of a fleet's override, pools without capacity, client tokens, the states between
running and terminated, pages, and failures on demand. The same object answers in this process
(``connect``) and over HTTP (``server.py``). It works on AWS' wire format, so that no part of boto3
is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import RLock
from typing import Any, Final
from urllib.parse import urlsplit

from reconciler.adapters.simulated.conditions import Faults
from reconciler.adapters.simulated.market import CapacityMarket, Prices
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.ports.clock import Clock
from reconciler_embedded.account import EmbeddedAccount
from reconciler_embedded.additions import (
    Health,
    PlacementGroups,
    filter_by_profile,
    wait_for_messages,
)
from reconciler_embedded.fleets import Fleets
from reconciler_embedded.lag import Lag
from reconciler_embedded.listings import Listings, get_products, limit_rows, paginate
from reconciler_embedded.purchases import Contracts, EmbeddedReservations
from reconciler_embedded.wire import Request, Response, error, session

_LISTED: Final = (
    "DescribeInstanceTypes",
    "DescribeInstanceTypeOfferings",
    "DescribeSpotPriceHistory",
    "GetProducts",
)
_ACCOUNTS: Final = itertools.count(100_000_000_001)


class ConnectionLostError(Exception):
    """The caller gets no answer: the connection broke, or ``timed_out``."""

    def __init__(self, *, timed_out: bool) -> None:
        self.timed_out = timed_out
        super().__init__("timed out" if timed_out else "connection reset")


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A received call and its status, None if the answer was lost."""

    operation: str
    request_id: str
    status: int | None


class EmbeddedEC2:
    """A separate AWS account for each object, with only a default network and two images.

    ``prices`` determine what is available where; without them, the priorities of a request serve as
    prices and everything is available. ``types`` are the instance types that the region lists, by
    default all that moto knows. An instance is pending for ``starting_s`` seconds and shutting down
    for ``stopping_s``, on ``clock``. ``after_call`` receives each executed operation before its
    response is sent; an error that it raises ends the caller. A page of a list has at most
    ``rows_a_page`` rows, whatever a call requests; 0 leaves that to the call.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        region: str = "us-east-1",
        prices: Prices | None = None,
        types: Collection[str] | None = None,
        starting_s: float = 0.0,
        stopping_s: float = 0.0,
    ) -> None:
        self.region = region
        self.faults = Faults()
        self.market = CapacityMarket(prices)
        self.health = Health()
        self.reservations = EmbeddedReservations()
        self.contracts = Contracts()
        self.placement_groups = PlacementGroups()
        self.rows_a_page = 0
        self.calls: list[ReceivedCall] = []
        self.after_call: Callable[[str], None] = lambda _operation: None
        self._lock = RLock()
        self._clients: dict[tuple[str, int], object] = {}
        self._account = EmbeddedAccount(
            str(next(_ACCOUNTS)), region, clock, starting_s=starting_s, stopping_s=stopping_s
        )
        self.lag = Lag(self._account)
        self._fleets = Fleets(self._account, self.market, self.reservations)
        self._clock = clock
        self._listings = Listings(region, self.market, types)

    @property
    def honours_tokens(self) -> bool:
        """Whether a repeated client token repeats the answer; simulations of EC2 may not."""
        return self._fleets.honours_tokens

    @honours_tokens.setter
    def honours_tokens(self, value: bool) -> None:
        self._fleets.honours_tokens = value

    def seed(self, node_class: EC2NodeClass) -> None:
        """Create what the class selects: subnets, security groups, images."""
        with self._lock:
            self._account.seed(node_class)

    def publish(self, image: str, name: str, created: datetime, arch: str = "x86_64") -> None:
        """Add an image to the account, as its owner; the newest image of a name causes drift."""
        with self._lock:
            self._account.add_image(image, name, arch, created=created)

    def reclaim_instance(self, instance: str) -> None:
        """End an instance without a call, as if EC2 reclaimed spot capacity."""
        with self._lock:
            self._account.end(instance)

    def running_instances(self) -> dict[str, dict[str, str]]:
        """Return the tags of the instances that are neither terminated nor about to be, by id.

        This is the state of EC2, independent of calls and their faults.
        """
        with self._lock:
            self._account.advance_states()
            return self._account.running_instances()

    def connect(self, service: str, attempts: int) -> object:
        """Return a boto3 client of this account, within the process.

        The signature is that of ``Connect`` of the AWS adapter.
        """
        if (service, attempts) not in self._clients:
            self._clients[service, attempts] = self._client(service, attempts)
        return self._clients[service, attempts]

    def respond(self, request: Request) -> Response:
        """Return the answer to a call.

        Raises:
            ConnectionLostError: a fault suppressed the answer.
        """
        request = wait_for_messages(request, self._has_messages)
        with self._lock:
            operation = request.operation
            number = len(self.calls) + 1
            request_id = f"00000000-0000-4000-8000-{number:012x}"
            fault = self.faults.take(operation)
            answer = None
            if fault is None or fault.takes_effect:
                answer = self.lag.answer(
                    request,
                    request_id,
                    partial(self._execute, request, operation, request_id),
                )
                self.after_call(operation)
            if fault is not None:
                answer = error(request.service, *fault.answer, request_id) if fault.answer else None
            status = answer.status if answer else None
            self.calls.append(ReceivedCall(operation, request_id, status))
        if answer is None:
            raise ConnectionLostError(timed_out="timeout" in str(fault))
        return answer

    def _has_messages(self, queue: str) -> bool:
        with self._lock:
            return self._account.has_messages(queue)

    def _on_demand_price(self, instance_type: str) -> float | None:
        """Return the price of a type, which is the same in all zones."""
        zones = sorted(zone for name, zone in self._listings.offered_pairs if name == instance_type)
        prices = (self.market.price(instance_type, zone, "on-demand") for zone in zones)
        return next((price for price in prices if price is not None), None)

    def _client(self, service: str, attempts: int) -> Any:
        from botocore.config import Config

        client = session().client(
            service,
            region_name=self.region,
            aws_access_key_id="embedded",
            aws_secret_access_key="embedded",  # noqa: S106 - not a secret, and never checked
            config=Config(retries={"mode": "standard", "total_max_attempts": attempts}),
        )

        def send(request: object, **_: object) -> Any:
            return self._answer_botocore(service, request)

        client.meta.events.register(f"before-send.{service}", send)
        return client

    def _execute(self, request: Request, operation: str, request_id: str) -> Response:
        account = self._account
        account.advance_states()
        answer = self._answer_without_moto(request, operation, request_id)
        if answer is not None:
            return _with_request_id(answer, request_id)
        match operation:
            case "CreateFleet":
                answer = self._fleets.create(request, request_id)
            case "RunInstances" if ("DryRun", "true") in request.form:
                text = "Request would have succeeded, but DryRun flag is set."
                answer = error("ec2", 412, "DryRunOperation", text, request_id)
            case "TerminateInstances":
                answer = account.terminate(request)
            case "RebootInstances":
                answer = account.reboot(request)
            case "CreateLaunchTemplate":
                answer = account.create_template(request)
            case "DescribeInstances":
                listed = paginate(
                    request, partial(filter_by_profile, forward=account.forward), self.rows_a_page
                )
                answer = self.reservations.add_to_instances(listed)
            case _:
                answer = paginate(request, account.forward, self.rows_a_page)
        return _with_request_id(answer, request_id)

    def _answer_without_moto(
        self, request: Request, operation: str, request_id: str
    ) -> Response | None:
        """Return the answer to calls that moto lacks or does not paginate, None for others."""
        limited = limit_rows(request, self.rows_a_page) if operation in _LISTED else request
        match operation:
            case "DescribeInstanceTypes":
                return self._listings.instance_types(limited)
            case "DescribeInstanceTypeOfferings":
                return self._listings.offerings(limited)
            case "DescribeSpotPriceHistory":
                return self._listings.spot_prices(limited, self._clock.now())
            case "GetProducts":
                return get_products(
                    limited, self.region, self._listings.names, self._on_demand_price
                )
            case "DescribeCapacityReservations":
                return paginate(
                    request, partial(self._describe_reservations, request_id), self.rows_a_page
                )
            case "DescribeInstanceStatus":
                return paginate(request, self._describe_statuses, self.rows_a_page)
            case "DescribePlacementGroups":
                return self.placement_groups.answer(request, request_id)
            case "DescribeSavingsPlans":
                return self.contracts.savings_plans(request, self.rows_a_page)
            case "DescribeReservedInstances":
                return self.contracts.reserved_instances(request)
        return None

    def _describe_reservations(self, request_id: str, request: Request) -> Response:
        return self.reservations.answer(request, self._account.running_instances(), request_id)

    def _describe_statuses(self, request: Request) -> Response:
        return self.health.answer(request, self._account.running_instances())

    def _answer_botocore(self, service: str, request: Any) -> object:
        """Answer a prepared request of botocore; errors are raised as those of its HTTP layer."""
        from botocore.awsrequest import AWSResponse
        from botocore.compat import HTTPHeaders
        from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

        body = request.body or b""
        call = Request(
            service=service,
            region=self.region,
            method=request.method,
            path=urlsplit(request.url).path,
            headers={k: _text(v) for k, v in request.headers.items()},
            body=body.encode() if isinstance(body, str) else bytes(body),
        )
        try:
            answer = self.respond(call)
        except ConnectionLostError as lost:
            kind = ReadTimeoutError if lost.timed_out else ConnectionClosedError
            raise kind(endpoint_url=request.url) from None
        headers = HTTPHeaders.from_dict(dict(answer.headers))
        return AWSResponse(request.url, answer.status, headers, _Raw(answer.body))


def _with_request_id(answer: Response, request_id: str) -> Response:
    """Return an answer with its request id in the body and the headers."""
    body = answer.body.replace(b">request-id<", f">{request_id}<".encode())
    return Response(answer.status, body, {**answer.headers, "x-amzn-RequestId": request_id})


class _Raw:
    """The body of an answer, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: object) -> object:
        yield self._body

    def read(self, *_: object) -> bytes:
        body, self._body = self._body, b""
        return body


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
