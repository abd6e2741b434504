"""The scenario file of ``--faults``: the faults of a simulation, and when they occur.

They include kills of the daemon at a given step: just after a write to its records, or after an
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast

import msgspec
from ruamel.yaml.error import YAMLError

from reconciler.adapters.simulated.conditions import (
    KWOK_LATENCIES,
    Conditions,
    Fault,
    Faults,
    Latencies,
    Offer,
    Period,
    PriceChange,
    Refused,
    Stale,
    with_recorded_joins,
)
from reconciler.adapters.simulated.market import ANY, NO_CAPACITY
from reconciler.engine.world import World
from reconciler.model.decode import describe_mismatch
from reconciler.model.duration import parse_duration
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.karpenter.labels import KWOK_GROUP
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.text.quoting import quote_value

_OPERATIONS = ("CreateFleet", "DescribeInstances", "TerminateInstances", "CreateTags", ANY)

_STEPS: Final = {
    "store": (
        "put_node_claims",
        "forget_node_claims",
        "put_command",
        "put_objects",
        "put_plan",
        "put_unavailable",
    ),
    "journal": ("begin", "finish"),
    "compute": ("launch", "terminate", "reboot", "tag"),
    "cluster": (
        "taint",
        "untaint",
        "fence",
        "unfence",
        "register",
        "initialize",
        "uninitialize",
        "drain",
        "delete_node",
    ),
}


class _Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file."""


class CapacityRefusal(_Part, frozen=True):
    """Offerings for which EC2 has no capacity, from a time on, for a period or for the rest."""

    instance_type: str = ANY
    zone: str = ANY
    capacity_type: str = ANY
    start: str = msgspec.field(default="0s", name="from")
    lasts: str | None = msgspec.field(default=None, name="for")
    code: str = NO_CAPACITY


class PriceFactor(_Part, frozen=True):
    """From a time on, some offerings cost ``factor`` times their price in the catalog."""

    at: str
    factor: float
    instance_type: str = ANY
    zone: str = ANY
    capacity_type: str = ANY


class StaleReads(_Part, frozen=True):
    """EC2's lists are stale for a period."""

    by: str
    start: str = msgspec.field(default="0s", name="from")
    lasts: str | None = msgspec.field(default=None, name="for")


class FailingCalls(_Part, frozen=True):
    """Calls of an EC2 operation that fail; ``times`` null means all calls."""

    call: str
    fault: Fault
    times: int | None = 1
    skip: int = 0


class Kill(_Part, frozen=True):
    """The daemon is killed just after its ``step``-th write or effect, and restarted."""

    step: int
    restart_after: str = "30s"


class Latency(_Part, frozen=True):
    """Latencies; a pair is a minimum and a maximum."""

    launching: tuple[str, str] | None = None
    joining: tuple[str, str] | None = None
    ready: str | None = None
    starting: str | None = None
    leaving: str | None = None
    stopping: tuple[str, str] | None = None


class Script(_Part, frozen=True):
    """The complete file.

    ``interruptions`` is per spot instance and hour, ``never_register`` a share.
    With ``duplicates``, EC2 ignores client tokens: a repeated call launches again.
    """

    refusals: tuple[CapacityRefusal, ...] = ()
    prices: tuple[PriceFactor, ...] = ()
    stale_reads: tuple[StaleReads, ...] = ()
    calls: tuple[FailingCalls, ...] = ()
    kills: tuple[Kill, ...] = ()
    latencies: Latency = Latency()
    interruptions: float = 0.0
    never_register: float = 0.0
    duplicates: bool = False

    def conditions(
        self,
        start: datetime,
        pools: Iterable[NodePool] = (),
        claims: Iterable[NodeClaim] = (),
    ) -> Conditions:
        """Return the part for the simulated EC2 and cluster.

        Latencies that the script omits are those of the provider of the NodePools, and nodes join
        as those of the NodeClaims did.

        Raises:
            UsageError: a time is invalid, or a share is out of range.
        """
        if not 0 <= self.never_register <= 1 or self.interruptions < 0:
            raise _usage_error(
                "neverRegister must be between 0 and 1, and interruptions at least 0"
            )
        return Conditions(
            latencies=_latencies(self.latencies, _plain_latencies(pools), claims),
            refused=tuple(
                Refused(_offer(r), _make_period(r.start, r.lasts, start), r.code)
                for r in self.refusals
            ),
            prices=tuple(
                PriceChange(_offer(p), _parse_moment(p.at, start), p.factor) for p in self.prices
            ),
            stale=tuple(
                Stale(_make_period(s.start, s.lasts, start), _parse_span(s.by))
                for s in self.stale_reads
            ),
            interruptions=self.interruptions,
            never_joins=self.never_register,
            honours_tokens=not self.duplicates,
        )

    def faults(self) -> Faults:
        """Return the calls that fail, in their order."""
        faults = Faults()
        for call in self.calls:
            if call.call not in _OPERATIONS:
                raise _usage_error(
                    f"unknown call {quote_value(call.call)} (use one of {', '.join(_OPERATIONS)})"
                )
            faults.add(call.call, call.fault, times=call.times, skip=call.skip)
        return faults

    def kill_steps(self) -> dict[int, timedelta]:
        """Return the steps after which the daemon is killed, and for how long it is down."""
        return {kill.step: _parse_span(kill.restart_after) for kill in self.kills}


def read_script(content: bytes, source: str) -> Script:
    """Return the script in a file.

    Raises:
        UnreadableError: it is not valid YAML, or has another form.
    """
    from reconciler.source.plainyaml import load_all

    try:
        documents = load_all(content)
        data: Any = documents[0] if documents else {}
        return msgspec.convert(data, Script)
    except (YAMLError, msgspec.ValidationError) as error:
        text = " ".join(describe_mismatch(error).split())
        raise UnreadableError(
            f"not a fault scenario: {text}", where=source, remedy="see docs/simulation.md"
        ) from error


def _usage_error(message: str) -> UsageError:
    return UsageError(message, where="--faults")


def _parse_span(text: str) -> timedelta:
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise _usage_error(str(error)) from error
    if span < timedelta(0):
        raise _usage_error(f"duration {text} is negative")
    return span


def _parse_moment(text: str, start: datetime) -> datetime:
    if "T" in text:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise _usage_error(f"invalid time {quote_value(text)}") from error
        if moment.tzinfo is None:
            raise _usage_error(f"time {quote_value(text)} has no time zone")
        return moment.astimezone(start.tzinfo)
    return start + _parse_span(text)


def _make_period(start: str, lasts: str | None, first: datetime) -> Period:
    begin = _parse_moment(start, first)
    return Period(begin, None if lasts is None else begin + _parse_span(lasts))


def _offer(part: CapacityRefusal | PriceFactor) -> Offer:
    return Offer(part.instance_type, part.zone, part.capacity_type)


def _plain_latencies(pools: Iterable[NodePool]) -> Latencies:
    """Return the latencies of a provider of nodes."""
    groups = {pool.spec.template.spec.node_class_ref.group for pool in pools}
    return KWOK_LATENCIES if groups == {KWOK_GROUP} else Latencies()


def _latencies(latency: Latency, known: Latencies, claims: Iterable[NodeClaim]) -> Latencies:
    """Return the latencies of a script, and the ``known`` ones for those that it omits."""
    if (latency.launching, latency.joining, latency.ready) == (None, None, None):
        known = with_recorded_joins(known, claims)

    def seconds(name: str, plain: float) -> float:
        text = getattr(latency, name)
        return plain if text is None else _parse_span(text).total_seconds()

    def pair(name: str) -> tuple[float, float]:
        texts = getattr(latency, name)
        plain: tuple[float, float] = getattr(known, name)
        if texts is None:
            return plain
        least, most = (_parse_span(text).total_seconds() for text in texts)
        if least > most:
            raise _usage_error(f"latencies.{name}: {texts[0]} is more than {texts[1]}")
        return (least, most)

    return Latencies(
        pair("launching"),
        pair("joining"),
        seconds("ready", known.ready),
        seconds("starting", known.starting),
        seconds("leaving", 0.0) if latency.leaving is not None else None,
        pair("stopping"),
        known.recorded_joins,
    )


P = TypeVar("P")


class KilledError(BaseException):
    """The daemon is killed here; nothing of the engine may catch this."""

    def __init__(self, step: int, what: str, restart: timedelta) -> None:
        self.restart = restart
        super().__init__(f"after step {step}, {what}")


@dataclass
class Steps:
    """Counts the steps of the daemon across restarts; after each step in ``kills`` it dies."""

    kills: Mapping[int, timedelta]
    counted: int = 0

    def count(self, what: str) -> None:
        """Count a step.

        Raises:
            KilledError: the daemon is killed after this step.
        """
        self.counted += 1
        restart = self.kills.get(self.counted)
        if restart is not None:
            raise KilledError(self.counted, what, restart)


def with_kills(world: World, steps: Steps) -> World:
    """Return the environment of a daemon that may be killed at every step."""
    return replace(
        world,
        store=_count_steps(world.store, "store", steps),
        journal=_count_steps(world.journal, "journal", steps),
        compute=_count_steps(world.compute, "compute", steps),
        cluster=_count_steps(world.cluster, "cluster", steps),
    )


def _count_steps(port: P, name: str, steps: Steps) -> P:
    return cast("P", _CountedPort(port, name, steps))


class _CountedPort:
    """A port whose effects are steps."""

    def __init__(self, port: object, name: str, steps: Steps) -> None:
        self._port, self._name, self._steps = port, name, steps

    def __getattr__(self, method: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._port, method)
        if method not in _STEPS[self._name]:
            return real

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self._steps.count(f"{self._name}.{method}")
            return result

        return counted
