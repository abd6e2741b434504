"""How fast EC2 may be called: a bucket of tokens for each family of operations.

EC2 refills such buckets for each account and region; whoever empties one is refused until it
fills again, and everybody else in the account with him. We keep below by ourselves. A refusal all
the same means that others call too: the rate is halved, and comes back little by little.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, NamedTuple

from reconciler.adapters.aws.errors import Failure, failure_of_code
from reconciler.ports import Clock

LEAST: Final = 1 / 16
"""The share of its rate that a bucket keeps however often EC2 refuses."""

RECOVERY: Final = timedelta(seconds=10)
"""After this time without a refusal, a tenth of the rate is restored."""


class Rate(NamedTuple):
    """Tokens a second, and how many a bucket holds."""

    refill: float
    burst: float


READING: Final = "reading"
MUTATING: Final = "mutating"
RATES: Final = {
    READING: Rate(20, 100),
    MUTATING: Rate(5, 50),
    "RunInstances": Rate(2, 5),
    "TerminateInstances": Rate(5, 100),
    "CreateTags": Rate(10, 100),
}
"""EC2's own figures (aws reference 6.5); an operation that is named has a bucket of its own."""

_READS: Final = ("Describe", "Get", "List", "Search")


def family_of(operation: str) -> str:
    """Return which bucket a call of EC2 takes its token from."""
    if operation in RATES:
        return operation
    return READING if operation.startswith(_READS) else MUTATING


class Bucket:
    """Tokens that refill with time; several threads may take from it."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = Lock()
        self._tokens = rate.burst
        self._at = clock.now()
        self._share = 1.0
        self._refused_at: datetime | None = None

    @property
    def refill(self) -> float:
        """Tokens a second, as things stand."""
        return self._rate.refill * self._share

    def take(self) -> float:
        """Take a token, and return the seconds to wait before it may be used.

        Who comes later waits longer: each token is promised once.
        """
        with self._lock:
            self._advance()
            self._tokens -= 1
            return max(0.0, -self._tokens / self.refill)

    def refused(self) -> None:
        """Note that EC2 had no token for us, whatever we believed: slow down."""
        with self._lock:
            self._advance()
            self._tokens = min(self._tokens, 0.0)
            self._share = max(LEAST, self._share / 2)
            self._refused_at = self._at

    def _advance(self) -> None:
        now = self._clock.now()
        passed = max(0.0, (now - self._at).total_seconds())
        self._at = max(now, self._at)
        self._tokens = min(self._rate.burst, self._tokens + passed * self.refill)
        if self._refused_at is not None:
            steps = (now - self._refused_at) // RECOVERY
            if steps > 0:
                self._share = min(1.0, self._share + 0.1 * steps)
                self._refused_at += steps * RECOVERY


class Throttle:
    """The buckets of one account and region, shared by all who call there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.buckets = {family: Bucket(rate, clock) for family, rate in RATES.items()}

    def watch(self, client: Any) -> None:
        """Let every attempt of a client of EC2 wait for its token, and hear how it went.

        botocore's own repetitions are attempts like any other.
        """
        client.meta.events.register("before-send.ec2", self._wait)
        client.meta.events.register("response-received.ec2", self._hear)

    def _wait(self, event_name: str, **_: Any) -> None:
        seconds = self.buckets[_family(event_name)].take()
        if seconds > 0:
            self._clock.wait(seconds, lambda: False)

    def _hear(self, event_name: str, parsed_response: Any = None, **_: Any) -> None:
        code = ((parsed_response or {}).get("Error") or {}).get("Code", "")
        if code and failure_of_code(code) is Failure.THROTTLED:
            self.buckets[_family(event_name)].refused()


def _family(event_name: str) -> str:
    return family_of(event_name.rpartition(".")[2])
