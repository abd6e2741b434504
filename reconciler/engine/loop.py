"""Pass after pass: ``converge`` until nothing is left to do, ``run`` for ever.

A pass that cannot look at the world, or cannot read git, decides nothing: it is told, and tried
again later, ever more slowly. What is under way keeps the pulse short; otherwise the loop sleeps
until git, the cluster or the clock gives a reason to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from reconciler.engine.desired import Desired, DesiredSource
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.engine.world import World
from reconciler.model.errors import ReconcilerError, StalePlanError, TransientCloudError
from reconciler.plan.plan import Plan

PAUSE_MAX: Final = 60.0


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
        NotConvergedError: ``deadline`` has passed.
    """
    until = world.clock.now() + deadline
    desired = source.read()
    failures = 0
    while True:
        try:
            result = reconcile(world, desired, mandate)
        except TransientCloudError as error:
            failures += 1
            _expect_time(world, until, str(error))
            world.tell("Retrying", str(error))
            world.clock.wait(_backoff(failures, pulse), stop)
            continue
        failures = 0
        if mandate.approved is not None:
            mandate = replace(mandate, approved=None, decides=False)
        elif result.is_quiet:
            return result
        if stop():
            return result
        _expect_time(world, until, f"{result.under_way} things are still under way")
        world.clock.wait(pulse.busy, stop)


def _expect_time(world: World, until: datetime, why: str) -> None:
    if world.clock.now() >= until:
        raise NotConvergedError(
            f"not converged in time: {why}", remedy="run `reconciler apply` again: it goes on"
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

    Desired state is read again when its fingerprint changes. A revision that is invalid is told
    and not carried out: the last good one stays in force.
    """
    desired: Desired | None = None
    fingerprint = ""
    failures = 0
    while not stop():
        try:
            fresh = source.fingerprint()
            if desired is None or fresh != fingerprint:
                desired, fingerprint = _read(world, source, desired), fresh
            if desired is None:
                world.clock.wait(pulse.quiet, stop)
                continue
            result = reconcile(world, desired, mandate)
            failures = 0
        except StalePlanError:
            raise
        except ReconcilerError as error:
            failures += 1
            world.tell("Failed", str(error))
            world.clock.wait(_backoff(failures, pulse), stop)
            continue
        pause = _pause(world, result, pulse, next_change)
        world.clock.wait(pause, partial(_has_reason, stop, source, fingerprint))


def _has_reason(stop: Callable[[], bool], source: DesiredSource, fingerprint: str) -> bool:
    """Return whether to look now: we are to stop, or git has moved."""
    return stop() or source.fingerprint() != fingerprint


def _read(world: World, source: DesiredSource, last: Desired | None) -> Desired | None:
    """Return desired state as it now is, or the last that was valid."""
    try:
        desired = source.read()
    except ReconcilerError as error:
        kept = f"; {last.revision[:12]} stays in force" if last is not None else ""
        world.tell("InvalidRevision", f"{error}{kept}")
        return last
    world.tell("Revision", f"desired state is {desired.revision[:12]}")
    return desired


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
