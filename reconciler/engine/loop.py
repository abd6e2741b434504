"""The loops over passes: ``converge`` until nothing is left to do, ``run`` until stopped.

A pass that cannot observe the world or read git decides nothing. The failure is reported and the
pass is retried with growing delays. The same holds for an internal error: the daemon continues, and
the next pass checks every effect whose outcome is unknown before it decides anything. While
operations are in progress the interval is short; otherwise the loop sleeps until git, the cluster,
EC2 or the clock gives a reason for a pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from traceback import walk_tb
from typing import Final, Protocol

from reconciler.engine.observation import Observation
from reconciler.engine.ownership import INTENT_TAG
from reconciler.engine.planning import DesiredSource, PlannedFleet
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.engine.workloadtrace import WorkloadRecorder
from reconciler.engine.world import World
from reconciler.model.duration import format_duration
from reconciler.model.errors import (
    ClockSetBackError,
    ClusterError,
    LeaseLostError,
    ReconcilerError,
    SettingsChangedError,
    StalePlanError,
    StateError,
    TransientCloudError,
)
from reconciler.model.history import DAY
from reconciler.model.settings import Settings
from reconciler.model.text.counting import format_count
from reconciler.model.text.identifiers import name_revision, short_commit
from reconciler.placement.work import with_pulse
from reconciler.plan.plancache import PlanCache
from reconciler.plan.render.wording import removal_texts
from reconciler.plan.value.plan import Plan
from reconciler.ports.clock import Clock
from reconciler.ports.progress import CommitName, EventKind
from reconciler.ports.state import RevisionProblem

# The daemon prunes once a day, after a pass that has observed EC2: recovery has used the records of
# launches by then. Launches whose instances EC2 still shows are kept in any case.
PRUNE_INTERVAL: Final = DAY

PAUSE_MAX: Final = 60.0
CLOCK_STEP: Final = timedelta(minutes=1)
"""A clock that goes back by no more than this is being adjusted, which is no reason to restart."""
REPORT_INTERVAL: Final = timedelta(minutes=5)
"""How often a revision that stays invalid is reported."""
_PACKAGE: Final = "reconciler/"
_TEXT_MAX: Final = 300
_FINDINGS_MAX: Final = 10
_NUMBERS: Final = re.compile(r"\d+")
REREAD_INTERVAL: Final = timedelta(minutes=5)
_SECOND: Final = timedelta(seconds=1)


@dataclass
class Pruning:
    """Removes settled and old records once a day, for one daemon."""

    world: World
    _done_at: datetime | None = None

    def prune_daily(self, seen: Observation, settings: Settings) -> None:
        """Remove old records, if this process has not done so within the last day.

        A failure is retried a day later: nothing waits for it.
        """
        keep = settings.history_keep
        if keep is None:
            return
        now = self.world.clock.now()
        if self._done_at is not None and now - self._done_at < PRUNE_INTERVAL:
            return
        self._done_at = now
        needed = frozenset(instance.tags.get(INTENT_TAG, "") for instance in seen.instances)
        try:
            removed = self.world.prune(now, keep, needed)
        except StateError as error:
            self.world.notify(
                EventKind.RETRYING, f"cannot prune old records, retrying in a day: {error}"
            )
            return
        if removed:
            text = f"removed {removed} settled records older than {format_duration(keep)}"
            self.world.notify(EventKind.PRUNED, f"{text} (history.keep)")


@dataclass(frozen=True, slots=True)
class PassIntervals:
    """Seconds between passes: while operations are in progress, and otherwise."""

    busy: float = 1.0
    quiet: float = 30.0


class PassObserver(Protocol):
    """Watches the passes of a daemon, for metrics and health checks. No method raises."""

    def pass_started(self) -> None:
        """A pass starts."""

    def pass_ended(self, world: World, desired: PlannedFleet, result: Pass) -> None:
        """The pass has ended."""

    def pass_failed(self, problem: str) -> None:
        """The pass has failed."""


class NoObserver:
    """Watches nothing."""

    def pass_started(self) -> None:
        """Do nothing."""

    def pass_ended(self, world: World, desired: PlannedFleet, result: Pass) -> None:
        """Do nothing."""

    def pass_failed(self, problem: str) -> None:
        """Do nothing."""


class NotConvergedError(ReconcilerError):
    """The deadline passed before everything was done; another run continues from here."""


def converge(
    world: World,
    source: DesiredSource,
    mandate: Mandate,
    *,
    deadline: timedelta,
    intervals: PassIntervals,
    stop: Callable[[], bool] = lambda: False,
) -> Pass:
    """Run passes until one finds nothing to do and nothing under way, and return that pass.

    With an approved plan, the first pass applies exactly that plan. Later passes only finish what
    it began, unless the mandate ``continues``.

    Raises:
        StalePlanError: the approved plan no longer fits.
        UnknownInstancesError: our tags and our records disagree about some instances.
        NotConvergedError: ``deadline`` has passed.
    """
    until = world.clock.now() + deadline
    cache = PlanCache()
    desired: PlannedFleet | None = None
    failures = 0
    while True:
        try:
            desired = desired or source.read()
            result = reconcile(world, desired, mandate, cache)
        except (TransientCloudError, ClusterError) as error:
            failures += 1
            _check_deadline(world, until, str(error), stop)
            world.notify(EventKind.RETRYING, str(error))
            world.clock.wait(_backoff(failures, intervals), stop)
            continue
        if result.seen.unclear_owners:
            raise result.seen.unclear_owners.error()
        failures = failures + 1 if result.all_failed else 0
        until = min(until, world.clock.now() + deadline)  # the clock may have been set back
        if mandate.approved is not None:
            mandate = replace(mandate, approved=None, decides=mandate.continues)
        elif result.is_quiet:
            return result
        if stop():
            return result
        _check_deadline(
            world, until, f"still in progress: {format_count(result.under_way, 'operation')}"
        )
        world.clock.wait(_backoff(failures, intervals) if failures else intervals.busy, stop)


def _check_deadline(
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


def _backoff(failures: int, intervals: PassIntervals) -> float:
    return min(intervals.busy * 2.0 ** min(failures - 1, 10), PAUSE_MAX)


def run(
    world: World,
    source: DesiredSource,
    mandate: Mandate,
    *,
    intervals: PassIntervals,
    stop: Callable[[], bool],
    next_change: Callable[[Plan], datetime | None],
    observer: PassObserver | None = None,
    observed: Callable[[Observation], None] = lambda _: None,
    alive: Callable[[], object] = lambda: None,
) -> None:
    """Keep the fleet as git declares it until ``stop`` returns True; a started pass is finished.

    A revision that is invalid or cannot be read is reported and not applied: the last valid one
    stays in effect. ``observed`` receives what each pass observed. ``alive`` is called again and
    again within a pass, so that a long one is not taken for one that hangs.

    Raises:
        LeaseLostError: another process acts for the fleet, or may soon: acting stopped.
        SettingsChangedError: a revision changes what the adapters use: make them again.
        ClockSetBackError: restart the engine: its records in memory are dated in the future.
    """
    current, clock = _CurrentRevision(world, source), _ClockCheck(world.clock)
    world = replace(world, span=_reporting_spans(world.span, alive))
    cache, pruning, reports = PlanCache(alive=alive), Pruning(world), _Reports(world)
    recorder = WorkloadRecorder(world.trace) if world.trace is not None else None
    observer, failures = observer or NoObserver(), 0

    def is_outdated() -> bool:
        return stop() or current.has_changed()

    def has_events() -> bool:
        return is_outdated() or world.interruptions.has_events() or world.arrivals.has_events()

    while not stop():
        clock.check()
        desired = current.read()
        if desired is None:
            world.clock.wait(intervals.quiet, is_outdated)
            continue
        try:
            with with_pulse(alive):
                result = _run_pass(world, desired, mandate, cache, observer)
            observed(result.seen)
            if recorder is not None:
                recorder.record_pass(world, result.seen, desired)
            pruning.prune_daily(result.seen, desired.settings)
            pause = _seconds_to_next_pass(world, result, intervals, next_change)
        except (StalePlanError, LeaseLostError):
            raise
        except Exception as error:  # noqa: BLE001 - an internal error must not end the daemon
            failures += 1
            cache = cache if isinstance(error, ReconcilerError) else PlanCache(alive=alive)
            _report_failure(world, observer, describe_error(error))
            world.clock.wait(_backoff(failures, intervals), stop)
            continue
        failures = failures + 1 if result.all_failed else 0
        reports.report(result)
        world.clock.wait(_backoff(failures, intervals) if failures else pause, has_events)


def _run_pass(
    world: World,
    desired: PlannedFleet,
    mandate: Mandate,
    cache: PlanCache,
    observer: PassObserver,
) -> Pass:
    observer.pass_started()
    world.arrivals.acknowledge()
    result = reconcile(world, desired, mandate, cache)
    observer.pass_ended(world, desired, result)
    return result


def _report_failure(world: World, observer: PassObserver, problem: str) -> None:
    observer.pass_failed(problem)
    world.notify(EventKind.FAILED, problem)


def _reporting_spans(
    span: Callable[[str], AbstractContextManager[object]], alive: Callable[[], object]
) -> Callable[[str], AbstractContextManager[object]]:
    """Return the spans of a world's steps, each of which is a sign of life."""

    def start(name: str) -> AbstractContextManager[object]:
        alive()
        return span(name)

    return start


@dataclass
class _ClockCheck:
    """Detects a clock that is set back while the daemon runs."""

    clock: Clock
    _last: datetime | None = None

    def check(self) -> None:
        """Raise ClockSetBackError if the clock is well behind its previous reading."""
        now, last = self.clock.now(), self._last
        self._last = now
        if last is not None and last - now > CLOCK_STEP:
            raise ClockSetBackError((last - now).total_seconds())


@dataclass
class _CurrentRevision:
    """The last revision that could be read, and its fingerprint.

    It is read again when the fingerprint changes, after a failure, and every few minutes, since
    what node classes select in the account changes without git.
    """

    world: World
    source: DesiredSource
    _desired: PlannedFleet | None = None
    _tried_fingerprint: str = ""
    _fresh_until: datetime | None = None
    _problem: str = ""
    _invalid_since: datetime | None = None
    _reported_at: datetime | None = None

    def read(self) -> PlannedFleet | None:
        """Return the current desired state, or the last valid one; None before the first."""
        now, before, is_read = self.world.clock.now(), self._desired, False
        try:
            fingerprint = self.source.fingerprint()
            is_fresh = self._fresh_until is not None and now < self._fresh_until
            if is_fresh and fingerprint == self._tried_fingerprint:
                return before
            self._tried_fingerprint, self._fresh_until = fingerprint, None
            is_read = True
            desired = self.source.read()
        except (LeaseLostError, SettingsChangedError):
            raise
        except Exception as error:  # noqa: BLE001 - an unreadable revision must not end the daemon
            at = self.source.last_read() if is_read else CommitName()
            self._report_problem(describe_error(error), at)
            return before
        if before is None or desired.revision != before.revision or self._problem:
            self.world.notify(EventKind.REVISION, f"synced to {name_revision(desired.revision)}")
        self._desired, self._fresh_until = desired, now + REREAD_INTERVAL
        if before is None or self._problem:  # a process before this one may have kept a problem
            self._keep_problem(None)
        self._problem, self._invalid_since = "", None
        return desired

    def has_changed(self) -> bool:
        """Return whether git has changed since the last attempt; never raises."""
        try:
            return self.source.fingerprint() != self._tried_fingerprint
        except Exception:  # noqa: BLE001 - the next read reports the problem
            return False

    def _report_problem(self, problem: str, at: CommitName) -> None:
        """Report a problem of a commit and what stays in effect, again every few minutes."""
        now = self.world.clock.now()
        since = self._invalid_since = self._invalid_since or now
        if (
            problem == self._problem
            and self._reported_at
            and now - self._reported_at < REPORT_INTERVAL
        ):
            return
        last, age = self._desired, now - since
        fallback = f"; {short_commit(last.revision)} stays in effect" if last is not None else ""
        lasting = f" (for {format_duration(age)})" if age >= _SECOND else ""
        message = f"{problem}{fallback}{lasting}"
        self.world.notify(EventKind.INVALID_REVISION, message, facts=at._asdict())
        self._keep_problem(RevisionProblem(problem, since))
        self._problem, self._reported_at = problem, now

    def _keep_problem(self, problem: RevisionProblem | None) -> None:
        """Keep the problem for `status`; a state that cannot be written ends no daemon here."""
        try:
            self.world.keep_problem(problem)
        except LeaseLostError:
            raise
        except ReconcilerError as error:
            self.world.notify(EventKind.RETRYING, str(error))


def describe_error(error: Exception) -> str:
    """Return a one-line description of a failure.

    An unexpected error is a defect of this program. It is reported with its place in the code and
    a reference that is the same for every occurrence of the same error at the same place.
    """
    if isinstance(error, ReconcilerError):
        return str(error)
    frames = [(f.f_code.co_filename, line) for f, line in walk_tb(error.__traceback__)]
    ours = [(path, line) for path, line in frames if _PACKAGE in path] or frames
    path, line = ours[-1] if ours else ("", 0)
    place = f"{path.rpartition(_PACKAGE)[2]}:{line}"
    reference = sha256(f"{type(error).__name__} {place}".encode()).hexdigest()[:8]
    text = " ".join(str(error).split())[:_TEXT_MAX]
    return (
        f"internal error {reference}: {type(error).__name__} at {place}: {text}; it will be "
        "retried; please report it"
    )


@dataclass
class _Reports:
    """What was reported last of the passes, so that nothing is repeated while it stays the same."""

    world: World
    _unclear_owners: str = ""
    _findings: str = ""
    _removals: str = ""
    _limits: str = ""

    def report(self, result: Pass) -> None:
        """Report what a pass found that the one before it did not."""
        self._report_unclear_owners(result)
        self._report_findings(result)
        self._report_removals(result)
        self._report_limits(result)

    def _report_unclear_owners(self, result: Pass) -> None:
        doubts, before = result.seen.unclear_owners, self._unclear_owners
        if doubts and doubts.summary != before:
            self.world.notify(
                EventKind.UNKNOWN,
                f"launches and disruption are suspended: {doubts.summary}; {doubts.remedy}",
            )
        elif before and not doubts:
            self.world.notify(EventKind.RESOLVED, "the owner of every node is clear again")
        self._unclear_owners = doubts.summary

    def _report_findings(self, result: Pass) -> None:
        """Report which objects of the cluster could not be read."""
        problems = [f"{d.message} ({d.hint})" for d in result.seen.snapshot.findings]
        text = "\n".join(problems)
        if text != self._findings:
            for problem in problems[:_FINDINGS_MAX]:
                self.world.notify(EventKind.UNREADABLE, problem)
            if len(problems) > _FINDINGS_MAX:
                others = f"{len(problems) - _FINDINGS_MAX} more objects"
                self.world.notify(EventKind.UNREADABLE, others)
        self._findings = text

    def _report_removals(self, result: Pass) -> None:
        """Report which nodes stay although git no longer has their NodePool."""
        texts = removal_texts(result.plan.deferred)
        joined = "\n".join(texts)
        if joined != self._removals:
            for text in texts:
                self.world.notify(EventKind.AWAITING_APPROVAL, text)
        self._removals = joined

    def _report_limits(self, result: Pass) -> None:
        """Report the namespaces whose pods wait for lack of work, once while they are the same."""
        limits = [d for d in result.plan.diagnostics if d.code == "placement-limit"]
        named = _NUMBERS.sub("", "\n".join(limit.message for limit in limits))
        if named != self._limits:
            for limit in limits:
                self.world.notify(EventKind.WORK_LIMITED, f"{limit.message} ({limit.hint})")
        self._limits = named


def _seconds_to_next_pass(
    world: World,
    result: Pass,
    intervals: PassIntervals,
    next_change: Callable[[Plan], datetime | None],
) -> float:
    """Return the seconds until something can change without an event."""
    if not result.is_quiet and not (result.plan.is_empty and result.only_waits):
        return intervals.busy
    moment = next_change(result.plan)
    if moment is None:
        return intervals.quiet
    return min(max((moment - world.clock.now()).total_seconds(), 0.0), intervals.quiet)
