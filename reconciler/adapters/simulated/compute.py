"""EC2 in memory, in virtual time: the port ``Compute`` without HTTP, boto3 or moto.

It keeps the promises of the port to the letter, client tokens among them, so that what is seen in
a simulation is what the engine does. It moves only with its clock; chance comes from a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, TypeVar

from msgspec.structs import replace

from reconciler.adapters.simulated.conditions import (
    NOTICE,
    REBOOTED_TAG,
    Conditions,
    Fault,
    Faults,
    Pool,
)
from reconciler.model.chance import Chance
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import NODEPOOL, SPOT
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer, LaunchOption, Refusal

SHOWN_FOR = timedelta(hours=1)
"""How long EC2 still shows an instance after it is terminated."""

CLAIM_TAG: Final = "karpenter.sh/nodeclaim"
INTENT_TAG: Final = "reconciler/intent"

_MOMENT: Final = timedelta(microseconds=1)
_MARGIN: Final = timedelta(minutes=5)
"""How much longer than EC2 a simulation keeps instances, in case its conditions change."""


@dataclass(slots=True)
class SimulatedInstance:
    """An instance and the times of its state changes.

    ``facts`` is the instance as launched. ``going_at`` is when it began to shut down, after
    which it costs nothing; ``notice_at`` when EC2 announces its interruption. ``prices`` are USD an
    hour, each from a moment on; without any its price is unknown.
    """

    facts: Instance
    intent: str
    running_at: datetime
    notice_at: datetime | None = None
    reclaimed_at: datetime | None = None
    going_at: datetime | None = None
    gone_at: datetime | None = None
    prices: list[tuple[datetime, float]] = field(default_factory=list)
    _shown: tuple[Instance, Instance] | None = field(default=None, init=False, repr=False)

    @property
    def pool(self) -> Pool:
        """The offering of the instance."""
        return (self.facts.instance_type, self.facts.zone, self.facts.capacity_type)

    def state(self, at: datetime) -> str:
        """Return EC2's name of its state at a moment after its launch."""
        if self.gone_at is not None and at >= self.gone_at:
            return "terminated"
        if self.going_at is not None and at >= self.going_at:
            return "shutting-down"
        return "running" if at >= self.running_at else "pending"

    def instance_at(self, at: datetime) -> Instance | None:
        """Return the instance as EC2 shows it, None before its launch and long after its end.

        It is the same object while nothing changes.
        """
        if at < self.facts.launched_at:
            return None
        if self.gone_at is not None and at - self.gone_at > SHOWN_FOR:
            return None
        state = self.state(at)
        if state == self.facts.state:
            return self.facts
        known = self._shown
        if known is None or known[0] is not self.facts or known[1].state != state:
            self._shown = known = (self.facts, replace(self.facts, state=state))
        return known[1]

    def moments(self) -> Iterator[datetime]:
        """Yield the times at which its state changes."""
        for moment in (self.running_at, self.notice_at, self.reclaimed_at, self.gone_at):
            if moment is not None:
                yield moment

    def price(self, at: datetime) -> float | None:
        """Return the price at a moment in USD an hour, None if it is unknown."""
        known = [price for since, price in self.prices if since <= at]
        return known[-1] if known else None

    def cost(self, since: datetime, until: datetime) -> float:
        """Return the cost from one moment to another, in USD."""
        end = until if self.going_at is None else min(until, self.going_at)
        total = 0.0
        for number, (start, price) in enumerate(self.prices):
            last = number + 1 == len(self.prices)
            stop = end if last else min(end, self.prices[number + 1][0])
            span = stop - max(start, since)
            total += price * max(span.total_seconds(), 0.0) / 3600
        return total


Types = Callable[[str], InstanceType | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpotInterruption:
    """The notice of a spot interruption, ``NOTICE`` before EC2 reclaims the instance."""

    at: datetime
    instance: Instance


class SimulatedCompute:
    """EC2 for one fleet.

    ``types`` finds an instance type of the catalog. ``faults`` fail calls by the names of the
    EC2 operations: CreateFleet, DescribeInstances, TerminateInstances, RebootInstances, CreateTags.
    """

    def __init__(
        self,
        clock: Clock,
        types: Types,
        conditions: Conditions | None = None,
        chance: Chance | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._clock = clock
        self._types = types
        self.conditions = conditions or Conditions()
        self._chance = chance or Chance()
        self.faults = faults or Faults()
        self.machines: dict[str, SimulatedInstance] = {}
        self._current: dict[str, SimulatedInstance] = {}
        self._by_intent: dict[str, tuple[str, str]] = {}
        self._launches: dict[tuple[str, ...], int] = {}
        self._addresses: set[str] = set()
        self._advanced_to: datetime = clock.now()

    @property
    def course(self) -> str:
        """What names the new nodes of this run, and so decides between equal ones.

        It follows from the seed alone: the time and the commit have no part in it.
        """
        return str(self._chance.seed)

    # the port

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class unchanged: what it selects in an account is not simulated."""
        return node_class

    def launch(self, requests: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Launch the instances; the answers have the order of the requests.

        Repeating a request whose intent was fulfilled returns the same instance; with other
        parameters it is refused, as EC2 does. A batch is one call.
        """
        batches = (list(batch) for _, batch in groupby(requests, key=lambda request: request.token))
        return [answer for batch in batches for answer in self._answer_batch(batch)]

    def instances(self) -> Sequence[Instance]:
        """Return every instance that is not yet terminated, by id."""
        listed = self._call("DescribeInstances", self._list_instances)
        return [i for i in listed if i.state != "terminated"]

    def find(self, intents: Sequence[str]) -> Sequence[Instance]:
        """Return the instances with the tag of one of the intents, in any state, by id."""
        listed = self._call("DescribeInstances", self._list_instances)
        return [i for i in listed if i.tags.get(INTENT_TAG) in intents]

    def look_up(self, ids: Sequence[str]) -> Sequence[Instance]:
        """Return these instances in any state, by id."""
        requested = frozenset(ids)
        return [
            i for i in self._call("DescribeInstances", self._list_instances) if i.id in requested
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to terminate the instances; those already gone count as terminated."""

        def begin() -> None:
            for identity in ids:
                machine = self.machines.get(identity)
                if machine is not None and machine.going_at is None:
                    self._begin_termination(machine, self._clock.now())

        self._call("TerminateInstances", begin)

    def reboot(self, instance: str) -> None:
        """Reboot an instance now; its node joins and becomes ready as after a launch."""

        def begin() -> None:
            machine = self.machines.get(instance)
            if machine is None or machine.going_at is not None:
                raise CloudError(f"{instance} does not run", where="ec2:RebootInstances")
            tags = {**machine.facts.tags, REBOOTED_TAG: self._clock.now().isoformat()}
            machine.facts = replace(machine.facts, tags=tags)

        self._call("RebootInstances", begin)

    def tag(self, instance: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""

        def put() -> None:
            machine = self.machines.get(instance)
            if machine is None:
                raise CloudError(f"{instance} does not exist", where="ec2:CreateTags")
            machine.facts = replace(machine.facts, tags={**machine.facts.tags, **tags})

        self._call("CreateTags", put)

    # for simulations

    def add(self, instance: Instance, price: float | None) -> None:
        """Add an instance that already runs, with its price in USD an hour if known."""
        machine = SimulatedInstance(
            instance, instance.tags.get(INTENT_TAG, ""), instance.launched_at
        )
        now = self._clock.now()
        price = self.conditions.market.prices(now).get(machine.pool, price)
        if price is not None:
            factor = self.conditions.factor(machine.pool, now)
            machine.prices.append((now, price * factor))
        if instance.is_terminating:
            machine.going_at = now
            machine.gone_at = now + timedelta(seconds=self._draw_latency("stopping", instance.id))
        elif instance.capacity_type == SPOT:
            self._schedule_interruption(machine, now)
        self.machines[instance.id] = self._current[instance.id] = machine
        self._addresses.add(instance.private_dns_name)

    def advance(self) -> list[SpotInterruption]:
        """Apply what was due since the last call; return the notices of spot interruptions."""
        now, since = self._clock.now(), self._advanced_to
        self._advanced_to = now
        self._drop_gone(now)
        notices = []
        for machine in self._current.values():
            if machine.gone_at is not None and machine.gone_at <= since:
                continue
            if machine.reclaimed_at is not None and machine.reclaimed_at <= now:
                if machine.going_at is None:
                    self._begin_termination(machine, machine.reclaimed_at)
                continue
            notice = machine.notice_at
            if notice is not None and since < notice <= now and machine.going_at is None:
                notices.append(SpotInterruption(notice, machine.facts))
        self._apply_price_changes(since, now)
        return sorted(notices, key=lambda n: (n.at, n.instance.id))

    def interrupted_claims(self) -> dict[str, str]:
        """Return the NodeClaims whose instance EC2 is about to reclaim, with its term for that."""
        now = self._clock.now()
        return {
            m.facts.tags.get(CLAIM_TAG, m.facts.id): "spot interruption"
            for m in self._current.values()
            if m.notice_at is not None and m.notice_at <= now and m.going_at is None
        }

    def next_moment(self) -> datetime | None:
        """Return the time of the next event, None if there is none."""
        now = self._clock.now()
        return min((m for m in self._moments() if m > now), default=None)

    def running_instances(self) -> Sequence[SimulatedInstance]:
        """Return the instances that are billed now, in launch order."""
        return [machine for machine in self._current.values() if machine.going_at is None]

    # implementation

    def _drop_gone(self, now: datetime) -> None:
        """Drop instances that no call shows any more, so that a long run stays fast."""
        before = now - SHOWN_FOR - self.conditions.longest_lag - _MARGIN
        gone = [
            identity
            for identity, machine in self._current.items()
            if machine.gone_at is not None and machine.gone_at < before
        ]
        for identity in gone:
            del self._current[identity]

    def _moments(self) -> Iterator[datetime]:
        yield from self.conditions.edges()
        edge = self.conditions.market.next_edge(self._clock.now())
        if edge is not None:
            yield edge
        for machine in self._current.values():
            yield from machine.moments()

    def _call(self, operation: str, work: Callable[[], T]) -> T:
        """Execute a call, unless a fault prevents it."""
        fault = self.faults.take(operation)
        if fault is None:
            return work()
        if fault.takes_effect:
            work()
        raise _fault_error(fault, operation)

    def _answer_batch(self, batch: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        try:
            return self._call("CreateFleet", lambda: [self._fulfil(request) for request in batch])
        except (TransientCloudError, CloudError) as error:
            return [error] * len(batch)

    def _fulfil(self, request: Launch) -> LaunchAnswer:
        parameters = _request_digest(request)
        known = self._by_intent.get(request.intent) if self.conditions.honours_tokens else None
        if known is not None:
            before, identity = known
            if before != parameters:
                text = f"the token {request.intent} was used with other parameters"
                raise CloudError(f"IdempotentParameterMismatch: {text}", where="ec2:CreateFleet")
            return LaunchAnswer(self.machines[identity].instance_at(self._clock.now()))
        now = self._clock.now()
        refused: list[Refusal] = []
        for option in request.options:
            pool = (option.instance_type, option.zone, option.capacity_type)
            refusal = self.conditions.refusal(pool, now)
            if refusal is None:
                machine = self._start_instance(request, option)
                self._by_intent[request.intent] = (parameters, machine.facts.id)
                return LaunchAnswer(machine.facts, tuple(refused))
            text = f"no {option.instance_type} in {option.zone} now"
            refused.append(Refusal(*pool, refusal.code, text))
        return LaunchAnswer(None, tuple(refused))

    def _start_instance(self, request: Launch, option: LaunchOption) -> SimulatedInstance:
        """Launch an instance; its id follows from what it is, so that a run can be repeated.

        It does not follow from the intent, which names the commit, nor from the name of the claim,
        which depends on every input: another commit with the same content, or a later second, would
        change the fate of every node.
        """
        now, claim = self._clock.now(), request.node_claim
        name = self._free_name(
            (claim.node_pool, option.instance_type, option.zone, option.capacity_type)
        )
        kind = self._types(option.instance_type)
        status = request.node_class.status
        subnets = sorted(s.id for s in status.subnets if s.zone == option.zone)
        instance = Instance(
            id=f"i-{name}",
            instance_type=option.instance_type,
            zone=option.zone,
            capacity_type=option.capacity_type,
            state="pending",
            launched_at=now,
            tags={
                **request.tags,
                NODEPOOL: claim.node_pool,
                CLAIM_TAG: claim.name,
                INTENT_TAG: request.token,
            },
            image_id=_first_image(request.node_class, kind),
            subnet_id=subnets[0] if subnets else "",
            security_groups=tuple(sorted(g.id for g in status.security_groups)),
            private_dns_name=self._free_address(name),
            reservation_id=option.reservation_id,
        )
        machine = SimulatedInstance(
            instance,
            request.intent,
            now + timedelta(seconds=self._draw_latency("launching", instance.id)),
            prices=[(now, option.price)],
        )
        if option.capacity_type == SPOT:
            self._schedule_interruption(machine, now)
        self.machines[instance.id] = self._current[instance.id] = machine
        return machine

    def _free_name(self, alike: tuple[str, ...]) -> str:
        """Return the hash of the next instance among those that are ``alike``."""
        while True:
            nth = self._launches.get(alike, 0)
            self._launches[alike] = nth + 1
            name = hashlib.sha256("\0".join((*alike, str(nth))).encode()).hexdigest()[:17]
            if f"i-{name}" not in self.machines:
                return name

    def _free_address(self, name: str) -> str:
        """Return a host name in 10.0.0.0/8 that no other instance has."""
        number = int(name[:6], 16)
        while True:
            parts = (number >> 16 & 255, number >> 8 & 255, number & 255)
            address = "ip-10-{}-{}-{}.ec2.internal".format(*parts)
            if address not in self._addresses:
                self._addresses.add(address)
                return address
            number += 1

    def _schedule_interruption(self, machine: SimulatedInstance, now: datetime) -> None:
        """Decide when EC2 reclaims a spot instance, if ever."""
        rate = self.conditions.interruptions
        wait = self._chance.seconds_until_event(rate, "interruption", machine.facts.id)
        if wait is not None:
            machine.notice_at = now + timedelta(seconds=wait)
            machine.reclaimed_at = machine.notice_at + NOTICE

    def _begin_termination(self, machine: SimulatedInstance, at: datetime) -> None:
        machine.going_at = at
        machine.gone_at = at + timedelta(seconds=self._draw_latency("stopping", machine.facts.id))

    def _draw_latency(self, what: str, identity: str) -> float:
        shortest, longest = getattr(self.conditions.latencies, what)
        return self._chance.seconds_between(shortest, longest, what, identity)

    def _apply_price_changes(self, since: datetime, now: datetime) -> None:
        """Apply price changes to the running instances."""
        for at, quoted in self.conditions.market.changes(since, now):
            for machine in self._current.values():
                price = quoted.get(machine.pool)
                if machine.prices and price is not None:
                    factor = self.conditions.factor(machine.pool, at)
                    machine.prices.append((at, price * factor))
        for change in self.conditions.prices:
            if not since < change.at <= now:
                continue
            for machine in self._current.values():
                if machine.prices and change.offer.covers(*machine.pool):
                    before = self.conditions.factor(machine.pool, change.at - _MOMENT)
                    price = machine.prices[-1][1] / before * change.factor
                    machine.prices.append((change.at, price))

    def _list_instances(self) -> list[Instance]:
        now = self._clock.now()
        at = now - self.conditions.lag(now)
        rows = [seen for m in self._current.values() if (seen := m.instance_at(at)) is not None]
        return sorted(rows, key=lambda i: i.id)


def _request_digest(request: Launch) -> str:
    """Return a hash of the parameters that a repeated call must have in common."""
    facts = [request.node_claim.name, request.node_class.name]
    facts += [f"{o.instance_type} {o.zone} {o.capacity_type} {o.price}" for o in request.options]
    facts += [f"{key}={request.tags[key]}" for key in sorted(request.tags)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _first_image(node_class: EC2NodeClass, kind: InstanceType | None) -> str:
    """Return the first image of the class that suits the type, as drift compares it."""
    for image in node_class.status.amis:
        if kind is None or kind.requirements.intersects(requirements_of(image.requirements)):
            return image.id
    return ""


def _fault_error(fault: Fault, operation: str) -> TransientCloudError | CloudError:
    answer = fault.answer
    text = f"{answer[1]}: {answer[2]}" if answer is not None else f"{fault.value}: no answer"
    kind = CloudError if fault is Fault.DENIED else TransientCloudError
    return kind(text, where=f"ec2:{operation}")
