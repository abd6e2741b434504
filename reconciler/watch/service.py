"""Watches clusters until it is stopped: a session for each, with its record and its pages.

Each session has a thread. The end does not wait for one that plans, or that an API server keeps
waiting: nothing is lost but the verdicts on the last seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.rights import expect_read_only
from reconciler.adapters.threads import start_thread
from reconciler.assembly.cluster import api_of
from reconciler.assembly.decoding import prepare_decoders
from reconciler.assembly.inputs.records import open_recorded, settings_of
from reconciler.assembly.monitoring import expect_web, serve_pages
from reconciler.notifications.watched import WatchNotices
from reconciler.watch.causes import read_events
from reconciler.watch.end.quiet import EndWatch
from reconciler.watch.end.simulating import EndSimulations
from reconciler.watch.livecluster import watched_cluster
from reconciler.watch.planning import planner_of
from reconciler.watch.report import describe_miss, report_of, summary_lines
from reconciler.watch.session import KEPT, KarpenterWatch

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.database.state import DatabaseState
    from reconciler.assembly.inputs.request import FleetRequest, ServingRequest
    from reconciler.model.errors import ReconcilerError
    from reconciler.model.karpenter.prediction import Prediction, Score
    from reconciler.model.settings import Settings
    from reconciler.ports.clock import Clock
    from reconciler.watch.episodes.episode import Episode
    from reconciler.watch.observed import WatchRecorder
    from reconciler.watch.serving import WatchPages
    from reconciler.watch.session import ClusterObservation, PlannedCluster

    Publish = Callable[[ClusterObservation, datetime], None]
    Show = Callable[[str, Sequence[Score]], WatchPages | None]

ENDS_WITHIN_S: Final = 10.0
"""How long the sessions may take to end once they are stopped."""
_GLANCE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class WatchedContext:
    """A cluster to watch.

    ``name`` is shown to people. ``interval`` is the time between two observations. ``on_start``
    receives which API server is watched, once there is a prediction. ``on_scored`` receives each
    score, and ``warn`` what could not be read or written. ``may_write`` is whether credentials that
    could write are accepted.
    """

    name: str
    fleet: FleetRequest
    interval: timedelta
    on_start: Callable[[str], None]
    on_scored: Callable[[Score], None]
    warn: Callable[[object], None]
    may_write: bool = False
    save: Callable[[Episode], str] | None = None
    publish: Publish | None = None


@dataclass(frozen=True, slots=True)
class _Observer:
    """Records, passes on and shows what a session does (``session.WatchObserver``)."""

    cluster: WatchedContext
    recorder: WatchRecorder
    pages: WatchPages | None
    notices: WatchNotices | None
    clock: Clock

    def planned(self, planned: PlannedCluster, prediction: Prediction) -> None:
        """Record the workload and its cost, and show the plan."""
        from reconciler.watch.observed import watched_pass

        if planned.inputs is None:
            return
        done = watched_pass(planned.inputs, planned.plan)
        if self.pages is not None:
            self.pages.show_pass(done, prediction)
        if self.notices is not None:
            self.notices.record_plan(planned.plan)
        self.recorder.record(done)

    def step_ended(self) -> None:
        """Record that the session works."""
        if self.pages is not None:
            self.pages.health.record_pass()
        if self.notices is not None:
            self.notices.step(self.clock.now())

    def show_score(self, score: Score) -> None:
        """Pass on and show a score."""
        self.cluster.on_scored(score)
        if self.pages is not None:
            self.pages.show_score(score)
        if self.notices is not None:
            self.notices.record_score(score)

    def show_problem(self, problem: ReconcilerError) -> None:
        """Warn of a problem, and show it."""
        self.cluster.warn(problem)
        if self.pages is not None:
            self.pages.show_problem(problem)


def watch_clusters(
    clusters: Sequence[WatchedContext],
    stop: Callable[[], bool],
    serving: ServingRequest,
    on_served: Callable[[str], None] = lambda _: None,
) -> None:
    """Watch the clusters until ``stop`` is true; ``on_served`` takes the URL of the pages.

    Raises:
        UsageError: credentials could write, or an address cannot be used.
        ReconcilerError: a cluster cannot be read at the start, or a record cannot be written.
    """
    clock = SystemClock()
    for one in clusters:
        api = api_of(settings_of(one.fleet).settings, clock)
        expect_read_only(api, may_write=one.may_write)
    prepare_decoders()  # the watches run in threads
    with _pages(serving, clock, len(clusters), on_served) as show:
        stopped = Event()
        with ExitStack() as simulations:
            running = []
            for one in clusters:
                ends = simulations.enter_context(closing(EndSimulations()))
                session = partial(_watch, one, stopped, clock, show, ends)
                running.append(start_thread(f"watch-{one.name}", session))
            while not (stop() or any(future.done() for future in running)):
                wait(running, _GLANCE_S, FIRST_COMPLETED)
            stopped.set()
        ended, _ = wait(running, ENDS_WITHIN_S)
        for future in ended:
            future.result()


@contextmanager
def _pages(
    serving: ServingRequest, clock: Clock, count: int, on_served: Callable[[str], None]
) -> Iterator[Show]:
    """Serve pages while the block runs; yield what adds those of one of ``count`` clusters."""
    if not (serving.listen or serving.probes):
        yield lambda _name, _scores: None
        return
    expect_web()
    from reconciler.watch.serving import WatchPages
    from reconciler.web.fleets import WatchedFleets
    from reconciler.web.server import make_app, make_fleets_app

    fleets = WatchedFleets()
    with ExitStack() as stack:

        def show_one(name: str, scores: Sequence[Score]) -> WatchPages:
            pages = WatchPages(name, scores, clock.now)
            app = make_app
            served = serve_pages(
                serving,
                lambda access: app(
                    pages.metrics, pages.health, pages.dashboard, access, pages.routes()
                ),
                pages.health,
            )
            on_served(stack.enter_context(served))
            return pages

        def show_among_others(name: str, scores: Sequence[Score]) -> WatchPages:
            pages = WatchPages(name, scores, clock.now, is_one_of_several=True)
            fleets.show(name, pages)
            if len(fleets.fleets()) == count:
                fleets.expected = count  # until then, the process is not ready
            return pages

        if count > 1:
            served = serve_pages(serving, lambda access: make_fleets_app(fleets, access), fleets)
            on_served(stack.enter_context(served))
        yield show_among_others if count > 1 else show_one


def _watch(
    cluster: WatchedContext,
    stopped: Event,
    clock: Clock,
    show: Show,
    simulations: EndSimulations,
) -> None:
    """Watch one cluster until ``stopped`` is set."""
    from reconciler.assembly.assembly import usage_writer
    from reconciler.watch.observed import WatchRecorder

    settings = settings_of(cluster.fleet).settings
    api = api_of(settings, clock)
    with ExitStack() as stack:
        recorded = stack.enter_context(open_recorded(cluster.fleet, create=True, needs_lease=False))
        state = recorded.state
        pages = show(cluster.name, state.predictions.scores(clock.now() - KEPT))
        recorder = WatchRecorder(state.trace, usage_writer(state.shelf))
        notices = stack.enter_context(watch_notices(cluster.name, settings, state, clock))
        observer = _Observer(cluster, recorder, pages, notices, clock)
        live = stack.enter_context(watched_cluster(api, api_of(settings, clock), settings))
        session = KarpenterWatch(
            live.observe,
            planner_of(cluster.fleet),
            state.predictions,
            cluster.save,
            observer.show_score,
            observer.show_problem,
            lambda: read_events(api),
            cluster.publish,
            observer,
            EndWatch(
                state.predictions,
                simulations.end_of,
                partial(start_thread, "end"),
                observer.show_problem,
                cluster.warn,
            ),
        )
        session.step(clock.now())
        cluster.on_start(str(api.access))
        while not stopped.wait(cluster.interval.total_seconds()):
            session.step(clock.now())


@contextmanager
def watch_notices(
    name: str, settings: Settings, state: DatabaseState, clock: Clock
) -> Iterator[WatchNotices | None]:
    """Deliver notices about a cluster while the block runs; None without a webhook."""
    if not settings.webhooks:
        yield None
        return
    from reconciler.notifications.delivery import DeliveryQueue
    from reconciler.notifications.observer import RecordedNotices

    def week_report(since: datetime) -> list[str]:
        return summary_lines(report_of(state.predictions.scores(since), since))

    with DeliveryQueue(clock) as queue:
        sent = RecordedNotices(queue, state.shelf, settings.webhooks)
        yield WatchNotices(name, sent, describe_miss, week_report)
