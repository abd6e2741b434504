"""Pass after pass: ``converge`` until nothing is left to do, ``run`` for ever.

A pass that cannot look at the world, or cannot read git, decides nothing: it is told, and tried
again later, ever more slowly. So is one that fails on a mistake of our own: the daemon goes on, and
the next pass looks up every effect whose outcome is unknown before it decides anything. What is
under way keeps the pulse short; otherwise the loop sleeps until git, the cluster, EC2 or the clock
gives a reason to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from traceback import walk_tb
from typing import Final

from reconciler.engine.desired import Desired, DesiredSource
from reconciler.engine.observation import Observation
from reconciler.engine.ownership import INTENT_TAG
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.engine.world import World
from reconciler.model.duration import format_duration
from reconciler.model.errors import (
    ClockSetBackError,
    ClusterError,
    LeaseLostError,
    ReconcilerError,
    StalePlanError,
    StateError,
    TransientCloudError,
)
from reconciler.model.history import DAY
from reconciler.model.settings import Settings
from reconciler.plan.recall import Recall
from reconciler.plan.value.plan import Plan
from reconciler.ports.clock import Clock

# Taking what is settled and old out of the records, once a day.
#
# The daemon does it after a pass that has seen EC2, so that whatever a launch left behind has
# been dealt with by the record of it; launches whose instances are still shown are kept in any
# case.


EVERY: Final = DAY


@dataclass
class Pruning:
    """The care of one daemon for the size of its records."""

    world: World
    _done_at: datetime | None = None

    def after(self, seen: Observation, settings: Settings) -> None:
        """Remove what is too old, if a day has passed since the last time in this process.

        Records that cannot be used now are tried again a day later: nothing waits for it.
        """
        keep = settings.history_keep
        if keep is None:
            return
        now = self.world.clock.now()
        if self._done_at is not None and now - self._done_at < EVERY:
            return
        self._done_at = now
        needed = frozenset(instance.tags.get(INTENT_TAG, "") for instance in seen.instances)
        try:
            gone = self.world.prune(now, keep, needed)
        except StateError as error:
            self.world.notify("Retrying", f"cannot prune old records, retrying in a day: {error}")
            return
        if gone:
            text = f"removed {gone} settled records older than {format_duration(keep)}"
            self.world.notify("Pruned", f"{text} (history.keep)")


PAUSE_MAX: Final = 60.0
CLOCK_STEP: Final = timedelta(minutes=1)
"""A clock that goes back by no more than this is being corrected, and is waited for."""
TOLD_AGAIN: Final = timedelta(minutes=5)
"""How often a revision that stays invalid is reported."""
_PACKAGE: Final = "reconciler/"
_SAID_MAX: Final = 300
_FINDINGS_MAX: Final = 10
READ_AGAIN: Final = timedelta(minutes=5)
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Pulse:
    """How often to look, in seconds: while things are under way, and when all is quiet."""

    busy: float = 1.0
    quiet: float = 30.0


class NotConvergedError(ReconcilerError):
    """The time was up before everything was done; running it again goes on from here."""


def converge(
    world: World,
    source: DesiredSource,
    mandate: Mandate,
    *,
    deadline: timedelta,
    pulse: Pulse,
    stop: Callable[[], bool] = lambda: False,
) -> Pass:
    """Run passes until one finds nothing to do and nothing under way, and return that pass.

    With an approved plan, the first pass carries out just that, and the others only carry on.

    Raises:
        StalePlanError: the approved plan no longer fits.
        UnknownInstancesError: our tags and our records disagree about some instances.
        NotConvergedError: ``deadline`` has passed.
    """
    until = world.clock.now() + deadline
    recall = Recall()
    desired: Desired | None = None
    failures = 0
    while True:
        try:
            desired = desired or source.read()
            result = reconcile(world, desired, mandate, recall)
        except (TransientCloudError, ClusterError) as error:
            failures += 1
            _expect_time(world, until, str(error), stop)
            world.notify("Retrying", str(error))
            world.clock.wait(_backoff(failures, pulse), stop)
            continue
        if result.seen.doubts:
            raise result.seen.doubts.error()
        failures = failures + 1 if result.all_failed else 0
        until = min(until, world.clock.now() + deadline)  # of a clock that was set back
        if mandate.approved is not None:
            mandate = replace(mandate, approved=None, decides=False)
        elif result.is_quiet:
            return result
        if stop():
            return result
        _expect_time(world, until, f"{result.under_way} operations are still in progress")
        world.clock.wait(_backoff(failures, pulse) if failures else pulse.busy, stop)


def _expect_time(
    world: World, until: datetime, why: str, stop: Callable[[], bool] = lambda: False
) -> None:
    if stop():
        raise NotConvergedError(
            f"stopped before the first observation: {why}",
            remedy="run `reconciler apply` again",
        )
    if world.clock.now() >= until:
        raise NotConvergedError(
            f"not converged in time: {why}", remedy="run `reconciler apply` again to continue"
        )


def _backoff(failures: int, pulse: Pulse) -> float:
    return min(pulse.busy * 2.0 ** min(failures - 1, 10), PAUSE_MAX)


def run(
    world: World,
    source: DesiredSource,
    mandate: Mandate,
    *,
    pulse: Pulse,
    stop: Callable[[], bool],
    next_change: Callable[[Plan], datetime | None],
) -> None:
    """Keep the fleet as git wants it until ``stop`` says so; finish the pass in hand first.

    A revision that is invalid or cannot be read is told and not carried out: the last good one
    stays in force.

    Raises:
        LeaseLostError: another process acts for the fleet, or may soon: acting stopped.
        ClockSetBackError: start anew: what this process remembers is of a time to come.
    """
    in_force = _InForce(world, source)
    recall, pruning = Recall(), Pruning(world)
    failures = 0
    complaint = told = ""

    def is_elsewhere() -> bool:
        return stop() or in_force.has_moved()

    def has_reason() -> bool:
        return is_elsewhere() or world.interruptions.has_news() or world.arrivals.has_news()

    clock = _Forward(world.clock)
    while not stop():
        clock.expect()
        desired = in_force.read()
        if desired is None:
            world.clock.wait(pulse.quiet, is_elsewhere)
            continue
        try:
            world.arrivals.acknowledge()
            result = reconcile(world, desired, mandate, recall)
            pruning.after(result.seen, desired.settings)
            pause = _pause(world, result, pulse, next_change)
        except (StalePlanError, LeaseLostError):
            raise
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the daemon
            failures += 1
            recall = recall if isinstance(error, ReconcilerError) else Recall()
            world.notify("Failed", problem_of(error))
            world.clock.wait(_backoff(failures, pulse), stop)
            continue
        failures = failures + 1 if result.all_failed else 0
        complaint = _complained(world, result, complaint)
        told = _notify_of_findings(world, result, told)
        pause = _backoff(failures, pulse) if failures else pause
        world.clock.wait(pause, has_reason)


@dataclass
class _Forward:
    """Watches that the clock does not go back while the daemon runs."""

    clock: Clock
    _last: datetime | None = None

    def expect(self) -> None:
        """Raise ClockSetBackError if the clock shows much less than when it was last asked."""
        now, last = self.clock.now(), self._last
        self._last = now
        if last is not None and last - now > CLOCK_STEP:
            raise ClockSetBackError((last - now).total_seconds())


def _complained(world: World, result: Pass, before: str) -> str:
    """Tell of instances whose owner is in doubt, once for as long as they are the same."""
    doubts = result.seen.doubts
    if doubts and doubts.summary != before:
        world.notify(
            "Unknown", (f"launches and disruption are suspended: {doubts.summary}; {doubts.remedy}")
        )
    elif before and not doubts:
        world.notify("Resolved", "every instance of this fleet is recorded again")
    return doubts.summary


@dataclass
class _InForce:
    """The last revision that could be read, and what it was read from.

    It is read again when its fingerprint moves, after a failure, and every few minutes: what its
    node classes select in the account changes without git.
    """

    world: World
    source: DesiredSource
    _desired: Desired | None = None
    _tried: str = ""
    _fresh_until: datetime | None = None
    _complaint: str = ""
    _invalid_since: datetime | None = None
    _told_at: datetime | None = None

    def read(self) -> Desired | None:
        """Return desired state as it now is, or the last that was good; None before the first."""
        now, before = self.world.clock.now(), self._desired
        try:
            fingerprint = self.source.fingerprint()
            is_fresh = self._fresh_until is not None and now < self._fresh_until
            if is_fresh and fingerprint == self._tried:
                return before
            self._tried, self._fresh_until = fingerprint, None
            desired = self.source.read()
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - what cannot be read must not end the daemon
            self._complain(problem_of(error))
            return before
        if before is None or desired.revision != before.revision or self._complaint:
            self.world.notify("Revision", f"synced to commit {desired.revision[:12]}")
        self._desired, self._fresh_until = desired, now + READ_AGAIN
        self._complaint, self._invalid_since = "", None
        return desired

    def has_moved(self) -> bool:
        """Return whether git is elsewhere than when it was last tried; never raises."""
        try:
            return self.source.fingerprint() != self._tried
        except Exception:  # noqa: BLE001 - the next read tells what is wrong
            return False

    def _complain(self, problem: str) -> None:
        """Report a problem, again every few minutes with its age, and what stays in force."""
        now = self.world.clock.now()
        since = self._invalid_since = self._invalid_since or now
        if problem == self._complaint and self._told_at and now - self._told_at < TOLD_AGAIN:
            return
        last, age = self._desired, now - since
        kept = f"; {last.revision[:12]} stays in effect" if last is not None else ""
        lasting = f" (for {format_duration(age)})" if age >= _SECOND else ""
        self.world.notify("InvalidRevision", f"{problem}{kept}{lasting}")
        self._complaint, self._told_at = problem, now


def problem_of(error: Exception) -> str:
    """Return what went wrong, in one line.

    An error that nobody expected is a mistake of ours: it is told with where it was made and a
    reference that is the same whenever the same thing goes wrong at the same place.
    """
    if isinstance(error, ReconcilerError):
        return str(error)
    frames = [(f.f_code.co_filename, line) for f, line in walk_tb(error.__traceback__)]
    ours = [(path, line) for path, line in frames if _PACKAGE in path] or frames
    path, line = ours[-1] if ours else ("", 0)
    place = f"{path.rpartition(_PACKAGE)[2]}:{line}"
    reference = sha256(f"{type(error).__name__} {place}".encode()).hexdigest()[:8]
    text = " ".join(str(error).split())[:_SAID_MAX]
    return (
        f"internal error {reference}: {type(error).__name__} at {place}: {text}; it will be "
        "retried; please report it"
    )


def _notify_of_findings(world: World, result: Pass, told: str) -> str:
    """Tell what could not be read of the cluster, where it is not what was told last."""
    problems = [f"{d.message} ({d.hint})" for d in result.seen.snapshot.findings]
    text = "\n".join(problems)
    if text != told:
        for problem in problems[:_FINDINGS_MAX]:
            world.notify("Unreadable", problem)
        if len(problems) > _FINDINGS_MAX:
            world.notify("Unreadable", f"{len(problems) - _FINDINGS_MAX} more objects")
    return text


def _pause(
    world: World, result: Pass, pulse: Pulse, next_change: Callable[[Plan], datetime | None]
) -> float:
    """Return how long nothing can change by itself, in seconds."""
    if not result.is_quiet:
        return pulse.busy
    moment = next_change(result.plan)
    if moment is None:
        return pulse.quiet
    return min(max((moment - world.clock.now()).total_seconds(), 0.0), pulse.quiet)
